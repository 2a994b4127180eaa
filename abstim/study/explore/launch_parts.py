"""Parts of launches in place of launches: a reduced target, which the engine times as it times any other."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from abstim.session.session import Session
from abstim.study.sample.thinned import iterations_of, thinned
from abstim.target.trace_cache import OutputCheck
from functional.program import Program
from functional.trace import Trace, concatenate

SHARES = (1 / 16, 1 / 4, 1.0)  # of a launch that is timed in its place, one after the other until it says enough
MANY_WAVES = 48  # from so many on, fewer thread blocks stand for a launch, else fewer iterations
RUNS, SHORTEST_RUN = 4, 2  # stretches of thread blocks that are kept, and the waves of each
WORTH = 0.6  # a part of more is no part


@dataclass(frozen=True)
class PartTraces:
    """Traces of a reduced target, all of them held: a session's `Traces`."""

    traces: Sequence[Trace]
    outputs: tuple[OutputCheck, ...] = ()
    printed: str = ""
    seconds: float = 0.0

    def trace(self, number: int) -> Trace:
        """A launch of the reduced target."""
        return self.traces[number]

    def accesses(self, number: int) -> Trace:
        """The same."""
        return self.traces[number]

    def in_order(self) -> Iterator[Trace]:
        """All of them."""
        return iter(self.traces)


def reduced(session: Session, launches: Sequence[int], traces: Sequence[Trace]) -> Session:
    """A target of some launches of another one, that do what the traces say."""
    case = replace(session.case, launches=tuple(session.launch(number) for number in launches))
    return Session(case, PartTraces(traces))


def part_of(program: Program, trace: Trace, wave_blocks: int, share: float) -> Trace:
    """About `share` of a launch: of its thread blocks where the largest GPU, which holds `wave_blocks`, has many waves
    of them, else of the iterations of each warp. All of it where that would save little."""
    if share == 1.0:
        return trace
    if len(trace.thread_blocks) >= MANY_WAVES * wave_blocks:
        return fewer_blocks(trace, wave_blocks, share)
    found = thinned(program, trace, iterations_of(program, trace).kept(share, SHARES[0]))
    if found is None or found.warp_instructions.sum() > WORTH * trace.warp_instructions.sum():
        return trace
    return found


def fewer_blocks(trace: Trace, wave_blocks: int, share: float) -> Trace:
    """Stretches of whole waves, spread evenly over the grid, the first and the last thread blocks among them."""
    blocks = len(trace.thread_blocks)
    each = max(round(share * blocks / RUNS), SHORTEST_RUN * wave_blocks)
    if RUNS * each >= WORTH * blocks:
        return trace
    starts = np.linspace(0, blocks - each, RUNS).astype(int).tolist()
    order = np.argsort(trace.thread_blocks)
    if not np.array_equal(order, np.arange(blocks)):
        return trace  # executed in another order: its stretches are none of the grid
    return concatenate([trace.part(start, start + each) for start in starts], trace.warps_per_block)
