"""`wgmma.mma_async`: a product of 64 rows by four warps, B and perhaps A in shared memory. Done when it is issued,
which is a legal execution: accumulators may be read, and shared memory written, only after `wgmma.wait_group`.

Each warp makes its 16 rows, and goes on when all four have: one of them may then tell others that it is done.
A descriptor says where a matrix lies (matrix_descriptor.py). Source: PTX ISA, "Asynchronous Warpgroup Level Matrix
Instructions"."""

import re
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from functional.errors import refuse
from functional.isa import matrices
from functional.isa.operation import Unsupported, refuse_if
from functional.isa.slots import Slots
from functional.programs.program import BasicBlock
from functional.ptx.ir import Immediate, Instruction, Operand, Register, Vector, parts_of
from functional.steps import mma
from functional.steps.barriers import WARPGROUP
from functional.steps.machine import Frame, Getter, Step, Terminator, getter
from functional.steps.memory_ops import SPACES

_UNIT_BYTES = 16
_HOPPER_WIDTHS = {0: 0, 1: 128, 2: 64, 3: 32}  # swizzle, bytes, by the number in a descriptor
_WIDE = 1  # 128 bytes, of units of 32
_BLACKWELL_WIDTHS = {0: 0, _WIDE: 128, 2: 128, 4: 64, 6: 32}
_LINE_BYTES = 128
_BLACKWELL_VERSION = 1


class Descriptor(NamedTuple):
    """Of a matrix in shared memory, of `wgmma` and `tcgen05`: where it begins, its two strides, how wide its swizzle is
    (0: none), and what that exchanges, all in bytes.

    It lies in 8 by 16-byte core matrices, or in rows of a swizzle's width whose units are exchanged by address: of 16
    bytes, or, where M or N lies innermost, of 32. Source: PTX ISA, "Matrix Descriptor Format" and "Shared memory
    descriptor"; canonical layouts of CUTLASS."""

    start: int
    leading: int
    stride: int
    width: int
    unit: int = _UNIT_BYTES

    @property
    def wide(self) -> bool:
        """Whether units of 32 bytes are exchanged."""
        return self.unit > _UNIT_BYTES


def of_blackwell(word: int) -> Descriptor:
    """Of `tcgen05`. Raises ValueError, with what is wrong, for one that cannot be had."""
    if word >> 46 & 7 != _BLACKWELL_VERSION:
        raise ValueError(f"bits 46 to 48 of a descriptor are 0b001, not {word >> 46 & 7:#05b}")
    refuse(word >> 52 & 1, "a descriptor with an absolute leading address is not supported", ValueError)
    refuse(word >> 61 not in _BLACKWELL_WIDTHS, f"swizzle {word >> 61} of a descriptor is not supported", ValueError)
    found = _descriptor(word, _BLACKWELL_WIDTHS[word >> 61])
    return found._replace(unit=2 * _UNIT_BYTES) if word >> 61 == _WIDE else found


def _descriptor(word: int, width: int) -> Descriptor:
    refuse(width and word >> 49 & 7, "a descriptor with a base offset is not supported", ValueError)
    start, leading, stride = ((word >> shift & 0x3FFF) << 4 for shift in (0, 16, 32))
    return Descriptor(start, leading, stride, width)


def addresses_of(matrix: Descriptor, along: np.ndarray, depth: np.ndarray, size: int, transposed: bool) -> np.ndarray:
    """Shared addresses [extent, k] of elements of `size` bytes; `transposed`: M or N lies innermost, not K. Raises
    ValueError for a swizzle that is none of such a matrix."""
    start, leading, stride, width, unit = matrix
    if matrix.wide and not transposed:
        raise ValueError("swizzles of 32-byte units are of matrices that have M or N innermost")
    mn, k = along[:, None], depth[None, :]
    if transposed:
        per = (width or _UNIT_BYTES) // size
        group, period = (leading, stride) if width else (stride, leading)
        rows = _LINE_BYTES // unit  # until the exchange repeats
        offset = mn % per * size + mn // per * group + k % rows * (width or _UNIT_BYTES) + k // rows * period
    elif width:
        offset = mn % 8 * width + mn // 8 * stride + k * size
    else:
        per = _UNIT_BYTES // size
        offset = mn % 8 * _UNIT_BYTES + mn // 8 * stride + k % per * size + k // per * leading
    at = start + offset
    return at ^ (at // (_LINE_BYTES // unit) & max(width - unit, 0))


_SOURCES = frozenset({"f16", "bf16", "tf32", "e4m3", "e5m2", "s8", "u8", "b1"})
_K_BYTES, _ROWS, _WARPS = 32, 16, 4


def _form_of(inst: Instruction) -> tuple[int, int, Sequence[matrices.Element], frozenset[str]]:
    """(columns, depth, types of D, A and B, options) of
    `wgmma.mma_async[.sp].sync.aligned.m64nNkK[.satfinite].D.A.B[.and.popc]`. Raises Unsupported."""
    (plain, options), sparse = matrices.without_options(inst), matrices.is_sparse(inst)
    head, rest = tuple(plain[:3]), plain[3:]
    refuse_if(head != ("mma_async", "sync", "aligned") or len(rest) != 4 or inst.guard is not None)
    shape, d, a, b = rest
    extents = re.fullmatch(r"m64n(\d+)k(\d+)", shape)
    if extents is None or a not in _SOURCES or d not in matrices.results_of(a):
        raise Unsupported
    refuse_if(matrices.family_of(a) != matrices.family_of(b))
    columns, depth = int(extents[1]), int(extents[2])
    refuse_if(columns % 8 or not 8 <= columns <= 256 or depth * matrices.element(a).bits != 8 * _K_BYTES * (1 + sparse))
    allowed: tuple[set[str], ...] = (set(), {"satfinite"}) if a in ("s8", "u8") else (set(),)
    refuse_if(options not in (({"and", "popc"},) if a == "b1" else allowed) or (sparse and a == "b1"))
    return columns, depth, (matrices.element(d), matrices.element(a), matrices.element(b)), options


def _numbers(numbers: list[Operand], kind: str, registers: bool) -> tuple[float, tuple[bool, bool]]:
    """(the sign of the product, is A, is B stored with M or N innermost?) of the immediates behind the predicate."""
    values = [n.value for n in numbers if isinstance(n, Immediate)]
    wide = kind in ("f16", "bf16")
    expected = 0 if kind in ("s8", "u8", "b1") else 2 + wide * (2 - registers)
    refuse_if(len(values) != expected or len(numbers) != expected)
    refuse_if(any(v not in (1, -1) for v in values[:2]) or any(v not in (0, 1) for v in values[2:]))
    sign = float(values[0] * values[1]) if values else 1.0
    trans = [bool(v) for v in values[2:]]
    return sign, ((False if registers else trans[0]), trans[-1]) if trans else (False, False)


def product_step(slots: Slots, inst: Instruction) -> Step:
    """The step of a `wgmma.mma_async`, of the 16 rows of each warp."""
    (columns, depth, kinds, options), destination = _form_of(inst), inst.destinations[0]
    first, second, *operands, accumulators = inst.sources  # the accumulators are read, too (_lower.py)
    metadata, (scale, *numbers) = (operands[:2], operands[2:]) if matrices.is_sparse(inst) else ([], operands)
    sign, transposed = _numbers(numbers, kinds[1].name, isinstance(first, Vector))
    before, setters = mma.registers_of(slots, accumulators, kinds[0]), mma.setters_of(slots, destination, kinds[0])
    refuse_if(len(setters) * kinds[0].per_register != columns // 2)
    plain = kinds[0].name == "f32" and kinds[1].name in matrices.FLOAT_ELEMENTS and not metadata
    held = [[slots.register(r) for r in parts_of(o) if isinstance(r, Register)] for o in (accumulators, destination)]
    left = _left(slots, inst, kinds[1], depth // 2 if metadata else depth, transposed[0])
    right, adds = getter(slots, second, "b64"), getter(slots, scale, "pred", 2 + len(metadata) in inst.negated_sources)
    places = matrices.c_layout(_ROWS, columns)
    index_of = mma.metadata_getter(slots, metadata[0], metadata[1], kinds[1], depth) if metadata else None

    def step(frame: Frame) -> None:
        added = np.asarray(frame.full(adds(frame)))[:, :1, None]
        found, of = _stored(frame, inst, right, kinds[2], columns, depth, transposed[1], None)
        a, b = left(frame) * sign, found.swapaxes(1, 2)
        if plain and frame.accumulate(a, b, of, held, added[:, 0, 0]):
            return None
        third = mma.assembled(np.where(added, mma.read(frame, before, kinds[0]), 0), places, (_ROWS, columns))
        if index_of is None:
            total = mma.multiply(a, b[of], third, kinds[1], options)
        else:
            total = mma.multiply_sparse(a, index_of(frame), b[of], third, kinds[1], options)
        if plain:
            total = np.where(np.isnan(total), np.uint32(matrices.NAN_BITS).view(np.float32), total)
        return mma.write(frame, setters, total[:, *places], kinds[0])

    return step


def _left(
    slots: Slots, inst: Instruction, kind: matrices.Element, depth: int, transposed: bool
) -> Callable[[Frame], np.ndarray]:
    """A as [row, 16, k]: of registers, or of a descriptor the rows of each warp."""
    operand = inst.sources[0]
    if not isinstance(operand, Vector):
        where = getter(slots, operand, "b64")

        def stored(frame: Frame) -> np.ndarray:
            quarter = frame.index % frame.machine.warps_per_block % _WARPS
            found, of = _stored(frame, inst, where, kind, 64, depth, transposed, quarter)
            return found[of]

        return stored
    registers = mma.registers_of(slots, operand, kind)
    refuse_if(len(registers) != 4)
    places = matrices.a_layout(_ROWS, depth, kind)
    return lambda frame: mma.assembled(mma.read(frame, registers, kind), places, (_ROWS, depth))


@lru_cache(4096)
def _addresses(word: int, first: int, extent: int, depth: int, size: int, transposed: bool) -> np.ndarray:
    """Shared addresses [extent, k] that a descriptor names, from the `first` of its extent on. Raises ValueError."""
    descriptor = _descriptor(word, _HOPPER_WIDTHS[word >> 62])
    return addresses_of(descriptor, first + np.arange(extent), np.arange(depth), size, transposed)


def _stored(
    frame: Frame, inst: Instruction, where: Getter, kind: matrices.Element, extent: int, depth: int, transposed: bool,
    quarter: np.ndarray | None,
) -> tuple[np.ndarray, np.ndarray]:  # fmt: skip
    """Matrices of descriptors as numbers [matrix, extent, k], each once for all rows that name it, and which one each
    row names; of a `quarter` [row] only 16 of the extent."""
    if kind.name == "b1":
        found, of = _stored(frame, inst, where, matrices.element("u8"), extent, depth // 8, transposed, quarter)
        return np.unpackbits(found.astype(np.uint8), axis=2, bitorder="little").astype(np.int64), of
    size, machine, shared = kind.bits // 8, frame.machine, SPACES["shared"]
    words, blocks = frame.full(where(frame))[:, 0].tolist(), machine.block_of_row[frame.index]
    first = np.zeros(frame.count, int) if quarter is None else quarter * _ROWS
    numbers: dict[tuple[int, int, int], int] = {}
    named = zip(blocks.tolist(), words, first.tolist(), strict=True)
    of = np.array([numbers.setdefault(each, len(numbers)) for each in named])
    more = depth, size, transposed
    try:
        addresses = np.stack([_addresses(w, f, extent if quarter is None else _ROWS, *more) for _, w, f in numbers])
    except ValueError as error:
        raise frame.fault(inst, str(error)) from None
    flat = addresses.reshape(len(addresses), -1)
    offsets = flat + np.array([[block * machine.shared_stride] for block, _, _ in numbers])
    beyond = int(flat.max()) + size > machine.shared_bytes
    if machine.watch.strict or beyond or int(np.bitwise_or.reduce(flat, axis=None)) % size:
        each = shared.offsets(frame, inst, flat[of].astype(np.uint32), size)
        for row in range(frame.count):
            machine.watch.box(frame, inst, (row, 0), "shared", each[row], size, False)
    return mma.decode(machine.shared.words[size][offsets // size], kind).reshape(addresses.shape), of


def join_warpgroup(block: BasicBlock, inst: Instruction) -> Terminator:
    """Behind a product: its four warps go on together."""
    after, threads = block.index + 1, 32 * _WARPS

    def step(frame: Frame) -> None:
        machine, rows = frame.machine, frame.index
        group = rows % machine.warps_per_block // _WARPS
        if machine.warps_per_block < _WARPS * (int(group.max()) + 1):
            raise frame.fault(inst, "a warpgroup has four warps")
        machine.barriers.arrive(rows, WARPGROUP + group, np.full(len(rows), threads), inst.index, after, True)

    return step
