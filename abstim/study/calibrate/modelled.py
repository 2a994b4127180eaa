"""A GPU's description as what micro-benchmarks run on: the detailed engine tells the time."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from abstim.engine.kept_caches import Caches
from abstim.gpu.config import Gpu
from abstim.session.session import open_session
from abstim.study.calibrate.experiment import Experiment, Facts, KernelCall
from abstim.study.calibrate.ptx_text import module
from functional.errors import InputError
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
        raise InputError(
            f"{gpu.name}: calibrate measures memory, and perfect_memory is true; --set perfect_memory=false"
        )
    lines = spec.dram_channels * spec.l2_slices_per_channel * spec.l2_sets * spec.l2_ways
    target = 70 if spec.architecture == "none" else int(spec.architecture.removeprefix("sm_"))
    if not spec.tensor_units:
        target = min(target, 70)
    return Facts(
        gpu.name, spec.core_clock_hz, spec.sm_count, target, spec.shared_bytes_per_sm, spec.max_threads_per_sm,
        lines * LINE_BYTES,
    )  # fmt: skip


class Modelled:
    """A Device."""

    effort = 1  # the engine's time is exact

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
        result = session.simulate(last, self.gpu, caches=caches)
        return result.cycles / self.facts.core_clock_hz

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
        program = link(self.module, call.kernel)
        return make_launch(program, call.grid, call.block, arguments, memory, call.shared_bytes)
