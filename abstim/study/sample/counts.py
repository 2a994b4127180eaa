"""The work of warps and launches counted from their traces, and `sampling.protocol.Functional` on the executor."""

import numpy as np

from abstim.gpu.spec import Params
from abstim.session.memory_accesses import executed, first_records
from abstim.study.sample.on_demand import ThreadBlocks
from functional.arrays import Bool, Float64, Int64
from functional.programs.program import Program
from functional.traces.line_record import is_data, line_of, sectors_of, with_places
from functional.traces.trace import LOCAL_WINDOW_LINE, Trace, concatenate, offsets_of
from precharacterize.classify import Kind
from precharacterize.table import LatencyTable
from sampling import WarpProfile
from sampling.protocol import BlockCode

_HASH_BASE = np.uint64(0x9E3779B97F4A7C15)


def warps_of(trace: Trace, positions: Int64[np.ndarray, " tb"]) -> Int64[np.ndarray, " warp"]:
    """Positions in the trace of the warps of some thread blocks, in their order."""
    return (positions[:, None] * trace.warps_per_block + np.arange(trace.warps_per_block)).ravel()


def part_of(trace: Trace, positions: Int64[np.ndarray, " tb"]) -> Trace:
    """The trace of some thread blocks, at least one, in their order."""
    runs = np.split(positions, np.flatnonzero(np.diff(positions) != 1) + 1)
    return concatenate([trace.part(int(run[0]), int(run[-1]) + 1) for run in runs], trace.warps_per_block)


def block_counts(trace: Trace, basic_blocks: int) -> Int64[np.ndarray, "warp basic_block"]:
    """How often each warp executed each basic block."""
    warps = len(trace.warp_instructions)
    cells = np.repeat(np.arange(warps), np.diff(trace.block_offsets)) * basic_blocks + trace.blocks
    return np.bincount(cells, minlength=warps * basic_blocks).reshape(warps, basic_blocks)


def warp_types(trace: Trace) -> Int64[np.ndarray, " warp"]:
    """Equal numbers for warps that executed the same basic blocks in the same order: a polynomial hash modulo 2^64."""
    lengths = np.diff(trace.block_offsets)
    powers = np.multiply.accumulate(np.full(int(lengths.max(initial=1)), _HASH_BASE))
    place = np.arange(len(trace.blocks)) - np.repeat(trace.block_offsets[:-1], lengths)
    terms = (trace.blocks.astype(np.uint64) + np.uint64(1)) * powers[place]
    return np.diff(offsets_of(terms.view(np.int64))[trace.block_offsets])


def memory_requests(trace: Trace) -> Int64[np.ndarray, " warp"]:
    """Line records each warp made in global and local memory."""
    return np.diff(offsets_of(in_memory(trace.records))[trace.record_offsets])


def distinct_lines(trace: Trace) -> tuple[Int64[np.ndarray, " tb"], int]:
    """Cache lines of global and local memory that each thread block touches, and all of them together."""
    blocks = len(trace.thread_blocks)
    owner = np.repeat(np.arange(blocks, dtype=np.uint64), np.diff(trace.record_offsets[:: trace.warps_per_block]))
    data = in_memory(trace.records)
    pairs = np.unique(owner[data] << np.uint64(32) | line_of(with_places(trace)[data]).astype(np.uint64))
    each = np.bincount((pairs >> np.uint64(32)).astype(np.int64), minlength=blocks)
    return each, len(np.unique(pairs & np.uint64(0xFFFFFFFF)))


def in_memory(records: np.ndarray) -> Bool[np.ndarray, " record"]:
    """Which line records lie in global or local memory."""
    return is_data(line_of(records))


ON_LINES = {  # make records
    Kind.PARAM_LOAD, Kind.CONST_LOAD, Kind.GLOBAL_LOAD, Kind.L2_LOAD, Kind.GLOBAL_STORE, Kind.GLOBAL_ATOMIC,
    Kind.TEXTURE_LOAD,
}  # fmt: skip


def launch_counts(program: Program, trace: Trace, kinds: Int64[np.ndarray, " instruction"]) -> dict[str, float]:
    """Sums over the launch: of PKA's twelve (`sampling.nsight.METRICS`) all but the one that is a ratio, as Nsight
    Compute counts them on hardware, and the other columns of a Profile. Loads, stores and atomics are warp
    instructions, "coalesced" ones 32-byte sectors; a generic access counts where it went; `kinds` are the program's."""
    blocks = np.bincount(trace.blocks, minlength=len(program.blocks))
    often = np.repeat(blocks, [b.stop - b.start for b in program.blocks])
    kind, first = kinds_of_records(program, trace, kinds)
    where = in_memory(trace.records)
    local = where & (line_of(trace.records) >= LOCAL_WINDOW_LINE)
    sectors = np.bitwise_count(sectors_of(trace.records)).astype(np.int64) * where
    load = (kind == Kind.GLOBAL_LOAD) | (kind == Kind.L2_LOAD)
    store, atomic = kind == Kind.GLOBAL_STORE, kind == Kind.GLOBAL_ATOMIC
    return {
        "coalesced_global_loads": float(sectors[load & ~local].sum()),
        "coalesced_global_stores": float(sectors[store & ~local].sum()),
        "coalesced_local_loads": float(sectors[load & local].sum()),
        "global_loads": float((load & where & ~local & first).sum()),
        "global_stores": float((store & where & ~local & first).sum()),
        "local_loads": float((load & local & first).sum()),
        "global_atomics": float((atomic & where & first).sum()),
        "shared_loads": float(often[kinds == Kind.SHARED_LOAD].sum()),
        "shared_stores": float(often[kinds == Kind.SHARED_STORE].sum()),
        "instructions": float(trace.warp_instructions.sum()),
        "thread_instructions": float(trace.thread_instructions.sum()),
        "memory_requests": float(memory_requests(trace).sum()),
        "thread_blocks": float(len(trace.thread_blocks)),
    }


def kinds_of_records(
    program: Program, trace: Trace, kinds: Int64[np.ndarray, " instruction"]
) -> tuple[Int64[np.ndarray, " record"], Bool[np.ndarray, " record"]]:
    """The `Kind` of the instruction that made each line record, and whether it is the first of its instruction. Records
    are in the order of the instructions that made them, one or more each."""
    starts, stops = np.array([(b.start, b.stop) for b in program.blocks]).T
    first = first_records(trace)
    accesses = kinds[executed(trace, starts, stops, np.isin(kinds, list(ON_LINES)))]  # a kind an executed instruction
    return np.repeat(accesses, np.diff(np.append(np.flatnonzero(first), len(first)))), first


def basic_block_vector(program: Program, trace: Trace) -> Int64[np.ndarray, " basic_block"]:
    """Warp instructions of a launch in each of its basic blocks."""
    lengths = np.array([b.stop - b.start for b in program.blocks])
    return np.bincount(trace.blocks, minlength=len(lengths)) * lengths


def by_thread_block(trace: Trace) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Memory requests, warp instructions and thread instructions of every thread block, in the trace's order."""
    columns = (memory_requests(trace), trace.warp_instructions, trace.thread_instructions)
    requests, issued, threads = (c.reshape(-1, trace.warps_per_block).sum(1).astype(float) for c in columns)
    return requests, issued, threads


class EngineFunctional:
    """One launch, a thread block at a time."""

    def __init__(self, thread_blocks: ThreadBlocks) -> None:
        self.thread_blocks = thread_blocks
        self.program = thread_blocks.launch.program
        self.block_instructions = np.array([b.stop - b.start for b in self.program.blocks])
        self.classes = instruction_classes(self.program)

    def profile(self, thread_blocks: Int64[np.ndarray, " tb"]) -> WarpProfile:
        """Execute these thread blocks, unless they have been."""
        thread_blocks = np.asarray(thread_blocks, np.int64)
        positions = self.thread_blocks.at(thread_blocks)
        assert self.thread_blocks.trace is not None
        trace = part_of(self.thread_blocks.trace, positions)
        lines, all_lines = distinct_lines(trace)
        return WarpProfile(
            thread_blocks=thread_blocks, counts=block_counts(trace, len(self.block_instructions)),
            types=warp_types(trace), memory_requests=memory_requests(trace), lines=lines, all_lines=all_lines,
        )  # fmt: skip

    def code(self, basic_block: int) -> BlockCode:
        """The instructions of a basic block and what each waits for inside of it."""
        block = self.program.blocks[basic_block]
        written: dict[str, int] = {}
        sources = []
        for place, instruction in enumerate(self.program.instructions[block.start : block.stop]):
            guard = [instruction.guard.register] if instruction.guard else []
            read = {register.name for register in (*guard, *instruction.reads())}
            sources.append(tuple(sorted({written[name] for name in read & written.keys()})))
            written |= {register.name: place for register in instruction.writes()}
        return BlockCode(classes=self.classes[block.start : block.stop], sources=tuple(sources))


def instruction_classes(program: Program) -> Int64[np.ndarray, " instruction"]:
    """A number for each opcode, state space and type that a program has: what has a latency in common."""
    names = [f"{i.opcode}.{i.space}.{i.type}" for i in program.instructions]
    return np.unique(names, return_inverse=True)[1].reshape(-1)


def initial_latencies(program: Program, table: LatencyTable, params: Params) -> Float64[np.ndarray, " class"]:
    """Cycles of each class's unit, and of a hit in the cache an access asks first: Photon's, until it has seen some."""
    caches = {
        "shared": params.shared_latency_cycles, "const": params.const_latency_cycles,
        "param": params.const_latency_cycles, "global": params.l1d_latency_cycles,
        "local": params.l1d_latency_cycles, "generic": params.l1d_latency_cycles,
    }  # fmt: skip
    accesses = [caches.get(i.space, 0) if i.is_memory else 0 for i in program.instructions]
    cycles = np.asarray(table.latency_cycles, float) + accesses
    classes = instruction_classes(program)
    return np.bincount(classes, cycles) / np.bincount(classes)
