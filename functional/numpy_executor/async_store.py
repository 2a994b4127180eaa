"""`st.async` and `red.async`: stores and reductions in another thread block's shared memory that count their bytes at
an mbarrier there. Done at once, as all asynchronous copies are."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from functional.isa.operation import Unsupported
from functional.numpy_executor.atomics import atomic_step
from functional.numpy_executor.mbarrier import COMPLETE_TX, update_barriers
from functional.numpy_executor.memory_ops import address_getter, split, store_step
from functional.numpy_executor.operands import guard_getter
from functional.ptx.ir import CLUSTER_SHARED, TYPE_BYTES, Address, Instruction, Vector

if TYPE_CHECKING:
    from functional.numpy_executor.frame import Frame
    from functional.numpy_executor.slots import Slots

Step = Callable[["Frame"], None]
_COMPLETES = "mbarrier::complete_tx::bytes"


def async_store_step(slots: Slots, inst: Instruction) -> Step:
    """`st.async...shared::cluster.mbarrier::complete_tx::bytes... [to], value, [barrier]`, and `red.async` likewise."""
    if not {CLUSTER_SHARED, _COMPLETES} <= set(inst.modifiers) or len(inst.sources) != 3:
        raise Unsupported
    *given, barrier = inst.sources
    if not isinstance(barrier, Address):
        raise Unsupported
    modifiers = tuple(m for m in inst.modifiers if m not in ("async", _COMPLETES))
    plain = replace(inst, modifiers=modifiers, sources=tuple(given))
    run = store_step(slots, plain) if inst.opcode == "st" else atomic_step(slots, plain)
    guard, where = guard_getter(slots, inst.guard), address_getter(slots, barrier, CLUSTER_SHARED)
    elements = len(given[1].elements) if isinstance(given[1], Vector) else 1
    size = np.int64(elements * TYPE_BYTES[inst.type])

    def step(frame: Frame) -> None:
        run(frame)
        parts = list(split(frame, inst, CLUSTER_SHARED, where(frame), None if guard is None else guard(frame)))
        update_barriers(frame, inst, parts, COMPLETE_TX, np.full((frame.count, 32), size))

    return step
