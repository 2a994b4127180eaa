"""`mma.sync` and `mma.sp`: fragments to matrices, products, and back; those of four 8-thread groups that Volta has.

Of `mma.sp` half of the elements of A are stored; metadata say which. They are nibbles, one a group of A's columns,
lowest bits first: of 4 columns (2 of tf32, 8 of 4-bit integers) the positions of the two elements (pairs, of 4-bit
integers) that are there. Of 16-bit types and tf32 a word holds 4 groups of row g in its lower half and of row g + 8 in
its upper one; of narrower types 8 groups of one row, row g in lanes 0 and 2, row g + 8 in lanes 1 and 3 of a quad. With
`m8n8k4` of f16 a warp makes four products, each by eight threads, four of either half of the warp: quarter q = (lane
mod 16) / 4 is the product's number, the lower half of the warp has rows (or columns, of B) 0 to 3, the upper half 4 to
7. Sources: PTX ISA, "mma.sp", "Matrix Fragments for mma.m8n8k4 with .f16 floating point type"; ELayout_* of CUTLASS.
"""

from __future__ import annotations

import re
from collections.abc import Callable

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
from functional.numpy_executor.fragments import multiply, read, registers_of, setters_of, write
from functional.numpy_executor.frame import Frame, Step
from functional.numpy_executor.operands import Getter, getter
from functional.ptx.ir import Immediate, Instruction, Operand, Vector

SPARSE = frozenset({"sp", "sp::ordered_metadata"})


_ROWS, _COLUMNS = 16, 8
_DEPTHS = {"f16": (16, 32), "bf16": (16, 32), "tf32": (8, 16), "s8": (32, 64), "u8": (32, 64), "s4": (64, 128),
           "u4": (64, 128), "e4m3": (64,), "e5m2": (64,)}  # fmt: skip
_GROUP = {32: 2, 16: 4, 8: 4, 4: 8}  # columns of a nibble of metadata, by bits of an element
_QUAD = np.arange(8)[:, None] * 4


def is_sparse(inst: Instruction) -> bool:
    """`mma.sp`, `wgmma.mma_async.sp`."""
    return not SPARSE.isdisjoint(inst.modifiers)


def sparse_step(slots: Slots, inst: Instruction) -> Step:
    """`mma.sp.sync.aligned.SHAPE.row.col.D.A.B.C d, a, b, c, metadata, selector`."""
    depth, kinds = _form(inst)
    d, a, b, c = kinds
    places = (a_layout(_ROWS, depth // 2, a), b_layout(depth, b), c_layout(_ROWS))
    sources = [registers_of(slots, o, kind) for o, kind in zip(inst.sources[:3], (a, b, c), strict=True)]
    setters = setters_of(slots, inst.destinations[0], d)
    counts = [*map(len, sources), len(setters)]
    elements = [rows.shape[1] for rows, _ in (*places, places[2])]
    if any(n * _held(kind) != e for n, kind, e in zip(counts, (a, b, c, d), elements, strict=True)):
        raise Unsupported
    index_of = metadata_getter(slots, inst.sources[3], inst.sources[4], a, depth)
    extents = ((_ROWS, depth // 2), (depth, _COLUMNS), (_ROWS, _COLUMNS))
    options = frozenset(inst.modifiers) & {"satfinite"}

    def step(frame: Frame) -> None:
        matrices = []
        for get, kind, (rows, columns), extent in zip(sources, (a, b, c), places, extents, strict=True):
            values = read(frame, get, kind)
            matrix = np.zeros((frame.count, *extent), values.dtype)
            matrix[:, rows, columns] = values
            matrices.append(matrix)
        left, right, third = matrices
        total = multiply_sparse(left, index_of(frame), right, third, a, options)
        write(frame, setters, total[:, places[2][0], places[2][1]], d)

    return step


def _held(kind: Element) -> int:
    return 1 if kind.name == "f32" else kind.per_register


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


Layout = tuple[np.ndarray, np.ndarray]  # (rows, columns) [lane, element]
_COLUMN_LANE = np.arange(32)[:, None]
_PRODUCT = _COLUMN_LANE % 16 // 4


_OWN, _UPPER = _COLUMN_LANE % 4, _COLUMN_LANE // 16 * 4
_PRODUCTS = 4


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
    kinds = [element(name) for name in ("f16", "f16", c)]
    places = [_volta_a(left), _volta_b(right), _volta_c(c)]
    sources = [registers_of(slots, o, kind) for o, kind in zip(inst.sources, kinds, strict=True)]
    result, target = element(d), _volta_c(d)
    setters = setters_of(slots, inst.destinations[0], result)
    counts = [len(s) for s in sources] + [len(setters)]
    if counts != [2, 2, 4 if c == "f16" else 8, 4 if d == "f16" else 8]:
        raise Unsupported
    extents = ((8, 4), (4, 8), (8, 8))

    def step(frame: Frame) -> None:
        matrices = []
        for get, kind, (rows, columns), extent in zip(sources, kinds, places, extents, strict=True):
            values = read(frame, get, kind)
            matrix = np.zeros((frame.count, _PRODUCTS, *extent), values.dtype)
            matrix[:, np.broadcast_to(_PRODUCT, rows.shape), rows, columns] = values
            matrices.append(matrix.reshape(-1, *extent))
        first, second, third = matrices
        total = multiply(first, second, third, kinds[0], frozenset()).reshape(frame.count, _PRODUCTS, 8, 8)
        write(frame, setters, total[:, np.broadcast_to(_PRODUCT, target[0].shape), target[0], target[1]], result)

    return step


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
    places = (a_layout(form.m, form.k, form.a), b_layout(form.k, form.b), c_layout(form.m))
    kinds = (form.a, form.b, form.c)
    sources = [registers_of(slots, o, kind) for o, kind in zip(inst.sources, kinds, strict=True)]
    setters = setters_of(slots, inst.destinations[0], form.d)
    elements = [rows.shape[1] for rows, _ in (*places, places[2])]
    given = [*map(len, sources), len(setters)]
    per = [kind.per_register if kind.name != "f32" else 1 for kind in (*kinds, form.d)]
    if any(n * p != e for n, p, e in zip(given, per, elements, strict=True)):
        raise Unsupported
    if not isinstance(inst.destinations[0], Vector) and len(setters) > 1:
        raise Unsupported
    extents = ((form.m, form.k), (form.k, form.n), (form.m, form.n))

    def step(frame: Frame) -> None:
        matrices = []
        for get, kind, (rows, columns), extent in zip(sources, kinds, places, extents, strict=True):
            values = read(frame, get, kind)
            matrix = np.zeros((frame.count, *extent), values.dtype)
            matrix[:, rows, columns] = values
            matrices.append(matrix)
        left, right, third = matrices
        total = multiply(left, right, third, form.a, form.options)
        write(frame, setters, total[:, places[2][0], places[2][1]], form.d)

    return step
