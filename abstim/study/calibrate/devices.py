"""The devices that micro-benchmarks run on: a GPU's description in the detailed engine, or a GPU of this computer."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import cached_property
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

import numpy as np

from abstim.engine.kept_caches import Caches
from abstim.gpu.config import Gpu
from abstim.session.session import open_session
from abstim.study.calibrate.microbenchmarks import Device, Experiment, Facts, KernelCall
from abstim.study.calibrate.ptx_text import module, ticks
from functional.errors import InputError
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
