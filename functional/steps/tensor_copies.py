"""Copies of boxes of tensors: `cp.async.bulk.tensor`, its reductions and prefetches, and changes of tensor maps.

A box has its elements at addresses of global memory, some of them outside the tensor; in shared memory they lie one
behind the other, exchanged by the swizzle of the map.

One thread copies, at once, as all asynchronous copies are. A box is a box, pixels under the taps of a filter, or four
rows. Sources: PTX ISA, "Tensors": a box lies in shared memory innermost axis first, without gaps but for those of
padded elements; swizzles exchange its 16-byte units by address; an mbarrier counts bytes of global memory. tf32 is
rounded to the nearest, ties to even (PTX does not say how). "Tiled mode", "im2col mode", "tile::gather4 and
tile::scatter4 modes"; CUDA driver API, `cuTensorMapEncodeIm2col`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from math import prod
from typing import NamedTuple

import numpy as np
from msgspec.structs import replace

from functional.arrays import Bool, Int64
from functional.errors import InputError
from functional.isa.operation import RAW_BY_BYTES, Unsupported, as_address, as_number, refuse_if
from functional.isa.slots import Slots
from functional.launches.memory import GLOBAL_BASE
from functional.launches.views import AXIS_FIELDS, BYTES, FIELDS, MAGIC, TensorMap, decode
from functional.ptx.ir import CLUSTER_SHARED, Instruction, parts_of
from functional.steps.async_copies import COMPLETES, MULTICAST, passes_of, targets_of
from functional.steps.atomics import OPERATIONS, reduce_into, reduction
from functional.steps.machine import Frame, Getter, Step, getter
from functional.steps.mbarriers import log_touched
from functional.steps.memory_ops import SPACES, Lanes, Place, record, split
from functional.traces.trace import SECTOR_BYTES

ROWS = 4  # of a gather


class Elements(NamedTuple):
    """Bytes of elements behind the tensor's first, in the order of shared memory, and whether they are inside it."""

    at: Int64[np.ndarray, " element"]
    inside: Bool[np.ndarray, " element"]


def tile(tensor: TensorMap, first: Sequence[int], offsets: Sequence[int]) -> Elements:
    """A box that begins at the element `first`."""
    _check(tensor, first, len(tensor.size), tiled=True)
    counts, taken = tensor.counts, tensor.taken
    along = zip(first, counts, taken, tensor.size, strict=True)
    if all(c >= 0 and c + (n - 1) * s < whole for c, n, s, whole in along):
        strides = tensor.element_bytes, *tensor.strides_bytes
        found = _inside(strides, counts, taken)
        return found._replace(at=found.at + sum(c * stride for c, stride in zip(first, strides, strict=True)))
    return _product(tensor, [c + np.arange(n) * s for c, n, s in zip(first, counts, taken, strict=True)])


@lru_cache(64)
def _inside(strides: tuple[int, ...], counts: tuple[int, ...], taken: tuple[int, ...]) -> Elements:
    """A box at the tensor's first element, wholly inside."""
    at = np.zeros(1, np.int64)
    for stride, count, step in zip(strides[::-1], counts[::-1], taken[::-1], strict=True):
        at = (at[:, None] + np.arange(count) * (step * stride)).reshape(-1)
    return Elements(at, np.ones(len(at), bool))


def four_rows(tensor: TensorMap, first: Sequence[int], offsets: Sequence[int]) -> Elements:
    """The same columns, from the first coordinate on, of the rows that the other four name."""
    if len(tensor.size) != 2 or tensor.counts[1] != 1:
        raise InputError(f"four rows are of a tensor of two axes and boxes of one row, not of boxes of {tensor.box}")
    _check(tensor, first, 1 + ROWS, tiled=True)
    return _product(tensor, [first[0] + np.arange(tensor.counts[0]), np.array(first[1:])])


def im2col(tensor: TensorMap, first: Sequence[int], offsets: Sequence[int]) -> Elements:
    """Channels, from the first coordinate on, of as many pixels as the map says. They begin at the other coordinates
    and go, by the map's steps, through its window of an image and on into the next image; `offsets` lead from each to
    the pixel that is taken."""
    _check(tensor, first, len(tensor.size), tiled=False)
    if len(offsets) not in (0, len(tensor.size) - 2):
        raise InputError(f"{len(offsets)} offsets for a tensor of {len(tensor.size)} axes")
    pixels = _pixels(tensor, first[1:])
    pixels[:, : len(offsets)] += np.array(offsets, np.int64)
    channels = first[0] + np.arange(tensor.box[0], dtype=np.int64)
    within = (pixels >= 0) & (pixels < np.array(tensor.size[1:]))
    inside: np.ndarray = np.logical_and.reduce(within, axis=1)
    at = pixels @ np.array(tensor.strides_bytes, np.int64)
    inside = inside[:, None] & (channels >= 0) & (channels < tensor.size[0])
    return Elements((at[:, None] + channels * tensor.element_bytes).reshape(-1), inside.reshape(-1))


Mode = Callable[[TensorMap, Sequence[int], Sequence[int]], Elements]
MODES: dict[str, Mode] = {
    "tile": tile, "im2col": im2col, "im2col_no_offs": im2col, "tile::gather4": four_rows, "tile::scatter4": four_rows,
}  # fmt: skip


def _check(tensor: TensorMap, first: Sequence[int], wanted: int, tiled: bool) -> None:
    if len(first) != wanted:
        raise InputError(f"{len(first)} coordinates for a tensor of {len(tensor.size)} axes")
    if tiled != (not tensor.pixels):
        raise InputError(f"the tensor map is for {'tiles' if not tensor.pixels else 'im2col'}, the copy is not")


def _product(tensor: TensorMap, along: Sequence[np.ndarray]) -> Elements:
    """All combinations of indices along the axes, the innermost first and fastest."""
    at, inside = np.zeros(1, np.int64), np.ones(1, bool)
    strides = (tensor.element_bytes, *tensor.strides_bytes)
    for axis in reversed(range(len(along))):
        there = (along[axis] >= 0) & (along[axis] < tensor.size[axis])
        at = (at[:, None] + along[axis].astype(np.int64) * strides[axis]).reshape(-1)
        inside = (inside[:, None] & there).reshape(-1)
    return Elements(at, inside)


def _pixels(tensor: TensorMap, first: Sequence[int]) -> Int64[np.ndarray, "pixel axis"]:
    """Places in the window, one behind the other: along the innermost axis, then the next; the last counts images."""
    spaces = range(len(tensor.lower))
    ends = [tensor.size[1 + axis] - 1 + tensor.upper[axis] for axis in spaces]
    place, found = list(first), []
    for _ in range(tensor.pixels):
        found.append(list(place))
        for axis in spaces:
            place[axis] += tensor.taken[1 + axis]
            if place[axis] <= ends[axis]:
                break
            place[axis] = tensor.lower[axis]
        else:
            place[-1] += 1
    return np.array(found, np.int64)


_WORD_BYTES = 8
_COPY = ("cp_fenceproxy", "global", "shared", "tensormap::generic", "release")


def tensor_map_step(slots: Slots, inst: Instruction) -> Step:
    """`tensormap.replace.tile.FIELD[.space].b1024.{b32,b64} [map], [axis,] value`; the rank less 1. Or a map's copy."""
    if inst.modifiers[0] == "cp_fenceproxy":
        return _copy_step(slots, inst)
    field, rest = inst.modifiers[2], [m for m in inst.modifiers[3:] if m not in ("global", "shared")]
    refuse_if(inst.modifiers[:2] != ("replace", "tile") or field not in FIELDS)
    refuse_if(rest[:1] != ["b1024"] or len(rest) != 2)
    start, size = FIELDS[field]
    address, *axis, value = inst.sources
    refuse_if(len(axis) != (field in AXIS_FIELDS))
    for which in axis:
        refuse_if(not 0 <= as_number(which) < (4 if field == "global_stride" else 5))
        start += size * as_number(which)
    place, given = Place(slots, inst, address), getter(slots, value, rest[1])
    more = np.uint64(field == "rank")

    def step(frame: Frame) -> None:
        parts = place.parts(frame)
        for part in parts:
            offsets = _of_map(part)
            base = offsets[part.chosen].reshape(-1, 1)
            data = (frame.full(given(frame)).astype(np.uint64) + more)[part.chosen].reshape(-1, 1).view(np.uint8)
            part.look("stores", offsets + start, size)
            part.words(1)[base + start + np.arange(size)] = data[:, :size]
            # kernels make maps out of zeros, too
            part.words(1)[base + np.arange(len(MAGIC))] = np.frombuffer(MAGIC, np.uint8)
        record(frame, place.space == "shared", _WORD_BYTES, parts)

    return step


def _of_map(part: Lanes) -> np.ndarray:
    """Checked offsets [row, 32] of maps, whose halves are aligned."""
    offsets = part.frame.full(part.offsets(BYTES // 2))
    part.offsets(BYTES // 2, BYTES // 2)
    return offsets


def _copy_step(slots: Slots, inst: Instruction) -> Step:
    """`tensormap.cp_fenceproxy.global.shared::cta.tensormap::generic.release.SCOPE.sync.aligned [to], [from], 128`."""
    to, source, size = inst.sources
    refuse_if(inst.modifiers[:5] != _COPY or as_number(size) != BYTES)
    into, from_ = Place(slots, inst, to, "global"), Place(slots, inst, source, "shared")

    def step(frame: Frame) -> None:
        parts = [from_.parts(frame), into.parts(frame)]
        for read, written in zip(*parts, strict=True):
            at = [_of_map(part)[read.chosen][..., None] + np.arange(BYTES) for part in (read, written)]
            read.frame.machine.watch.note_writes(at[1], 1)
            written.words(1)[at[1]] = read.words(1)[at[0]]
        record(frame, False, BYTES, parts[1])

    return step


_LOAD_ALIGNMENT_BYTES = 128
_LINE_BYTES = 128  # after which the next unit is exchanged with the first
_PAIR = "cta_group::2"
_GROUPS = ("cta_group::1", _PAIR)


def is_tensor_copy(inst: Instruction) -> bool:
    """`cp[.reduce].async.bulk.tensor`."""
    return "tensor" in inst.modifiers and "bulk" in inst.modifiers and "prefetch" not in inst.modifiers


def _form_of(inst: Instruction) -> tuple[str, int, tuple[str, ...], list[str], str]:
    """(mode, axes, what is behind their number, thread blocks, reduction) of a copy. Raises Unsupported for modes that
    are not in MODES, and for one that is of loads alone, or of stores."""
    modes = [m for m in inst.modifiers if m in MODES] or ["tile"]
    modifiers = [m for m in inst.modifiers if m not in ("L2::cache_hint", *modes, *_GROUPS)]
    reduces = modifiers[0] == "reduce"
    axes, form = modifiers[3 + reduces], tuple(modifiers[4 + reduces :])
    name, loads = form[2] if reduces and len(form) == 4 else "", form[:1] != ("global",)
    expected = ("global", "shared", *([name] if reduces else []), "bulk_group")
    refuse_if(modifiers[reduces : 3 + reduces] != ["async", "bulk", "tensor"] or modes[1:])
    refuse_if(loads and (form[:1] not in (("shared",), (CLUSTER_SHARED,)) or form[1:] not in _LOADS or reduces))
    refuse_if(not loads and (form != expected or (reduces and name not in OPERATIONS)))
    refuse_if(modes[0] in (_OF_STORES if loads else _OF_LOADS))
    return modes[0], int(axes[:-1]), form, [m for m in inst.modifiers if m in _GROUPS], name


_OF_LOADS, _OF_STORES = ("im2col", "tile::gather4"), ("im2col_no_offs", "tile::scatter4")
_LOADS = (("global", COMPLETES), ("global", COMPLETES, MULTICAST))


def tensor_copy_step(slots: Slots, inst: Instruction) -> Step:
    """The step of a `cp[.reduce].async.bulk.tensor.{1d,2d,3d,4d,5d}`."""
    (mode, axes, form, group, reduction), operands = _form_of(inst), list(inst.sources)
    if "L2::cache_hint" in inst.modifiers:
        operands.pop()
    loads = form[0] != "global"
    to = as_address(operands.pop(0) if loads else operands.pop(2))
    origin, given, *rest = operands
    taps = parts_of(rest.pop(1)) if mode == "im2col" and len(rest) > 1 else ()
    points = parts_of(given)
    if mode in ("tile::gather4", "tile::scatter4"):
        refuse_if(axes != 2 or len(points) != 1 + ROWS)
    else:
        refuse_if(len(points) != axes or len(taps) != (axes - 2 if mode == "im2col" else 0))
    refuse_if(len(group) > loads or len(rest) != loads + (MULTICAST in form) or None in (*points, *taps))
    barrier, blocks = as_address(rest[0]) if rest else None, rest[1] if len(rest) > 1 else None
    space, place = form[0] if loads else "shared", Place(slots, inst, origin, "generic")
    coordinates = [getter(slots, c, "s32") for c in points if c is not None]
    offsets = [getter(slots, c, "u16") for c in taps if c is not None]
    targets = targets_of(slots, inst, to, barrier, blocks, space, group == [_PAIR])

    def step(frame: Frame) -> None:
        boxes = {
            where: Box(frame, inst, *where, tensor, MODES[mode], coordinates, offsets, bool(reduction))
            for where, tensor in _maps(place.parts(frame))
        }
        for target in targets(frame):
            parts = list(split(frame, inst, space, target.addresses, target.lanes))
            for part in parts:
                for where, box in boxes.items():
                    if part.lanes[where]:
                        box.run(part, loads, reduction)
            target.complete(_box_bytes(frame, boxes))
        touched: dict[int, list[np.ndarray]] = {}
        for (row, _), box in boxes.items():
            touched.setdefault(row, []).append(box.sectors)
        log_touched(frame, touched, passes_of(_box_bytes(frame, boxes)).sum(axis=1))

    return step


def _box_bytes(frame: Frame, boxes: dict[tuple[int, int], Box]) -> np.ndarray:
    """Bytes [row, lane] that a copy brings, elements outside the tensor too."""
    sizes = np.zeros((frame.count, 32), np.int64)
    for where, box in boxes.items():
        sizes[where] = box.bytes
    return sizes


def _maps(parts: list[Lanes]) -> Iterator[tuple[tuple[int, int], TensorMap]]:
    """The map that each active lane names, by (row, lane)."""
    for part in parts:
        offsets, data = _of_map(part), part.words(1)
        for row, lane in np.argwhere(part.lanes).tolist():
            at = int(offsets[row, lane])
            try:
                yield (row, lane), decode(data[at : at + BYTES].tobytes())
            except InputError as error:
                raise part.frame.fault(part.inst, str(error), row, lane) from None


def in_wide_words(tensor: TensorMap, first: Sequence[int]) -> tuple[TensorMap, list[int]] | None:
    """The same tensor of words of 8 bytes, and a place in it, where whole words move as they are; None elsewhere."""
    many = 8 // tensor.element_bytes
    moves = tensor.packing is None and not tensor.pixels and not tensor.fill_nan and tensor.element[:2] != "tf"
    if not moves or tensor.element.endswith(".ftz") or first[0] % many or tensor.size[0] % many:
        return None
    if tensor.box[0] % many or tensor.address % 8 or any(stride % 8 for stride in tensor.strides_bytes):
        return None
    size, box = ((along[0] // many, *along[1:]) for along in (tensor.size, tensor.box))
    return replace(tensor, element="u64", size=size, box=box), [first[0] // many, *first[1:]]


class Box:
    """The box that one lane copies: byte offsets of its elements in global and shared memory, innermost axis first."""

    def __init__(
        self, frame: Frame, inst: Instruction, row: int, lane: int, tensor: TensorMap, mode: Mode,
        coordinates: list[Getter], offsets: list[Getter], reduces: bool,
    ) -> None:  # fmt: skip
        self.frame, self.inst, self.row, self.lane, self.packing = frame, inst, row, lane, tensor.packing
        self.tensor = tensor.in_words
        size, limit = prod(self.tensor.counts) * self.tensor.element_bytes, SPACES["shared"].limit(frame.machine)
        if size > limit and not tensor.pixels:
            raise self._fault(f"a box of {size} bytes is out of bounds: shared memory has {limit} bytes")
        first, taps = ([int(frame.full(get(frame))[row, lane]) for get in given] for given in (coordinates, offsets))
        try:
            wide = None if reduces or frame.machine.watch.strict else in_wide_words(tensor, first)
            fits = wide is not None and self._locate(*wide, mode, taps)
            if not fits and self.packing is not None:  # a coordinate of words, in place of less than a byte
                if first[0] % self.packing.step:
                    raise InputError(f"coordinate {first[0]} of elements that lie {self.packing.step} together")
                first = [self.packing.of(first[0]), *first[1:]]
            fits = fits or self._locate(tensor.in_words, first, mode, taps)
        except InputError as error:
            raise self._fault(str(error)) from None
        memory = frame.machine.memory
        if not fits and not (valid := memory.valid(self.places.astype(np.uint64), self.element_bytes)).all():
            wrong = int(self.places[~valid][0])
            raise self._fault(f"an element at {wrong:#x} is out of bounds: {memory.describe(wrong)}")

    def _locate(self, tensor: TensorMap, first: Sequence[int], mode: Mode, taps: Sequence[int]) -> bool:
        """Take the elements for those of `tensor`; do they all lie in one buffer?"""
        at, self.inside = mode(tensor, first, taps)
        self.tensor, self.element_bytes = tensor, tensor.element_bytes
        self.bytes = len(at) * self.element_bytes
        self.places = tensor.address + at[self.inside]
        if not len(self.places):
            return True
        starts, ends = self.frame.machine.memory.ranges()
        region = int(np.searchsorted(starts, int(self.places.min()), side="right")) - 1
        return region >= 0 and int(self.places.max()) + self.element_bytes <= int(ends[region])

    @property
    def sectors(self) -> np.ndarray:
        """Numbers of the sectors of global memory that it touches."""
        found = self.places // SECTOR_BYTES
        steps = np.diff(found, prepend=-1)
        return found[steps != 0] if (steps >= 0).all() else np.unique(found)

    def _offsets(self) -> np.ndarray:
        """Of its elements behind the first one in shared memory, bytes."""
        count = self.bytes // self.element_bytes
        if self.packing is None:
            return np.arange(count) * self.element_bytes
        unit, word = np.divmod(np.arange(count), self.packing.words)
        return unit * self.packing.pitch_bytes + word * self.element_bytes

    def run(self, part: Lanes, loads: bool, reduction: str) -> None:
        """Load or store it, or join it with what is there; `part` has the address in shared memory."""
        if self.packing is not None and (reduction or (self.packing.padded and not loads)):
            raise self._fault("elements of 4 and 6 bits are not reduced, and padded ones loaded alone")
        address = int(self.frame.full(part.addresses)[self.row, self.lane])
        if address % _LOAD_ALIGNMENT_BYTES:
            raise self._fault(f"shared address {address:#x} is no multiple of {_LOAD_ALIGNMENT_BYTES}")
        linear = address + self._offsets()
        unit = self.tensor.swizzle_unit_bytes
        swizzled = linear ^ (linear // (_LINE_BYTES // unit) & max(self.tensor.swizzle_bytes - unit, 0))
        inside = self._checked(part, swizzled)
        machine = self.frame.machine
        shared = part.words(self.element_bytes)
        world = machine.globals.words[self.element_bytes]
        there, here = (self.places - GLOBAL_BASE) // self.element_bytes, inside // self.element_bytes
        self._watch(part.space.name, inside, loads)
        if loads:
            shared[here] = self._filled(world[there])
        elif reduction:
            self._reduced(reduction, shared[here[self.inside]])
        else:
            world[there] = shared[here[self.inside]]

    def _checked(self, part: Lanes, addresses: np.ndarray) -> np.ndarray:
        """Byte offsets of the elements in the storage of shared memory. Raises ExecutionError out of bounds."""
        places = part.offsets(self.element_bytes), part.addresses
        own, named = (int(self.frame.full(place)[self.row, self.lane]) for place in places)
        limit, first = part.space.limit(self.frame.machine), int(addresses.min())
        start = own % self.frame.machine.shared_stride
        if start + int(addresses.max()) - first + self.element_bytes > limit:
            raise self._fault(f"a box of {self.bytes} bytes is out of bounds: shared memory has {limit} bytes")
        return addresses + (own - named)

    def _filled(self, loaded: np.ndarray) -> np.ndarray:
        """All elements of the box: what was loaded, and what stands for elements outside the tensor."""
        kind = self.tensor.element
        values = np.zeros(len(self.inside), RAW_BY_BYTES[self.element_bytes])
        if self.tensor.fill_nan:
            values[:] = values.dtype.type(-1 & (1 << 8 * self.element_bytes - 1) - 1)
        if kind.startswith("tf32"):
            # The lowest 13 bits are rounded away, to nearest even; infinities and NaNs stay
            special = (loaded & np.uint32(0x7F800000)) == np.uint32(0x7F800000)
            odd = (loaded >> np.uint32(13)) & np.uint32(1)
            rounded = (loaded + np.uint32(0xFFF) + odd) & np.uint32(0xFFFFE000)
            loaded = np.where(special, loaded, rounded)
        if kind.endswith(".ftz"):
            tiny = (loaded & np.uint32(0x7F800000)) == 0
            loaded = np.where(tiny, loaded & np.uint32(1 << 31), loaded)
        values[self.inside] = loaded
        return values

    def _reduced(self, name: str, values: np.ndarray) -> None:
        kind = self.tensor.element.removesuffix(".ftz")
        if name in ("and", "or", "xor"):
            kind = f"b{8 * self.element_bytes}"
        try:
            update = reduction(name, kind)
        except (Unsupported, KeyError):
            raise self._fault(f"'{name}' of elements {self.tensor.element} is not supported") from None
        data = np.ascontiguousarray(values).view(np.uint8).reshape(len(values), self.element_bytes)
        reduce_into(self.frame.machine.globals, kind, update, self.places - GLOBAL_BASE, data)

    def _watch(self, space: str, inside: np.ndarray, loads: bool) -> None:
        watch = self.frame.machine.watch
        if not watch.follows_copies:
            return
        place = self.row, self.lane
        shared, world = (space, inside), ("global", self.places - GLOBAL_BASE)
        for (name, starts), writes in ((shared, loads), (world, not loads)):
            watch.box(self.frame, self.inst, place, name, starts, self.element_bytes, writes)

    def _fault(self, message: str) -> Exception:
        return self.frame.fault(self.inst, message, self.row, self.lane)
