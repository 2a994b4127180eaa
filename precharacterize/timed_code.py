"""Timed code: blocks timed in place of a program's own, and how a trace of the program becomes a trace of them.

A trace says which PTX blocks a warp went through. Timed code has blocks of its own: those of the machine code, and for
each PTX block a fallback, its own instructions in the order in which an assembler would put them. At each event of a
trace the *choices* of its PTX block are timed blocks that may be executed there. A timed block *covers* events: the one
it is chosen at, and later ones (a block merged with it, code hoisted out of a block behind it, further rounds of an
unrolled loop). docs/machine-code.md has the rules, `precharacterize.projection` follows them."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple

import numpy as np
from msgspec import Struct, field

from functional.arrays import Int32, UInt64
from functional.programs.program import Program
from precharacterize.classify import NO_OPERATIONS, Kind, Operations
from precharacterize.table import LatencyTable

MOST_COVERING = 63  # timed blocks that can cover events of one PTX block: a set of them is a word


class Source(NamedTuple):
    """A memory access of the trace: the n-th of a kind of stream in an event that the timed block covers."""

    cover: int
    number: int


class Cover(NamedTuple):
    """The `instance`-th event of a PTX block, counted from the event a timed block is chosen at."""

    block: int
    instance: int


class Mode(IntEnum):
    """What a memory row takes from the trace."""

    RECORDS = 0  # line records
    PASSES = 1  # bank passes of shared memory
    ONCE_A_LINE = 2  # an atomic that a warp has added up before: a line once, however many lanes name it
    ONE_PASS = 3  # the same of shared memory
    ROUNDS = 4  # of a loop of compare-and-swap on a word that all lanes name: one lane a round
    CONSTANTS = 5  # line records, of constants, which mostly are operands and no accesses


class Access(Struct, frozen=True):
    """Where a memory row takes what it needs of the trace; from nowhere if `sources` is empty."""

    mode: Mode
    sources: tuple[Source, ...] = ()


class TimedBlock(Struct):
    """Rows `start` .. `stop` - 1 of the table; `times` rounds of the PTX block it is chosen at."""

    start: int
    stop: int
    leader: int
    times: int = 1
    machine: bool = False
    covers: list[Cover] = field(default_factory=list)
    rivals: list[int] = field(default_factory=list)  # timed blocks that hold the same code of the leader
    accesses: list[Access] = field(default_factory=list)  # of its memory rows, in order
    operations: dict[int, Operations] = field(default_factory=dict)  # of a thread, by cover whose event has the mask


@dataclass(frozen=True, eq=False)
class TimedCode:
    """Timed blocks and their table, flat, as the projection reads them; ragged lists are cut by `*_at`."""

    table: LatencyTable
    description: str  # what was timed: "PTX with loads hoisted ...", "machine code ..."
    origins: Int32[np.ndarray, " instr"]  # the PTX instruction that each row of the table was made of
    choices_at: Int32[np.ndarray, " ptx_block_plus_1"]
    choices: Int32[np.ndarray, " choice"]
    # Accesses with records, with bank passes; all but constants; is the first block timed, the fallback, where no
    # other one was? Timed block n is the fallback of PTX block n
    streams: Int32[np.ndarray, "ptx_block 4"]
    covers_at: Int32[np.ndarray, " timed_plus_1"]
    covers: Int32[np.ndarray, "cover 2"]  # PTX block, instance
    operations: Int32[np.ndarray, "cover 4"]  # `Operations` of each thread of the event
    bits: UInt64[np.ndarray, " cover"]  # of the timed block, among those that cover the PTX block
    rivals: UInt64[np.ndarray, " timed"]
    numbers: Int32[np.ndarray, "timed 4"]  # leader, times, is it machine code, rows
    accesses_at: Int32[np.ndarray, " timed_plus_1"]
    accesses: Int32[np.ndarray, "access 3"]  # mode, first source, end of sources
    sources: Int32[np.ndarray, "source 2"]


HOISTED = "PTX with loads hoisted"


def why_not_machine(description: str) -> str:
    """Of what was timed: why it is not machine code, as it should have been; "" if it is, or should not."""
    return description.removeprefix(HOISTED).strip(" ()") if description.startswith(HOISTED) else ""


def consumes(kind: int) -> int:
    """Which stream of a trace an instruction takes from: 0 line records, 1 bank passes, -1 none."""
    if kind < Kind.PARAM_LOAD:
        return -1
    return 1 if Kind.SHARED_LOAD <= kind <= Kind.SHARED_ATOMIC else 0


def mode_of(kind: int) -> Mode:
    """What an access takes from the trace, as a rule."""
    if consumes(kind) == 1:
        return Mode.PASSES
    return Mode.CONSTANTS if kind == Kind.CONST_LOAD else Mode.RECORDS


def access_numbers(program: Program, kinds: Sequence[int]) -> dict[int, int]:
    """PTX memory instruction -> its number among those of its block that take from the same stream."""
    found = {}
    for block in program.blocks:
        counts = [0, 0]
        for i in range(block.start, block.stop):
            stream = consumes(kinds[i])
            if stream >= 0:
                found[i] = counts[stream]
                counts[stream] += 1
    return found


def timed_code(
    program: Program, kinds: Sequence[int], table: LatencyTable, blocks: list[TimedBlock], needed: Sequence[bool],
    description: str, origins: Sequence[int],
) -> TimedCode:  # fmt: skip
    """Timed blocks as flat arrays. The first are the fallbacks, one a PTX block; `needed`: is it, where no machine
    block has been timed? `origins`: the PTX instruction of each row."""
    choices = [[n for n, b in enumerate(blocks) if b.machine and b.leader == block.index] for block in program.blocks]
    for chosen in choices:
        chosen.sort(key=lambda n: (-blocks[n].times, blocks[n].start))
    bits, operations = _bits(blocks), [b.operations.get(k, NO_OPERATIONS) for b in blocks for k in range(len(b.covers))]
    sources = [s for b in blocks for a in b.accesses for s in a.sources]
    ends = np.cumsum([0, *(len(a.sources) for b in blocks for a in b.accesses)])
    modes = [a.mode for b in blocks for a in b.accesses]
    return TimedCode(
        table=table,
        description=description,
        origins=np.array(origins, np.int32),
        choices_at=_cuts(choices),
        choices=np.array([n for chosen in choices for n in chosen], np.int32),
        streams=_streams(program, kinds, needed),
        covers_at=_cuts([b.covers for b in blocks]),
        covers=np.array([c for b in blocks for c in b.covers], np.int32).reshape(-1, 2),
        operations=np.array(operations, np.int32).reshape(-1, 4),
        bits=np.array([bits[n, c.block] for n, b in enumerate(blocks) for c in b.covers], np.uint64),
        rivals=np.array([sum({bits.get((r, b.leader), 0) for r in b.rivals}) for b in blocks], np.uint64),
        numbers=np.array([(b.leader, b.times, b.machine, b.stop - b.start) for b in blocks], np.int32).reshape(-1, 4),
        accesses_at=_cuts([b.accesses for b in blocks]),
        accesses=np.array([modes, ends[:-1], ends[1:]], np.int32).T.copy(),
        sources=np.array(sources, np.int32).reshape(-1, 2),
    )


def _streams(program: Program, kinds: Sequence[int], needed: Sequence[bool]) -> Int32[np.ndarray, "ptx_block 4"]:
    streams = np.zeros((len(program.blocks), 4), np.int32)
    streams[:, 3] = needed
    for i in access_numbers(program, kinds):
        streams[program.block_of(i), consumes(kinds[i])] += 1
        streams[program.block_of(i), 2] += kinds[i] > Kind.CONST_LOAD
    return streams


def _bits(blocks: list[TimedBlock]) -> dict[tuple[int, int], int]:
    """(timed block, PTX block it covers) -> its bit in the sets of that PTX block."""
    used: dict[int, int] = {}
    found: dict[tuple[int, int], int] = {}
    for n, timed in enumerate(blocks):
        for block in dict.fromkeys(c.block for c in timed.covers):
            found[n, block] = 1 << min(used.get(block, 0), MOST_COVERING)
            used[block] = used.get(block, 0) + 1
    return found


def _cuts(rows: Sequence[Sequence]) -> Int32[np.ndarray, " row_plus_1"]:
    return np.cumsum([0, *map(len, rows)]).astype(np.int32)
