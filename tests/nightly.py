"""`make test` tries a part of what `make nightly` tries."""

from __future__ import annotations

import os
from typing import TypeVar

from hypothesis import HealthCheck, settings

T = TypeVar("T")
NIGHTLY = "ABSTIM_NIGHTLY" in os.environ


def of(daily: T, nightly: T) -> T:
    """One of two."""
    return nightly if NIGHTLY else daily


def examples(daily: int, nightly: int) -> settings:
    """Of hypothesis, so many."""
    return settings(max_examples=of(daily, nightly), suppress_health_check=list(HealthCheck))
