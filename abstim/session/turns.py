"""Launches whose outcome depends on the order of their thread blocks: how those take turns on a GPU."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from abstim.targets.execution import is_ordered
from functional.execution.interleaving import Interleaving
from precharacterize.classify import Kind

if TYPE_CHECKING:
    from jaxtyping import Int64

    from abstim.gpu.config import Gpu
    from abstim.session.session import Session
    from precharacterize import LatencyTable


def interleaving(session: Session, number: int, gpu: Gpu) -> Interleaving | None:
    """How the thread blocks of a launch take turns on a GPU; None where that does not matter."""
    if not is_ordered(session.launch(number)):
        return None
    resident = session.blocks_per_sm(number, gpu) * gpu.spec.sm_count
    return Interleaving(resident, block_cycles(session.table(number, gpu), gpu))


def block_cycles(table: LatencyTable, gpu: Gpu) -> Int64[np.ndarray, " block"]:
    """What each basic block takes a lone warp: from issue to issue, and the way to L2 and back where it loads from
    there, once, because loads of one block overlap."""
    issues = np.add.reduceat(table.gap_cycles, table.block_start).astype(np.int64)
    far = np.isin(table.kind, (Kind.GLOBAL_LOAD, Kind.GLOBAL_ATOMIC))
    loads = np.logical_or.reduceat(far, table.block_start)
    p = gpu.params
    way = p.atomic_latency_cycles if gpu.spec.perfect_memory else p.l2_request_cycles + p.l2_reply_cycles
    return issues + loads * (p.l1d_latency_cycles + way)
