"""Points that no other point beats in every objective. All objectives are minimised."""

from __future__ import annotations

import numpy as np
from jaxtyping import Bool, Float, Int64

Values = Float[np.ndarray, "point objective"]


def front(values: Values) -> Bool[np.ndarray, " point"]:
    """True for the points that no other is at least as good as in every objective and better in one."""
    best = np.zeros(len(values), bool)
    order = _sorted(values)
    for k in order[_layer(values[order])]:
        best |= (values == values[k]).all(1)
    return best


def ranked(values: Values, count: int) -> Int64[np.ndarray, " chosen"]:
    """The `count` best points: front after front, each taken away before the next; a last front in even spacing.

    Of points that are equal in every objective one comes in each front.
    """
    order, chosen = _sorted(values), [np.zeros(0, np.int64)]
    if values.shape[1] == 1:
        return order[:count]
    wanted = min(count, len(values))
    while wanted:
        layer = _layer(values[order])
        best = order[layer]
        if len(best) > wanted:
            best = best[np.linspace(0, len(best) - 1, wanted).round().astype(np.int64)]
        chosen.append(best)
        wanted -= len(best)
        order = np.delete(order, layer)
    return np.concatenate(chosen)


def _sorted(values: Values) -> Int64[np.ndarray, " point"]:
    """Ascending by the first objective, then the second, ...: no point dominates one before it."""
    return np.lexsort(values.T[::-1])


def _layer(values: Values) -> Int64[np.ndarray, " front"]:
    """Positions, in sorted values, of the front; of equal points the first."""
    if values.shape[1] == 1:
        return np.arange(min(1, len(values)))
    if values.shape[1] == 2:
        before = np.concatenate([[np.inf], np.minimum.accumulate(values[:-1, 1])])
        return np.flatnonzero(values[:, 1] < before)
    chosen, left = [], np.arange(len(values))
    while len(left):
        k, left = left[0], left[1:]
        chosen.append(k)
        left = left[(values[left] < values[k]).any(1)]
    return np.array(chosen, np.int64)
