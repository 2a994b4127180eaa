"""What limits a launch: that twice a resource is twice that resource, and that the one that matters is named."""

from __future__ import annotations

import json
from functools import cache

import numpy as np
import pytest
from call_command import call
from nightly import of

import abstim
from abstim.gpu.config import domains, load_gpu
from abstim.session.limits import Observed, estimated_gains, limit_of
from abstim.session.memory_accesses import accesses_of, atomic_transactions, halved_atomics
from abstim.session.session import open_session
from abstim.study.counterfactual import RESOURCES, counterfactual, variants
from functional.traces.line_record import MORE, line_of, sectors_of


@cache
def limits_of(target, gpu, overrides=()):
    (found,) = counterfactual(open_session(target), [load_gpu(gpu, overrides)])
    return found


@pytest.fixture(scope="module")
def relu():
    return limits_of("relu", "gtx480")


@pytest.mark.parametrize(
    ("resource", "by_hand"),
    [
        ("DRAM bandwidth", ["dram_sector_cycles=0.7575"]),
        ("L2 bandwidth", ["l2_sector_cycles=0.5"]),
        ("L1D size", ["l1d_ways=8"]),
        ("crossbar", ["flit_bytes=80"]),
        ("instruction issue", ["schedulers_per_sm=4", "fetches_per_cycle=2"]),
        ("ALUs", ["sp_units=4", "sp_port_width=4", "sp_collectors=12"]),
        ("shared memory latency", ["shared_latency_cycles=13"]),
    ],
)
def test_each_is_the_launch_timed_again_with_twice_of_it(relu, resource, by_hand):
    (limit,) = [limit for limit in relu.limits if limit.resource == resource]
    expected = abstim.run("relu", "gtx480", by_hand).totals["cycles"]
    assert limit.cycles == expected and limit.gain == pytest.approx(1 - expected / relu.totals["cycles"])


def test_the_run_itself_is_the_ordinary_one(relu):
    assert [x.cycles for x in relu.launches] == [x.cycles for x in abstim.run("relu", "gtx480").launches]
    assert [x.gain for x in relu.limits] == sorted((x.gain for x in relu.limits), reverse=True)
    assert relu.limit == relu.limits[0].resource and relu.limit_basis == "counterfactual"


@pytest.mark.parametrize(
    ("target", "gpu", "overrides", "limit"),
    [
        ("micro_sfu:sfu_sin_ind_full", "gtx480_perfect", (), "SFUs"),
        ("relu", "rtx3070", ("launch_latency_cycles=50000",), "launch latency"),
        ("micro_stream_copy:copy_word_60", "gtx480", ("dram_channels=1",), "DRAM bandwidth"),
    ],
)
def test_what_a_kernel_was_made_for_limits_it(target, gpu, overrides, limit):
    names = [launch.limit for launch in limits_of(target, gpu, overrides).launches]
    assert names.count(limit) >= len(names) / 2, names


def test_an_estimate_on_machine_code_knows_what_dependent_instructions_wait_for():
    """A lone warp's divisions, one after the other: half of their latency saves most, and no load does."""
    for label, limit in (("dep", "instruction latency"), ("ind", "memory latency")):
        target = f"micro_int_div:int_div_{label}_1warp"
        (truth,) = limits_of(target, "v100").launches
        assert truth.limits[0].resource == limit
        assert names_it(abstim.run(target, "v100").limit, truth)


def test_the_worse_the_bank_conflicts_the_more_they_limit():
    found = {x.label: x for x in limits_of("micro_smem_conflict", "gtx480").launches}
    gain = {label: next(y.gain for y in x.limits if y.resource == "bank conflicts") for label, x in found.items()}
    for kind in ("ind", "dep"):
        gains = [gain[f"{kind}_{ways}way"] for ways in (1, 2, 4, 8, 16, 32)]
        assert gains == sorted(gains) and gains[0] == 0, gains
        assert found[f"{kind}_32way"].limit == "bank conflicts"
    assert found["dep_1way"].limit == "shared memory latency"


def test_times_in_nanoseconds_are_halved_too():
    gpu = load_gpu("h100")
    found = {variant.resource.name: variant.gpu.params for variant in variants(gpu)}
    assert found["launch latency"].launch_latency_cycles == pytest.approx(gpu.params.launch_latency_cycles / 2, abs=1)
    assert found["DRAM bandwidth"].dram_sector_cycles == pytest.approx(gpu.params.dram_sector_cycles / 2)
    assert found["memory latency"].dram_latency_cycles == pytest.approx(gpu.params.dram_latency_cycles / 2, abs=1)


def test_every_key_is_one_and_no_two_resources_share_one():
    keys = [key for resource in RESOURCES for key in (*resource.double, *resource.instead, *resource.halve)]
    assert set(keys) <= set(domains()) and len(keys) == len(set(keys))


def test_half_of_the_atomics_are_left():
    session = open_session("micro_atomics")
    gpu = load_gpu("gtx480")
    for number in range(len(session)):
        before = session.inputs(number, gpu)
        after, found = halved_atomics(before), accesses_of(before)
        assert len(found.first) == len(found.instruction)  # every access has its records, and every record its access
        assert len(found.shared) == len(before.trace.conflicts)
        lines, counts = atomic_transactions(before)
        left, fewer = atomic_transactions(after)
        assert set(left) <= set(lines) and fewer.sum() <= counts.sum()
        assert np.count_nonzero(after.trace.records & MORE == 0) == np.count_nonzero(before.trace.records & MORE == 0)
        if not len(lines):
            assert after is before
        else:
            other = sectors(before.trace) - atomic_sectors(before)
            assert sectors(after.trace) - other == pytest.approx(atomic_sectors(before) / 2, rel=0.02)


def sectors(trace):
    return int(np.bitwise_count(sectors_of(trace.records)).sum()) if hasattr(np, "bitwise_count") else sum(
        bin(s).count("1") for s in sectors_of(trace.records).tolist()
    )  # fmt: skip


def atomic_sectors(inputs):
    found = accesses_of(inputs)
    owner = found.owner
    mine = inputs.table.kind[found.instruction][owner] == 11
    return sum(bin(s).count("1") for s in sectors_of(inputs.trace.records[mine]).tolist())


def test_records_belong_to_the_instructions_that_made_them():
    """By their lines: what a parameter load reads lies among the parameters, and nothing else does."""
    inputs = open_session("hotspot").inputs(0, load_gpu("gtx480"))
    found = accesses_of(inputs)
    lines = line_of(inputs.trace.records[found.first])
    from_parameters = inputs.table.kind[found.instruction] == 4
    assert from_parameters.any() and (~from_parameters).any()
    assert (lines[from_parameters] >= (1 << 27) - 257).all()
    assert (lines[~from_parameters] < (1 << 27) - 257).all()


def test_the_command_ranks_them_and_marks_an_estimate():
    code, out, _ = call("run", "relu", "--limits")
    assert code == 0 and "Each resource twice as fast, alone" in out and max(map(len, out.splitlines())) <= 100
    found = json.loads(call("run", "relu", "--limits", "--json")[1])
    assert found["limit"] == found["limits"][0]["resource"] and found["limit_basis"] == "counterfactual"
    code, out, _ = call("run", "relu", "--gpu", "gtx480", "--gpu", "rtx3070")
    assert code == 0 and "limited by" in out and "(est.)" in out  # on two lines at 80 columns
    code, out, _ = call("run", "relu")
    assert "an estimate; --limits" in out
    found = json.loads(call("run", "relu", "--json")[1])
    assert found["limit_basis"] == "estimate" and found["limits"] == []
    assert call("run", "relu", "--limits", "--model", "analytic")[0] == 2


def names_it(limit, launch):
    """Would twice of it, or of one of two, bring what twice of the best brings, or nearly?"""
    gains = {x.resource: x.gain for x in launch.limits}
    named = limit.removeprefix("unclear between ").split(" and ")
    return max(gains.get(name, 0) for name in named) >= 0.9 * launch.limits[0].gain


@pytest.mark.parametrize(
    ("target", "gpu", "least"),
    [("relu", "gtx480", 1), ("relu", "rtx3070", 1), ("micro_smem_conflict", "gtx480", 0.75),
     *of([], [("nw", "gtx480", 0.9)])],
)  # fmt: skip
def test_the_estimate_names_what_the_counterfactual_finds(target, gpu, least):
    """`least` share of the launches; over the suite: docs/results.md#limit-estimate."""
    truth = limits_of(target, gpu).launches
    estimate = abstim.run(target, gpu).launches
    right = [names_it(guess.limit, launch) for guess, launch in zip(estimate, truth, strict=True)]
    found = [(a.label, a.limit, b.limits[:2]) for a, b, ok in zip(estimate, truth, right, strict=True) if not ok]
    assert sum(right) >= least * len(right), found


def guess(busy: dict, launch_share: float = 0.1, fewer_waves: float = 1.0, **alone: float) -> str:
    waits = {"instruction issue": 10.0, "memory latency": 300.0, "shared memory latency": 0.0} | {
        name.replace("_", " "): cycles for name, cycles in alone.items()
    }
    return limit_of(estimated_gains(Observed(400.0, waits, busy, launch_share, fewer_waves)))


def test_a_warp_lives_as_long_as_alone_or_as_the_busiest_resource_takes():
    assert guess({"ALUs": 0.2}) == "memory latency"
    assert guess({"ALUs": 0.2}, launch_share=0.6) == "launch latency"
    assert guess({"ALUs": 0.2, "atomics": 0.95}, memory_latency=50.0) == "atomics"
    assert guess({"ALUs": 0.2, "SFUs": 0.95}, memory_latency=50.0) == "SFUs"
    assert guess({"ALUs": 0.1}, fewer_waves=0.5, memory_latency=90.0, instruction_latency=90.0) == "occupancy"
    assert guess({"ALUs": 0.1}, instruction_latency=600.0) == "unclear between memory latency and instruction latency"
    assert guess({"ALUs": 0.1}, memory_latency=1e6) == "memory latency"  # a warp's loads overlap


PAGE = [("hotspot", "gtx480")]


@pytest.mark.parametrize(("target", "gpu"), of(PAGE, [*PAGE, ("transpose", "gtx480"), ("hotspot", "rtx3070")]))
def test_what_the_page_shows_is_what_counterfactuals_find(target, gpu):
    """The README's kernel was said to be limited by issue, `transpose` by ALUs: by memory latency, both of them."""
    truth, said = limits_of(target, gpu), abstim.run(target, gpu).limit
    best = truth.limits[0]
    assert best.resource in said and said.count(" and ") <= 1, (said, truth.limits[:3])
