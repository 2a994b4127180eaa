"""Launches on streams side by side: when each begins and ends on a GPU."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from abstim.brief import brief
from abstim.engine.state import RESOURCES
from abstim.gpu.occupancy import demands_of
from functional.execution.computer import default_threads
from functional.launches.launch_order import awaits_of, programmatic_of, stretches

if TYPE_CHECKING:
    from abstim.engine.side_by_side import Kernel
    from abstim.gpu.config import Gpu
    from abstim.session.session import Session
    from abstim.session.warm_up import WarmUp


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamedLaunch:
    """When a launch had its first thread block on an SM, and when it was over: cycles from the beginning of all."""

    launch: int
    kernel: str
    stream: str
    start_cycle: int
    end_cycle: int
    alone_cycles: int  # what it takes if nothing runs beside it


@dataclass(frozen=True, slots=True, kw_only=True)
class Overlap:
    """Launches side by side, where their streams, and what they wait for, allow it."""

    __repr__ = brief

    cycles: int  # from the beginning to the end of all
    serial_cycles: int  # one after the other
    speed_up: float  # of the latter over the former
    launches: list[StreamedLaunch]


def kernel_of(
    session: Session, number: int, gpu: Gpu, awaits: Sequence[int], priority: int = 0, programmatic: int = -1
) -> Kernel:
    """A launch as the engine takes it; `awaits`, `programmatic`: positions among those side by side."""
    from abstim.engine.side_by_side import Kernel

    launch, registers = session.launch(number), session.registers(number).count
    needs = demands_of(gpu.spec, launch.block, registers, launch.shared_bytes, session.tensor_columns(number))
    taken = launch.shared_bytes * session.blocks_per_sm(number, gpu)
    inputs, latency = session.inputs(number, gpu), int(gpu.params.launch_latency_cycles)
    return Kernel(
        inputs, tuple(needs[name][0] for name in RESOURCES), taken, tuple(awaits), latency, -priority, programmatic
    )


def overlap_of(session: Session, gpu: Gpu, policy: WarmUp, alone_cycles: Callable[[int], int]) -> Overlap:
    """All launches of a session on a GPU; `policy` says what caches the first of each stretch finds."""
    from abstim.engine.side_by_side import simulate_side_by_side

    launches, cycle, found = session.case.launches, 0, []
    awaits, programmatic = awaits_of(launches), programmatic_of(launches)
    for stretch in stretches(awaits, programmatic):
        first = stretch.start
        kernels = [
            kernel_of(
                session, number, gpu, [k - first for k in awaits[number] if k >= first], launches[number].priority,
                max(-1, programmatic[number] - first),
            )
            for number in stretch
        ]  # fmt: skip
        caches = policy.before(session, first, gpu)
        timed = simulate_side_by_side(kernels, gpu, caches, default_threads())
        for number, start, end in zip(stretch, timed.starts.tolist(), timed.ends.tolist(), strict=True):
            launch = launches[number]
            found.append(
                StreamedLaunch(
                    launch=number, kernel=launch.program.name, stream=launch.stream, start_cycle=cycle + start,
                    end_cycle=cycle + end, alone_cycles=alone_cycles(number),
                )
            )  # fmt: skip
        cycle += timed.whole.cycles
    serial = sum(one.alone_cycles for one in found)
    return Overlap(cycles=cycle, serial_cycles=serial, speed_up=serial / cycle, launches=found)
