"""A target opened for sampling on one GPU: launches timed only where a method asks for it, and what that took. What was
found is kept on disk, so that an interrupted or repeated sample goes on where it was: launches, parts, analyses."""

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial as bound
from threading import Lock
from time import perf_counter
from typing import TypeVar

import msgspec
import numpy as np

from abstim.engine.kept_caches import Caches
from abstim.engine.simulation import warm
from abstim.gpu.config import Gpu
from abstim.models import DETAILED, model_named
from abstim.progress import Progress, silent
from abstim.session.result import timed_facts
from abstim.session.session import Session
from abstim.session.warm_up import EMPTY, KEPT, Flushed, WarmUp
from abstim.study.sample.on_demand import OnDemand
from abstim.study.sample.simulator import WINDOW_CYCLES, EngineSimulator
from abstim.targets.execution import execution_key
from functional.keep.kept import Kept, decode_arrays, encode_arrays, key
from functional.launches.case import Case
from functional.traces.trace import Trace, concatenate
from sampling import Estimate, LaunchShape, Part
from sampling.auto.iterations import Timed
from sampling.auto.segments import Batch
from sampling.estimate import exact
from sampling.photon import Analysis

Found = TypeVar("Found")
MADE_BY = ("abstim.study.sample.automatic", "abstim.study.sample.inside")
ANALYSED_BY = ("sampling.photon.analysis", "abstim.study.sample.counts", "functional.keep.kept")


@dataclass(frozen=True, kw_only=True)
class Finished:
    """What one way to simulate a launch found. `executed_instructions`: of warps, what it had executed; seconds that
    executing, of a launch in full, and timing took; `history`: see `EngineSimulator`; `timed_shares`: as of a
    LaunchResult."""

    estimate: Estimate
    executed_instructions: float
    execute_seconds: float = 0.0
    time_seconds: float
    history: list[tuple[float, float]] = field(default_factory=list)
    timed_shares: Mapping[str, float] = field(default_factory=dict)


@dataclass(kw_only=True)
class InPart:
    """Of one launch: its segments in the order in which they were simulated, its first waves and its end, what parts of
    its trace take (by name), and what the ways of `inside.INSIDE` found, by name."""

    segments: list[Batch] = field(default_factory=list)
    steady: list[Batch] = field(default_factory=list)
    timed: dict[str, Timed] = field(default_factory=dict)
    found: dict[str, Finished] = field(default_factory=dict)
    timed_shares: Mapping[str, float] = field(default_factory=dict)  # as of `Finished`, of its first waves


def name_of(modules: tuple[str, ...], case: Case, gpu: Gpu, caches: str = EMPTY) -> str:
    """Of what these modules find of a case on a GPU. `caches`: how each launch finds them."""
    registers = {launch.program.name: case.registers(launch).count for launch in case.launches}  # how many blocks fit
    return key(modules, execution_key(case, ""), registers, gpu.spec, gpu.params, gpu.pipeline, caches)


@contextmanager
def _kept(
    kind: str, name: str, decode: Callable[[bytes], dict[int, Found]], encode: Callable[[dict[int, Found]], bytes]
) -> Iterator[dict[int, Found]]:
    kept = Kept(kind)
    found = kept.load(name, decode) or {}
    before = encode(found)
    try:
        yield found
    finally:  # after an interrupt too
        if (content := encode(found)) != before:
            kept.save(name, content)


def kept_parts(
    case: Case, gpu: Gpu, caches: str = EMPTY, model: str = DETAILED
) -> AbstractContextManager[dict[int, InPart]]:
    """What was simulated of the launches of one case on one GPU, by number, with this version of the code: what was
    kept, to which more may be added. Of other models (`model`), which are fast, and where one launch's caches decide
    another, nothing is kept."""
    if caches == KEPT or model != DETAILED:
        return nullcontext({})

    def encoded(launches: dict[int, InPart]) -> bytes:
        return msgspec.msgpack.encode(dict(sorted(launches.items())), enc_hook=lambda number: number.item())

    decode = msgspec.msgpack.Decoder(dict[int, InPart]).decode
    return _kept("parts", name_of(MADE_BY, case, gpu, caches), decode, encoded)


def kept_analyses(case: Case, share: float, keeps: bool = True) -> AbstractContextManager[dict[int, Analysis]]:
    """Photon's analyses of one case's launches, of which a `share` of the warps is analysed: those that were kept, to
    which others may be added. They are in one file: made on one GPU, they serve all others. Unless it `keeps`, none."""
    if not keeps:
        return nullcontext({})

    def decoded(content: bytes) -> dict[int, Analysis]:
        kept = msgspec.msgpack.decode(content, type=dict[int, bytes])
        return {number: Analysis.of_columns(decode_arrays(columns)) for number, columns in kept.items()}

    def encoded(found: dict[int, Analysis]) -> bytes:
        return msgspec.msgpack.encode({number: encode_arrays(each.columns()) for number, each in sorted(found.items())})

    return _kept("analyses", key(ANALYSED_BY, execution_key(case, "photon"), share), decoded, encoded)


class SampledProgram:
    """A session on one GPU whose traces are `OnDemand` (which see for `traces`, `partial`, `keep`). `warm_up`: what a
    launch finds in the caches. `model`: what times whole launches, a name of `abstim.models.MODELS`. `seconds` adds up
    wall-clock time by stage, of all threads."""

    def __init__(
        self, case: Case, gpu: Gpu, *, traces: Sequence[Trace] = (), partial: bool = False, keep: bool = False,
        warm_up: WarmUp | None = None, model: str = DETAILED, progress: Progress = silent,
    ) -> None:  # fmt: skip
        self.launches = OnDemand(case, traces, partial, keep, slow_paths=gpu.spec.timed_code != "ptx")
        self.session, self.case, self.gpu, self.progress = Session(case, self.launches), case, gpu, progress
        self.warm_up: WarmUp = warm_up or Flushed()
        self.model = model
        self.in_part: dict[int, InPart] = {}  # launches of which something was simulated, here or before
        self.asked: dict[tuple[int, str], Finished] = {}  # of these, what was asked for, by launch and way
        self.keeps = False  # what is found on disk, for later runs
        self.earlier_analyses: Mapping[int, Analysis] = {}  # that were found there
        self.simulators: dict[int, EngineSimulator] = {}  # of launches that are stepped
        self._seconds: defaultdict[str, float] = defaultdict(float)
        self.earlier_seconds, self._earlier_instructions = 0.0, 0.0  # of what was kept, and used
        self._lock = Lock()

    def __len__(self) -> int:
        return len(self.session)

    def spent(self, stage: str, seconds: float) -> None:
        """Add to a stage's seconds."""
        with self._lock:
            self._seconds[stage] += seconds

    def once(self, number: int, way: str, find: Callable[[], Finished]) -> Finished:
        """What a way to simulate a launch finds, here or in an earlier run: then what it had taken is added."""
        kept = self.part(number).found
        if way not in kept:
            kept[way] = find()
        elif (number, way) not in self.asked:
            earlier = kept[way]
            self.spent("execute", earlier.execute_seconds)
            self.spent("time", earlier.time_seconds)
            self.earlier_seconds += earlier.execute_seconds + earlier.time_seconds
            self._earlier_instructions += earlier.executed_instructions
        self.asked[number, way] = kept[way]
        return kept[way]

    @property
    def seconds(self) -> dict[str, float]:
        """What it took to execute and to time, here or, of launches that another program measured, there."""
        return {"execute": self._seconds["execute"] + self.launches.seconds, "time": self._seconds["time"]}

    def simulator(self, number: int, basic_blocks: bool = False, window_cycles: int = WINDOW_CYCLES) -> EngineSimulator:
        """A launch to be stepped."""
        blocks, before = self.launches.thread_blocks(number), bound(self.warm_up.before, self.session, number, self.gpu)
        shape = self.shape(number, window_cycles)
        found = EngineSimulator(self.session, number, self.gpu, blocks, shape, basic_blocks, self.spent, before)
        self.simulators[number] = found
        return found

    def timed(self, number: int, what: str, gpu: Gpu, cut: Callable[[], Trace | None]) -> Timed | None:
        """What a part of a launch, which is `cut` out of it once, takes on a GPU from empty caches; None without it."""
        known = self.part(number).timed
        if what not in known and (trace := cut()) is not None:
            started = perf_counter()
            cycles = self.session.simulate(number, gpu, trace).cycles - gpu.params.launch_latency_cycles
            self.spent("time", perf_counter() - started)
            known[what] = Timed(float(trace.warp_instructions.sum()), float(cycles))
        return known.get(what)

    def shape(self, number: int, window_cycles: int = WINDOW_CYCLES) -> LaunchShape:
        """Counts of a launch."""
        launch, cores = self.session.launch(number), self.gpu.spec.sm_count
        return LaunchShape(
            name=self.name(number), thread_blocks=launch.thread_blocks, warps_per_block=launch.warps_per_block,
            cores=cores, wave_blocks=self.session.blocks_per_sm(number, self.gpu) * cores, kernel=launch.program.name,
            window_cycles=window_cycles,
        )  # fmt: skip

    def part(self, number: int) -> InPart:
        """What has been simulated of a launch, to be added to."""
        with self._lock:
            return self.in_part.setdefault(number, InPart())

    def stability(self) -> dict[str, tuple[tuple[float, float], ...]]:
        """Of each launch that was stepped, in their order, its history."""
        earlier = {number: found.history for (number, _), found in self.asked.items() if found.history}
        stepped = {number: each.history for number, each in self.simulators.items() if each.history}
        return {self.name(number): tuple(history) for number, history in sorted((earlier | stepped).items())}

    def name(self, number: int) -> str:
        """For people."""
        launch = self.session.launch(number)
        return f"{number} {launch.program.name}" + (f" ({launch.label})" if launch.label else "")

    @property
    def executed_instructions(self) -> float:
        """Warp instructions that were executed for what was asked for: here, or in a run whose results were kept."""
        found = self.launches.executed_instructions + self._earlier_instructions
        for number, analysis in self.earlier_analyses.items():
            elsewhere = ~self.launches.executed(number, analysis.thread_blocks)
            found += float(analysis.thread_block_instructions[elsewhere].sum())
        return found

    @property
    def kernels(self) -> list[str]:
        """What each launch runs."""
        return [launch.program.name for launch in self.case.launches]

    def prepare(self) -> None:
        """Compile or load the engine, and characterise, so that no method's time holds them; what there is to load of
        another model is loaded with the first launch."""
        if self.model != DETAILED:
            return
        empty = concatenate([], 1)
        self.session.simulation(0, self.gpu, empty).run(empty.thread_blocks, drain=True)
        if self.warm_up.name != EMPTY:
            warm(self.session.inputs(0, self.gpu, empty), self.gpu, 1, Caches())

    def simulated(self, number: int) -> Finished:
        """A launch in detail, from the caches that the warm-up leaves; or by a model of whole launches: cycles only."""
        session, gpu, blocks = self.session, self.gpu, self.launches.thread_blocks(number)
        trace, counters = self.launches.trace(number), dict[str, int]()
        session.table(number, gpu)  # characterising is not timing
        started = perf_counter()
        if self.model == DETAILED:
            simulation = session.simulation(number, gpu, trace, self.warm_up.before(session, number, gpu))
            simulation.run(blocks.at(np.arange(blocks.launch.thread_blocks)), drain=True)
            self.warm_up.after(simulation)
            took, result = perf_counter() - started, simulation.result()
            cycles, counters = result.cycles, result.counters
            shares = timed_facts(session, number, trace, gpu).get("timed_shares", {})
        else:
            row = model_named(self.model).launch_on(session, number, [gpu])[0]
            took, cycles, shares = perf_counter() - started, row.cycles, row.timed_shares
        self.spent("time", took)
        issued = float(trace.warp_instructions.sum())
        part = Part(name=self.name(number), how="detailed", instructions=issued, cycles=cycles)
        return Finished(
            estimate=exact("full", float(cycles), (part,), counters), executed_instructions=issued,
            execute_seconds=blocks.seconds, time_seconds=took, timed_shares=shares,
        )  # fmt: skip
