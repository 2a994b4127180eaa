"""Memory instructions: transactions (rules 4 and 12) and results (rule 5)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from abstim.gpu.config import Gpu
from functional.traces.line_record import barrier_of, count_of, is_phase, phase_of
from functional.traces.trace import LOCAL_WINDOW_LINE, SHARED_WINDOW_LINE
from oracle.l1d import L1d
from oracle.resources import Cache, ResponsePath
from precharacterize.classify import Kind

SHARED_KINDS = (Kind.SHARED_LOAD, Kind.SHARED_STORE, Kind.SHARED_ATOMIC)
CONST_KINDS = (Kind.PARAM_LOAD, Kind.CONST_LOAD)
RECORD_KINDS = (*CONST_KINDS, Kind.GLOBAL_LOAD, Kind.GLOBAL_STORE, Kind.GLOBAL_ATOMIC, Kind.TEXTURE_LOAD, Kind.L2_LOAD)


@dataclass
class Loop:
    """A loop of compare-and-swap: the length of a round, its word, and when each of its block's words is free."""

    round_cycles: int
    word: int
    free: dict[int, int]
    all_free: dict[int, dict[int, int]]  # of all thread blocks of the SM


class Access:
    """One executed memory instruction: its line records, or its number of shared conflict cycles.

    A record is (line, sectors touched); the lists below are in the order of processing, the last record first.
    """

    def __init__(
        self,
        gpu: Gpu,
        kind: Kind,
        access_bytes: int,
        records: list[int],
        conflicts: int = 0,
        loop: Loop | None = None,
        lanes: int = 0,
        way: int = 0,
    ) -> None:
        self.pass_cycles = 128 // gpu.spec.shared_bytes_per_cycle
        self.gpu, self.kind, self.access_bytes, self.conflicts = gpu, kind, access_bytes, conflicts
        self.loop, self.lanes = loop, lanes  # lanes that add to doubles in L2
        self.way = way  # to another thread block's shared memory
        lines = [(r >> 5, [s for s in range(4) if r >> 1 + s & 1]) for r in reversed(records)]
        met = [(barrier_of(k), phase_of(k), count_of(k), 15 - (r >> 1 & 15)) for r in records if is_phase(k := r >> 5)]
        self.phases = [phase for *phase, away in met if not away]
        self.elsewhere = [(away, barrier, phase) for barrier, phase, _, away in met if away]  # ranks on
        self.records = [(line, sectors) for line, sectors in lines if not is_phase(line)]
        self.words: dict[int, int] = {}  # that a store writes of each line, if it leaves some out
        self.passes = sum(line == SHARED_WINDOW_LINE for line, _ in self.records)  # of shared memory

    @property
    def is_idle(self) -> bool:
        """Is no lane active?"""
        return not any(sectors for _, sectors in self.records) and not self.phases and not self.elsewhere

    @property
    def is_asleep(self) -> bool:
        """The same of an atomic, in shared memory, too: its warp does not wait for it."""
        return not self.conflicts if self.kind in SHARED_KINDS else self.is_idle

    def shared_busy(self) -> int:
        """Cycles an access of shared memory keeps the load/store unit."""
        return self.held(min(1, self.conflicts) if self.loop else self.conflicts)

    def held(self, passes: int) -> int:
        """Cycles that passes hold the unit: as many as all lanes take, at least."""
        return max(passes * self.pass_cycles, 32 // self.gpu.spec.load_store_lanes) if passes else 1

    def late(self, passes: int) -> int:
        """How much later the last pass's data come than those of an access that takes as long as its lanes alone."""
        return max(0, self.held(passes) - 32 // self.gpu.spec.load_store_lanes)

    def shared_result(self, start: int) -> int:
        """Cycle in which it is complete; of a loop of compare-and-swap (rule 5) after those before it at its word."""
        shared = self.gpu.pipeline.shared_cycles
        if not self.conflicts and self.kind == Kind.SHARED_STORE:
            return start + 1
        if not self.conflicts or not self.loop:
            return start + shared + self.late(self.conflicts) + self.way
        length = self.loop.round_cycles + self.gpu.params.retry_cycles * self._retrying_warps(start)
        first, next_one = start + shared, self.loop.free[self.loop.word] + length
        result = max(first, next_one) + (self.conflicts - 1) * length
        self.loop.free[self.loop.word] = result
        return result

    def _retrying_warps(self, start: int) -> int:
        """Those that all rounds yet to go are of; the k-th has 32 rounds, each k times `retry_cycles` longer."""
        assert self.loop is not None
        retry = self.gpu.params.retry_cycles
        left = sum(max(0, free - start) for block in self.loop.all_free.values() for free in block.values())
        lengths = (32 * (self.loop.round_cycles + k * retry) for k in range(10**6))
        return next(k for k, own in enumerate(lengths) if (left := left - own) <= own // 2 - own) if retry else 0

    def const_busy(self, lines: int = 1) -> int:
        """Cycles that a load of constants keeps the load/store unit: it has a record an address."""
        params = self.gpu.params
        return max(lines * params.const_access_cycles, len(self.records) * params.const_address_cycles)

    def const_lines(self) -> list[int]:
        """Lines of the constant cache, the lower half of a record's line first."""
        if self.gpu.spec.const_line_bytes == 128:
            return [line for line, sectors in self.records if sectors]
        return [2 * line + half for line, sectors in self.records for half in sorted({s // 2 for s in sectors})]

    def transactions(self) -> list[tuple[int, list[int]]]:
        """(line, sectors) of each transaction; of a record the one of the highest sectors first."""
        of_fermi = 1 if self.kind in (Kind.GLOBAL_ATOMIC, Kind.L2_LOAD) else {1: 1, 2: 2}.get(self.access_bytes, 4)
        size = {"sector": 1, "line": 4}.get(self.gpu.spec.coalescing, of_fermi)
        found = []
        for line, sectors in self.records[self.passes :]:
            for segment in sorted({s // size for s in sectors}, reverse=True):
                found.append((line, [s for s in sectors if s // size == segment]))
        return found

    def entries(self) -> list[int]:
        """The cycle, from 0, in which each transaction enters the L1D: the first that finds its bank taken waits."""
        cycle, taken, found = -1, set(), []
        for _, sectors in self.transactions():
            banks = self._banks(sectors)
            if not found or banks & taken:
                cycle, taken = cycle + 1, set()
            taken |= banks
            found.append(cycle)
        return found

    def _banks(self, sectors: list[int]) -> set[int]:
        banks = {s % self.banks() for s in sectors}
        return banks if self.banks() == 4 else {min(banks)}

    def banks(self) -> int:
        """L1D banks it may use: fewer where 32 lanes need more than half of what its sectors hold."""
        dense = 32 * self.access_bytes > sum(32 * len(sectors) for _, sectors in self.records[self.passes :]) / 2
        return (self.gpu.spec.l1d_dense_banks if dense else 0) or self.gpu.spec.l1d_banks


class Memory:
    """L1D, texture cache, constant cache and response FIFO of an SM."""

    def __init__(self, gpu: Gpu, l1d_ways: int) -> None:
        spec = gpu.spec
        self.gpu = gpu
        self.responses = ResponsePath()
        self.l1d = L1d(gpu, l1d_ways, self.responses)
        self.const = Cache(spec.const_sets, spec.const_ways)
        self.texture = Cache(spec.l1t_sets, spec.l1t_ways)
        self.write: Callable[[int], None] = lambda _: None  # what the access now under way writes

    def busy_cycles(self, access: Access) -> int:
        """Cycles an access keeps the load/store unit."""
        if access.kind in SHARED_KINDS:
            return access.shared_busy()
        if access.kind in CONST_KINDS:
            lines = 1 if self.gpu.spec.perfect_constant_cache else len(access.const_lines())
            return 1 if access.is_idle else access.const_busy(lines)
        if access.passes == len(access.records):
            return access.held(access.passes)
        if access.kind == Kind.FENCE or access.is_idle:
            return 1
        least = max(32 // self.gpu.spec.load_store_lanes, access.passes * access.pass_cycles)
        return max([least - 1, *access.entries()]) + 1

    def result(self, access: Access, start: int) -> int:
        """Cycle in which an access that starts at `start` is complete."""
        shared = self.gpu.pipeline.shared_cycles
        if access.kind in SHARED_KINDS:
            return self._written(access.shared_result(start), start + 1)
        if access.kind == Kind.FENCE or access.is_idle:
            return start + 1
        if access.passes == len(access.records):
            return self._written(start + shared + access.late(access.passes), start + 1)
        if access.kind in CONST_KINDS:
            return self._constant(access, start + self.gpu.pipeline.const_hit_cycles)
        return max(
            self._transaction(access.kind, line, sectors, start + entry)
            for (line, sectors), entry in zip(access.transactions(), access.entries(), strict=True)
        )

    def _constant(self, access: Access, hit: int) -> int:
        if self.gpu.spec.perfect_constant_cache:
            return hit
        each = self.gpu.params.const_access_cycles
        lines = [(line, hit + k * each) for k, line in enumerate(access.const_lines())]
        return max(self._written(self._cached(self.const, line, time), time) for line, time in lines)

    def _written(self, result: int, hit: int) -> int:
        """A result, which is written to the register file unless it is the hit's."""
        if result != hit:
            self.write(result)
        return result

    def _transaction(self, kind: Kind, line: int, sectors: list[int], entry: int) -> int:
        """Result of a transaction that enters in cycle `entry`."""
        hit = entry + self.gpu.params.l1d_latency_cycles + 1
        return self._written(self._reached(kind, line, sectors, entry, hit), hit)

    def _reached(self, kind: int, line: int, sectors: list[int], entry: int, hit: int) -> int:
        local = line >= LOCAL_WINDOW_LINE
        past = kind == Kind.L2_LOAD or (self.gpu.spec.l1d_bypass and kind != Kind.TEXTURE_LOAD)
        if kind == Kind.GLOBAL_ATOMIC or (past and not local):
            return self.responses.out(entry + self.gpu.params.atomic_latency_cycles)
        if kind == Kind.TEXTURE_LOAD:
            return self._cached(self.texture, line, hit)
        if kind == Kind.GLOBAL_STORE and not local:
            return self.l1d.store(line, sectors, hit)
        return self.l1d.load(line, sectors, hit)

    def _cached(self, cache: Cache, line: int, hit: int) -> int:
        """A look-up that allocates on a miss."""
        cache.accesses += 1
        filled = cache.touch(line)
        if filled is None:
            cache.misses += 1
            filled = self.responses.out(hit + self.gpu.params.l1_miss_extra_cycles)
            cache.allocate(line, filled)
            return filled
        return max(hit, filled)
