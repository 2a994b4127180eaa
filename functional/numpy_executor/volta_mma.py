"""`mma.sync.m8n8k4` of f16: four products in a warp, each by eight threads, four of either half of the warp.

With quarter q = (lane mod 16) / 4 as the product's number: the lower half of the warp has rows (or columns, of B) 0 to
3, the upper half 4 to 7. Source: PTX ISA, "Matrix Fragments for mma.m8n8k4 with .f16 floating point type".
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from functional.isa.operation import Unsupported
from functional.numpy_executor.fragments import element, multiply, read, registers_of, setters_of, write
from functional.ptx.ir import Instruction

if TYPE_CHECKING:
    from functional.numpy_executor.frame import Frame
    from functional.numpy_executor.slots import Slots

Step = Callable[["Frame"], None]
Layout = tuple[np.ndarray, np.ndarray]  # (rows, columns) [lane, element]
_LANE = np.arange(32)[:, None]
_PRODUCT = _LANE % 16 // 4
_OWN, _UPPER = _LANE % 4, _LANE // 16 * 4
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
    places = [_a_layout(left), _b_layout(right), _c_layout(c)]
    sources = [registers_of(slots, o, kind) for o, kind in zip(inst.sources, kinds, strict=True)]
    result, target = element(d), _c_layout(d)
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


def _a_layout(major: str) -> Layout:
    along = np.arange(4)[None]
    if major == "row":
        return _spread(_OWN + _UPPER, along)
    return _spread(along + _UPPER, _OWN)


def _b_layout(major: str) -> Layout:
    along = np.arange(4)[None]
    if major == "row":
        return _spread(_OWN, along + _UPPER)
    return _spread(along, _OWN + _UPPER)


def _c_layout(kind: str) -> Layout:
    index = np.arange(8)[None]
    if kind == "f16":
        return _spread(_OWN + _UPPER, index)
    return _spread((_LANE & 1) + (index & 2) + _UPPER, (index & 4) + (_LANE & 2) + (index & 1))


def _spread(rows: np.ndarray, columns: np.ndarray) -> Layout:
    rows, columns = np.broadcast_arrays(rows, columns)
    return rows, columns
