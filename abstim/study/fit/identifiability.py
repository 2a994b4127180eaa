"""How well a fit knows its parameters, from the Jacobian at the solution."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from jaxtyping import Bool, Float64

CONFIDENCE = 0.95
NEGLIGIBLE = 0.01  # error in log cycles that a doubled parameter must at least make somewhere, to count as seen
PART = 0.3  # weight in a direction from which a parameter counts as part of it
UNSEEN = 0.51  # part of a parameter in directions without effect from which it is not fitted at all


@dataclass(frozen=True)
class Knowledge:
    """`low`, `high`: confidence interval of each parameter, infinite where the data says nothing; `correlation` of the
    estimates. `unidentified`: combinations of parameters that change no cycles, or too few to tell: names and weights
    in logarithms (0.7 a, -0.7 b: a and b up and down by the same factor). `unseen`: parameters that lie mostly in
    combinations that change no cycles."""

    low: Float64[np.ndarray, " name"]
    high: Float64[np.ndarray, " name"]
    correlation: Float64[np.ndarray, "name name"]
    singular_values: Float64[np.ndarray, " name"]
    directions: Float64[np.ndarray, "name name"]  # right singular vectors, a row each
    unseen: Bool[np.ndarray, " name"]
    unidentified: list[dict[str, float]] = field(default_factory=list)


def knowledge(
    names: tuple[str, ...],
    values: Float64[np.ndarray, " name"],
    errors: Float64[np.ndarray, " launch"],
    jacobian: Float64[np.ndarray, "launch name"],
    kernels: int,
) -> Knowledge:
    """From weighted errors in log cycles and their derivatives by the logarithms of the parameters.

    A kernel counts as one observation however many launches it has. An interval is that of the linearised problem,
    symmetric in logarithms, Student's t. A direction is unidentified if moving along it by a factor of two changes no
    kernel's cycles by more than about NEGLIGIBLE, or if its own standard error is beyond a factor of two.
    """
    from scipy.special import stdtrit  # scipy.stats would take a second and a half to import

    _, singular, directions = np.linalg.svd(jacobian, full_matrices=False)
    singular = np.pad(singular, (0, len(names) - len(singular)))
    directions = _complete(directions, len(names))
    freedom = max(1, kernels - len(names))
    deviation = float(np.sqrt((errors**2).sum() / freedom))
    visible = singular * np.log(2) > NEGLIGIBLE
    seen = visible & (deviation < singular * np.log(2))
    inverse = np.where(seen, 1 / np.where(seen, singular, 1) ** 2, 0)
    covariance = directions.T @ (inverse[:, None] * directions) * deviation**2
    unseen = (directions[~visible] ** 2).sum(0) > UNSEEN
    blind = (directions[~seen] ** 2).sum(0) > PART**2
    width = stdtrit(freedom, (1 + CONFIDENCE) / 2) * np.sqrt(np.diag(covariance))
    with np.errstate(over="ignore"):
        low, high = (values * np.exp(np.where(blind, sign * np.inf, sign * width)) for sign in (-1, 1))
    spread = np.sqrt(np.diag(covariance))
    scale = np.where(spread > 0, spread, 1)
    correlation = covariance / np.outer(scale, scale)
    np.fill_diagonal(correlation, 1.0)
    unidentified = [
        {names[k]: round(float(d[k]), 3) for k in np.argsort(-abs(d)) if abs(d[k]) > PART} for d in directions[~seen]
    ]
    return Knowledge(low, high, correlation, singular, directions, unseen, unidentified)


def _complete(directions: np.ndarray, count: int) -> Float64[np.ndarray, "name name"]:
    """An orthonormal basis whose first rows are `directions`: fewer launches than parameters leave some unseen."""
    if len(directions) == count:
        return directions
    _, _, basis = np.linalg.svd(directions, full_matrices=True)
    return np.concatenate([directions, basis[len(directions) :]])
