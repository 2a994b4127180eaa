"""One job for all points that are the same to the engine: never for points that differ, always for equal ones."""

from __future__ import annotations

from functools import cache
from itertools import islice

import numpy as np
import pytest
from nightly import of

from abstim.gpu.config import changed, domains, load_gpu
from abstim.session.session import open_session
from abstim.study.explore.jobs import Planner
from abstim.targets.resolve import open_target
from functional.errors import InputError

BASES = {
    "perfect": (),
    "two_level": ("scheduler=two_level",),
    "real": ("perfect_memory=false", "scheduler=lrr", "l1d_sets=4"),
}
LAUNCHES = {0: (0,), 1: (0, 9)}  # of nn_euclid; of nw, whose grids are of 1 to 16 blocks
WORDS = ("gto", "lrr", "oldest", "two_level", "hash", "linear", "fermi", "sector", "sp", "sfu")


@cache
def planner() -> Planner:
    return Planner([open_session(name) for name in ("nn_euclid", "nw")])


@cache
def base(name: str):
    return load_gpu("gtx480_perfect", BASES[name])


def jobs(gpu) -> list:
    return [job for t, chosen in LAUNCHES.items() for job in planner().jobs(t, gpu) if job.launch in chosen]


@cache
def base_jobs(name: str) -> list:
    return jobs(base(name))


@cache
def cycles_of(key: bytes, name: str) -> int:
    job = next(job for job in base_jobs(name) if job.key == key)
    return cycles(job, base(name))


def cycles(job, gpu) -> int:
    return Planner.cycles(planner().sessions[job.target], job.launch, [gpu], [job.blocks_per_sm])[0]


def alternatives(key: str, value):
    """Other values of a key, near and far."""
    if isinstance(value, bool):
        return [not value]
    found = WORDS if isinstance(value, str) else (value * 2, value + 1, value // 2, value * 8, value - 1)
    domain = domains()[key]
    return [v for v in found if v != value and isinstance(v, (domain.type, int)) and domain.accepts(v)]


@pytest.mark.parametrize(
    ("name", "section"),
    [*((name, "") for name in BASES), *(("perfect", s) for s in ("latency_cycles", "initiation_cycles", "unit"))],
)
def test_points_of_one_job_take_the_same_cycles(name, section):
    """Every key, one at a time: what changes a launch's cycles changes its job."""
    same = 0
    keys = [key for key in domains() if key.rpartition(".")[0] == section]
    for key in keys if not section else keys[:: of(3, 1)]:
        for value in islice(alternatives(key, base(name).settings[key].value), 1):
            try:
                gpu = changed(base(name), {key: value}, f"{key}={value}")
                found = jobs(gpu)
            except InputError:  # a block does not fit, or values contradict each other
                continue
            for before, job in zip(base_jobs(name), found, strict=True):
                if job.key == before.key:
                    same += 1
                    assert cycles(job, gpu) == cycles_of(before.key, name), f"{key}={value}"
    assert same


@pytest.mark.parametrize("name", BASES)
def test_several_changes_at_once_too(name):
    """Random points along the keys that often change nothing: as few jobs as there are different machines."""
    generator, seen, count = np.random.default_rng(7), {}, 0
    choices = {
        "sm_count": (3, 16, 17, 40),
        "max_blocks_per_sm": (2, 8, 16),
        "max_warps_per_sm": (32, 48, 64),
        "two_level_active_warps": (4, 6),
        "latency_cycles.fp64_div": (330, 100),
        "latency_cycles.tensor": (32, 8),
        "registers_per_sm": (32768, 65536),
        "l2_ways": (8, 16),
        "core_clock_hz": (7e8, 1e9),
    }
    for _ in range(of(15, 40)):
        values = {key: some[generator.integers(len(some))] for key, some in choices.items()}
        gpu = changed(base(name), values, "")
        for job in jobs(gpu):
            if job.launch or not job.target:
                count += 1
                assert seen.setdefault(job.key, found := cycles(job, gpu)) == found
    assert len(seen) < of(0.8, 0.5) * count


@pytest.mark.parametrize(
    ("name", "key", "value", "shared"),
    [
        ("perfect", "l2_sets", 128, True),
        ("real", "l2_sets", 128, False),
        ("perfect", "two_level_active_warps", 4, True),
        ("two_level", "two_level_active_warps", 4, False),
        ("perfect", "latency_cycles.tensor", 8, True),
        ("perfect", "latency_cycles.int_add", 8, False),
        ("perfect", "core_clock_hz", 1e9, True),
        ("perfect", "l1d_latency_cycles", 36, False),
        ("perfect", "launch_latency_cycles", 5, False),
        ("perfect", "register_banks", 8, False),
    ],
)
def test_what_makes_a_job_of_its_own(name, key, value, shared):
    gpu = changed(base(name), {key: value}, "")
    for before, job in zip(base_jobs(name), jobs(gpu), strict=True):
        assert (job.key == before.key) is shared


@pytest.mark.parametrize("name", BASES)
def test_sms_without_a_block_change_nothing(name):
    """nw's launch 9 has 10 blocks."""
    found = {n: jobs(changed(base(name), {"sm_count": n}, ""))[2] for n in (9, 10, 11, 20, 144)}
    assert len({found[n].key for n in (10, 11, 20, 144)}) == 1
    assert found[9].key != found[10].key
    measured = {cycles(found[n], changed(base(name), {"sm_count": n}, "")) for n in (10, 11, 20, 144)}
    assert len(measured) == 1


def test_launches_that_do_the_same_are_one_job():
    """The same memory again: nw's launches differ, a case that launches one kernel twice does not."""
    case = open_target("nn_euclid")
    case.launches = [case.launches[0], case.launches[0]]
    twice = Planner([open_session(case)])
    assert len({job.key for job in twice.jobs(0, base("perfect"))}) == 1
    assert len({job.key for job in base_jobs("perfect")}) == len(base_jobs("perfect"))


def test_fetches_a_cycle_are_what_makes_a_job_of_its_own():
    """A store once gave one engine's cycles of 1 fetch for another's of 4."""
    names = [f"fetches_per_cycle={count}" for count in (1, 4)]
    found = [jobs(load_gpu("gtx480_perfect", ["sm_count=2", name])) for name in names]
    for one, four in zip(*found, strict=True):
        assert one.key != four.key


def test_the_model_is_part_of_every_key(monkeypatch):
    before = [job.key for job in jobs(load_gpu("gtx480_perfect"))]
    monkeypatch.setattr(Planner, "version", lambda: "another model")
    after = Planner([open_session("nn_euclid")]).jobs(0, load_gpu("gtx480_perfect"))
    assert not {job.key for job in after} & set(before)
