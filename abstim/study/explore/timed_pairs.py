"""Launches of a target timed on the GPUs of a sweep, each pair of a GPU and a launch once."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from abstim.gpu.config import Gpu
from abstim.session.session import Session
from abstim.study.explore.timing import Timer
from abstim.targets.trace_cache import OutputCheck
from functional.errors import InputError
from functional.traces.trace import Trace

if TYPE_CHECKING:
    from jaxtyping import Float64

MakeTimer = Callable[[Sequence[Session]], Timer]


@dataclass(frozen=True)
class OneTrace:
    """A launch that is a target of its own: a session's `Traces`."""

    held: Trace
    outputs: tuple[OutputCheck, ...] = ()
    printed: str = ""
    seconds: float = 0.0

    def trace(self, number: int) -> Trace:
        """The launch."""
        return self.held

    def accesses(self, number: int) -> Trace:
        """The same."""
        return self.held

    def in_order(self) -> Iterator[Trace]:
        """It alone."""
        yield self.held


def reduced(session: Session, number: int) -> Session:
    """A target of one launch of another one."""
    case = replace(session.case, launches=(session.launch(number),))
    return Session(case, OneTrace(session.traces.trace(number)))


class TimedPairs:
    """Of a session, on `gpus`; `timer_of` makes a timer of sessions. `known`: cycles of pairs of a GPU and a launch,
    both by number."""

    def __init__(self, session: Session, gpus: Sequence[Gpu], timer_of: MakeTimer) -> None:
        self.session, self.gpus, self.timer_of = session, gpus, timer_of
        self.known: dict[tuple[int, int], float] = {}

    def timed(self, pairs: Sequence[tuple[int, int]]) -> Float64[np.ndarray, " pair"]:
        """Cycles of pairs."""
        new = [pair for pair in dict.fromkeys(pairs) if pair not in self.known]
        if new:
            numbers = sorted({number for _, number in new})
            timer = self.timer_of([reduced(self.session, number) for number in numbers])
            found, reasons = timer.target_cycles([(numbers.index(number), self.gpus[gpu]) for gpu, number in new])
            if wrong := next((reason for reason in reasons if reason), ""):
                raise InputError(f"a sampled sweep needs points on which everything runs: {wrong}")
            self.known |= {pair: float(cycles[0]) for pair, cycles in zip(new, found, strict=True)}
        return np.array([self.known[pair] for pair in pairs])

    @property
    def instructions(self) -> float:
        """Warp instructions of all that was timed."""
        of_launch = {number: self._instructions(number) for _, number in self.known}
        return sum(of_launch[number] for _, number in self.known)

    def _instructions(self, number: int) -> float:
        return float(self.session.traces.trace(number).warp_instructions.sum())
