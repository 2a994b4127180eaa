"""How much empty caches cost a sampled launch, and what warming them up gives back: sampling.cold_start on the engine.

Every launch is timed with the caches the launches before it left (the truth), with all caches empty ("none"), and after
each way to warm up. "code" empties the data caches alone, which is what flushing means in GPGPU-Sim: instructions and
constants are there if an earlier launch ran the kernel. All ways below it start from there; the correction factor is
applied to its cycles. Accuracy is 1 - |IPC / true IPC - 1|."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import numpy as np

from abstim.brief import Brief
from abstim.engine.simulation import bank_loads
from abstim.gpu.config import Gpu
from abstim.progress import Progress, in_parallel, silent
from abstim.session.detailed import engine_results
from abstim.session.result import target_note
from abstim.session.session import Session
from abstim.session.warm_up import MemoryOfAll, Plan, warmed
from functional.arrays import Float64, Int64
from functional.errors import InputError
from functional.traces.line_record import is_data, line_of, sectors_of, with_places
from functional.traces.trace import LINE_BYTES
from sampling import cold_start as ways

SECTORS = 4  # of a line
PRE_SAMPLE = 16  # launches before a sample that MRRL and BLRL look at


@dataclass(frozen=True)
class Policy:
    """A way to warm up: IPC accuracy of every launch, and the mean share of all instructions walked for one."""

    name: str
    accuracy: Float64[np.ndarray, " launch"]
    warmed_share: float


@dataclass(frozen=True, repr=False)
class ColdStart(Brief):
    """What cold caches do to a target's launches on one GPU."""

    target: str
    gpu: str
    memory_model: str
    instructions: Float64[np.ndarray, " launch"]  # warp instructions
    kept_cycles: Int64[np.ndarray, " launch"]
    flushed_cycles: Int64[np.ndarray, " launch"]
    forward_reuse: Float64[np.ndarray, " launch"]
    backward_reuse: Float64[np.ndarray, " launch"]
    policies: tuple[Policy, ...]
    note: str = ""  # what keeps the times from being what they should be

    @property
    def difference(self) -> Float64[np.ndarray, " launch"]:
        """Relative difference of IPC, flushed against kept; the instructions are the same, so cycles say it all."""
        return np.abs(self.kept_cycles / self.flushed_cycles - 1.0)

    @property
    def affected(self) -> dict[float, float]:
        """Share of the instructions in launches that differ by 5, 10, 15 and 20 %."""
        return ways.affected_share(self.difference, self.instructions)

    def to_json(self) -> dict[str, Any]:
        """Everything, as what `json.dumps` takes; a reuse without a neighbour is null."""
        known = {name: value for name, value in vars(self).items() if name != "policies"}
        lists = {name: column.tolist() for name, column in known.items() if isinstance(column, np.ndarray)}
        for name in ("forward_reuse", "backward_reuse"):
            lists[name] = [None if np.isnan(x) else x for x in lists[name]]
        affected = {f"{threshold:.2f}": share for threshold, share in self.affected.items()}
        found = {"ipc_difference": self.difference.tolist(), "affected": affected}
        policies = [
            vars(policy) | {
                "accuracy": policy.accuracy.tolist(),
                "mean_accuracy": float(np.average(policy.accuracy, weights=self.instructions)),
                "worst_accuracy": float(policy.accuracy.min()),
            }
            for policy in self.policies
        ]  # fmt: skip
        return {"kind": "coldstart"} | known | lists | found | {"policies": policies}


def cold_start(session: Session, gpu: Gpu, progress: Progress = silent) -> ColdStart:
    """Measure. Raises InputError for perfect memory, which has no caches to keep but those of the SMs."""
    if gpu.spec.perfect_memory:
        raise InputError(f"{gpu.name} has perfect memory, which leaves nothing to warm up; take a GPU with L2 and DRAM")
    study = Study(session, gpu)
    kept = np.array([row[0].cycles for row in engine_results(session, [gpu], flush="none", progress=progress)])
    flushed = engine_results(session, [gpu], progress=progress)
    cycles = np.array([row[0].cycles for row in flushed])
    code = in_order(study, study.memory_of(0), progress, "code")
    corrected = study.corrected(code, np.array([row[0].counters["dram_reads"] for row in flushed]))
    plans = {f"memory of {count}": study.memory_of(count) for count in (1, 2, 4)}
    for name, method in {"MRRL": ways.mrrl, "BLRL": ways.blrl}.items():
        plans[name] = [study.reaching_back(number, method) for number in range(len(kept))]
    found = {"none": (cycles, 0.0), "code": (code, 0.0), "correction factor": (corrected, 0.0)}
    for name, plan in plans.items():
        found[name] = in_order(study, plan, progress, name), study.cost(plan)
    found["memory of all"] = study.all_before(progress), study.cost(study.memory_of(len(kept)))
    found["perfect"] = kept, 1.0
    policies = tuple(Policy(name, 1.0 - np.abs(kept / value - 1.0), cost) for name, (value, cost) in found.items())
    reuse = ways.forward_reuse(study.footprints), ways.backward_reuse(study.footprints)
    named, note = (session.case.name, gpu.name, gpu.memory_model), target_note(session, gpu)
    return ColdStart(*named, study.instructions, kept, cycles, *reuse, policies, note)


def in_order(study: Study, plans: list[Plan], progress: Progress, name: str) -> Int64[np.ndarray, " launch"]:
    """Cycles of every launch after its own warm-up, each from empty caches."""
    report = partial(progress, f"warm up: {name}")

    def one(number: int) -> int:
        caches = warmed(study.session, number, study.gpu, plans[number])
        return study.session.simulate(number, study.gpu, caches=caches).cycles

    return np.array(in_parallel(one, len(plans), report))


class Study:
    """A session's launches on one GPU, ready to be warmed and timed."""

    def __init__(self, session: Session, gpu: Gpu) -> None:
        self.session, self.gpu = session, gpu
        self.traces = list(session.traces.in_order())
        self.instructions = np.array([float(t.warp_instructions.sum()) for t in self.traces])

    @cached_property
    def references(self) -> list[Int64[np.ndarray, " reference"]]:
        """Lines of global and local memory in which a lane of each launch was active, in the trace's order."""
        lines = [(line_of(with_places(t)).astype(np.int64), sectors_of(t.records) != 0) for t in self.traces]
        return [own[is_data(own) & active] for own, active in lines]

    @cached_property
    def footprints(self) -> list[Int64[np.ndarray, " line"]]:
        """The distinct ones."""
        return [np.unique(lines) for lines in self.references]

    def memory_of(self, launches: int) -> list[Plan]:
        """The last `launches` before each, whole."""
        return [[(k, 1.0) for k in range(max(0, n - launches), n)] for n in range(len(self.traces))]

    def reaching_back(self, number: int, method: ways.Latencies) -> Plan:
        """As many instructions before a launch as MRRL or BLRL asks for."""
        first = max(0, number - PRE_SAMPLE)
        starts = np.concatenate([[0.0], np.cumsum(self.instructions[first : number + 1])])
        positions = [
            (starts[k] + np.linspace(0, self.instructions[first + k], len(lines), endpoint=False)).astype(np.int64)
            for k, lines in enumerate(self.references[first : number + 1])
        ]
        lines, boundary = np.concatenate(self.references[first : number + 1]), int(starts[number - first])
        left, plan = float(ways.warm_up(method, np.concatenate(positions), lines, boundary)), []
        for k in range(number - 1, first - 1, -1):
            if left <= 0:
                break
            plan.append((k, min(1.0, left / self.instructions[k])))
            left -= self.instructions[k]
        return plan[::-1]

    def cost(self, plans: list[Plan]) -> float:
        """Mean share of a launch's plan in all instructions."""
        walked = sum(share * self.instructions[k] for plan in plans for k, share in plan)
        return float(walked / len(plans) / self.instructions.sum())

    def all_before(self, progress: Progress) -> Int64[np.ndarray, " launch"]:
        """Cycles of every launch after the memory accesses of all before it."""
        policy, cycles = MemoryOfAll(), []
        for number in range(len(self.traces)):
            progress("warm up: memory of all", number, len(self.traces))
            caches = policy.before(self.session, number, self.gpu)
            cycles.append(self.session.simulate(number, self.gpu, caches=caches).cycles)
        return np.array(cycles)

    def corrected(
        self, cycles: Int64[np.ndarray, " launch"], dram_reads: Int64[np.ndarray, " launch"]
    ) -> Float64[np.ndarray, " launch"]:
        """Equation 6.2 of Sys' thesis, with this GPU's latencies and, of each launch, how evenly it uses controllers.
        `cycles` with empty data caches; `dram_reads` (sectors) from empty caches: of data is what is not code."""
        params, reuse = self.gpu.params, ways.forward_reuse(self.footprints)
        factor = ways.Correction(
            dram_latency_cycles=params.dram_latency_cycles + params.dram_reply_cycles,
            l2_latency_cycles=params.l2_reply_cycles,
            line_bytes=LINE_BYTES,
        )
        found = []
        for number, flushed in enumerate(cycles.tolist()):
            inputs = self.session.inputs(number, self.gpu)
            code_lines = -(-len(inputs.table.pcs) // self.gpu.pipeline.fetch_line_instructions)
            read = max(0.0, float(dram_reads[number]) - code_lines * SECTORS)
            reads = bank_loads(inputs, self.gpu, self.session.blocks_per_sm(number, self.gpu), self.footprints[number])
            even = ways.evenly_used_controllers(reads, np.zeros_like(reads))
            previous = float(reuse[number - 1]) if number else float("nan")
            found.append(factor.apply(flushed, read, even, previous))
        return np.array(found)
