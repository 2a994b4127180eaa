"""`sampling.protocol.Functional` on the executor."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from abstim.gpu.spec import Params
from abstim.study.sample.counts import block_counts, distinct_lines, memory_requests, warp_types, warps_of
from abstim.study.sample.thread_blocks import ThreadBlocks
from functional.programs.program import Program
from functional.ptx.ir import Instruction
from precharacterize.table import LatencyTable
from sampling import WarpProfile
from sampling.protocol import BlockCode

if TYPE_CHECKING:
    from jaxtyping import Float64, Int64


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
        trace = self.thread_blocks.trace
        assert trace is not None
        warps = warps_of(trace, positions)
        lines, all_lines = distinct_lines(trace, positions)
        return WarpProfile(
            thread_blocks=thread_blocks,
            counts=block_counts(trace, warps, len(self.block_instructions)),
            types=warp_types(trace, warps),
            memory_requests=memory_requests(trace, warps),
            thread_instructions=trace.thread_instructions[warps],
            lines=lines,
            all_lines=all_lines,
        )

    def code(self, basic_block: int) -> BlockCode:
        """The instructions of a basic block and what each waits for inside of it."""
        block = self.program.blocks[basic_block]
        written: dict[str, int] = {}
        sources = []
        for place, instruction in enumerate(self.program.instructions[block.start : block.stop]):
            sources.append(tuple(sorted({written[name] for name in _read(instruction) if name in written})))
            written |= {register.name: place for register in instruction.writes()}
        return BlockCode(classes=self.classes[block.start : block.stop], sources=tuple(sources))


def instruction_classes(program: Program) -> Int64[np.ndarray, " instruction"]:
    """A number for each opcode, state space and type that a program has: what has a latency in common."""
    names = [f"{i.opcode}.{i.space}.{i.type}" for i in program.instructions]
    return np.unique(names, return_inverse=True)[1].reshape(-1)


def initial_latencies(program: Program, table: LatencyTable, params: Params) -> Float64[np.ndarray, " class"]:
    """Cycles of each class's unit, and of the cache that an access asks first, as if it hit there; Photon starts from
    these where it has seen none."""
    caches = {
        "shared": params.shared_latency_cycles, "const": params.const_latency_cycles,
        "param": params.const_latency_cycles, "global": params.l1d_latency_cycles,
        "local": params.l1d_latency_cycles, "generic": params.l1d_latency_cycles,
    }  # fmt: skip
    accesses = [caches.get(i.space, 0) if i.is_memory else 0 for i in program.instructions]
    cycles = np.asarray(table.latency_cycles, float) + accesses
    classes = instruction_classes(program)
    return np.bincount(classes, cycles) / np.bincount(classes)


def _read(instruction: Instruction) -> list[str]:
    guard = [instruction.guard.register.name] if instruction.guard else []
    return guard + [register.name for register in instruction.reads()]
