"""Which step an instruction has. What has none is refused here, by name and line, before anything runs."""

import math
from collections.abc import Callable
from fractions import Fraction
from typing import TypeVar

import numpy as np

from functional.errors import PtxError
from functional.isa.instructions import form_of
from functional.isa.operation import REFUSALS, Unsupported
from functional.isa.slots import Slots
from functional.programs.program import ENDS, BasicBlock, Program
from functional.ptx.ir import Instruction
from functional.steps.async_copies import async_copy_step, async_store_step, bulk_copy_step, is_bulk
from functional.steps.atomics import atomic_step
from functional.steps.control import fall_through, own_shared_step, register_count_step, terminator
from functional.steps.machine import Frame, Step, Terminator, getter, setter, under_guard
from functional.steps.mbarriers import is_wait, mbarrier_step, wait_end
from functional.steps.memory_ops import load_step, store_step
from functional.steps.mma import ldmatrix_step, mma_step, movmatrix_step, stmatrix_step, wmma_step
from functional.steps.tcgen05_product import STEPS as TENSOR_STEPS
from functional.steps.tensor_copies import is_tensor_copy, tensor_copy_step, tensor_map_step
from functional.steps.textures import surface_step, texture_step
from functional.steps.wgmma import join_warpgroup, product_step


def directed_fma_step(slots: Slots, inst: Instruction) -> Step:
    """`fma.rz.f64`, `rm` and `rp`, exactly, one lane after the other: where compiled code does not know the last bit.
    Raises Unsupported for other forms."""
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


T = TypeVar("T")
_STEPS: dict[str, Callable[[Slots, Instruction], Step]] = {
    "ld": load_step, "ldu": load_step, "st": store_step, "atom": atomic_step, "red": atomic_step,
    "mma": mma_step, "wmma": wmma_step, "ldmatrix": ldmatrix_step, "stmatrix": stmatrix_step,
    "tensormap": tensor_map_step, "wgmma": product_step, "tex": texture_step,
    "suld": surface_step, "sust": surface_step, "setmaxnreg": register_count_step,
    "movmatrix": movmatrix_step, "fma": directed_fma_step,
    "tcgen05": lambda slots, inst: TENSOR_STEPS[inst.modifiers[0]](slots, inst),
}  # fmt: skip
_BARRIER_STEPS = {"init", "inval", "arrive", "arrive_drop", "test_wait", "try_wait", "expect_tx", "complete_tx"}


def decoded(program: Program, inst: Instruction, build: Callable[[], T]) -> T:
    """What `build` makes of an instruction. Raises PtxError if it is not supported."""
    try:
        return build()
    except REFUSALS:
        raise PtxError(program.path, inst.line, f"instruction '{inst.name}' is not supported") from None


def end_of(slots: Slots, block: BasicBlock, last: Instruction) -> Terminator:
    """The end of a basic block, which may be that of its last instruction. Raises Unsupported."""
    if last.is_warpgroup_product:
        return join_warpgroup(block, last)
    if last.opcode not in ENDS and not is_wait(last):
        return fall_through(block)
    build = wait_end if is_wait(last) else terminator
    return under_guard(slots, last, build(slots, block, last))


def step_of(slots: Slots, inst: Instruction) -> Step:
    """The step of an instruction that ends no basic block. Raises Unsupported."""
    return under_guard(slots, inst, _plain_step(slots, inst))


def _plain_step(slots: Slots, inst: Instruction) -> Step:
    if inst.opcode in ("st", "red") and "async" in inst.modifiers:
        return async_store_step(slots, inst)
    if inst.opcode == "isspacep" and "shared" in inst.modifiers:
        return own_shared_step(slots, inst)
    if inst.opcode in _STEPS:
        return _STEPS[inst.opcode](slots, inst)
    if inst.opcode == "cp" and is_tensor_copy(inst):
        return tensor_copy_step(slots, inst)
    if inst.opcode == "cp" and is_bulk(inst):
        return bulk_copy_step(slots, inst)
    if inst.opcode == "cp" and "mbarrier" not in inst.modifiers:
        return async_copy_step(slots, inst)
    if inst.opcode in ("cp", "mbarrier") and _BARRIER_STEPS & set(inst.modifiers):
        return mbarrier_step(slots, inst)
    raise Unsupported
