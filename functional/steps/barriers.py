"""Thread blocks that wait for each other: clusters (which blocks of a chunk belong together, and how their shared
memory is addressed), barriers of blocks, warpgroups and clusters, and what a trace says of barriers (line_record.py).

Each block of a cluster has RANK_BYTES of 32-bit shared addresses, by its rank: so its own variables begin there, too.
PTX leaves the numbers open, but programs clear the lowest bit of the rank in an address to reach the first block of a
pair (`Sm100MmaPeerBitMask` of CUTLASS), so that they are those of the hardware. A warp arrives at a barrier as a whole;
one that exits counts as arrived."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from functional.arrays import Int64, UInt32
from functional.errors import refuse
from functional.isa.memory import RANK_BYTES
from functional.launches.launch import Launch, places
from functional.steps.stack import DONE, WAITING, Stack
from functional.steps.turns import Turns
from functional.traces import line_record
from functional.traces.line_record import MORE, MOST_COUNT, SHARED_PASS, phase_record


def access_records(phases: list[int], passes: int) -> UInt32[np.ndarray, " record"]:
    """The records of one warp's access to barriers, with its passes of shared memory."""
    made = np.array([*sorted(phases), *[SHARED_PASS] * passes], np.uint32)
    made[:-1] |= MORE
    return made


PHASE_BIT = 40  # of an object (mbarrier.py): the parity of the running phase


@dataclass
class Known:
    """A barrier: its number in its block, its phase, arrivals in it and in the last, and the latest time in each."""

    number: int
    phase: int = 0
    arrived: int = 0
    arrived_before: int = 0
    latest: int = 0
    latest_before: int = 0


class Phases:
    """Of all barriers of a chunk, by the place of their object in the storage of shared memory. A cluster's own barrier
    is one of each of its thread blocks."""

    def __init__(self, block_of_row: np.ndarray, shared_stride: int, clusters: Clusters, turns: Turns) -> None:
        self._turns = turns
        self._block_of_row, self._stride = block_of_row, shared_stride  # bytes of shared memory of a thread block
        self._clusters = clusters
        self._known: dict[int | tuple[int, int], Known] = {}
        self._numbers: dict[int, int] = {}  # barriers of each thread block
        self._noted: dict[int, list[int]] = {}  # by warp, of the instruction that runs

    def begin(self, word: int) -> None:
        """A barrier is initialised: what has been of it counts no more."""
        if word in self._known:
            known = self._known[word]
            known.phase, known.arrived, known.arrived_before = known.phase + 1, 0, 0

    def change(self, word: int, before: int, after: int, row: int | None) -> None:
        """The object was `before` and is `after`: its phase may be over. A thread of warp `row`, or its copy, arrives;
        None: nobody does."""
        if row is not None:
            known = self._of(word)
            record = phase_record(known.number, known.phase, 0, self._away(row, 8 * word // self._stride))
            known.arrived += self._note(row, record, known.number)
            known.latest = max(known.latest, self._turns.time(row))
        if (before ^ after) >> PHASE_BIT & 1:
            known = self._of(word)
            known.phase, known.arrived_before, known.arrived = known.phase + 1, known.arrived, 0
            known.latest_before, known.latest = known.latest, 0

    def wait(self, row: int, word: int) -> None:
        """A thread of warp `row` has seen that the last phase is over."""
        known = self._of(word)
        self._turns.wait(row, known.latest_before)
        own = not self._away(row, 8 * word // self._stride)
        if own and 0 < known.arrived_before <= MOST_COUNT:
            self._note(row, phase_record(known.number, known.phase - 1, known.arrived_before), known.number)

    def take(self) -> dict[int, list[int]]:
        """Records of the instruction that runs, by warp."""
        noted, self._noted = self._noted, {}
        return noted

    def _note(self, row: int, record: int, number: int) -> bool:
        """Threads of a warp that do the same in one instruction are one; is it the first of them?"""
        noted = self._noted.setdefault(row, [])
        new = number < line_record.BARRIERS and record not in noted
        noted += [record] if new else []
        return new

    def _away(self, row: int, block: int) -> int:
        """From a warp's thread block to another one of its cluster, in ranks."""
        ranks = self._clusters.rank
        return int(ranks[block] - ranks[self._block_of_row[row]]) % self._clusters.size

    def meet(self, row: int, name: int, phase: int, count: int) -> None:
        """Warp `row` arrives at a barrier of its thread block that has a name, and waits for so many; 0: for none."""
        number = self._of((int(self._block_of_row[row]), name)).number
        for record in (phase_record(number, phase, 0), phase_record(number, phase, count)):
            self._note(row, record, number)

    def meet_cluster(self, row: int, phase: int, count: int) -> None:
        """Warp `row` arrives at the barrier of its cluster, in each of the thread blocks; or, with a count, has waited
        for so many arrivals in its own."""
        own = int(self._block_of_row[row])
        for block in [own] if count else self._clusters.members[self._clusters.cluster[own]].tolist():
            number = self._of((block, CLUSTER)).number
            self._note(row, phase_record(number, phase, count, self._away(row, block)), number)

    def _of(self, which: int | tuple[int, int]) -> Known:
        """Of the word of an object, or of (thread block, name)."""
        if which not in self._known:
            block = which[0] if isinstance(which, tuple) else 8 * which // self._stride
            number = self._numbers.get(block, 0)
            self._numbers[block] = number + 1
            self._known[which] = Known(number)
        return self._known[which]


class Clusters:
    """Of the thread blocks (linear ids) of a chunk. Blocks are numbered by their place in it, clusters from 0. `rank`
    [block]: of a block in its cluster; `cluster` [block]: the number of its cluster; `members` [cluster, rank]."""

    def __init__(self, launch: Launch, thread_blocks: Int64[np.ndarray, " block"]) -> None:
        numbers, self.rank = places(launch, thread_blocks)
        self.extents = launch.cluster
        self.size = launch.cluster.total
        _, self.cluster = np.unique(numbers, return_inverse=True)
        self.members = np.zeros((len(thread_blocks) // self.size, self.size), np.int64)
        self.members[self.cluster, self.rank] = np.arange(len(thread_blocks))
        self.first_address = (self.rank * RANK_BYTES).astype(np.uint64)  # [block]: of its own shared memory

    def pair(self, block: int) -> tuple[int, int]:
        """The blocks of even and of odd rank of the pair of a block. Raises ValueError where there is none."""
        refuse(self.size % 2, f"a cluster of {self.size} thread blocks has no pairs of them", ValueError)
        first = int(self.rank[block]) // 2 * 2
        even, odd = self.members[self.cluster[block], first : first + 2].tolist()
        return even, odd


def chunk_stops(launch: Launch, thread_blocks: Int64[np.ndarray, " block"], most: int) -> list[int]:
    """Where to cut a list of blocks so that chunks have about `most` blocks and no cluster is cut."""
    count, allowed = len(thread_blocks), np.ones(len(thread_blocks) + 1, bool)
    if launch.cluster.total > 1:
        _, first, number = np.unique(places(launch, thread_blocks)[0], return_index=True, return_inverse=True)
        last = np.zeros_like(first)
        np.maximum.at(last, number, np.arange(count))
        inside = np.zeros(count + 2, np.int64)
        np.add.at(inside, first + 1, 1)
        np.add.at(inside, last + 1, -1)
        allowed = np.cumsum(inside)[: count + 1] == 0
    stops, at = list[int](), 0
    while at < count:
        wanted = min(at + most, count)
        back = np.flatnonzero(allowed[at + 1 : wanted + 1])  # the last cut within the size, else the first behind it
        at += int(back[-1]) + 1 if back.size else int(np.argmax(allowed[at + 1 :])) + 1
        stops.append(at)
    return stops


CLUSTER, WARPGROUP = 16, 17  # of a block, behind the 16 that have numbers: its cluster's, one each warpgroup
BARRIERS = WARPGROUP + 8
NONE = -1


class Barriers:
    """Barrier state of the blocks of a chunk. `block_of_row` maps warps to blocks."""

    def __init__(
        self, block_of_row: np.ndarray, clusters: Clusters, stack: Stack, completed: Callable[[np.ndarray], None],
        met: Callable[[np.ndarray, bool], None], turns: Turns,
    ) -> None:  # fmt: skip
        self.turns = turns
        self.completed = completed  # told rows whose barrier has just been completed
        self.met = met  # told rows that arrive at their cluster's barrier, or (true) have waited for it
        self.block_of_row, self.stack = block_of_row, stack
        self.cluster_of_row = clusters.cluster[block_of_row]
        warps, blocks = len(block_of_row), len(clusters.cluster)
        self.in_cluster = np.zeros(warps, bool)  # has arrived in a phase of its cluster's barrier that goes on
        self.cluster_phase = np.zeros(len(clusters.members), np.int64)  # how often that has been completed,
        self.cluster_arrived = np.zeros(len(clusters.members), np.int64)  # and by how many warps the last time
        self.waiting = np.full(warps, NONE, np.int32)  # barrier id a warp waits at
        self.resume = np.zeros(warps, np.int32)  # block to continue at
        self.instruction = np.zeros(warps, np.int32)  # where it waits, for messages and results
        self.arrived = np.zeros((blocks, BARRIERS), np.int32)  # warps
        self.expected = np.zeros((blocks, BARRIERS), np.int32)  # threads; 0: all warps that have not exited
        self.alive = np.bincount(block_of_row, minlength=blocks).astype(np.int32)
        self.phase = np.zeros((blocks, BARRIERS), np.int32)  # how often each has been completed
        self.votes = np.zeros((blocks, BARRIERS, 2), np.int64)  # bar.red: threads, threads with a true predicate

    def arrive(
        self, rows: np.ndarray, barrier: np.ndarray, threads: np.ndarray, instruction: int, resume: int, waits: bool
    ) -> None:
        """Warps `rows` reach `barrier` [row] that waits for `threads` [row] (0: whole block), then go to `resume`."""
        blocks = self.block_of_row[rows]
        np.add.at(self.arrived, (blocks, barrier), 1)
        self.turns.meet(rows, blocks, barrier)
        self.expected[blocks, barrier] = threads
        if waits:
            self.waiting[rows], self.resume[rows], self.instruction[rows] = barrier, resume, instruction
            self.stack.block[rows] = WAITING
        else:
            self.stack.advance(rows, resume)
        self.release(blocks)

    def exited(self, rows: np.ndarray) -> None:
        """Some of the warps `rows` may just have finished: that can complete a barrier."""
        rows = rows[self.stack.block[rows] == DONE]
        if rows.size:
            blocks = self.block_of_row[rows]
            np.subtract.at(self.alive, blocks, 1)
            self.release(blocks)
            self._release_clusters(rows)

    def release(self, blocks: np.ndarray) -> None:
        """Let every completed barrier of `blocks` go."""
        blocks = np.unique(blocks)
        arrived, expected = self.arrived[blocks], self.expected[blocks]
        needed = np.where(expected > 0, expected, 32 * self.alive[blocks][:, None])
        at, barrier = np.nonzero((arrived > 0) & (32 * arrived >= needed))
        if not at.size:
            return
        complete = np.zeros(self.arrived.shape, bool)
        complete[blocks[at], barrier] = True
        rows = np.flatnonzero(self.waiting != NONE)
        rows = rows[complete[self.block_of_row[rows], self.waiting[rows]]]
        self.completed(rows)
        self.turns.go_on(rows, self.block_of_row[rows], self.waiting[rows])
        self.phase[complete] += 1
        self.arrived[complete] = 0
        self.expected[complete] = 0
        self.votes[complete] = 0
        self.waiting[rows] = NONE
        self.stack.resume(rows, self.resume[rows])

    def arrive_in_cluster(self, rows: np.ndarray) -> None:
        """Warps `rows` arrive at the barrier of their cluster, and go on."""
        self.met(rows, False)
        self.turns.meet(rows, self.cluster_of_row[rows], np.full(len(rows), CLUSTER))
        self.in_cluster[rows] = True
        self._release_clusters(rows)

    def wait_in_cluster(self, rows: np.ndarray, instruction: int, resume: int) -> None:
        """Warps `rows` go to `resume` once the phase in which they arrived has ended."""
        waits = self.in_cluster[rows]
        self._pass_cluster(rows[~waits])
        self.stack.advance(rows[~waits], resume)
        held = rows[waits]
        self.waiting[held], self.resume[held], self.instruction[held] = CLUSTER, resume, instruction
        self.stack.block[held] = WAITING

    def _pass_cluster(self, rows: np.ndarray) -> None:
        self.met(rows, True)
        self.turns.go_on(rows, self.cluster_of_row[rows], np.full(len(rows), CLUSTER))

    def _release_clusters(self, rows: np.ndarray) -> None:
        """A phase ends when every warp of a cluster has arrived or exited."""
        if not self.in_cluster.any():
            return
        late = np.bincount(self.cluster_of_row, ~self.in_cluster & (self.stack.block != DONE))
        arrived = np.bincount(self.cluster_of_row, self.in_cluster).astype(np.int64)
        over = np.intersect1d(self.cluster_of_row[rows], np.flatnonzero((late == 0) & (arrived > 0)))
        self.cluster_phase[over] += 1
        self.cluster_arrived[over] = arrived[over]
        complete = np.isin(self.cluster_of_row, over)
        self.in_cluster[complete] = False
        free = np.flatnonzero(complete & (self.waiting == CLUSTER))
        self._pass_cluster(free)
        self.waiting[free] = NONE
        self.stack.resume(free, self.resume[free])

    def vote(self, rows: np.ndarray, barrier: np.ndarray, active: np.ndarray, true: np.ndarray) -> None:
        """Contribute the predicates of `bar.red`: active threads and true ones, each [row]."""
        blocks = self.block_of_row[rows]
        np.add.at(self.votes[..., 0], (blocks, barrier), active)
        np.add.at(self.votes[..., 1], (blocks, barrier), true)
