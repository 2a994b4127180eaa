"""`mma.sync` and `mma.sp`: fragments to matrices, products, and back; those of four 8-thread groups that Volta has.

Of `mma.sp` half of the elements of A are stored; metadata say which. They are nibbles, one a group of A's columns,
lowest bits first: of 4 columns (2 of tf32, 8 of 4-bit integers) the positions of the two elements (pairs, of 4-bit
integers) that are there. Of 16-bit types and tf32 a word holds 4 groups of row g in its lower half and of row g + 8 in
its upper one; of narrower types 8 groups of one row, row g in lanes 0 and 2, row g + 8 in lanes 1 and 3 of a quad. With
`m8n8k4` of f16 a warp makes four products, each by eight threads, four of either half of the warp: quarter q = (lane
mod 16) / 4 is the product's number, the lower half of the warp has rows (or columns, of B) 0 to 3, the upper half 4 to
7. Sources: PTX ISA, "mma.sp", "Matrix Fragments for mma.m8n8k4 with .f16 floating point type"; ELayout_* of CUTLASS.

Products are exact; the sum over k is formed in float64 in ascending order of k, C is added last, and the result is
rounded once (hardware truncates partial sums: differences of an ulp or so). float64 matrices are a chain of fused
multiply-adds that begins with C. Integers are exact.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from functional.isa.matrices import (
    FLOAT_ELEMENTS,
    Element,
    a_layout,
    b_layout,
    c_layout,
    element,
    family_of,
    mma_form,
    results_of,
)
from functional.isa.operation import Unsupported, raw
from functional.isa.slots import Slots
from functional.isa.small_floats import from_bf16, values
from functional.numpy_executor.arrays import fma64
from functional.numpy_executor.operands import Frame, Getter, Setter, Step, getter, setter
from functional.ptx.ir import Immediate, Instruction, Operand, Vector

Layout = tuple[np.ndarray, np.ndarray]  # (rows, columns) [lane, element]


def registers_of(slots: Slots, operand: Operand, kind: Element) -> list[Getter]:
    """Getters of a source fragment."""
    elements = operand.elements if isinstance(operand, Vector) else (operand,)
    if None in elements:
        raise Unsupported
    return [getter(slots, e, kind.register) for e in elements if e is not None]


def setters_of(slots: Slots, operand: Operand | None, kind: Element) -> list[Setter]:
    """Setters of a destination fragment."""
    elements = operand.elements if isinstance(operand, Vector) else (operand,)
    return [setter(slots, e, kind.register) for e in elements]


def read(frame: Frame, registers: list[Getter], kind: Element) -> np.ndarray:
    """Registers of all lanes as float64 or int64 [row, lane, element]."""
    words = np.stack([raw(frame.full(get(frame))) for get in registers], axis=2)
    return decode(words, kind)


def decode(words: np.ndarray, kind: Element) -> np.ndarray:
    """Registers [..., register] as numbers [..., element]."""
    name = kind.name
    if name in ("f64", "f32", "f16"):
        return words.view(f"f{kind.bits // 8}").astype(np.float64)
    if name == "bf16":
        return from_bf16(words.view(np.uint16)).astype(np.float64)
    if name == "tf32":
        return (words & np.uint32(0xFFFFE000)).view(np.float32).astype(np.float64)
    if name in ("e4m3", "e5m2"):
        return values(name)[words.view(np.uint8)]
    if name == "s32":
        return words.view(np.int32).astype(np.int64)
    if kind.bits == 8:
        return words.view(np.int8 if name == "s8" else np.uint8).astype(np.int64)
    shifts = np.arange(0, 32, kind.bits, dtype=np.uint32)
    parts = ((words[..., None] >> shifts) & np.uint32((1 << kind.bits) - 1)).astype(np.int64)
    parts = parts.reshape(*words.shape[:-1], -1)
    return np.where(parts > 7, parts - 16, parts) if name == "s4" else parts


def decode_stored(values: np.ndarray, kind: Element) -> np.ndarray:
    """Elements as memory has them, unsigned and of their own size, as float64 or int64 of the same shape."""
    return decode(np.ascontiguousarray(values), kind)


def encode(values: np.ndarray, kind: Element) -> np.ndarray:
    """Numbers [..., element] as registers [..., register]; f16 pairs are packed. Only accumulator types."""
    if kind.name == "f16":
        return np.ascontiguousarray(values.astype(np.float16)).view(np.uint32)
    return values.astype({"f32": np.float32, "f64": np.float64, "s32": np.int64}[kind.name])


def write(frame: Frame, setters: list[Setter], values: np.ndarray, kind: Element) -> None:
    """Write an accumulator [row, lane, element] to a destination fragment."""
    registers = encode(values, kind)
    if kind.name == "s32":
        registers = registers.astype(np.uint32)
    for i, put in enumerate(setters):
        put(frame, np.ascontiguousarray(registers[..., i]))


def assembled(values: np.ndarray, places: tuple[Any, ...], extents: tuple[int, ...]) -> np.ndarray:
    """Matrices [row, *extents] of fragments [row, lane, element], whose elements go to `places`."""
    matrix = np.zeros((len(values), *extents), values.dtype)
    matrix[:, *places] = values
    return matrix


def multiply(a: np.ndarray, b: np.ndarray, c: np.ndarray, kind: Element, options: frozenset[str]) -> np.ndarray:
    """D = A B + C of matrices [row, m, k], [row, k, n] and [row, m, n]; `options` may hold satfinite, xor, and."""
    if kind.name == "f64":
        total = c
        for k in range(a.shape[2]):
            total = fma64(a[:, :, k, None], b[:, None, k, :], total)
        return total
    if kind.name in FLOAT_ELEMENTS:
        total = np.zeros(c.shape)
        for k in range(a.shape[2]):
            total = total + a[:, :, k, None] * b[:, None, k, :]
        return total + c
    product = np.matmul(a.astype(np.float64), b.astype(np.float64))  # integers below 2**53: exact in any order
    if kind.name == "b1" and "xor" in options:
        product = a.sum(axis=2)[:, :, None] + b.sum(axis=1)[:, None, :] - 2 * product
    total = product.astype(np.int64) + c
    return np.clip(total, -(1 << 31), (1 << 31) - 1) if "satfinite" in options else total


SPARSE = frozenset({"sp", "sp::ordered_metadata"})


_ROWS, _COLUMNS = 16, 8
_DEPTHS = {"f16": (16, 32), "bf16": (16, 32), "tf32": (8, 16), "s8": (32, 64), "u8": (32, 64), "s4": (64, 128),
           "u4": (64, 128), "e4m3": (64,), "e5m2": (64,)}  # fmt: skip
_GROUP = {32: 2, 16: 4, 8: 4, 4: 8}  # columns of a nibble of metadata, by bits of an element
_QUAD = np.arange(8)[:, None] * 4


def is_sparse(inst: Instruction) -> bool:
    """`mma.sp`, `wgmma.mma_async.sp`."""
    return not SPARSE.isdisjoint(inst.modifiers)


def _product_step(
    slots: Slots, inst: Instruction, kinds: Sequence[Element], places: Sequence[Layout], extents: Sequence[tuple],
    product: Callable[..., np.ndarray], number: np.ndarray | None = None,
) -> Step:  # fmt: skip
    """The step that puts A, B and C together from their fragments, makes `product(frame, a, b, c)`, and takes it apart:
    `kinds` and `places` of A, B, C and D. `number` [lane, 1]: which of several products of the warp a lane is of."""
    sources = [registers_of(slots, o, kind) for o, kind in zip(inst.sources[:3], kinds, strict=False)]
    setters = setters_of(slots, inst.destinations[0], kinds[3])
    counts = [*map(len, sources), len(setters)]
    for count, kind, (rows, _) in zip(counts, kinds, places, strict=True):
        if count * (1 if kind.name == "f32" else kind.per_register) != rows.shape[1]:
            raise Unsupported
    numbers = [np.broadcast_to(0 if number is None else number, rows.shape) for rows, _ in places]
    products = int(numbers[0].max()) + 1

    def step(frame: Frame) -> None:
        matrices = []
        for get, kind, (rows, columns), of, extent in zip(sources, kinds, places, numbers, extents, strict=False):
            matrix = assembled(read(frame, get, kind), (of, rows, columns), (products, *extent))
            matrices.append(matrix.reshape(-1, *extent))
        total = product(frame, *matrices).reshape(frame.count, products, *extents[2])
        write(frame, setters, total[:, numbers[3], *places[3]], kinds[3])

    return step


def sparse_step(slots: Slots, inst: Instruction) -> Step:
    """`mma.sp.sync.aligned.SHAPE.row.col.D.A.B.C d, a, b, c, metadata, selector`."""
    depth, (d, a, b, c) = _form(inst)
    index_of = metadata_getter(slots, inst.sources[3], inst.sources[4], a, depth)
    options, last = frozenset(inst.modifiers) & {"satfinite"}, c_layout(_ROWS)

    def product(frame: Frame, left: np.ndarray, right: np.ndarray, third: np.ndarray) -> np.ndarray:
        return multiply_sparse(left, index_of(frame), right, third, a, options)

    places = (a_layout(_ROWS, depth // 2, a), b_layout(depth, b), last, last)
    extents = ((_ROWS, depth // 2), (depth, _COLUMNS), (_ROWS, _COLUMNS))
    return _product_step(slots, inst, (a, b, c, d), places, extents, product)


def _form(inst: Instruction) -> tuple[int, tuple[Element, Element, Element, Element]]:
    """(K, the types of D, A, B, C). Raises Unsupported."""
    plain = [m for m in inst.modifiers if m not in SPARSE and m != "satfinite"]
    if len(plain) != 9 or plain[:2] != ["sync", "aligned"] or plain[3:5] != ["row", "col"] or inst.guard is not None:
        raise Unsupported
    shape, (d, a, b, c) = re.fullmatch(r"m16n8k(\d+)", plain[2]), plain[5:]
    if shape is None or int(shape[1]) not in _DEPTHS.get(a, ()) or family_of(a) != family_of(b):
        raise Unsupported
    integers = a in ("s8", "u8", "s4", "u4")
    if not {d, c} <= set(results_of(a)) or len(inst.sources) != 5 or ("satfinite" in inst.modifiers and not integers):
        raise Unsupported
    return int(shape[1]), (element(d), element(a), element(b), element(c))


def metadata_getter(
    slots: Slots, metadata: Operand, selector: Operand, kind: Element, depth: int
) -> Callable[[Frame], np.ndarray]:
    """Yields for each element of a stored A [row, 16, k / 2] the row of B that it belongs to."""
    per = _GROUP[kind.bits]
    groups, halves = depth // per, kind.bits >= 16  # nibbles of a row; is a word shared by two rows?
    words = groups // 4 if halves else 2 * groups // 8  # lanes of a quad that have one
    if not isinstance(selector, Immediate) or not 0 <= selector.value < 4 // words:
        raise Unsupported
    lanes = _QUAD + int(selector.value) * words + np.arange(words)
    get: Getter = getter(slots, metadata, "b32")
    shifts = np.arange(0, 32, 4, dtype=np.uint32)

    def index_of(frame: Frame) -> np.ndarray:
        given = raw(frame.full(get(frame)))[:, lanes]  # [row, g, word]
        nibbles = (given[..., None] >> shifts & np.uint32(15)).astype(np.int64)
        parts = nibbles.reshape(*given.shape, 2, 4) if halves else nibbles.reshape(*given.shape[:2], words // 2, 2, 8)
        of_rows = parts.transpose(0, 3, 1, 2, 4)  # [row, upper half of the rows, g, word, nibble]
        return positions(of_rows.reshape(len(given), _ROWS, groups), per)

    return index_of


def positions(nibbles: np.ndarray, per: int) -> np.ndarray:
    """Rows of B of the elements that are there [row, m, k / 2], of nibbles [row, m, group] that say it of `per` columns
    of A each."""
    first, second = nibbles & 3, nibbles >> 2
    start = per * np.arange(nibbles.shape[2])
    if per == 2:  # two halves of one number
        return start + (first >> 1)
    if per == 4:
        return np.stack([start + first, start + second], axis=3).reshape(*nibbles.shape[:2], -1)
    pairs = [start + 2 * which + part for which in (first, second) for part in range(2)]
    return np.stack(pairs, axis=3).reshape(*nibbles.shape[:2], -1)


def multiply_sparse(
    a: np.ndarray, index: np.ndarray, b: np.ndarray, c: np.ndarray, kind: Element, options: frozenset[str]
) -> np.ndarray:
    """D = A B + C of a stored A [row, m, k / 2], the rows of B that its elements belong to, B [row, k, n] and C."""
    total = np.zeros(c.shape, np.float64 if kind.name in FLOAT_ELEMENTS else np.int64)
    for k in range(a.shape[2]):
        total = total + a[:, :, k, None] * np.take_along_axis(b, index[:, :, k, None], axis=1)
    total = total + c
    return np.clip(total, -(1 << 31), (1 << 31) - 1) if "satfinite" in options else total


_COLUMN_LANE = np.arange(32)[:, None]
_PRODUCT = _COLUMN_LANE % 16 // 4


_OWN, _UPPER = _COLUMN_LANE % 4, _COLUMN_LANE // 16 * 4


def is_volta(inst: Instruction) -> bool:
    """`mma.sync.aligned.m8n8k4.*.*.*.f16.f16.*`."""
    return "m8n8k4" in inst.modifiers and "f16" in inst.modifiers


def volta_step(slots: Slots, inst: Instruction) -> Step:
    """The step of such an instruction; A and B may be stored by rows or by columns."""
    if len(inst.modifiers) != 9 or inst.modifiers[:2] != ("sync", "aligned") or inst.guard is not None:
        raise Unsupported
    (_, left, right, d, a, b, c), majors = inst.modifiers[2:], ("row", "col")
    if left not in majors or right not in majors or (a, b) != ("f16", "f16") or (d, c) not in _RESULTS:
        raise Unsupported
    kinds = [element(name) for name in ("f16", "f16", c, d)]
    places = (_volta_a(left), _volta_b(right), _volta_c(c), _volta_c(d))
    product = lambda _, first, second, third: multiply(first, second, third, kinds[0], frozenset())  # noqa: E731
    return _product_step(slots, inst, kinds, places, ((8, 4), (4, 8), (8, 8)), product, _PRODUCT)


_RESULTS = {("f16", "f16"), ("f16", "f32"), ("f32", "f32")}  # types of D and C


def _volta_a(major: str) -> Layout:
    along = np.arange(4)[None]
    if major == "row":
        return _spread(_OWN + _UPPER, along)
    return _spread(along + _UPPER, _OWN)


def _volta_b(major: str) -> Layout:
    along = np.arange(4)[None]
    if major == "row":
        return _spread(_OWN, along + _UPPER)
    return _spread(along, _OWN + _UPPER)


def _volta_c(kind: str) -> Layout:
    index = np.arange(8)[None]
    if kind == "f16":
        return _spread(_OWN + _UPPER, index)
    return _spread((_COLUMN_LANE & 1) + (index & 2) + _UPPER, (index & 4) + (_COLUMN_LANE & 2) + (index & 1))


def _spread(rows: np.ndarray, columns: np.ndarray) -> Layout:
    rows, columns = np.broadcast_arrays(rows, columns)
    return rows, columns


def mma_step(slots: Slots, inst: Instruction) -> Step:
    """`mma.sync`, `mma.sp`."""
    if is_volta(inst):
        return volta_step(slots, inst)
    if is_sparse(inst):
        return sparse_step(slots, inst)
    form = mma_form(inst)
    last = c_layout(form.m)
    places = (a_layout(form.m, form.k, form.a), b_layout(form.k, form.b), last, last)
    extents = ((form.m, form.k), (form.k, form.n), (form.m, form.n))
    product = lambda _, left, right, third: multiply(left, right, third, form.a, form.options)  # noqa: E731
    return _product_step(slots, inst, (form.a, form.b, form.c, form.d), places, extents, product)
