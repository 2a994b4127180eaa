"""Which pair of a point and a launch to time next: the one that tells most about the sums of all points, and about
their ratios to that of the first point.

What a pair costs does not count: small launches are cheap, and would be taken first, but say little of large ones.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from sampling.auto.surface import Pair, Pairs, Places, Setting

if TYPE_CHECKING:
    from jaxtyping import Bool


class Choice:
    """Of the pairs of some `points`, the first point among them, and some `launches`."""

    def __init__(
        self, pairs: Pairs, points: Sequence[int], launches: Sequence[int], setting: Setting, timed: Iterable[Pair]
    ) -> None:  # fmt: skip
        self.kernels, self.nugget = pairs.kernels, setting.nugget
        self.pairs = [(point, launch) for point in points for launch in launches]
        self.places = Places.of(self.pairs)
        self.among = pairs.covariance(setting, self.places, self.places)
        of_sums = [pairs.shares[p] @ pairs.covariance(setting, pairs.on([p]), self.places) for p in points]
        self.told = np.concatenate([of_sums, np.array(of_sums) - of_sums[list(points).index(0)]])
        self.open = np.ones(len(self.pairs), bool)
        number = {pair: k for k, pair in enumerate(self.pairs)}
        self._condition([number[pair] for pair in timed if pair in number])

    def _condition(self, timed: list[int]) -> None:
        """On pairs that are known."""
        of_timed = self.among[timed]
        weights = np.linalg.solve(of_timed[:, timed] + self.nugget * np.eye(len(timed)), of_timed)
        self.told -= self.told[:, timed] @ weights
        self.among -= of_timed.T @ weights
        self.open[timed] = False

    def next(self, kernel: int | None = None) -> Pair | None:
        """The best one, of one kernel or of all; none if all were timed."""
        wanted: Bool[np.ndarray, " pair"] = self.open.copy()
        if kernel is not None:
            wanted &= self.kernels[self.places.launches] == kernel
        if not wanted.any():
            return None
        gain = (self.told**2).sum(0) / (np.maximum(np.diag(self.among), 0.0) + self.nugget)
        best = int(np.argmax(np.where(wanted, gain, -1.0)))
        self.take(best)
        return self.pairs[best]

    def take(self, best: int) -> None:
        """A pair is known from now on."""
        told, of_sums = self.among[best].copy(), self.told[:, best].copy()
        variance = max(float(told[best]), 0.0) + self.nugget
        self.among -= np.outer(told / variance, told)
        self.told -= np.outer(of_sums / variance, told)
        self.open[best] = False
