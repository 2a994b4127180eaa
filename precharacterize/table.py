"""The latency table: everything the timing engine needs of a program, as flat arrays, and its file format."""

from __future__ import annotations

import hashlib
import io
import os
import tempfile
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Int8, Int16, Int32

VERSION = 2  # of the rules in this package; part of the key


@dataclass(frozen=True, eq=False)  # equal only to itself: it can be a key
class LatencyTable:
    """One row an instruction of a `Program`; -1 pads. Cycles are core cycles.

    `waits` are the scoreboard registers that must be free before issue (sources, destinations, guard), `writes` those
    it reserves; `long_waits` the plain sources alone (what a two-level scheduler looks at). `read_banks`, `write_banks`
    are the distinct register numbers read from and written to the register file, whose bank is (number + warp) mod
    banks (docs/timing-rules.md, rule 3). `gap_cycles` is the issue-to-issue distance to the next instruction of the
    block for a lone warp (GATSim's d_{b,i}), `result_cycles` the distance from issue to the cycle in which a consumer
    can issue, `access_bytes` the element size of a memory instruction.
    """

    unit: Int8[np.ndarray, " instr"]
    kind: Int8[np.ndarray, " instr"]
    latency_cycles: Int32[np.ndarray, " instr"]
    initiation_cycles: Int32[np.ndarray, " instr"]
    access_bytes: Int8[np.ndarray, " instr"]
    pcs: Int32[np.ndarray, " instr"]
    waits: Int16[np.ndarray, "instr wait"]
    writes: Int16[np.ndarray, "instr write"]
    long_waits: Int16[np.ndarray, "instr long"]
    read_banks: Int16[np.ndarray, "instr read"]
    write_banks: Int16[np.ndarray, "instr write"]
    gap_cycles: Int32[np.ndarray, " instr"]
    result_cycles: Int32[np.ndarray, " instr"]
    block_start: Int32[np.ndarray, " block"]
    block_stop: Int32[np.ndarray, " block"]
    register_count: int
    key: str

    def save(self, path: Path) -> None:
        """Write atomically: a temporary file beside it, then a rename."""
        buffer = io.BytesIO()
        arrays: dict[str, Any] = {f.name: np.asarray(getattr(self, f.name)) for f in fields(self)}
        np.savez(buffer, **arrays)
        payload = buffer.getvalue()
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as file:
            file.write(hashlib.sha256(payload).digest() + payload)
        os.replace(file.name, path)

    @classmethod
    def load(cls, path: Path, key: str) -> LatencyTable:
        """Read a saved table. Raises ValueError if the file is damaged or belongs to another key."""
        content = path.read_bytes()
        digest, payload = content[:32], content[32:]
        if hashlib.sha256(payload).digest() != digest:
            raise ValueError("checksum differs")
        with np.load(io.BytesIO(payload), allow_pickle=False) as data:
            values = {f.name: data[f.name] for f in fields(cls)}
        values["register_count"], values["key"] = int(values["register_count"]), str(values["key"])
        if values["key"] != key:
            raise ValueError("made for another program or pipeline")
        return cls(**values)


def padded(rows: list[list[int]], minimum: int = 1) -> Int16[np.ndarray, "row column"]:
    """Ragged rows as a rectangle padded with -1, at least `minimum` columns wide."""
    width = max([minimum, *map(len, rows)])
    return np.array([row + [-1] * (width - len(row)) for row in rows], np.int16).reshape(len(rows), width)
