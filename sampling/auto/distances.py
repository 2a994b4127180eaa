"""How different launches are, by their work."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from jaxtyping import Float64


def distances(a: Float64[np.ndarray, "n work"], b: Float64[np.ndarray, "m work"]) -> Float64[np.ndarray, "n m"]:
    """How different launches are: the largest difference of a column's logarithms."""
    found = np.zeros((len(a), len(b)))
    for x, y in zip(np.log1p(a).T, np.log1p(b).T, strict=True):
        np.maximum(found, np.abs(x[:, None] - y), out=found)
    return found


def squared_distances(
    a: Float64[np.ndarray, "n column"], b: Float64[np.ndarray, "m column"] | None = None
) -> Float64[np.ndarray, "n m"]:
    """Of rows of `a` to rows of `b`, or to each other."""
    b = a if b is None else b
    found = (a**2).sum(1)[:, None] + (b**2).sum(1) - 2.0 * a @ b.T
    return np.asarray(np.maximum(found, 0.0))
