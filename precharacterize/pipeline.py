"""The single-SP pipeline model: one warp alone, every access a hit, no branch taken (GATSim, Section II-A).

It walks each basic block once through fetch pairs, scoreboard, operand collector and units, which gives every
instruction its issue-to-issue gap and its issue-to-result distance. Stages: docs/timing-rules.md, rules 3 to 7.
"""

from __future__ import annotations

from functional.programs.program import BasicBlock, Program
from precharacterize.classify import Kind
from precharacterize.parameters import UNITS, PipelineParameters
from precharacterize.table import WRITE_BACK_CYCLES, LatencyTable

ALLOCATE_CYCLES = 1  # issue -> operand collector
READ_CYCLES = 1  # collector -> operands at hand, one more for each access to a bank already used this cycle
DISPATCH_CYCLES = 1  # operands at hand -> unit starts
FETCH_TO_ISSUE_CYCLES = 2


def start_delay_cycles(read_numbers: list[int], banks: int) -> int:
    """Cycles from issue to the start on the unit: one bank serves one operand a cycle."""
    per_bank = [sum(n % banks == bank for n in read_numbers) for bank in {n % banks for n in read_numbers}]
    return ALLOCATE_CYCLES + READ_CYCLES + max(per_bank, default=0) + DISPATCH_CYCLES


def result_delay_cycles(
    kind: Kind, latency_cycles: int, pipeline: PipelineParameters, offset_cycles: int = WRITE_BACK_CYCLES
) -> int:
    """Cycles from the start on the unit to the result, every access a single hit. `offset_cycles`: what lies between
    the end of the unit's latency and the result."""
    if kind in (Kind.PARAM_LOAD, Kind.CONST_LOAD):
        return pipeline.const_hit_cycles
    if kind in (Kind.SHARED_LOAD, Kind.SHARED_STORE, Kind.SHARED_ATOMIC):
        return pipeline.shared_cycles
    if kind >= Kind.GLOBAL_LOAD:
        return pipeline.global_hit_cycles
    return offset_cycles + latency_cycles


def block_gaps_cycles(
    block: BasicBlock, table: LatencyTable, program: Program, pipeline: PipelineParameters
) -> list[int]:
    """Issue-to-issue gap after each instruction of a block; the last one's is to the fall-through instruction."""
    free: dict[int, int] = {}  # scoreboard register -> cycle
    unit_free = [0] * len(UNITS)
    issues = []
    time = 0
    slots = fetched(program.pcs[block.start], pipeline)
    for i in range(block.start, block.stop):
        time = max([time, *(free.get(r, 0) for r in table.waits[i].tolist() if r >= 0)])
        delay = int(table.result_cycles[i])
        start = max(time, unit_free[table.unit[i]])
        unit_free[table.unit[i]] = start + int(table.initiation_cycles[i])
        free |= {r: start + delay for r in table.writes[i].tolist() if r >= 0}
        issues.append(time)
        slots -= 1
        time += 1 if slots else FETCH_TO_ISSUE_CYCLES
        slots = slots or fetched(program.pcs[i] + 1, pipeline)
    return [b - a for a, b in zip(issues, [*issues[1:], time], strict=True)]


def fetched(pc: int, pipeline: PipelineParameters) -> int:
    """Instructions one fetch at `pc` brings: it never crosses an instruction-cache line."""
    return min(
        pipeline.instructions_per_fetch, pipeline.fetch_line_instructions - pc % pipeline.fetch_line_instructions
    )
