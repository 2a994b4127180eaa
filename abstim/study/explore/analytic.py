"""The analytic model as a screen: columns of varied keys go straight into its arrays, no `Gpu` is made of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Float

from abstim.gpu.config import Gpu
from abstim.gpu.spec import ALUS, INSTRUCTION_CLASSES
from abstim.session.session import Session
from abstim.study.explore.screen import Screen


def analytic_screen(sessions: Sequence[Session], gpu: Gpu) -> Screen:
    """A screen of the targets around a GPU. Keys it does not know (policies, banks, ...) change nothing in it."""
    from abstim.analytic import points_of, predict_points, summaries

    base = points_of([gpu])
    launches = [summaries(session, gpu) for session in sessions]

    def screen(columns: Mapping[str, np.ndarray]) -> Float[np.ndarray, "point target"]:
        points = _points(base, columns)
        cycles = [sum(np.asarray(predict_points(s, points).cycles, float) for s in found) for found in launches]
        return np.stack(cycles, 1)

    return screen


def _points(base: Any, columns: Mapping[str, np.ndarray]) -> Any:
    """As many points as the columns have rows: the base with the columns put in."""
    count = len(next(iter(columns.values())))
    arrays = {name: np.repeat(column, count, 0) for name, column in base._asdict().items()}
    for key, values in columns.items():
        section, _, name = key.rpartition(".")
        if section == "unit":
            found = np.stack([values == unit for unit in ALUS], 1)
            arrays["on_unit"][:, :, INSTRUCTION_CLASSES.index(name)] = found
        elif section:
            arrays[section][:, INSTRUCTION_CLASSES.index(name)] = values
        elif key in arrays:
            arrays[key] = values.astype(np.float32)
    return type(base)(**arrays)
