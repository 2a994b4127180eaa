"""Memory instructions: transactions (rule 4) and results (rule 5)."""

from __future__ import annotations

from abstim.gpu.config import Gpu
from functional.trace import LOCAL_WINDOW_LINE, SHARED_WINDOW_LINE
from oracle.resources import Cache, ResponsePath
from precharacterize.classify import Kind

SHARED_KINDS = (Kind.SHARED_LOAD, Kind.SHARED_STORE, Kind.SHARED_ATOMIC)
RECORD_KINDS = (Kind.PARAM_LOAD, Kind.CONST_LOAD, Kind.GLOBAL_LOAD, Kind.GLOBAL_STORE, Kind.GLOBAL_ATOMIC)


class Access:
    """One executed memory instruction: its line records, or its number of shared conflict cycles."""

    def __init__(self, kind: Kind, access_bytes: int, records: list[int], conflicts: int = 0) -> None:
        self.kind, self.access_bytes, self.conflicts = kind, access_bytes, conflicts
        self.records = [(record >> 5, record >> 1 & 15) for record in records]

    def lines(self, gpu: Gpu) -> list[int]:
        """Lines in the order they are processed, one a transaction; the last record first."""
        return [line for record in reversed(self.records) for line in self._lines_of(record, gpu)]

    def _lines_of(self, record: tuple[int, int], gpu: Gpu) -> list[int]:
        line, sectors = record
        halves = [half for half in range(2) if sectors >> 2 * half & 3]
        if not sectors:
            return []
        if self.kind in (Kind.PARAM_LOAD, Kind.CONST_LOAD):
            return [line] if gpu.spec.const_line_bytes == 128 else [2 * line + half for half in halves]
        if gpu.spec.coalescing == "sector" or self.access_bytes == 1:
            return [line] * sectors.bit_count()
        return [line] * (len(halves) if self.access_bytes == 2 else 1)


class Memory:
    """L1D, constant cache and response FIFO of an SM."""

    def __init__(self, gpu: Gpu) -> None:
        spec = gpu.spec
        self.gpu = gpu
        self.l1d = Cache(spec.l1d_sets, spec.l1d_ways, spec.l1d_index == "hash")
        self.const = Cache(spec.const_sets, spec.const_ways)
        self.responses = ResponsePath()

    def busy_cycles(self, access: Access) -> int:
        """Cycles an access keeps the load/store unit."""
        if access.kind in SHARED_KINDS:
            return max(1, access.conflicts)
        return max(1, len(access.lines(self.gpu)))

    def result(self, access: Access, start: int) -> int:
        """Cycle in which an access that starts at `start` is complete."""
        shared = int(self.gpu.pipeline.shared_cycles)
        if access.kind in SHARED_KINDS:
            return start + shared + access.conflicts - 1 if access.conflicts else start + 1
        lines = access.lines(self.gpu)
        if access.kind == Kind.FENCE or not lines:
            return start + 1
        if access.records[0][0] == SHARED_WINDOW_LINE:
            return start + shared + len(access.records) - 1
        if access.kind in (Kind.PARAM_LOAD, Kind.CONST_LOAD):
            hit = start + int(self.gpu.pipeline.const_hit_cycles)
            return max(self._cached(self.const, line, hit + k) for k, line in enumerate(lines))
        hit = start + int(self.gpu.params.l1d_latency_cycles) + 1
        if access.kind == Kind.GLOBAL_ATOMIC:
            there = start + int(self.gpu.params.atomic_latency_cycles)
            return max(self.responses.out(there + k) for k in range(len(lines)))
        return max(self._global(access.kind, line, hit + k) for k, line in enumerate(lines))

    def _global(self, kind: Kind, line: int, hit: int) -> int:
        if kind == Kind.GLOBAL_LOAD or (kind == Kind.GLOBAL_STORE and line >= LOCAL_WINDOW_LINE):
            return self._cached(self.l1d, line, hit)
        self.l1d.accesses += 1
        self.l1d.misses += not self.l1d.evict(line)
        return self.responses.out(hit + int(self.gpu.params.l1_miss_extra_cycles))

    def _cached(self, cache: Cache, line: int, hit: int) -> int:
        """A look-up that allocates on a miss."""
        cache.accesses += 1
        filled = cache.touch(line)
        if filled is None:
            cache.misses += 1
            filled = self.responses.out(hit + int(self.gpu.params.l1_miss_extra_cycles))
            cache.allocate(line, filled)
            return filled
        return max(hit, filled)
