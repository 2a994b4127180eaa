"""The latency table: all that the timing engine needs of a program, as flat arrays, its file format, its pipeline."""

import hashlib
import json
from dataclasses import asdict, dataclass, fields
from typing import Any, TypeVar

import numpy as np

from functional.arrays import Int8, Int32
from functional.hashed_once import HashedOnce
from functional.keep.kept import decode_arrays, encode_arrays

Made = TypeVar("Made")
UNITS = ("sp", "sfu", "mem", "int", "dp", "tensor")
PAIR = 2  # instructions that GPGPU-Sim's fetch brings


def brought(most, line, pc):
    """Instructions that a fetch at `pc` brings: `most`, or those left on its line of code, of so many (a power of two).
    GPGPU-Sim 4.2 decodes a pair at a line's end, too (shader_core_ctx::decode)."""
    return most if most <= PAIR else min(most, line - (pc & (line - 1)))


@dataclass(frozen=True, slots=True)
class Operation:
    """Timing of one class of instructions on its execution unit."""

    latency_cycles: int
    initiation_cycles: float
    unit: str = "sp"  # one of UNITS


@dataclass(frozen=True, slots=True)
class PipelineParameters(HashedOnce):
    """Latency classes by name (`int_add`, `fp32_mad`, `fp64_div`, `sfu`, `tensor`, `other`, ...: see `classify.py`) and
    load latencies of the memory pipe from the cycle it starts an access (docs/timing-rules.md, rule 5)."""

    __hash__ = HashedOnce.__hash__

    operations: tuple[tuple[str, Operation], ...]
    shared_cycles: int  # start -> result of a shared load
    const_hit_cycles: int  # start -> result of a parameter or constant load that hits
    global_hit_cycles: int  # start -> result of a global load that hits in L1D
    shared_bytes_per_cycle: int  # of an SM
    register_banks: int
    instructions_per_fetch: int
    fetch_line_instructions: int  # of an L1I line
    branch_cycles: int  # from what goes back, jumps or calls to the issue of its target
    return_cycles: int  # and from a return, or a branch to an address in a register

    @property
    def key(self) -> str:
        """Content hash: equal parameters, equal key."""
        return hashlib.sha256(json.dumps(asdict(self), sort_keys=True).encode()).hexdigest()

    def operation(self, name: str) -> Operation:
        """The class `name`; an unlisted class is timed as `other`."""
        table = dict(self.operations)
        return table.get(name, table["other"])


WRITE_BACK_CYCLES = 2  # of an arithmetic result, after the unit's latency
# Machine code: a result is forwarded to the next instruction, `latency` cycles after its own issue; two of these have
# gone by when it starts on its unit
FORWARDED_CYCLES = -2
SCOREBOARDS = 6  # of a warp
WORDS = 16  # of a thread block that its warps change by loops of compare-and-swap
BARRIERS = 16  # of a thread block, by number


@dataclass(frozen=True, eq=False)  # equal only to itself: it can be a key
class LatencyTable:
    """One row an instruction of a `Program`; -1 pads. Cycles are core cycles.

    `waits` are the scoreboard registers that must be free before issue (sources, destinations, guard), `writes` those
    it reserves; `long_waits` the plain sources alone (what a two-level scheduler looks at). `read_banks`, `write_banks`
    are the distinct register numbers read from and written to the register file, whose bank is (number + warp) mod
    banks (docs/timing-rules.md, rule 3). `gap_cycles` is the issue-to-issue distance to the next instruction of the
    block for a lone warp (GATSim's d_{b,i}), `result_cycles` the distance from issue to the cycle in which a consumer
    can issue, `access_bytes` the element size of a memory instruction. Of machine code, `stall_cycles` is the least
    distance to the warp's next issue, `release` a register (a scoreboard) that is free once the operands have been
    read, `result_offset_cycles` what lies between the end of the unit's latency and the result; `counted`: what
    it writes is a scoreboard, on which several may count (two registers more behind its entry). `barrier`: the number
    of the barrier that a warp reaches, and BARRIERS times the warps that it is for (0: all that run). `copies`: what an
    instruction does with groups of asynchronous copies (precharacterize.synchronisation). `round_cycles`: of the
    compare-and-swap of a loop that is one atomic of the PTX, how long one of its rounds takes, `word` which of the
    block's WORDS it changes (of `setmaxnreg` the registers a thread, negative where they get
    fewer); its bank passes are the rounds it takes by itself. 0 of all others. `fp64_atomic`: does it
    add to doubles in L2?"""

    unit: Int8[np.ndarray, " instr"]
    kind: Int8[np.ndarray, " instr"]
    latency_cycles: Int32[np.ndarray, " instr"]
    initiation_cycles: Int32[np.ndarray, " instr"]
    access_bytes: Int8[np.ndarray, " instr"]
    pcs: Int32[np.ndarray, " instr"]
    waits: Int32[np.ndarray, "instr wait"]
    writes: Int32[np.ndarray, "instr write"]
    long_waits: Int32[np.ndarray, "instr long"]
    read_banks: Int32[np.ndarray, "instr read"]
    write_banks: Int32[np.ndarray, "instr write"]
    gap_cycles: Int32[np.ndarray, " instr"]
    result_cycles: Int32[np.ndarray, " instr"]
    block_start: Int32[np.ndarray, " block"]
    block_stop: Int32[np.ndarray, " block"]
    register_count: int
    key: str
    stall_cycles: Int32[np.ndarray, " instr"]
    release: Int32[np.ndarray, " instr"]
    result_offset_cycles: Int32[np.ndarray, " instr"]
    counted: Int8[np.ndarray, " instr"]
    barrier: Int32[np.ndarray, " instr"]
    copies: Int32[np.ndarray, " instr"]
    round_cycles: Int32[np.ndarray, " instr"]
    word: Int32[np.ndarray, " instr"]
    fp64_atomic: Int8[np.ndarray, " instr"]


def encoded(value: Any) -> bytes:
    """A dataclass of arrays, numbers, texts and tables as a file holds it."""
    values = {f.name: getattr(value, f.name) for f in fields(value)}
    whole = {n: np.frombuffer(encoded(v), np.uint8) if isinstance(v, LatencyTable) else v for n, v in values.items()}
    return encode_arrays({name: np.asarray(part) for name, part in whole.items()})


def decoded(kind: type[Made], content: bytes) -> Made:
    """What `encoded` gave of a `kind`. Raises ValueError or KeyError for anything else."""
    arrays = decode_arrays(content)
    parts = {f.name: arrays[f.name] if arrays[f.name].ndim else arrays[f.name].item() for f in fields(kind)}  # type: ignore[arg-type]
    tables = [f.name for f in fields(kind) if f.type in (LatencyTable, LatencyTable.__name__)]  # type: ignore[arg-type]
    return kind(**parts | {name: decoded(LatencyTable, parts[name].tobytes()) for name in tables})


def padded(rows: list[list[int]]) -> Int32[np.ndarray, "row column"]:
    """Ragged rows as a rectangle padded with -1, at least a column wide."""
    width = max([1, *map(len, rows)])
    return np.array([row + [-1] * (width - len(row)) for row in rows], np.int32).reshape(len(rows), width)
