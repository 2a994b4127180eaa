"""All micro-benchmarks on a device, each beside published figures (`figures.csv`), and a GPU's description made of what
was measured. A device is a description in the detailed engine, or a GPU of this computer."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import msgspec
import numpy as np

from abstim.brief import Brief
from abstim.engine.kept_caches import Caches
from abstim.gpu.config import Gpu, Setting, description, load_gpu, nearest, with_values
from abstim.progress import Progress, silent
from abstim.session.session import open_session
from abstim.study.calibrate.microbenchmarks import (
    GROUPS,
    Device,
    Experiment,
    Facts,
    KernelCall,
    Measurement,
    measurements,
    module,
    ticks,
)
from functional.errors import InputError
from functional.files import rows_beside
from functional.gpu_recording import cuda
from functional.launches.case import Case
from functional.launches.launch import Argument, Launch, Pointer, make_launch
from functional.launches.memory import Memory
from functional.programs.link import link
from functional.ptx.ir import Module
from functional.ptx.parser import parse

LINE_BYTES = 128


def facts_of(gpu: Gpu) -> Facts:
    """What experiments need to know of a description. Raises InputError for one with perfect memory."""
    spec = gpu.spec
    if spec.perfect_memory:
        what_to_do = "calibrate measures memory, and perfect_memory is true; --set perfect_memory=false"
        raise InputError(f"{gpu.name}: {what_to_do}")
    target = 70 if spec.architecture == "none" else int(spec.architecture.removeprefix("sm_"))
    if not spec.tensor_units:
        target = min(target, 70)
    held = (spec.shared_bytes_per_sm, spec.max_threads_per_sm, spec.l2_lines * LINE_BYTES)
    return Facts(gpu.name, spec.core_clock_hz, spec.sm_count, target, *held)


class Modelled(Device):
    """A description, timed by the detailed engine."""

    effort = 1  # its time is exact

    def __init__(self, gpu: Gpu) -> None:
        self.gpu, self.facts = gpu, facts_of(gpu)

    @cached_property
    def module(self) -> Module:
        """The kernels; their file must stay, for the assembler reads it."""
        self._folder = TemporaryDirectory(prefix="abstim-calibrate-")
        path = Path(self._folder.name) / "microbenchmarks.ptx"
        path.write_text(module(self.facts.target), encoding="utf-8")
        return parse(path)

    def seconds(self, experiment: Experiment) -> float:
        """Of the timed launch, on caches through which the accesses of those before it went."""
        session = open_session(self._case(experiment), [self.gpu])
        last, caches = len(session) - 1, Caches()
        for number in range(last):
            session.warm(number, self.gpu, caches)
        return session.simulate(last, self.gpu, caches=caches).cycles / self.facts.core_clock_hz

    def _case(self, experiment: Experiment) -> Case:
        memory = Memory(self.module.variables)
        for name, contents in (experiment.buffers or {}).items():
            if isinstance(contents, np.ndarray):
                memory.allocate(name, contents.nbytes, contents)
            else:
                memory.allocate(name, contents)
        calls = (*experiment.before, experiment.timed)
        name = experiment.timed.kernel
        return Case(name, self.module, memory, tuple(self._launch(call, memory) for call in calls))

    def _launch(self, call: KernelCall, memory: Memory) -> Launch:
        arguments: list[Argument] = [Pointer(name) for name in call.buffers]
        arguments += list(call.numbers)
        return make_launch(link(self.module, call.kernel), call.grid, call.block, arguments, memory, call.shared_bytes)


REPEATS = 5
TICK_ROUNDS = 1 << 16
WARM_UPS = 8  # of the longer kernel of ticks: a GPU that did nothing takes milliseconds to come to its clock
BEFORE_ROUNDS = 1 << 12  # of ticks, while the host starts what is timed; else its own time would be measured, too


class OnGpu(Device):
    """A GPU of this computer. Its clock is measured: GPUs run faster or slower than they say. InputError without."""

    effort = 64  # events tell half a microsecond

    def __init__(self, driver: cuda.CudaDevice | None = None) -> None:
        self.driver = driver = driver or cuda.CudaDevice()
        target = 10 * driver.attribute(cuda.MAJOR) + driver.attribute(cuda.MINOR)
        driver.load(module(target) + ticks())
        self._count = driver.allocate(8)
        held = map(driver.attribute, (cuda.SHARED_PER_SM, cuda.THREADS_PER_SM, cuda.L2_BYTES))
        self.facts = Facts(driver.name, self._clock_hz(), driver.attribute(cuda.SM_COUNT), target, *held)

    def _clock_hz(self) -> float:
        """Ticks of an SM's clock in a second, of two lengths of one kernel."""
        for _ in range(WARM_UPS):
            self._ticks(4 * TICK_ROUNDS)
        found = [self._ticks(rounds * TICK_ROUNDS) for rounds in (1, 4)]
        seconds = found[1][1] - found[0][1]
        if seconds <= 0:
            return 1e3 * self.driver.attribute(cuda.CLOCK_RATE)
        return (found[1][0] - found[0][0]) / seconds

    def _ticks(self, rounds: int) -> tuple[int, float]:
        seconds = self._timed(KernelCall("ticks", 1, 32, ("count",), (rounds,)), {"count": self._count})
        return int(self.driver.read(self._count, 8).view(np.uint64)[0]), seconds

    def seconds(self, experiment: Experiment) -> float:
        """Of the timed launch: the median of some repeats, the launches before it each time."""
        with ExitStack() as held:
            buffers = experiment.buffers or {}
            addresses = {name: held.enter_context(self._buffer(contents)) for name, contents in buffers.items()}
            for call in experiment.before[:-1]:  # what makes a chain of addresses must not do so twice
                self._launch(call, addresses)
            found = []
            for _ in range(REPEATS):
                for call in experiment.before[-1:]:
                    self._launch(call, addresses)
                found.append(self._timed(experiment.timed, addresses))
        return median(found)

    def _timed(self, call: KernelCall, addresses: dict[str, int]) -> float:
        self._launch(KernelCall("ticks", 1, 32, ("count",), (BEFORE_ROUNDS,)), {"count": self._count})
        with self.driver.stopwatch() as seconds:
            self._launch(call, addresses)
        return seconds[0]

    def _launch(self, call: KernelCall, addresses: dict[str, int]) -> None:
        pointers = np.array([addresses[name] for name in call.buffers], np.uint64)
        parameters = pointers.tobytes() + np.array(call.numbers, np.uint32).tobytes()
        self.driver.enqueue(call.kernel, (call.grid, 1, 1), (call.block, 1, 1), parameters, call.shared_bytes)

    @contextmanager
    def _buffer(self, contents: np.ndarray | int) -> Iterator[int]:
        """Its address: a copy of an array, or so many bytes of zeros; freed in the end."""
        size = contents if isinstance(contents, int) else contents.nbytes
        address = self.driver.allocate(max(1, size))
        try:
            self.driver.clear(address, size) if isinstance(contents, int) else self.driver.write(address, contents)
            yield address
        finally:
            self.driver.free(address)


@dataclass(frozen=True, slots=True)
class Figure:
    """What was measured for one of our measurements: in its unit, on a GPU at a core clock, by whom."""

    gpu: str  # the description it is held against
    group: str
    quantity: str
    at: int
    unit: str
    value: float
    core_clock_hz: float
    measured_on: str
    source: str


def read_figures() -> list[Figure]:
    """All that are known, of `figures.csv`."""
    rows = rows_beside(__file__, "figures.csv")
    clocked = [row | {"core_clock_hz": 1e6 * float(row["core_clock_MHz"])} for row in rows]
    return msgspec.convert(clocked, list[Figure], strict=False)


def figures_of(gpu: str, figures: list[Figure]) -> dict[tuple[str, str, int], Figure]:
    """Those of one description, by group, quantity and place."""
    return {(f.group, f.quantity, f.at): f for f in figures if f.gpu == gpu}


@dataclass(frozen=True, slots=True)
class Row:
    """One number, and the figure that was measured for it, if there is one."""

    group: str
    quantity: str
    at: int
    unit: str
    value: float
    measured: Figure | None

    @property
    def error(self) -> float | None:
        """Relative to the figure."""
        return self.value / self.measured.value - 1 if self.measured else None


@dataclass(frozen=True, slots=True)
class GroupError:
    """How far a group's numbers are from their figures: |error|, mean and worst."""

    group: str
    figures: int
    mean: float
    worst: float


@dataclass(frozen=True, repr=False)
class Calibration(Brief):
    """What came of all of them on one device."""

    device: str
    core_clock_hz: float
    rows: list[Row]
    interrupted: bool = False

    def errors(self) -> list[GroupError]:
        """By group, of those that have figures."""
        found = []
        for group in GROUPS:
            errors = [abs(r.error) for r in self.rows if r.group == group and r.error is not None]
            if errors:
                found.append(GroupError(group, len(errors), float(np.mean(errors)), max(errors)))
        return found

    def to_json(self) -> dict[str, Any]:
        """Everything, as what `json.dumps` takes."""
        rows = [asdict(row) | {"error": row.error} for row in self.rows]
        found = {"device": self.device, "core_clock_hz": self.core_clock_hz, "rows": rows}
        found |= {"interrupted": self.interrupted}
        return {"kind": "calibration"} | found | {"errors": [asdict(error) for error in self.errors()]}


def at_measured_clock(gpu: Gpu, figures: list[Figure]) -> Gpu:
    """A description at the core clock at which its figures were measured; as it is if there are none."""
    clocks = [f.core_clock_hz for f in figures if f.gpu == gpu.name]
    return with_values(gpu, {"core_clock_hz": clocks[0]}, "at which the figures were measured") if clocks else gpu


def calibrate(
    device: Device, only: Sequence[str] = (), figures: list[Figure] | None = None, progress: Progress = silent
) -> Calibration:
    """Run the micro-benchmarks of the groups `only` (none named: all of them), and put each beside its figure. A group,
    or group and quantity as in `stream/read`. An interrupt keeps those that have run. Raises InputError for one that
    is not there."""
    chosen = select(list(measurements(device.facts, device.effort)), only)
    known = figures_of(device.facts.name, read_figures() if figures is None else figures)
    rows, interrupted = list[Row](), False
    try:
        for number, each in enumerate(chosen):
            progress(f"{each.group}/{each.quantity}", number, len(chosen))
            place, value = (each.group, each.quantity, each.at), measure(device, each)
            rows.append(Row(*place, each.unit, value, known.get(place)))
    except KeyboardInterrupt:
        if not rows:
            raise
        interrupted = True
    return Calibration(device.facts.name, device.facts.core_clock_hz, rows, interrupted)


def select(every: list[Measurement], only: Sequence[str]) -> list[Measurement]:
    """Those of the groups, or groups and quantities, that are named. Raises InputError for a name of none."""
    names = {m.group for m in every} | {f"{m.group}/{m.quantity}" for m in every}
    for name in only:
        if name not in names:
            near = nearest(name, names) or f"; there are {', '.join(sorted({m.group for m in every}))}"
            raise InputError(f"--only {name}: no such micro-benchmark{near}")
    return [m for m in every if not only or m.group in only or f"{m.group}/{m.quantity}" in only]


def measure(device: Device, each: Measurement) -> float:
    """One number. Raises InputError if more work takes no more time: then it was not measured."""
    short, long = each.rounds
    seconds = device.seconds(each.experiment(long))
    if short:
        seconds -= device.seconds(each.experiment(short))
    if seconds <= 0:
        where = f"{each.group}/{each.quantity} at {each.at}"
        raise InputError(f"{device.facts.name}: {where}: {long} rounds take no longer than {short}")
    return each.value(seconds / (long - short))


BASES = ((90, "h100"), (86, "rtx3080"), (80, "a100"), (70, "v100"))  # the first whose architecture is no later
NEEDED = ("latency", "bandwidth/chunks", "stream/init", "launch")
# Class of instructions -> the micro-benchmark of its rate
RATES = {f"{kind}_{op}": f"{kind}_fma" for kind in ("fp32", "fp64") for op in ("mad", "mul")}
RATES |= {"fp32_add": "fp32_add", "fp64_add": "fp64_add", "int_mad": "int_multiply_add", "int_mul": "int_multiply_add"}
RATES |= {"int_max": "int_min_max", "sfu": "sfu_rsqrt", "int_shfl": "shuffle", "convert": "convert_fp32_int32"}
RATES |= {"convert_64bit": "convert_fp64_fp32", "tensor": "tensor_fp16_16x8x16"}
Numbers = dict[tuple[str, str, int], float]


def related_gpu(facts: Facts) -> Gpu:
    """The description to begin with, at the measured clock and with as many SMs."""
    name = next((name for target, name in BASES if facts.target >= target), BASES[-1][1])
    return with_values(load_gpu(name), _spec(facts), "measured")


def _spec(facts: Facts) -> dict[str, Any]:
    """Keys of a description that the device itself tells."""
    found = {"sm_count": facts.sm_count, "core_clock_hz": facts.core_clock_hz, "architecture": f"sm_{facts.target}"}
    return found | {"shared_bytes_per_sm": facts.shared_bytes_per_sm, "max_threads_per_sm": facts.threads_per_sm}


def described(found: Calibration, facts: Facts) -> str:
    """A TOML file. The related GPU's model is measured for it, a minute's work. What `found` lacks stays as there."""
    base = related_gpu(facts)
    modelled = calibrate(Modelled(base), NEEDED, figures=[])
    return as_toml(base, changes(base, numbers_of(found), numbers_of(modelled)), facts)


def numbers_of(found: Calibration) -> Numbers:
    """By group, quantity and place."""
    return {(row.group, row.quantity, row.at): row.value for row in found.rows}


def changes(base: Gpu, measured: Numbers, modelled: Numbers) -> dict[str, float]:
    """Keys of the description whose values close the gaps, and cycles that an instruction holds its sub-core's unit."""
    rates = {kind: measured.get(("throughput", quantity, 0)) for kind, quantity in RATES.items()}
    lanes = 32 * base.spec.schedulers_per_sm
    held = {f"initiation_cycles.{kind}": max(1, round(lanes / rate)) for kind, rate in rates.items() if rate}
    return _latencies(base, measured, modelled) | _bandwidths(base, measured, modelled) | held


def _latencies(base: Gpu, measured: Numbers, modelled: Numbers) -> dict[str, float]:
    params, cycle_ns = base.params, 1e9 / base.spec.core_clock_hz

    def gap(*place: Any) -> float:
        return measured.get(place, np.nan) - modelled.get(place, np.nan)

    l1, l2, dram = (gap("latency", "global", kib) for kib in (16, 1024, 262144))
    gaps = {
        "l1d_latency_cycles": l1, "l2_request_cycles": l2 - l1,
        "shared_latency_cycles": gap("latency", "shared", 0), "const_latency_cycles": gap("latency", "constant", 0),
    }  # fmt: skip
    values = dict[str, float]()
    for key, own in gaps.items():
        if not np.isnan(own):
            values[key] = max(1, round(getattr(params, key) + own))
    if not np.isnan(dram - l2):
        values["dram_latency_ns"] = max(1.0, round(cycle_ns * (params.dram_latency_cycles + dram - l2), 1))
    if not np.isnan(launch := gap("launch", "empty_kernel", 0)):
        values["launch_latency_ns"] = max(0.0, round(cycle_ns * params.launch_latency_cycles + launch))
    return values


def _bandwidths(base: Gpu, measured: Numbers, modelled: Numbers) -> dict[str, float]:
    values = dict[str, float]()
    chunks = ("bandwidth", "chunks", 6144)
    if chunks in measured and chunks in modelled:
        values["l2_sector_cycles"] = round(base.params.l2_sector_cycles * modelled[chunks] / measured[chunks], 3)
    # of stores alone: loads of one word a thread wait for thread blocks to follow each other, too
    full = max((key for key in measured if key[:2] == ("stream", "init") and key in modelled), default=None)
    if full is not None:
        rate = 32 * base.spec.dram_channels * base.spec.core_clock_hz / base.params.dram_sector_cycles
        values["dram_bytes_per_second"] = round(rate * measured[full] / modelled[full], -9)
    return values


def as_toml(base: Gpu, values: dict[str, float], facts: Facts) -> str:
    """The file's text; every value's source is `measured`."""
    known = _spec(facts) | {"core_clock_hz": round(facts.core_clock_hz)} | values
    settings = {key: Setting(value, "measured") for key, value in known.items()}
    name = facts.name.replace("\\", "").replace('"', "")
    sources = {"measured": "abstim calibrate --native on this GPU"}
    head = f"# {name}, measured by `abstim calibrate --native`. What is not said here is as on the {base.name}.\n"
    return head + description(base.name, f"{name}, as measured here", sources, settings)
