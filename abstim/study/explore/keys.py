"""Keys that can be varied: those of `--set`, and friendly ones derived from them.

A derived key sets one key of the GPU so that a figure people think in comes out: KiB of L2, GB/s of DRAM. What the GPU
can be is coarser than that figure (whole sets, service times in 1/64 cycle): the nearest that can be is taken, and the
column shows that. A wish off by more than `TOLERANCE` is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from abstim.engine.rules import UNITS_A_CYCLE
from abstim.gpu.config import domains, full_key, nearest
from abstim.gpu.spec import Domain
from functional.errors import InputError
from functional.traces.trace import LINE_BYTES, SECTOR_BYTES

TOLERANCE = 0.05
POSITIVE = Domain(float, "a number above 0", lambda v: 0 < v < 1e15)
Columns = Mapping[str, np.ndarray]  # key -> values, one a point


class Derived(NamedTuple):
    """`key` = `base` x scale, or scale / `base` if `inverse`; `base` is held in steps of `step`."""

    base: str
    scale: Callable[[Columns], Any]
    meaning: str
    inverse: bool = False
    step: float = 1.0


def _lines_kib(*counts: str, line: str = "") -> Callable[[Columns], Any]:
    """KiB of as many cache lines as the product of the columns."""
    return lambda c: np.prod([c[name] for name in counts], axis=0) * (c[line] if line else LINE_BYTES) / 1024


# In the order in which they are worked out: a later one may need what an earlier one has set.
DERIVED: dict[str, Derived] = {
    "core_clock_mhz": Derived("core_clock_hz", lambda c: 1e-6, "core clock; latencies stay what they are in cycles"),
    "shared_kib": Derived("shared_bytes_per_sm", lambda c: 1 / 1024, "shared memory an SM"),
    "registers_kib": Derived("registers_per_sm", lambda c: 4 / 1024, "register file an SM"),
    "l1d_kib": Derived("l1d_ways", _lines_kib("l1d_sets"), "L1 data cache an SM, by its ways"),
    "l1i_kib": Derived("l1i_ways", _lines_kib("l1i_sets", line="l1i_line_bytes"), "instruction cache, by its ways"),
    "const_kib": Derived(
        "const_ways", _lines_kib("const_sets", line="const_line_bytes"), "constant cache, by its ways"
    ),
    "l2_kib": Derived(
        "l2_sets", _lines_kib("dram_channels", "l2_slices_per_channel", "l2_ways"), "L2 of the GPU, by its sets"
    ),
    "l2_gbps": Derived(
        "l2_sector_cycles",
        lambda c: c["dram_channels"] * c["l2_slices_per_channel"] * SECTOR_BYTES * c["core_clock_hz"] / 1e9,
        "10^9 B/s of all L2 slices",
        inverse=True,
        step=1 / UNITS_A_CYCLE,
    ),
    "dram_gbps": Derived(
        "dram_sector_cycles",
        lambda c: c["dram_channels"] * SECTOR_BYTES * c["core_clock_hz"] / 1e9,
        "10^9 B/s of all DRAM channels",
        inverse=True,
        step=1 / UNITS_A_CYCLE,
    ),
}


def key_of(key: str) -> str:
    """The full name of a key that can be varied. Raises InputError, with the nearest one, if there is none."""
    if key in DERIVED:
        return key
    try:
        return full_key(key)
    except InputError:
        raise InputError(f"unknown key {key!r}{nearest(key, [*DERIVED, *domains()])}") from None


def domain_of(key: str) -> Domain:
    """What a key accepts."""
    return POSITIVE if key in DERIVED else domains()[key]


def value_of(key: str, columns: Columns) -> np.ndarray:
    """A derived key's values, from the keys it depends on."""
    derived = DERIVED[key]
    scale, base = derived.scale(columns), np.asarray(columns[derived.base], float)
    with np.errstate(divide="ignore"):
        return scale / base if derived.inverse else scale * base


def nearest_values(key: str, wanted: np.ndarray, columns: Columns) -> tuple[np.ndarray, np.ndarray, list[str]]:
    """What comes nearest to the `wanted` values of a derived key.

    Returns the values of its base, what the key then is, and why a wish cannot be had ("" where it can).
    """
    derived = DERIVED[key]
    domain = domains()[derived.base]
    scale = np.broadcast_to(derived.scale(columns), wanted.shape)
    steps = np.rint((scale / wanted if derived.inverse else wanted / scale) / derived.step)
    raw = np.maximum(steps, 1) * derived.step
    given = scale / raw if derived.inverse else scale * raw
    base = raw.astype(np.int64) if domain.type is int else raw
    accepted = dict(zip(found := np.unique(base).tolist(), map(domain.accepts, found), strict=True))
    far = np.abs(given / wanted - 1) > TOLERANCE
    reasons = []
    for k, value in enumerate(base.tolist()):
        reason = ""
        if not accepted[value]:
            reason = f"{key} = {wanted[k]:g} needs {derived.base} = {value:g}, which is not {domain.text}"
        elif far[k]:
            reason = f"{key} = {wanted[k]:g} cannot be had; the nearest is {given[k]:g} ({derived.base} = {value:g})"
        reasons.append(reason)
    return base, given, reasons
