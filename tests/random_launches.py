"""Hypothesis strategies for the engines: random latency tables, traces and GPUs, made directly, without any program.

Sizes are drawn one by one, so that a failing example shrinks to few warps and instructions; contents come from a seed.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from hypothesis import strategies as st
from random_gpus import gpus

from abstim.engine import EngineResult, LaunchInputs, simulate_point
from abstim.gpu.config import Gpu
from abstim.gpu.spec import POLICIES, Spec
from functional.traces.line_record import phase_record
from functional.traces.trace import LOCAL_WINDOW_LINE, PARAM_WINDOW_LINE, SHARED_WINDOW_LINE, Trace
from precharacterize import LatencyTable
from precharacterize.classify import Kind
from precharacterize.synchronisation import (
    BULK,
    COMMITS,
    COPIES,
    ELSEWHERE,
    FILLS,
    LAST_PRODUCT,
    MEETS,
    MEETS_LATER,
    NONE,
    PRODUCTS,
    closes,
    starts,
    waits_for,
)
from precharacterize.table import FORWARDED_CYCLES, SCOREBOARDS, UNITS, WORDS, WRITE_BACK_CYCLES, padded

REGISTERS = 12
SP, MEM, INT = (UNITS.index(name) for name in ("sp", "mem", "int"))
NO_RESULT = (Kind.BARRIER, Kind.EXIT, Kind.FENCE, Kind.SHARED_STORE, Kind.GLOBAL_STORE)
MEMORY = (Kind.GLOBAL_LOAD, Kind.GLOBAL_STORE, Kind.PARAM_LOAD, Kind.CONST_LOAD, Kind.TEXTURE_LOAD, Kind.L2_LOAD)
SHARED = (Kind.SHARED_LOAD, Kind.SHARED_STORE, Kind.SHARED_ATOMIC)


@dataclass(frozen=True)
class Launch:
    """One example: a launch, a design point, and its occupancy."""

    inputs: LaunchInputs
    gpu: Gpu
    blocks_per_sm: int

    def __repr__(self) -> str:
        table, trace, spec = self.inputs.table, self.inputs.trace, self.gpu.spec
        shape = f"{len(trace.thread_blocks)} blocks x {trace.warps_per_block} warps, {self.blocks_per_sm} blocks an SM"
        code = [
            f"{Kind(int(k)).name}:{u}:{n}" for k, u, n in zip(table.kind, table.unit, table.latency_cycles, strict=True)
        ]
        return f"Launch({shape}, {code}, streams {trace.blocks.tolist()}, {spec}, {self.gpu.params})"


def table_of(rng: np.random.Generator, block_lengths: list[int], mix: str, spec: Spec) -> LatencyTable:
    """Random instructions on the units there are; `mix` says which kinds abound. Basic block 0 holds a barrier, the
    last ends with an exit."""
    stops = np.cumsum(block_lengths)
    starts, count = stops - block_lengths, int(stops[-1])
    kinds = [_kind(rng, mix) for _ in range(count)]
    kinds[rng.integers(stops[0])], kinds[-1] = Kind.BARRIER, Kind.EXIT
    there = [k for k, name in enumerate(UNITS) if name != "mem" and getattr(spec, f"{name}_units")]
    favourite = int(rng.choice(there))
    units = [_unit(rng, kind, there, favourite) for kind in kinds]
    reads = [_registers(rng, 3) for _ in range(count)]
    writes = [[] if kind in NO_RESULT else _registers(rng, 2) for kind in kinds]
    predicates = [rng.random() < 0.2 for _ in range(count)]
    latency = np.where([u == MEM for u in units], 1, rng.choice([1, 2, 4, 5, 8, 13, 32, 130], count))
    initiation = np.minimum(latency, rng.choice([1, 1, 1, 2, 4, 8, 32], count))
    gaps = np.repeat(rng.integers(0, 40, len(stops)), block_lengths)  # other functions lie between the basic blocks
    copies = [_copies(rng, kind) for kind in kinds]
    loops = [k == Kind.SHARED_ATOMIC and rng.random() < 0.5 for k in kinds]  # they book no bank
    predicates = [p or loop for p, loop in zip(predicates, loops, strict=True)]
    return LatencyTable(
        round_cycles=np.where(loops, rng.integers(1, 90, count), 0).astype(np.int32),
        word=rng.integers(0, WORDS, count).astype(np.int32),
        fp64_atomic=np.array([k == Kind.GLOBAL_ATOMIC and rng.random() < 0.5 for k in kinds], np.int8),
        copies=np.array(copies, np.int32),
        unit=np.array(units, np.int8),
        kind=np.array(kinds, np.int8),
        latency_cycles=latency.astype(np.int32),
        initiation_cycles=initiation.astype(np.int32),
        access_bytes=rng.choice([1, 2, 4, 8], count).astype(np.int8),
        pcs=(np.arange(count) + np.maximum.accumulate(gaps)).astype(np.int32),
        waits=padded([sorted({*r, *w}) for r, w in zip(reads, writes, strict=True)]),
        writes=padded(writes),
        long_waits=padded([r[: rng.integers(0, 3)] for r in reads]),
        read_banks=padded([[] if p else [r * 7 + 3 for r in row] for row, p in zip(reads, predicates, strict=True)]),
        write_banks=padded([[-1 if p else r * 7 + 3 for r in row] for row, p in zip(writes, predicates, strict=True)]),
        gap_cycles=rng.integers(1, 20, count).astype(np.int32),
        result_cycles=np.ones(count, np.int32),
        block_start=starts.astype(np.int32),
        block_stop=stops.astype(np.int32),
        register_count=REGISTERS,
        key="random",
        stall_cycles=np.ones(count, np.int32),
        release=np.full(count, -1, np.int32),
        result_offset_cycles=np.full(count, WRITE_BACK_CYCLES, np.int32),
        counted=np.zeros(count, np.int8),
        barrier=np.where(np.array(kinds) == Kind.BARRIER, 0, -1).astype(np.int32),
    )


def as_machine_code(rng: np.random.Generator, table: LatencyTable) -> LatencyTable:
    """The instructions as machine code has them, but for a few that are hoisted PTX: stall counts, and scoreboards in
    place of registers."""
    count = len(table.unit)
    made, silent = rng.random(count) < 0.8, np.isin(table.kind, NO_RESULT)
    none = padded([[] for _ in made])
    boards = REGISTERS + rng.integers(SCOREBOARDS, size=(3, count))
    boards[rng.random((3, count)) < [[0.4], [0.4], [0.6]]] = -1
    boards[1, silent] = -1

    def mixed(own: np.ndarray, other: np.ndarray) -> np.ndarray:
        row = np.full_like(own, -1)
        row[:, : other.shape[1]] = other
        return np.where(made[:, None], row, own)

    return replace(
        table,
        waits=mixed(table.waits, boards[:1].T),
        writes=mixed(table.writes, boards[1:2].T),
        long_waits=mixed(table.long_waits, none),
        read_banks=mixed(table.read_banks, none),
        write_banks=mixed(table.write_banks, none),
        stall_cycles=np.where(made, rng.integers(1, 16, count), 1).astype(np.int32),
        release=np.where(made, boards[2], -1).astype(np.int32),
        result_offset_cycles=np.full(count, FORWARDED_CYCLES, np.int32),
        counted=made.astype(np.int8),
        register_count=REGISTERS + 3 * SCOREBOARDS,
    )


def _kind(rng: np.random.Generator, mix: str) -> Kind:
    if mix == "any":
        return Kind(int(rng.choice([k for k in Kind if k != Kind.EXIT or rng.random() < 0.3])))
    if mix == "memory":
        return Kind(int(rng.choice([*MEMORY, Kind.ALU])))
    return Kind.ALU if rng.random() < 0.8 else Kind(int(rng.choice(list(Kind))))


def _copies(rng: np.random.Generator, kind: Kind) -> int:
    """What an instruction does with asynchronous work; half of those that can do nothing."""
    families = (COPIES, BULK, PRODUCTS)
    can = {
        Kind.GLOBAL_LOAD: [starts(COPIES), starts(COPIES), FILLS, COMMITS],
        Kind.GLOBAL_STORE: [starts(BULK)],
        Kind.GLOBAL_ATOMIC: [MEETS, MEETS, MEETS_LATER],
        Kind.SHARED_LOAD: [ELSEWHERE],
        Kind.SHARED_ATOMIC: [ELSEWHERE],
        Kind.ALU: [NONE, starts(PRODUCTS), LAST_PRODUCT, *map(closes, families)]
        + [waits_for(f, int(rng.integers(3))) for f in families],
    }
    return int(rng.choice(can[kind])) if kind in can and rng.random() < 0.5 else NONE


def _unit(rng: np.random.Generator, kind: Kind, there: list[int], favourite: int) -> int:
    if kind >= Kind.PARAM_LOAD or kind == Kind.FENCE:
        return MEM
    if kind == Kind.ALU and rng.random() < 0.6:
        return favourite if rng.random() < 0.6 else int(rng.choice(there))
    return INT if INT in there and rng.random() < 0.8 else SP


def straight_launch(kinds: list[Kind], warps: int) -> LaunchInputs:
    """One thread block whose warps run through `kinds`, on the units of a GTX 480, without registers and lines."""
    count, none = len(kinds), padded([[] for _ in kinds])
    table = LatencyTable(
        unit=np.array([MEM if kind >= Kind.PARAM_LOAD else SP for kind in kinds], np.int8),
        kind=np.array(kinds, np.int8),
        latency_cycles=np.full(count, 4, np.int32),
        initiation_cycles=np.ones(count, np.int32),
        access_bytes=np.full(count, 4, np.int8),
        pcs=np.arange(count, dtype=np.int32),
        waits=none, writes=none, long_waits=none, read_banks=none, write_banks=none,
        gap_cycles=np.ones(count, np.int32),
        result_cycles=np.ones(count, np.int32),
        block_start=np.zeros(1, np.int32),
        block_stop=np.full(1, count, np.int32),
        register_count=REGISTERS,
        key="straight",
        stall_cycles=np.ones(count, np.int32),
        release=np.full(count, -1, np.int32),
        result_offset_cycles=np.full(count, WRITE_BACK_CYCLES, np.int32),
        counted=np.zeros(count, np.int8),
        barrier=np.where(np.array(kinds) == Kind.BARRIER, 0, -1).astype(np.int32),
        copies=np.full(count, NONE, np.int32),
        round_cycles=np.zeros(count, np.int32),
        word=np.zeros(count, np.int32),
        fp64_atomic=np.zeros(count, np.int8),
    )  # fmt: skip
    conflicts = [[1 for kind in kinds if kind in SHARED]] * warps
    trace = Trace(
        thread_blocks=np.zeros(1, np.int64),
        warps_per_block=warps,
        blocks=np.zeros(warps, np.uint16),
        masks=np.full(warps, 0xFFFFFFFF, np.uint32),
        records=np.zeros(0, np.uint32),
        conflicts=np.array(conflicts, np.uint8).ravel(),
        block_offsets=np.arange(warps + 1),
        record_offsets=np.zeros(warps + 1, np.int64),
        conflict_offsets=_offsets(conflicts),
        warp_instructions=np.full(warps, count),
        thread_instructions=np.full(warps, 32 * count),
    )
    return LaunchInputs(table, trace)


def _registers(rng: np.random.Generator, most: int) -> list[int]:
    return rng.choice(REGISTERS, rng.integers(0, most + 1), replace=False).tolist()


def trace_of(rng: np.random.Generator, table: LatencyTable, warps: int, blocks: int, phases: int, events: int) -> Trace:
    """Random streams: `phases` barrier blocks, up to `events` other blocks between them; some warps leave early."""
    streams = [_warp_blocks(rng, len(table.block_start), phases, events) for _ in range(warps * blocks)]
    accesses = [_warp_accesses(rng, table, stream) for stream in streams]
    for first in range(0, len(streams), warps):
        _meet(rng, table, streams[first : first + warps], accesses[first : first + warps])
    records = [[record for access in warp for record in access] for warp in accesses]
    conflicts = [_warp_conflicts(rng, table, stream) for stream in streams]
    counts = np.array([sum(int(table.block_stop[b] - table.block_start[b]) for b in s) for s in streams], np.int64)
    return Trace(
        thread_blocks=np.arange(blocks, dtype=np.int64),
        warps_per_block=warps,
        blocks=np.array([b for s in streams for b in s], np.uint16),
        masks=rng.integers(1, 1 << 32, sum(map(len, streams)), np.uint32),
        records=np.array([r for rows in records for r in rows], np.uint32),
        conflicts=np.array([c for rows in conflicts for c in rows], np.uint8),
        block_offsets=_offsets(streams),
        record_offsets=_offsets(records),
        conflict_offsets=_offsets(conflicts),
        warp_instructions=counts,
        thread_instructions=32 * counts,
        **_partial(sum(map(len, records))),
    )


def _partial(records: int) -> dict[str, np.ndarray]:
    """Words that stores leave out, if the records are of stores: about a quarter, of some of them."""
    rng = np.random.default_rng(records)
    at = np.flatnonzero(rng.random(records) < 0.5)
    words = np.bitwise_or(*rng.integers(0, 1 << 32, (2, len(at)), np.uint32)) if len(at) else np.zeros(0, np.uint32)
    return {"partial_at": at, "partial_words": words}


def _offsets(rows: list[list[int]]) -> np.ndarray:
    return np.cumsum([0, *map(len, rows)], dtype=np.int64)


def _warp_blocks(rng: np.random.Generator, count: int, phases: int, events: int) -> list[int]:
    """Often a walk through successive blocks, sometimes a jump; the last block, which exits, also in the middle."""
    stream, block = [], 0
    for phase in range(phases + 1):
        for _ in range(rng.integers(0, events + 1)):
            block = (block + 1) % count if rng.random() < 0.5 else int(rng.integers(count))
            if block or rng.random() < 0.2:
                stream.append(block)
        if rng.random() < 0.1:
            break
        if phase < phases:
            stream.append(0)
    return [*stream, count - 1] if rng.random() < 0.9 or not stream else stream


def _warp_conflicts(rng: np.random.Generator, table: LatencyTable, stream: list[int]) -> list[int]:
    kinds = [table.kind[i] for b in stream for i in range(table.block_start[b], table.block_stop[b])]
    return [int(rng.choice([0, 1, 1, 1, 2, 5, 32])) for kind in kinds if kind in SHARED]


def _instructions(table: LatencyTable, stream: list[int]) -> list[int]:
    return [i for b in stream for i in range(table.block_start[b], table.block_stop[b])]


def _has_records(table: LatencyTable, i: int) -> bool:
    return table.kind[i] >= Kind.PARAM_LOAD and table.kind[i] not in SHARED


def _warp_accesses(rng: np.random.Generator, table: LatencyTable, stream: list[int]) -> list[list[int]]:
    found = [Kind(int(table.kind[i])) for i in _instructions(table, stream) if _has_records(table, i)]
    return [_access_records(rng, kind) for kind in found]


def _meet(
    rng: np.random.Generator, table: LatencyTable, streams: list[list[int]], accesses: list[list[list[int]]]
) -> None:
    """The warps of a block run in some order, between barriers: the accesses of those that meet others at `mbarrier`s
    say what they do there."""
    left = [iter(_instructions(table, stream)) for stream in streams]
    places, running, meeting = [iter(range(len(a))) for a in accesses], set(range(len(streams))), Meeting(rng)
    while running:
        at_barrier = set[int]()
        while free := sorted(running - at_barrier):
            warp = int(rng.choice(free))
            i = next(left[warp], None)
            if i is None:
                running.discard(warp)
            elif table.kind[i] == Kind.BARRIER:
                at_barrier.add(warp)
            elif _has_records(table, i):
                place = next(places[warp])
                if table.copies[i] < LAST_PRODUCT:
                    accesses[warp][place] = meeting.access(accesses[warp][place], int(table.copies[i]))


class Meeting:
    """`mbarrier`s of a thread block: the running phase of each, arrivals in it and in the one before."""

    def __init__(self, rng: np.random.Generator) -> None:
        self.rng, self.barriers = rng, [[int(rng.integers(300)), 0, 0] for _ in range(3)]

    def access(self, records: list[int], copies: int) -> list[int]:
        """The records of an access with what it does at one of them, or at two."""
        phases = [self._phase(copies) for _ in range(int(self.rng.choice([0, 1, 1, 1, 2])))]
        lines = [r >> 5 for r in records if r and copies == FILLS]
        sectors = [r >> 1 & 15 for r in records if r and copies == FILLS]
        passes = lines.count(SHARED_WINDOW_LINE) if copies == FILLS else int(self.rng.integers(3))
        memory = [(line, s) for line, s in zip(lines, sectors, strict=True) if line != SHARED_WINDOW_LINE]
        found = [*memory, *((p >> 5, 15) for p in sorted(p for p in phases if p))]
        found += [(SHARED_WINDOW_LINE, 15)] * passes
        return _packed([line for line, _ in found], [s for _, s in found]) if found else [0]

    def _phase(self, copies: int) -> int:
        number = int(self.rng.integers(3))
        barrier = self.barriers[number]
        if copies == MEETS and self.rng.random() < 0.5:
            return phase_record(number, barrier[0] - 1, barrier[2]) if barrier[2] else 0
        barrier[1] += 1
        record = phase_record(number, barrier[0], 0)
        if self.rng.random() < 0.5:
            self.barriers[number] = [barrier[0] + 1, 0, barrier[1]]
        return record


def _access_records(rng: np.random.Generator, kind: Kind) -> list[int]:
    """Line records of one access; now and then of no lane, of shared memory by a generic address, of local memory."""
    choice = rng.random()
    if choice < 0.1:
        return [0]
    first, spread = 1000, int(rng.choice([20, 200, 5000]))
    if kind in (Kind.PARAM_LOAD, Kind.CONST_LOAD):
        first, spread = (PARAM_WINDOW_LINE, 3) if kind == Kind.PARAM_LOAD else (0, 300)
    elif choice < 0.2 and kind != Kind.TEXTURE_LOAD:
        lines = [SHARED_WINDOW_LINE] * int(rng.integers(1, 9))
        return _packed(lines, [1] * len(lines))
    elif choice < 0.4 and kind not in (Kind.GLOBAL_ATOMIC, Kind.TEXTURE_LOAD):
        first, spread = LOCAL_WINDOW_LINE, 100
    count = int(rng.choice([1, 1, 2, 4, 32]))
    lines = sorted((first + rng.integers(0, spread, count)).tolist())
    if kind != Kind.GLOBAL_ATOMIC:
        lines = sorted(set(lines))
    passes = int(rng.choice([0, 0, 0, 1, 4])) if kind == Kind.GLOBAL_LOAD else 0
    lines, sectors = lines + [SHARED_WINDOW_LINE] * passes, rng.integers(1, 16, len(lines)).tolist() + [15] * passes
    return _packed(lines, sectors)


def _packed(lines: list[int], sectors: list[int]) -> list[int]:
    last = len(lines) - 1
    return [line << 5 | sectors[k] << 1 | (k < last) for k, line in enumerate(lines)]


@st.composite
def launches(
    draw: st.DrawFn,
    policies: tuple[str, ...] = tuple(POLICIES),
    most_blocks: int = 12,
    gpu: st.SearchStrategy | None = None,
) -> Launch:
    """A random launch on a random small GPU; `gpu`: on one of these."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32), label="seed"))
    mix = draw(st.sampled_from(["alu", "memory", "any"]))
    block_lengths = draw(st.lists(st.integers(1, 6), min_size=2, max_size=5))
    warps, blocks = draw(st.integers(1, 6)), draw(st.integers(1, most_blocks))
    point = draw(gpus(policies) if gpu is None else gpu)
    table = table_of(rng, block_lengths, mix, point.spec)
    trace = trace_of(rng, table, warps, blocks, draw(st.integers(0, 2)), draw(st.integers(0, 4)))
    blocks_per_sm = draw(st.integers(1, min(8, point.spec.max_warps_per_sm // warps)))
    shared_bytes = draw(st.integers(0, point.spec.shared_bytes_per_sm // blocks_per_sm))
    return Launch(LaunchInputs(table, trace, shared_bytes), point, blocks_per_sm)


def simulate(inputs: LaunchInputs, points: list[Gpu], blocks_per_sm: list[int], threads: int = 1) -> list[EngineResult]:
    """A launch on every design point, each on so many threads."""
    return [simulate_point(inputs, *point, threads=threads) for point in zip(points, blocks_per_sm, strict=True)]
