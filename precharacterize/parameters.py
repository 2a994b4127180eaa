"""The pipeline a program is characterised for. Nothing here depends on SM count, schedulers, policy or caches."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass

UNITS = ("sp", "sfu", "mem", "int", "dp", "tensor")


@dataclass(frozen=True, slots=True)
class Operation:
    """Timing of one class of instructions on its execution unit."""

    latency_cycles: int
    initiation_cycles: int
    unit: str = "sp"  # one of UNITS


@dataclass(frozen=True, slots=True)
class PipelineParameters:
    """Latency classes by name (`int_add`, `fp32_mad`, `fp64_div`, `sfu`, `tensor`, `other`, ...: see `classify.py`) and
    load latencies of the memory pipe from the cycle it starts an access (docs/timing-rules.md, rule 5).
    """

    operations: tuple[tuple[str, Operation], ...]
    shared_cycles: int  # start -> result of a shared load
    const_hit_cycles: int  # start -> result of a parameter or constant load that hits
    global_hit_cycles: int  # start -> result of a global load that hits in L1D
    register_banks: int
    instructions_per_fetch: int
    fetch_line_instructions: int  # a fetch never crosses this boundary (L1I line / instruction size)

    @property
    def key(self) -> str:
        """Content hash: equal parameters, equal key."""
        return hashlib.sha256(json.dumps(asdict(self), sort_keys=True).encode()).hexdigest()

    def operation(self, name: str) -> Operation:
        """The class `name`; an unlisted class is timed as `other`."""
        table = dict(self.operations)
        return table.get(name, table["other"])
