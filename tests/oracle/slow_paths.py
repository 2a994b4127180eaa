"""Which operands take the slow path of an instruction, by magnitudes (docs/machine-code.md, rule 9)."""

from __future__ import annotations

import numpy as np

from functional.ptx.ir import Instruction


def _within(x: np.ndarray, least: int, most: int) -> np.ndarray:
    """Is 2 ** least <= |x| < 2 ** most? No, of what is no number."""
    size = np.abs(x.astype(np.longdouble))
    return (size >= np.ldexp(np.longdouble(1), least)) & (size < np.ldexp(np.longdouble(1), most))


def _divides(a: np.ndarray, b: np.ndarray, ranges: tuple[tuple[int, int], ...]) -> np.ndarray:
    (a_least, a_most), (b_least, b_most), (least, most) = ranges
    difference = np.frexp(a)[1] - np.frexp(b)[1]
    return _within(a, a_least, a_most) & _within(b, b_least, b_most) & (difference >= least) & (difference <= most)


def is_slow(inst: Instruction, *values: np.ndarray) -> np.ndarray | None:
    """By lane; None of an instruction without such a path."""
    if "rn" not in inst.modifiers:
        return None
    match inst.opcode, inst.type:
        case "div", "f32":
            return ~_divides(*values, ((-102, 128), (-126, 126), (-125, 125)))
        case "div", "f64":
            return ~_divides(*values, ((-969, 1024), (-1022, 1024), (-1021, 1016)))
        case "rcp", "f32":
            return ~_within(values[0], -126, 126)
        case "rcp", "f64":
            return ~_within(values[0], -1022, 1022)
        case "sqrt", "f32":
            return ~_within(values[0], -101, 128) | (values[0] < 0)
        case "sqrt", "f64":
            return ~_within(values[0], -970, 1024) | (values[0] < 0)
    return None
