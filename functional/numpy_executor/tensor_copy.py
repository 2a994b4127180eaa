"""`cp.async.bulk.tensor` and `cp.reduce.async.bulk.tensor`: one thread copies a box of a tensor, which a tensor map
describes (functional.launches.tensor_map), between global and shared memory.
Done at once, as all asynchronous copies are.

Source: PTX ISA, "Tensors": a box lies in shared memory innermost axis first, without gaps but for those of padded
elements; swizzles exchange its 16-byte units by address; an mbarrier counts bytes of global memory. tf32 is rounded to
the nearest, ties to even (PTX does not say how).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from functional.errors import InputError
from functional.isa.operation import Unsupported
from functional.launches.memory import GLOBAL_BASE
from functional.launches.tensor_map import BYTES, TensorMap, decode
from functional.numpy_executor.bulk_copy import MULTICAST, passes_of, targets_of
from functional.numpy_executor.memory_ops import address_getter, split
from functional.numpy_executor.operands import Getter, getter, guard_getter
from functional.numpy_executor.reductions import OPERATIONS, reduction
from functional.numpy_executor.tensor_boxes import MODES, ROWS, Elements
from functional.numpy_executor.touched import log_touched
from functional.ptx.ir import CLUSTER_SHARED, Address, Instruction, Operand, Vector
from functional.traces.trace import SECTOR_BYTES

if TYPE_CHECKING:
    from functional.numpy_executor.frame import Frame
    from functional.numpy_executor.slots import Slots
    from functional.numpy_executor.spaces import Lanes

Step = Callable[["Frame"], None]
Mode = Callable[[TensorMap, Sequence[int], Sequence[int]], Elements]
_COMPLETES = "mbarrier::complete_tx::bytes"
_LOAD_ALIGNMENT_BYTES = 128
_LINE_BYTES = 128  # after which the next unit is exchanged with the first
_PAIR = "cta_group::2"
_GROUPS = ("cta_group::1", _PAIR)
_BITS_BY_BYTES = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}


class TensorCopy(NamedTuple):
    """The operands: the mode, where the map lies, coordinates of the box's first element, offsets of im2col, shared
    memory, the barrier that counts the bytes of a load, the mask of thread blocks that get them, whether that barrier
    may be the other one's of a pair of thread blocks; how a store is joined with what is there."""

    mode: str
    map: Address
    coordinates: tuple[Operand | None, ...]
    offsets: tuple[Operand | None, ...]
    shared: Address
    space: str
    barrier: Address | None
    blocks: Operand | None
    paired: bool
    reduction: str


def is_tensor_copy(inst: Instruction) -> bool:
    """`cp[.reduce].async.bulk.tensor`."""
    return "tensor" in inst.modifiers and "bulk" in inst.modifiers and "prefetch" not in inst.modifiers


def tensor_copy_of(inst: Instruction) -> TensorCopy:
    """The operands. Raises Unsupported for modes that are not in MODES."""
    modes = [m for m in inst.modifiers if m in MODES] or ["tile"]
    modifiers, operands = [m for m in inst.modifiers if m not in ("L2::cache_hint", *modes)], list(inst.sources)
    group = [modifiers.pop(modifiers.index(m)) for m in _GROUPS if m in modifiers]
    if "L2::cache_hint" in inst.modifiers:
        operands.pop()
    reduces = modifiers[0] == "reduce"
    axes, form = modifiers[3 + reduces], tuple(modifiers[4 + reduces :])
    if modifiers[reduces : 3 + reduces] != ["async", "bulk", "tensor"]:
        raise Unsupported
    loads = form[:1] != ("global",)
    name = form[2] if reduces and len(form) == 4 else ""
    expected = ("global", "shared", *([name] if reduces else []), "bulk_group")
    if loads and (form[:1] not in (("shared",), (CLUSTER_SHARED,)) or form[1:] not in _LOADS or reduces):
        raise Unsupported
    if not loads and (form != expected or (reduces and name not in OPERATIONS)):
        raise Unsupported
    to = operands.pop(0) if loads else operands.pop(2)
    place, coordinates, *rest = operands
    taps = rest.pop(1).elements if modes == ["im2col"] and loads and len(rest) > 1 else ()  # type: ignore[union-attr]
    if not isinstance(coordinates, Vector) or not _fits(modes, loads, int(axes[:-1]), coordinates, taps):
        raise Unsupported
    if (
        len(group) > loads
        or len(rest) != loads + (MULTICAST in form)
        or not all(isinstance(o, Address) for o in (place, to, *rest[:1]))
    ):
        raise Unsupported
    barrier, blocks = rest[0] if rest else None, rest[1] if len(rest) > 1 else None
    space = form[0] if loads else "shared"
    paired = group == [_PAIR]
    return TensorCopy(modes[0], place, coordinates.elements, taps, to, space, barrier, blocks, paired, name)  # type: ignore[arg-type]


def _fits(modes: list[str], loads: bool, axes: int, coordinates: Vector, taps: tuple) -> bool:
    """Is a mode one of loads or of stores, as it is named, with its number of coordinates and offsets?"""
    (mode, *others), count = modes, len(coordinates.elements)
    if others or mode in (_OF_STORES if loads else _OF_LOADS):
        return False
    if mode in ("tile::gather4", "tile::scatter4"):
        return axes == 2 and count == 1 + ROWS
    return count == axes and len(taps) == (axes - 2 if mode == "im2col" else 0)


_OF_LOADS, _OF_STORES = ("im2col", "tile::gather4"), ("im2col_no_offs", "tile::scatter4")


_LOADS = (("global", _COMPLETES), ("global", _COMPLETES, MULTICAST))


def tensor_copy_step(slots: Slots, inst: Instruction) -> Step:
    """The step of a `cp.async.bulk.tensor.{1d,2d,3d,4d,5d}`."""
    copy, guard = tensor_copy_of(inst), guard_getter(slots, inst.guard)
    place = address_getter(slots, copy.map, "generic")
    coordinates = [getter(slots, c, "s32") for c in copy.coordinates if c is not None]
    offsets = [getter(slots, c, "u16") for c in copy.offsets if c is not None]
    if len(coordinates) != len(copy.coordinates) or len(offsets) != len(copy.offsets):
        raise Unsupported
    mode = MODES[copy.mode]
    targets = targets_of(slots, inst, copy.shared, copy.barrier, copy.blocks, copy.space, copy.paired)

    def step(frame: Frame) -> None:
        lanes = None if guard is None else frame.set_guard(guard)
        boxes = {
            where: Box(frame, inst, *where, tensor, mode, coordinates, offsets)
            for where, tensor in _maps(frame, inst, split(frame, inst, "generic", place(frame), lanes))
        }
        for target in targets(frame, lanes):
            parts = list(split(frame, inst, copy.space, target.addresses, target.lanes))
            for part in parts:
                for (row, lane), box in boxes.items():
                    if part.active is None or part.active[row, lane]:
                        box.run(part, copy)
            target.complete(frame, _box_bytes(frame, boxes))
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


def _maps(frame: Frame, inst: Instruction, parts: Iterator[Lanes]) -> Iterator[tuple[tuple[int, int], TensorMap]]:
    """The map that each active lane names, by (row, lane)."""
    for part in parts:
        offsets = frame.full(part.space.offsets(frame, inst, part.addresses, 64))
        last = part.space.offsets(frame, inst, part.addresses + part.addresses.dtype.type(64), 64)
        assert last is not None
        data = part.space.storage(frame.machine).data
        active = np.ones(offsets.shape, bool) if part.active is None else part.active
        for row, lane in zip(*(i.tolist() for i in np.nonzero(active)), strict=True):
            at = int(offsets[row, lane])
            try:
                yield (row, lane), decode(data[at : at + BYTES].tobytes())
            except InputError as error:
                raise frame.machine.fault(inst, str(error), int(frame.index[row]), lane) from None


class Box:
    """The box that one lane copies: byte offsets of its elements in global and in shared memory, innermost axis
    first."""

    def __init__(
        self, frame: Frame, inst: Instruction, row: int, lane: int, tensor: TensorMap, mode: Mode,
        coordinates: list[Getter], offsets: list[Getter],
    ) -> None:  # fmt: skip
        self.frame, self.inst, self.row, self.lane, self.packing = frame, inst, row, lane, tensor.packing
        self.tensor = tensor.in_words
        first, taps = ([int(frame.full(get(frame))[row, lane]) for get in given] for given in (coordinates, offsets))
        try:
            at, self.inside = mode(self.tensor, self._in_words(first), taps)
        except InputError as error:
            raise self._fault(str(error)) from None
        self.element_bytes = self.tensor.element_bytes
        self.bytes = len(at) * self.element_bytes
        self.places = tensor.address + at[self.inside]
        valid = frame.machine.memory.valid(self.places.astype(np.uint64), self.element_bytes)
        if not valid.all():
            wrong = int(self.places[~valid][0])
            raise self._fault(f"an element at {wrong:#x} is out of bounds: {frame.machine.memory.describe(wrong)}")

    @property
    def sectors(self) -> np.ndarray:
        """Numbers of the sectors of global memory that it touches."""
        return np.unique(self.places // SECTOR_BYTES)

    def _in_words(self, first: list[int]) -> list[int]:
        """Coordinates, of words in place of elements that are less than a byte. Raises InputError."""
        if self.packing is None:
            return first
        if first[0] % self.packing.step:
            raise InputError(f"coordinate {first[0]} of elements that lie {self.packing.step} together")
        return [self.packing.of(first[0]), *first[1:]]

    def _offsets(self) -> np.ndarray:
        """Of its elements behind the first one in shared memory, bytes."""
        count = self.bytes // self.element_bytes
        if self.packing is None:
            return np.arange(count) * self.element_bytes
        unit, word = np.divmod(np.arange(count), self.packing.words)
        return unit * self.packing.pitch_bytes + word * self.element_bytes

    def run(self, part: Lanes, copy: TensorCopy) -> None:
        """Load or store it; `part` has the address in shared memory."""
        if self.packing is not None and (copy.reduction or (self.packing.padded and copy.barrier is None)):
            raise self._fault("elements of 4 and 6 bits are not reduced, and padded ones loaded alone")
        address = int(self.frame.full(part.addresses)[self.row, self.lane])
        if address % _LOAD_ALIGNMENT_BYTES:
            raise self._fault(f"shared address {address:#x} is no multiple of {_LOAD_ALIGNMENT_BYTES}")
        linear = address + self._offsets()
        unit = self.tensor.swizzle_unit_bytes
        swizzled = linear ^ (linear // (_LINE_BYTES // unit) & max(self.tensor.swizzle_bytes - unit, 0))
        inside = self._checked(part, swizzled)
        machine = self.frame.machine
        shared = part.space.storage(machine).words[self.element_bytes]
        world = machine.globals.words[self.element_bytes]
        there, here = (self.places - GLOBAL_BASE) // self.element_bytes, inside // self.element_bytes
        self._watch(part.space.name, inside, copy)
        if copy.barrier is not None:
            shared[here] = self._filled(world[there])
        elif copy.reduction:
            self._reduced(copy.reduction, shared[here[self.inside]])
        else:
            world[there] = shared[here[self.inside]]

    def _checked(self, part: Lanes, addresses: np.ndarray) -> np.ndarray:
        """Byte offsets of the elements in the storage of shared memory. Raises ExecutionError out of bounds."""
        own = self.frame.full(part.space.offsets(self.frame, self.inst, part.addresses, self.element_bytes))
        base = int(own[self.row, self.lane]) - int(self.frame.full(part.addresses)[self.row, self.lane])
        limit, first = part.space.limit(self.frame.machine), int(addresses.min())
        start = int(own[self.row, self.lane]) % self.frame.machine.shared_stride
        if start + int(addresses.max()) - first + self.element_bytes > limit:
            raise self._fault(f"a box of {self.bytes} bytes is out of bounds: shared memory has {limit} bytes")
        return addresses + base

    def _filled(self, loaded: np.ndarray) -> np.ndarray:
        """All elements of the box: what was loaded, and what stands for elements outside the tensor."""
        kind = self.tensor.element
        values = np.zeros(len(self.inside), _BITS_BY_BYTES[self.element_bytes])
        if self.tensor.fill_nan:
            values[:] = values.dtype.type(-1 & (1 << 8 * self.element_bytes - 1) - 1)
        if kind.startswith("tf32"):
            loaded = _to_tf32(loaded)
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
            found = reduction(name, kind)
        except (Unsupported, KeyError):
            raise self._fault(f"'{name}' of elements {self.tensor.element} is not supported") from None
        data = np.ascontiguousarray(values).view(np.uint8).reshape(len(values), self.element_bytes)
        found.apply(self.frame.machine.globals, self.places - GLOBAL_BASE, data)

    def _watch(self, space: str, inside: np.ndarray, copy: TensorCopy) -> None:
        watch = self.frame.machine.watch
        if watch is None:
            return
        loads, place = copy.barrier is not None, (self.row, self.lane)
        shared, world = (space, inside), ("global", self.places - GLOBAL_BASE)
        for (name, starts), writes in ((shared, loads), (world, not loads)):
            watch.box(self.frame, self.inst, place, name, starts, self.element_bytes, writes)

    def _fault(self, message: str) -> Exception:
        return self.frame.machine.fault(self.inst, message, int(self.frame.index[self.row]), self.lane)


def _to_tf32(bits: np.ndarray) -> np.ndarray:
    """float32 bits with the lowest 13 bits rounded away, to nearest even; infinities and NaNs as they are."""
    special = (bits & np.uint32(0x7F800000)) == np.uint32(0x7F800000)
    odd = (bits >> np.uint32(13)) & np.uint32(1)
    rounded = (bits + np.uint32(0xFFF) + odd) & np.uint32(0xFFFFE000)
    return np.where(special, bits, rounded)
