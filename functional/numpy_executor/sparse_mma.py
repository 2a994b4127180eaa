"""`mma.sp`: products with a sparse A, of which half of the elements are stored; metadata say which.

Metadata are nibbles, one a group of A's columns, lowest bits first: of 4 columns (2 of tf32, 8 of 4-bit integers) the
positions of the two elements (pairs, of 4-bit integers) that are there. Of 16-bit types and tf32 a word holds 4 groups
of row g in its lower half and of row g + 8 in its upper one; of narrower types 8 groups of one row, row g in lanes
0 and 2, row g + 8 in lanes 1 and 3 of a quad. Source: PTX ISA, "mma.sp"; ELayout_* of CUTLASS.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from functional.isa.operation import Unsupported
from functional.numpy_executor.fragments import FLOATING, Element, element, read, registers_of, setters_of, write
from functional.numpy_executor.frame import raw
from functional.numpy_executor.layouts import a_layout, b_layout, c_layout, family_of, results_of
from functional.numpy_executor.operands import Getter, getter
from functional.ptx.ir import Immediate, Instruction, Operand

if TYPE_CHECKING:
    from functional.numpy_executor.frame import Frame
    from functional.numpy_executor.slots import Slots

Step = Callable[["Frame"], None]
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
    total = np.zeros(c.shape, np.float64 if kind.name in FLOATING else np.int64)
    for k in range(a.shape[2]):
        total = total + a[:, :, k, None] * np.take_along_axis(b, index[:, :, k, None], axis=1)
    total = total + c
    return np.clip(total, -(1 << 31), (1 << 31) - 1) if "satfinite" in options else total
