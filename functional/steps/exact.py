"""`fma.rz.f64`, `rm` and `rp`, exactly, one lane after the other: where compiled code does not know the last bit."""

import math
from fractions import Fraction

import numpy as np

from functional.isa.instructions import form_of
from functional.isa.slots import Slots
from functional.ptx.ir import Instruction
from functional.steps.operands import Frame, Step, getter, setter


def directed_fma_step(slots: Slots, inst: Instruction) -> Step:
    """The step of one. Raises Unsupported for other forms."""
    _, sources, (destination,) = form_of(inst)
    (mode,) = set(inst.modifiers) - {"f64"}
    getters, write = [getter(slots, source, "f64") for source in sources], setter(slots, destination, "f64")
    of_lane = np.vectorize(lambda a, b, c: _fused(a, b, c, mode), otypes=[np.float64])

    def step(frame: Frame) -> None:
        write(frame, of_lane(*(get(frame) for get in getters)))

    return step


def _fused(a: float, b: float, c: float, mode: str) -> float:
    plain = a * b + c
    if not (math.isfinite(a) and math.isfinite(b) and math.isfinite(c)):
        return plain
    exact = Fraction(a) * Fraction(b) + Fraction(c)
    if exact == 0:
        return plain
    try:
        nearest = float(exact)  # int / int in Python rounds correctly, subnormals included
    except OverflowError:
        nearest = math.inf if exact > 0 else -math.inf
    error = -nearest if math.isinf(nearest) else exact - Fraction(nearest)
    if error < 0 and (mode == "rm" or (mode == "rz" and nearest > 0)):
        return math.nextafter(nearest, -math.inf)
    if error > 0 and (mode == "rp" or (mode == "rz" and nearest < 0)):
        return math.nextafter(nearest, math.inf)
    return nearest
