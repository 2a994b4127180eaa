"""Every key of every GPU: setting it changes what the engine is given, or is refused, or stands in a short list."""

from __future__ import annotations

from functools import cache
from itertools import islice

import numpy as np
import pytest
from nightly import of

import abstim
from abstim import run
from abstim.analytic.point import points_of
from abstim.analytic.predictions import UNREAD, reading
from abstim.cli import main
from abstim.engine.design_point import l1d_ways, machine_of, refuse_unsupported
from abstim.gpu.config import Gpu, changed, domains, gpu_names, load_gpu, with_values
from abstim.gpu.occupancy import occupancy
from abstim.gpu.spec import FROM_TIME
from abstim.session.session import open_session
from abstim.study.explore.sweep import explore, sweep_of
from functional.errors import InputError
from tests.gpus_beside import gpus_beside

KNOWN = {
    "core_clock_hz": "changes seconds, and cycles where [time] says something",
    "architecture": "decides what machine code is made, the columns of tensor memory, what a program is told",
    "timed_code": "decides what is timed",
    "warp_size": "one value only",
    "lsu_units": "one value only",
    "l1d_line_bytes": "one value only",
    "shared_banks": "one value only",
}


@cache
def table():
    return open_session("nn_euclid").table(0, load_gpu("gtx480"))


def given(gpu: Gpu) -> tuple:
    """All that decides a launch's cycles on a GPU, beside the trace."""
    program = table()
    refuse_unsupported(gpu, program, 1, 1)
    m = np.array(machine_of(gpu, 1, 1, program), copy=True)
    m["ring"] = 0  # room, no time
    sizes = [(r, s) for r in (17, 33, 63, 200) for s in (0, 1024, 16384, 20000)]
    fits = [most_blocks(gpu, threads, r, s) for threads in (32, 256, 1024) for r, s in sizes]
    ways = [l1d_ways(gpu, shared) for shared in (0, 9000, 40000)]
    return m.tobytes(), gpu.pipeline, tuple(fits), tuple(ways), gpu.params.launch_latency_cycles


@pytest.mark.parametrize("name", gpu_names()[:: of(2, 1)])
def test_every_key_does_something_or_is_refused(name):
    gpu = load_gpu(name)
    before, idle = given(gpu), []
    for key in domains():
        if key in KNOWN:
            continue
        if gpu.why_idle(key):
            assert not any(gpus_beside(gpu, key, 1)), key  # why it is refused does not depend on the value
            continue
        tried = []
        for beside in gpus_beside(gpu, key):
            try:
                tried.append(given(beside) != before)
            except InputError:
                continue
            if tried[-1]:
                break
        if tried and not any(tried):
            idle.append(key)
    assert not idle


@pytest.mark.parametrize("name", ["gtx480", "a100"])
def test_the_formula_looks_at_every_key_that_it_accepts(name):
    base = load_gpu(name)

    def seen(gpu: Gpu) -> tuple:
        point = points_of([gpu]).tobytes()
        fits = (most_blocks(gpu, threads, 33, shared) for threads in (32, 256, 1024) for shared in (0, 20000))
        return point, reading(gpu), tuple(fits)

    for key in domains():
        if key in KNOWN or base.why_idle(key):
            continue
        others = [*islice(gpus_beside(base, key), 2)]
        changes = any(seen(gpu) != seen(base) for gpu in others)
        assert changes or not others or key in UNREAD, key
        of_code = "." in key or key in ("branch_cycles", "return_cycles")  # which the pipeline has for machine code
        assert not (changes and key in UNREAD) or of_code, key
        if key in UNREAD and others:
            with pytest.raises(InputError, match=f"--set {key}: the analytic model does not look at it"):
                abstim.run("relu", others[0], model="analytic")


@pytest.mark.parametrize(
    ("name", "override", "why"),
    [
        ("a100", "latency_cycles.fp32_mad=60", "machine code has it in its stall counts"),
        ("h100", "latency_cycles.fp64_mad=60", "code for sm_90 and later has it"),
        ("a100", "unit.int_div=sp", "machine code has no such instruction"),
        ("a100", "register_banks=4", "machine code does not wait for them"),
        ("rtx3070", "l1i_line_bytes=64", "perfect_instruction_cache = false, or instructions_per_fetch above 2"),
        ("rtx3070", "sp_port_width=6", "sub_cores share out sp_port_width = 6 evenly"),
        ("a100", "sp_collectors=5", "sub_cores share out sp_collectors = 5 evenly"),
    ],
)
def test_what_changed_nothing_without_a_word_is_refused(name, override, why):
    with pytest.raises(InputError, match=why):
        load_gpu(name, [override])
    if "code" in why:
        load_gpu(name, [override], "ptx")


def test_other_latencies_of_machine_code_count():
    load_gpu("a100", ["latency_cycles.fp64_mad=60", "latency_cycles.sfu=60", "initiation_cycles.fp32_mad=8"])


@pytest.mark.parametrize("model", ["detailed", "occupancy", "analytic"])
def test_a_program_whose_units_are_not_there_is_refused_by_every_model(model):
    gpu = load_gpu("rtx3070", ["dp_units=0"])
    with pytest.raises(InputError, match="needs dp units, and the SM has none"):
        run("micro_fp64_fma", gpu, model=model)
    found = explore(["micro_fp64_fma"], sweep_of(load_gpu("rtx3070"), ["dp_units=0"], model=model))
    assert "needs dp units" in found.reasons[0]


@pytest.mark.parametrize("key", ["dram_sector_cycles", "l2_sector_cycles"])
def test_a_sector_may_take_no_time(key):
    assert given(load_gpu("gtx480", [f"{key}=0"])) != given(load_gpu("gtx480"))


def most_blocks(gpu: Gpu, threads: int, registers: int, shared: int) -> int:
    try:
        return occupancy(gpu.spec, (1 << 20, 1, 1), (threads, 1, 1), registers, shared, 0).blocks_per_sm
    except InputError:
        return -1


@pytest.mark.parametrize("key", FROM_TIME)
def test_what_time_says_is_said_there(key, capsys):
    gpu, source = load_gpu("rtx3080"), FROM_TIME[key]
    for attempt in (
        lambda: load_gpu("rtx3080", [f"{key}=30"]),
        lambda: load_gpu("rtx3080", {key: 30}),
        lambda: changed(gpu, {key: 30}, "x"),
        lambda: with_values(gpu, {key: 30}, "x"),
        lambda: sweep_of(gpu, [f"{key}=30,40"]).space.refuse_idle(),
    ):
        with pytest.raises(InputError, match=source):
            attempt()
    assert getattr(load_gpu("rtx3080", [f"{source}=0", f"{key}=30"]).params, key) == 30
    with pytest.raises(SystemExit) as ended:
        main(["gpus", "rtx3080", "--set", f"{key}=30"])
    assert ended.value.code == 2 and source in capsys.readouterr().err
    assert gpu.shown_settings[key].value == getattr(gpu.params, key)
    assert gpu.shown_settings[key].source == f"from {source}"


def test_a_sweep_from_python_refuses_keys_without_effect():
    gpu = load_gpu("gtx480")
    with pytest.raises(InputError, match="scheduler = two_level"):
        explore(["relu"], sweep_of(gpu, ["two_level_active_warps=4,8"]))


def test_a_sweep_refuses_a_column_without_effect():
    with pytest.raises(InputError, match=r"dram_gbps.*sets dram_sector_cycles.*dram_bytes_per_second"):
        sweep_of(load_gpu("a100"), ["dram_gbps=500,1000"]).space.refuse_idle()
    with pytest.raises(InputError, match=r"l2_kib.*perfect_memory = false"):
        sweep_of(load_gpu("gtx480_perfect"), ["l2_kib=384,768"]).space.refuse_idle()
    sweep_of(load_gpu("gtx480"), ["scheduler=gto,two_level", "two_level_active_warps=4,8"]).space.refuse_idle()
    both = sweep_of(load_gpu("a100"), ["core_clock_hz=1e9,2e9"]).space.at(np.arange(2))
    assert both.values("dram_gbps") == pytest.approx([1455, 1455])


def test_machine_code_needs_an_architecture():
    with pytest.raises(InputError, match="needs an architecture"):
        load_gpu("gtx480", ["timed_code=machine"])


SAMPLE = [
    ("gtx480", "dram_sector_cycles=30"), ("gtx480", "l1d_latency_cycles=200"), ("gtx480", "l2_reply_cycles=400"),
    ("rtx3070", "dram_latency_cycles=2000"), ("a100", "dram_bytes_per_second=1e11"), ("a100", "dram_latency_ns=900"),
    ("v100", "launch_latency_ns=9000"), ("v100", "l2_request_cycles=900"),
    ("gtx480_perfect", "l1_miss_extra_cycles=90"),
]  # fmt: skip


EVERY_GPU = [
    (name, f"{key}={value}")
    for name in gpu_names()
    for key, value in (("sm_count", 7), ("l1d_latency_cycles", 200), ("l2_request_cycles", 700))
    if not load_gpu(name).why_idle(key)
]
KERNELS = "nn_euclid", "micro_local_spill"  # where L1D is passed by, local memory alone waits for it


@pytest.mark.parametrize(("name", "override"), of(SAMPLE, EVERY_GPU))
def test_a_key_changes_cycles(name, override):
    """`make nightly` asks three keys of every GPU."""
    runs = ([run(kernel, name, given).totals["cycles"] for given in ([], [override])] for kernel in KERNELS)
    assert any(before != after for before, after in runs)
