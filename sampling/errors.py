"""Errors a caller can cause. Each is one clear line: what, where, what to do."""

from __future__ import annotations


class SamplingError(ValueError):
    """A profile, a selection or a parameter that no method can work with. `str()` of it is the line a user sees."""
