"""Which element of a matrix lies where in the registers of a warp, for `mma` and `wgmma` (PTX ISA).

With group g = lane / 4 and place t = lane % 4: register r of A holds row g + 8 (r % 2) (of 8-row shapes: g), B columns
g, C and D rows g and g + 8 with columns 2 t and 2 t + 1.
"""

from __future__ import annotations

import numpy as np

from functional.numpy_executor.fragments import Element

_LANE = np.arange(32)
_GROUP, _PLACE = _LANE // 4, _LANE % 4
_FAMILY = {"u8": "s8", "u4": "s4", "e5m2": "e4m3"}


def family_of(name: str) -> str:
    """Element types of A and B may differ within a family."""
    return _FAMILY.get(name, name)


def results_of(a: str) -> tuple[str, ...]:
    """Accumulator types of a type of A."""
    if a in ("f16", "e4m3", "e5m2"):
        return ("f32", "f16")
    return {"bf16": ("f32",), "tf32": ("f32",), "f64": ("f64",)}.get(a, ("s32",))


def a_layout(m: int, depth: int, kind: Element) -> tuple[np.ndarray, np.ndarray]:
    """(rows, columns) of the elements of A, [lane, element]."""
    per = kind.per_register
    index = np.arange(m * depth // 32)
    register, part = index // per, index % per
    if m == 8:
        return np.broadcast_to(_GROUP[:, None], (32, len(index))), _PLACE[:, None] * per + part + 4 * per * register
    rows = _GROUP[:, None] + 8 * (register % 2)
    return rows, _PLACE[:, None] * per + part + 4 * per * (register // 2)


def b_layout(depth: int, kind: Element) -> tuple[np.ndarray, np.ndarray]:
    """(rows, columns) of the elements of B, [lane, element]."""
    per = kind.per_register
    index = np.arange(depth * 8 // 32)
    rows = _PLACE[:, None] * per + index % per + 4 * per * (index // per)
    return rows, np.broadcast_to(_GROUP[:, None], rows.shape)


def c_layout(m: int) -> tuple[np.ndarray, np.ndarray]:
    """(rows, columns) of the elements of C and D, [lane, element]."""
    index = np.arange(m * 8 // 32)
    return _GROUP[:, None] + 8 * (index // 2), 2 * _PLACE[:, None] + index % 2
