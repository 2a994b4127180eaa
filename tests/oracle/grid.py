"""A launch on a whole GPU, all SMs on one clock (docs/timing-rules.md, rule 10)."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from functools import partial
from math import ceil

from abstim.engine import LaunchInputs
from abstim.gpu.config import Gpu
from oracle.memory_side import MemorySide
from oracle.program import Program, stream_of
from oracle.sm import Sm


@dataclass(frozen=True)
class OracleResult:
    """What the rules say of a launch: as `EngineResult`, without the reasons of empty issue slots."""

    cycles: int
    sm_cycles: list[int]
    issued: list[int]  # scheduler cycles in which a warp issued
    resident_warp_cycles: list[int]
    counters: dict[str, int]


def simulate(inputs: LaunchInputs, gpu: Gpu, blocks_per_sm: int) -> OracleResult:
    """Time a launch on one design point, literally."""
    program, width = Program(inputs.table), inputs.trace.warps_per_block
    side = None if gpu.spec.perfect_memory else MemorySide(gpu)
    sms = [Sm(gpu, program, width, blocks_per_sm, inputs.shared_bytes, n, side) for n in range(gpu.spec.sm_count)]
    clusters = _clusters(inputs)
    waiting, size = [*clusters], len(clusters[0])
    window = 32 if side is None else _window(side)
    choose = _taker if size == 1 else partial(_takers, clusters=size, window=window)
    interval = round(gpu.params.dispatch_interval_cycles * 64) / 64
    last, time, next_dispatch = -1, 0, 0.0
    while waiting or any(sm.warps for sm in sms):
        for sm in sms:
            if sm.warps:  # an SM without warps has nothing to look at
                sm.cycle(time)
        while waiting and (taken := choose(sms, last, time, next_dispatch)) is not None:
            last, takers = taken
            since = time if time > ceil(next_dispatch) else next_dispatch
            next_dispatch = (since if size == 1 else max(next_dispatch, time - window)) + size * interval
            for taker, block in zip(takers, waiting.pop(0), strict=True):
                streams = [stream_of(program, inputs.trace, block * width + k) for k in range(width)]
                sms[taker].launch(streams, time, block, inputs.registers)
        if size > 1 and time % window == 0:
            _deliver(sms, clusters, time)
        if side:
            _work_on(side, sms)
        time += 1
    if side:
        _finish(side)
    launch_latency = int(gpu.params.launch_latency_cycles)
    sm_cycles = [sm.end() + 1 + launch_latency for sm in sms]
    traffic = asdict(side.traffic) if side else {}
    return OracleResult(
        max(sm_cycles), sm_cycles, [sm.issued for sm in sms], [sm.resident_warp_cycles for sm in sms],
        _counters(sms) | traffic,
    )  # fmt: skip


def _window(side: MemorySide) -> int:
    """Cycles that SMs run alone."""
    return max(1, min(32, side.delay // 2))


def _work_on(side: MemorySide, sms: list[Sm]) -> None:
    """The memory side's cycle; with the last of a window SMs are told how much they may ask for in the next one."""
    side.cycle()
    last = side.time - 1
    if last and last % _window(side) == 0:
        for sm in sms:
            sm.memory.link.begin_window()


def _finish(side: MemorySide) -> None:
    """Behind the switch work goes on for as long as what was asked for in the last window was on its way there."""
    window = _window(side)
    end = max(1, -(-(side.time - 1) // window)) * window
    while side.time <= end + side.delay or (side.gpu.spec.posted_stores and not side.idle()):
        side.cycle()


def _taker(sms: list[Sm], last: int, time: int, next_dispatch: float) -> tuple[int, list[int]] | None:
    """The SM that takes the next block in cycle `time`, if any can: the earliest, ties round robin after `last`."""
    order = [(last + 1 + k) % len(sms) for k in range(len(sms))]
    free = {n: max(next_dispatch, found) for n in order if (found := sms[n].earliest_dispatch()) is not None}
    able = [n for n in free if free[n] <= time]
    taker = min(able, key=lambda n: ceil(free[n]), default=None)
    return None if taker is None else (taker, [taker])


def _clusters(inputs: LaunchInputs) -> list[list[int]]:
    """Thread blocks by cluster and rank, as positions in the trace."""
    order, size = inputs.order, inputs.cluster_blocks
    blocks = [*range(len(inputs.trace.thread_blocks))] if order is None else order.tolist()
    return [blocks[first : first + size] for first in range(0, len(blocks), size)]


def _takers(
    sms: list[Sm], last: int, time: int, next_dispatch: float, *, clusters: int, window: int
) -> tuple[int, list[int]] | None:
    """The GPC that takes the next cluster at the end of a window, the first after `last` that can, and the SM of each
    of its blocks: those with the fewest."""
    gpcs, pairs = sms[0].gpu.spec.gpcs, (len(sms) + 1) // 2
    for gpc in ((last + 1 + k) % gpcs for k in range(gpcs) if next_dispatch <= time and time % window == 0):
        own = [n for n in range(len(sms)) if n // 2 * gpcs // pairs == gpc]
        able = [n for n in own if (free := sms[n].earliest_dispatch()) is not None and free <= time]
        if len(able) >= clusters:
            return gpc, sorted(able, key=lambda n: (len(sms[n].blocks), n))[:clusters]
    return None


def _deliver(sms: list[Sm], clusters: list[list[int]], time: int) -> None:
    """At the end of a window: what thread blocks have done for each other."""
    for position, away, barrier, number, there in [sent for sm in sms for sent in sm.sent]:
        own = next(cluster for cluster in clusters if position in cluster)
        other = own[(own.index(position) + away) % len(own)]
        for sm in sms:
            for block in sm.blocks.values():
                if block.position == other:
                    sm.arrive_in_phases(block, [(barrier, number, 0)], max(there, time + 1))
    for sm in sms:
        sm.sent.clear()


def _counters(sms: list[Sm]) -> dict[str, int]:
    caches = {"l1d": "memory.l1d", "l1t": "memory.texture", "const": "memory.const", "l1i": "front.l1i"}
    found = {}
    for name, path in caches.items():
        holder, attribute = path.split(".")
        stores = [getattr(getattr(sm, holder), attribute) for sm in sms]
        found[f"{name}_accesses"] = sum(store.accesses for store in stores)
        found[f"{name}_misses"] = sum(store.misses for store in stores)
    return found
