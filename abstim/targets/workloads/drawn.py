"""Weights drawn from a seed, each buffer from one of its own, so that those nobody looks at are never made."""

from __future__ import annotations

from typing import TYPE_CHECKING
from zlib import crc32

import numpy as np

from functional.launches.memory import Contents

if TYPE_CHECKING:
    from jaxtyping import UInt8


def drawn(seed: int, name: str, least: float, most: float) -> Contents:
    """A buffer of float32, uniform between `least` and `most`."""

    def make(into: UInt8[np.ndarray, " byte"]) -> None:
        values = into.view(np.float32)
        np.random.default_rng([seed, crc32(name.encode())]).random(dtype=np.float32, out=values)
        values *= np.float32(most - least)
        values += np.float32(least)

    return Contents(f"float32 uniform from {least!r} to {most!r}, seed {seed}, {name}", make)
