"""Launches on design points as lanes, run together as machine code (docs/occupancy-vector.md, "Lanes")."""

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import numpy as np

from abstim.gpu.config import nearest
from abstim.occupancy_vector import records as rec
from functional.arrays import Float64, Int32
from functional.errors import InputError
from functional.jit.machine_code import Native

run_lanes = Native("abstim.occupancy_vector.lane_kernel", "run_lanes", "abstim: compiling the occupancy-vector engine")


def run_compiled(part: rec.Lanes, threads: int | None = None) -> rec.Outcome:
    """Run every lane of a part, on at most so many threads (None: one a core). Deterministic: lanes know nothing of
    each other."""
    count, stopped = threads or os.cpu_count() or 1, np.zeros(1, np.int64)
    found = rec.Outcome(*(np.zeros(len(part.first), np.int64) for _ in range(2)))

    def task(own: slice) -> None:
        ends = np.zeros(len(part.first[own]), np.int64)
        found.end[own], found.issued[own] = _run_on(lane_of(part), part, own, ends, stopped)

    _on_threads(task, _shares(len(part.first), count), count, stopped)
    return found


FEW_ITEMS = 1 << 18  # some 10 ms: for less no threads are started


def _on_threads(task: Callable[[Any], None], tasks: Sequence[Any], threads: int, stopped: np.ndarray) -> None:
    """Every task, on threads; when one fails, or the user has had enough, the others stop soon."""
    if threads == 1:
        for own in tasks:
            task(own)
        return
    with ThreadPoolExecutor(threads) as pool:
        try:
            list(pool.map(task, tasks))
        except BaseException:
            stopped[0] = 1
            raise


def _shares(lanes: int, threads: int) -> list[slice]:
    """Lanes of a part that one call runs."""
    size = max(1, lanes if threads == 1 else -(-lanes // (4 * threads)))
    return [slice(first, min(lanes, first + size)) for first in range(0, lanes, size)]


def _run_on(
    lane: rec.Lane, part: rec.Lanes, own: slice, ends: np.ndarray, stopped: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """(ends, items issued) of some lanes of a part, in the state `lane`."""
    first, issued = part.first[own], np.zeros(len(ends), np.int64)
    lanes = np.zeros(len(first), rec.OWN)
    lanes["first"], lanes["stop"], lanes["machine"] = first, part.stop[own], np.arange(len(first))
    run_lanes(lane, part.streams, shape_of(part), part.machine[own], lanes, ends, issued, stopped)
    return ends, issued


def shape_of(part: rec.Lanes) -> np.ndarray:
    """SHAPE of a part's lanes."""
    return shape_of_lanes(part.layout, part.residents)


def shape_of_lanes(layout: rec.Layout, residents: int) -> np.ndarray:
    """The same of lanes that hold so many thread blocks."""
    shape = np.zeros(1, rec.SHAPE)
    shape[0] = (
        layout.schedulers, layout.rows(residents), layout.warps, residents, layout.sub_cores,
        layout.priority, layout.perfect_memory, layout.memory_queue, layout.holding,
    )  # fmt: skip
    return shape


def lane_of(part: rec.Lanes) -> rec.Lane:
    """The arrays of a lane's state, all zero; lanes of a part have fills of their own."""
    return new_lane(shape_of(part), len(part.streams.fill_words))


def new_lane(shapes: np.ndarray, fills: int) -> rec.Lane:
    """The same for a SHAPE, with so many fills."""
    shape = shapes[0]
    schedulers, slots = int(shape["schedulers"]), int(shape["schedulers"] * shape["rows"])
    groups = schedulers if shape["sub_cores"] else 1

    def numbers(count: int) -> np.ndarray:
        return np.zeros(count, np.int64)

    return rec.Lane(
        times=numbers(rec.TIMES),
        slot_times=numbers(slots * rec.SLOT_TIMES),
        starts=numbers(groups * int(shape["memory_queue"])),
        arrivals=numbers(fills),
        asked=numbers(fills),
        recent=numbers(rec.RECENT),
        due=numbers(slots),
        warps=np.zeros(slots, rec.SLOT),
        blocks=np.zeros(int(shape["residents"]), rec.BLOCK),
        schedulers=np.zeros(schedulers, rec.SCHEDULER),
        progress=np.zeros(1, rec.PROGRESS),
        needs=np.zeros(schedulers * rec.MOST_SLOTS, np.uint8),
        bounds=numbers(groups * rec.NEEDS),
        older=np.zeros(schedulers * rec.MOST_SLOTS, np.uint64),
    )


# Of Lane: all arrays of times, which have derivatives beside them where they are asked for
_TIMES = ("times", "slot_times", "starts", "arrivals", "recent")


def run_with_derivatives(
    part: rec.Lanes,
    term_rows: Int32[np.ndarray, " item_term"],
    term_slopes: Float64[np.ndarray, "row name"],
    number_slopes: Float64[np.ndarray, "lane number name"],
) -> Float64[np.ndarray, "lane tick_and_names"]:
    """The end of each lane, in ticks, and how it changes with each of up to DUAL_WIDTH - 1 parameters, given how
    NUMBERS do, and by which row of `term_slopes` each of TERMS does."""
    terms = rec.DualTerms(part.streams.terms, term_rows, _dual(np.zeros(len(term_slopes)), term_slopes))
    machine = _dual(part.machine.ravel(), number_slopes.reshape(-1, number_slopes.shape[-1]))
    streams: Any = part.streams._replace(terms=terms)  # type: ignore[arg-type]
    own = part._replace(streams=streams, machine=machine.reshape(*part.machine.shape, rec.DUAL_WIDTH))
    found = np.zeros((len(part.first), rec.DUAL_WIDTH))
    stopped = np.zeros(1, np.int64)

    def task(share: slice) -> None:
        lane = lane_of(part)
        lane = lane._replace(**{name: np.zeros((len(getattr(lane, name)), rec.DUAL_WIDTH)) for name in _TIMES})
        found[share], _ = _run_on(lane, own, share, np.zeros((len(part.first[share]), rec.DUAL_WIDTH)), stopped)

    threads = os.cpu_count() or 1
    _on_threads(task, _shares(len(part.first), threads), threads, stopped)
    return found


def _dual(times: np.ndarray, slopes: np.ndarray) -> Float64[np.ndarray, "time dual"]:
    found = np.zeros((len(times), rec.DUAL_WIDTH))
    found[:, 0] = times
    found[:, 1 : 1 + slopes.shape[1]] = slopes
    return found


DEVICES = ("compiled", "arrays")  # machine code on this computer's cores; JAX, on what JAX_PLATFORMS names
_device: ContextVar[str] = ContextVar("device", default="compiled")
BLOCK_SLOTS = (1, 2, 3, 4, 5, 6, 8, 12, 16, 24, 32, 48, 64)


def block_slots(residents: int) -> int:
    """Slots to make room for: few different numbers, so that compiled programs serve many launches."""
    return next(count for count in BLOCK_SLOTS if count >= residents)


@contextmanager
def on_device(name: str, model: str = "occupancy") -> Iterator[None]:
    """Within it lanes are run by one of DEVICES. Raises InputError for another one, or where a model has no lanes."""
    if name not in DEVICES:
        raise InputError(f"--device {name!r} is none of {', '.join(DEVICES)}{nearest(name, DEVICES)}")
    if name != _device.get() and model != "occupancy":
        raise InputError(f"--device is of the occupancy model; leave it out with --model {model}")
    token = _device.set(name)
    try:
        yield
    finally:
        _device.reset(token)


def compiled() -> bool:
    """Are lanes run by machine code, and not as arrays?"""
    return _device.get() == DEVICES[0]


def run(part: rec.Lanes, threads: int | None = None) -> rec.Outcome:
    """Run the lanes of a part on the device, by machine code on at most so many threads (None: one a core)."""
    if compiled():
        return run_compiled(part, threads)
    from abstim.occupancy_vector.array_lanes import run_arrays

    return run_arrays(part)


def cycles_of(ticks: Any) -> Any:
    """Whole cycles, the one in which the last warp left included."""
    return -(-ticks // rec.TICKS) + 1
