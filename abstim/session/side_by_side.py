"""Launches on streams side by side: when each begins and ends on a GPU."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from abstim.brief import Brief
from abstim.engine.side_by_side import Kernel, SideBySide, simulate_side_by_side
from abstim.engine.state import RESOURCES
from abstim.gpu.config import Gpu
from abstim.gpu.occupancy import demands_of
from abstim.session.limits import TRAFFIC, memory_use
from abstim.session.session import Session
from abstim.session.warm_up import Flushed
from functional.execution.computer import default_threads
from functional.launches.launch import awaits_of, stretches


@dataclass(frozen=True)
class StreamedLaunch:
    """When a launch had its first thread block on an SM, and when it was over, from the beginning of all; and what it
    takes if nothing runs beside it."""

    launch: int
    kernel: str
    stream: str
    start_cycle: int
    end_cycle: int
    alone_cycles: int


@dataclass(frozen=True, repr=False)
class Overlap(Brief):
    """Launches side by side, where what they wait for allows it: the time of all, and that of one after the other with
    caches emptied as seldom. `memory`: bytes that they moved; {}: not known."""

    cycles: int
    serial_cycles: int
    launches: list[StreamedLaunch]
    memory: dict[str, int] = field(default_factory=dict)
    speed_up: float = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "speed_up", self.serial_cycles / max(1, self.cycles))


def kernel_of(
    session: Session, number: int, gpu: Gpu, awaits: Sequence[int], priority: int = 0, programmatic: int = -1
) -> Kernel:
    """A launch as the engine takes it; `awaits`, `programmatic`: positions among those side by side."""
    launch, registers = session.launch(number), session.registers(number).count
    needs = demands_of(gpu.spec, launch.block, registers, launch.shared_bytes, session.tensor_columns(number))
    taken = needs["shared memory"][0] * session.blocks_per_sm(number, gpu)
    inputs, latency = session.inputs(number, gpu), int(gpu.params.launch_latency_cycles)
    return Kernel(
        inputs, tuple(needs[name][0] for name in RESOURCES), taken, tuple(awaits), latency, -priority, programmatic
    )


def timed_stretches(
    session: Session, gpu: Gpu, policy: Flushed, log_rows: Callable[[range], int] = lambda stretch: 0,
    in_turn: bool = False,
) -> Iterator[tuple[range, SideBySide]]:  # fmt: skip
    """Launches of a session that may overlap, from one wait of all of them to the next, each stretch side by side on a
    GPU (`in_turn`: one after the other); `policy` says what caches each finds, `log_rows` how many issues of it are
    logged."""
    launches, threads = session.case.launches, default_threads()
    awaits, programmatic = awaits_of(launches)
    for stretch in stretches(awaits, programmatic):
        kernels = [
            kernel_of(
                session, number, gpu, [k - stretch.start for k in awaits[number] if k in stretch],
                launches[number].order.priority, max(-1, programmatic[number] - stretch.start),
            )
            for number in stretch
        ]  # fmt: skip
        if in_turn:
            kernels = [replace(one, awaits=(k - 1,)[:k], programmatic=-1) for k, one in enumerate(kernels)]
        caches = policy.before(session, stretch[0], gpu, *stretch[1:])
        yield stretch, simulate_side_by_side(kernels, gpu, caches, threads, log_rows(stretch))


def overlap_of(session: Session, gpu: Gpu, flush: str, alone_cycles: Sequence[int]) -> Overlap | None:
    """The launches of a session side by side on a GPU, if they may be (`timed_stretches`); `alone_cycles`: what each
    takes by itself. Caches are emptied before a stretch alone: so they are for those one after the other, lest the
    speed-up be that of warm caches."""
    if not session.overlaps:
        return None
    launches, cycle, found, moved = session.case.launches, 0, list[StreamedLaunch](), Counter[str]()
    for stretch, timed in timed_stretches(session, gpu, Flushed(flush)):
        for number, start, end in zip(stretch, timed.starts.tolist(), timed.ends.tolist(), strict=True):
            name, stream = launches[number].program.name, launches[number].order.stream
            found.append(StreamedLaunch(number, name, stream, cycle + start, cycle + end, alone_cycles[number]))
        cycle += timed.whole.cycles
        use = memory_use(timed.whole.counters, timed.whole.cycles, gpu.spec, gpu.params)
        moved.update({name: int(use[name]) for name in TRAFFIC if name in use})
    in_turn = (timed.whole.cycles for _, timed in timed_stretches(session, gpu, Flushed(flush), in_turn=True))
    return Overlap(cycle, sum(alone_cycles if flush == "none" else in_turn), found, dict(moved))
