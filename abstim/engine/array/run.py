"""A launch on many design points with the array engine."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial

import jax
import numpy as np

from abstim.cache import cache_dir
from abstim.config import Gpu
from abstim.engine.array.prepare import prepare
from abstim.engine.array.state import LIMIT_CYCLES, State
from abstim.engine.array.step import run, unfinished
from abstim.engine.compiled.layout import EMPTY
from abstim.engine.inputs import COUNTERS, EngineResult, LaunchInputs
from functional.errors import InputError

STEPS = 1 << 14  # between two looks at the progress


def simulate_points(
    inputs: LaunchInputs,
    points: Sequence[Gpu],
    blocks_per_sm: Sequence[int],
    progress: Callable[[int], None] = lambda done: None,
) -> list[EngineResult]:
    """Time a launch on every design point; points of one scheduling policy go through one program together.

    Equal to the compiled engine to the cycle. Raises InputError if the launch is too long for 32-bit cycles.
    """
    groups: dict[str, list[int]] = {}
    for k, gpu in enumerate(points):
        groups.setdefault(gpu.spec.scheduler, []).append(k)
    results: dict[int, EngineResult] = {}
    for policy, members in groups.items():
        chosen = [points[k] for k in members], [blocks_per_sm[k] for k in members]
        found = _simulate(inputs, policy, *chosen, partial(_report, progress, len(results)))
        results |= zip(members, found, strict=True)
    return [results[k] for k in range(len(points))]


def _report(progress: Callable[[int], None], before: int, done: int) -> None:
    """Tell `progress` of `done` points of a group that has `before` in front of it."""
    progress(before + done)


def _simulate(
    inputs: LaunchInputs, policy: str, points: list[Gpu], blocks_per_sm: list[int], progress: Callable[[int], None]
) -> list[EngineResult]:
    """`simulate_points` of one policy."""
    state, launch = prepare(inputs, points, blocks_per_sm)
    with persistent_programs():
        launch = jax.device_put(launch)
        state = jax.device_put(state)
        while True:
            state = run(state, launch, np.int32(STEPS), policy)
            going = np.unique(launch.point[np.asarray(unfinished(state, launch))])
            progress(len(points) - len(going))
            if not len(going):
                break
            if int(state.clock.max()) >= LIMIT_CYCLES:
                raise InputError(
                    f"a launch longer than {LIMIT_CYCLES} cycles is too long for the array engine; "
                    "use the compiled one (--backend compiled)"
                )
    return _results(jax.device_get(state), points)


@contextmanager
def persistent_programs() -> Iterator[None]:
    """Keep compiled programs on disk, without changing what the caller has configured."""
    wanted = {
        "jax_compilation_cache_dir": str(cache_dir("jax")),
        "jax_persistent_cache_min_compile_time_secs": 1.0,
        "jax_enable_x64": False,
    }
    before = {name: getattr(jax.config, name) for name in wanted}
    try:
        for name, value in wanted.items():
            jax.config.update(name, value)
        yield
    finally:
        for name, value in before.items():
            jax.config.update(name, value)


def _results(s: State, points: Sequence[Gpu]) -> list[EngineResult]:
    """Read the finished lanes of every design point. Scheduler cycles nobody booked are empty ones."""
    first, found = 0, []
    for gpu in points:
        lanes = slice(first, first + gpu.spec.sm_count)
        first += gpu.spec.sm_count
        sm_cycles = s.last_exit[lanes].astype(np.int64) + 1 + int(gpu.params.launch_latency_cycles)
        cycles = int(sm_cycles.max())
        slots = s.issue_slots[:, :, lanes].astype(np.int64).sum(1).T
        slots[:, EMPTY] += cycles * gpu.spec.schedulers_per_sm - slots.sum(1)
        resident = s.resident[:, lanes].astype(np.int64).sum(0)
        counters = dict(zip(COUNTERS, s.counters[:, lanes].astype(np.int64).sum(1).tolist(), strict=True))
        found.append(EngineResult(cycles, sm_cycles, slots, resident, counters))
    return found
