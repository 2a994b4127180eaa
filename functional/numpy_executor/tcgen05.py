"""`tcgen05`, the tensor-core instructions of Blackwell's data-centre GPUs: which step each has, and `tcgen05.commit`.

Everything is done when it is issued, so that waits and fences have no effect, and a commit arrives at its `mbarrier`
at once. `tcgen05.shift` is not supported: no public source says which of the two neighbours of a row it becomes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from functional.isa.operation import Unsupported
from functional.numpy_executor.bulk_copy import MULTICAST, in_block
from functional.numpy_executor.mbarrier import ARRIVE, log_barriers, update_barriers
from functional.numpy_executor.memory_ops import address_getter, space_of, split
from functional.numpy_executor.operands import getter, guard_getter
from functional.numpy_executor.tcgen05_product import product_step
from functional.numpy_executor.tensor_memory import allocation_step, freeing_step, group_of, permit_step
from functional.numpy_executor.tensor_memory_moves import move_step, tensor_copy_in_step
from functional.ptx.ir import CLUSTER_SHARED, Address, Instruction

if TYPE_CHECKING:
    from functional.numpy_executor.frame import Frame
    from functional.numpy_executor.slots import Slots

Step = Callable[["Frame"], None]
_ARRIVES = "mbarrier::arrive::one"
_MOST_BLOCKS = 16  # of a cluster


def commit_step(slots: Slots, inst: Instruction) -> Step:
    """`tcgen05.commit.cta_group::N.mbarrier::arrive::one[.shared::cluster][.multicast::cluster].b64 [barrier]
    [, blocks]`: an arrival, with a mask of thread blocks one at the same place in each of them."""
    plain, multicast = group_of(inst, inst.modifiers[1:])[1], MULTICAST in inst.modifiers
    named = tuple(m for m in plain if m != MULTICAST)
    if named not in ((_ARRIVES, CLUSTER_SHARED, "b64"), (_ARRIVES, "b64")) or len(inst.sources) != 1 + multicast:
        raise Unsupported
    address, guard = inst.sources[0], guard_getter(slots, inst.guard)
    if not isinstance(address, Address) or (multicast and CLUSTER_SHARED not in plain):
        raise Unsupported
    space = space_of(slots, inst, address)
    where = address_getter(slots, address, space)
    blocks = getter(slots, inst.sources[1], "b16") if multicast else None

    def step(frame: Frame) -> None:
        lanes = None if guard is None else frame.set_guard(guard)
        own = list(split(frame, inst, space, where(frame), lanes))
        ones = np.ones((frame.count, 32), np.int64)
        for rank in range(_MOST_BLOCKS if blocks is not None else 1):
            parts = own
            if blocks is not None:
                chosen = (frame.full(blocks(frame)) >> np.uint16(rank) & np.uint16(1)).astype(bool)
                chosen = chosen if lanes is None else chosen & lanes
                parts = list(split(frame, inst, space, in_block(where(frame), rank), chosen))
            update_barriers(frame, inst, parts, ARRIVE, ones)
        log_barriers(frame, own)

    return step


_STEPS: dict[str, Callable[[Slots, Instruction], Step]] = {
    "alloc": allocation_step, "dealloc": freeing_step, "relinquish_alloc_permit": permit_step, "ld": move_step,
    "st": move_step, "cp": tensor_copy_in_step, "mma": product_step, "commit": commit_step,
}  # fmt: skip


def tcgen05_step(slots: Slots, inst: Instruction) -> Step:
    """The step of any of them. Raises Unsupported."""
    return _STEPS[inst.modifiers[0]](slots, inst)
