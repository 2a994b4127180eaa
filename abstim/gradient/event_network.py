"""The events of a recording and who waited for whom, as flat arrays.

An edge says: not before its parent, plus `constant`, plus `scale` x a term. Edges that the engine's times contradict
are left out; where none explains an event's time, one of them takes the rest as a frozen remainder.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from abstim.gradient.events import NONE

if TYPE_CHECKING:
    from jaxtyping import Float64, Int16, Int32, Int64

TOLERANCE = 1e-6  # cycles


@dataclass(frozen=True)
class Edges:
    """One possible edge an event: the parent's number (NONE: no edge), and what it adds to the parent's time."""

    parent: Int64[np.ndarray, " event"]
    constant: Float64[np.ndarray, " event"] | Int64[np.ndarray, " event"] | float = 0.0
    term: Int64[np.ndarray, " event"] | int = 0
    scale: Float64[np.ndarray, " event"] | float = 1.0


@dataclass(frozen=True)
class Network:
    """Edges by event: those of event n are `first[n]` .. `first[n + 1]` - 1.

    `slack`: cycles an edge came too early to bind at the base point. `order`: events by time, the last one `final`.
    """

    order: Int64[np.ndarray, " event"]
    first: Int64[np.ndarray, " event_plus_1"]
    parent: Int32[np.ndarray, " edge"]
    slack: Float64[np.ndarray, " edge"]
    term: Int16[np.ndarray, " edge"]
    scale: Float64[np.ndarray, " edge"]
    final: int


class NetworkBuilder:
    """Events are numbered in the order they are added; of those of one time a later one may wait for an earlier one."""

    def __init__(self, base_terms: Float64[np.ndarray, " term"], times: Int64[np.ndarray, " event"]) -> None:
        self.base_terms, self.times = base_terms, times
        self.parts: list[tuple[np.ndarray, ...]] = []
        self.counts: list[np.ndarray] = []

    def slacks(self, event: Int64[np.ndarray, " event"], edges: Edges) -> Float64[np.ndarray, " event"]:
        """Cycles between what an edge asks for and the event's time; infinite where there is no edge."""
        delay = np.asarray(edges.constant) + np.asarray(edges.scale) * self.base_terms[edges.term]
        slack = self.times[event] - self.times[edges.parent] - delay
        return np.where(edges.parent >= 0, slack, np.inf)

    def add(
        self,
        event: Int64[np.ndarray, " event"],
        options: list[Edges],
        preferred: Int64[np.ndarray, " event"] | None = None,
    ) -> None:
        """Add events, each with one edge an option. Where none of an event's edges is tight, its `preferred` option
        becomes so, or the tightest if that is NONE or has no edge."""
        slack = np.stack([self.slacks(event, o) for o in options], 1)
        slack[slack < -TOLERANCE] = np.inf
        slack[slack < TOLERANCE] = 0.0
        tightest = slack.argmin(1)
        rows = np.arange(len(event))
        loose = (slack[rows, tightest] > TOLERANCE) & np.isfinite(slack[rows, tightest])
        chosen = tightest if preferred is None else np.where(preferred >= 0, preferred, tightest)
        chosen = np.where(np.isfinite(slack[rows, chosen]), chosen, tightest)
        slack[rows[loose], chosen[loose]] = 0.0
        there = np.isfinite(slack)
        shape = slack.shape
        columns = [
            np.stack([np.broadcast_to(np.asarray(getattr(o, name)), shape[:1]) for o in options], 1)[there]
            for name in ("parent", "term", "scale")
        ]
        self.counts.append(there.sum(1))
        self.parts.append((slack[there], *columns))

    def network(self) -> Network:
        """All events added, the last one being the end of the launch."""
        slack, parent, term, scale = (np.concatenate(column) for column in zip(*self.parts, strict=True))
        first = np.concatenate([[0], np.cumsum(np.concatenate(self.counts))])
        return Network(
            order=np.argsort(self.times, kind="stable"), first=first, parent=parent.astype(np.int32), slack=slack,
            term=term.astype(np.int16), scale=scale.astype(np.float64), final=len(self.times) - 1,
        )  # fmt: skip


def maybe(present: np.ndarray, event: np.ndarray) -> Int64[np.ndarray, " event"]:
    """`event` where present, else NONE."""
    return np.where(present, event, NONE)
