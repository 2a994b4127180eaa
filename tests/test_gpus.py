"""The GPUs that come along, and what their parts do to a kernel's time."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
from nightly import of

from abstim.engine.design_point import POLYNOMIALS, l1d_ways, residues
from abstim.engine.simulation import COUNTERS
from abstim.gpu.config import config_dir, load_gpu
from abstim.models import run
from abstim.session.limits import memory_use
from abstim.targets.loading import load
from functional.errors import InputError

NAMES = sorted(path.stem for path in config_dir().glob("*.toml"))


@cache
def cycles(benchmark: str, gpu: str, *overrides: str) -> int:
    return int(run(benchmark, gpu, overrides).totals["cycles"])


@pytest.mark.parametrize("name", NAMES[:: of(2, 1)])
def test_every_gpu_loads_with_a_source_for_every_value_and_runs(name):
    gpu = load_gpu(name)
    assert all(setting.source for setting in gpu.settings.values())
    launch = run("nn_euclid", gpu).launches[0]
    assert launch.cycles > gpu.params.launch_latency_cycles
    most = gpu.spec.issues_per_turn * launch.issue_slots["issued"]
    assert launch.issue_slots["issued"] <= (launch.timed_instructions or launch.warp_instructions) <= most


def test_a_derived_gpu_states_only_what_differs():
    base, derived = load_gpu("h100"), load_gpu("h200")
    changed = {key for key, setting in derived.settings.items() if setting.value != base.settings[key].value}
    assert changed == {"dram_channels", "l2_ways", "dram_bytes_per_second"}


@pytest.mark.parametrize(
    ("benchmark", "overrides"),
    [
        ("micro_int_add:int_add_ind_full", ["initiation_cycles.int_add=4"]),
        ("micro_fp32_fma:fp32_fma_ind_full", ["initiation_cycles.fp32_mad=4"]),
        ("micro_sfu:sfu_sin_ind_full", ["initiation_cycles.sfu=32"]),
        ("micro_fp64_fma:fp64_fma_ind_full", ["initiation_cycles.fp64_mad=128"]),
        ("mandelbrot", ["fetches_per_cycle=1"]),
        ("micro_fp32_fma:fp32_fma_ind_full", ["register_banks=4", "register_file_ports=1"]),
        ("micro_pointer_chase:8KB", ["l1d_latency_cycles=80"]),
        ("micro_stream_copy:copy_vec4_60", ["dram_sector_cycles=8"]),
        ("micro_const_load:ways_8", ["perfect_constant_cache=false"]),
        ("micro_block_launch:tiny_15x32", ["launch_latency_cycles=20000"]),
    ],
)
def test_less_of_what_a_kernel_needs_makes_it_slower_on_sub_cores(benchmark, overrides):
    assert cycles(benchmark, "rtx3070", *overrides) > 1.003 * cycles(benchmark, "rtx3070")


def test_a_second_issue_a_turn_goes_to_another_unit():
    launch = run("nn_euclid", "titanx").launches[0]
    assert launch.issue_slots["issued"] < launch.warp_instructions
    single = run("nn_euclid", "titanx", ["issues_per_turn=1"]).launches[0]
    assert single.issue_slots["issued"] == single.warp_instructions


def test_l1d_gives_way_to_shared_memory():
    gpu = load_gpu("rtx3070")
    assert [l1d_ways(gpu, kib * 1024) for kib in (0, 1, 8, 9, 33, 100)] == [256, 240, 240, 224, 128, 56]
    assert l1d_ways(load_gpu("gtx480_perfect"), 48 * 1024) == 4


@pytest.mark.parametrize("write", ["local_back", "evict", "through", "back"])
def test_write_policies_of_l1d_move_the_traffic_they_should(write):
    overrides = [f"l1d_write={write}", *(["l1d_write_allocate=true"] if write in ("through", "back") else [])]
    caches = run("micro_stream_copy:copy_vec4_120", "rtx3070", overrides).launches[-1].caches
    usual = run("micro_stream_copy:copy_vec4_120", "rtx3070").launches[-1].caches
    assert caches["dram_reads"] == pytest.approx(usual["dram_reads"], rel=0.02)
    if write == "through":  # every store goes on, and counts as a miss
        assert caches["l2_accesses"] == pytest.approx(caches["l1d_misses"], rel=0.02)
    if write == "back":  # what stays in L1D has not been written
        assert caches["l2_accesses"] < usual["l2_accesses"]


def test_a_cache_of_one_set_in_fifo_order_forgets_what_lru_keeps():
    small = ("perfect_memory=false", "l1d_sets=1", "l1d_ways=4", "l1d_index=linear")
    lru = run("matmul_naive", "gtx480", small).launches[0].caches
    fifo = run("matmul_naive", "gtx480", [*small, "l1d_replacement=fifo"]).launches[0].caches
    assert lru["l1d_accesses"] == fifo["l1d_accesses"] and lru["l1d_misses"] != fifo["l1d_misses"]


def test_dirty_lines_that_leave_l2_are_written_to_dram():
    tiny = ["perfect_memory=false", "l2_sets=1", "l2_ways=1"]
    launch = run("micro_stream_copy:copy_vec4_120", "gtx480", tiny).launches[-1]
    assert 0 < launch.caches["dram_writes"] <= launch.caches["l2_accesses"]
    usual = run("micro_stream_copy:copy_word_15", "gtx480", ["perfect_memory=false"]).launches[0]
    assert usual.caches["dram_writes"] == 0


@pytest.mark.parametrize("degree", range(1, 13))
def test_polynomials_are_primitive(degree):
    """x runs through every residue but 0 before it comes back to 1."""
    value, seen = 1, set()
    for _ in range((1 << degree) - 1):
        seen.add(value)
        value <<= 1
        value = value ^ POLYNOMIALS[degree] if value >> degree else value
    assert value == 1 and len(seen) == (1 << degree) - 1
    assert residues(degree)[0] == POLYNOMIALS[degree] ^ (1 << degree)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["schedulers_per_sm=3"], "sub_cores share out sp_units"),
        (["shared_collectors=0"], "mem_collectors = 2 is below mem_port_width = 4"),
        (["l1d_sectored=false"], "l1d_banks = 4 needs l1d_sectored"),
        (["unified_l1d_bytes=0"], "shared_options_kib needs unified_l1d_bytes"),
        (["l2_sets=48"], "l2_index = ipoly needs l2_sets"),
        (["shared_options_kib=8,0"], "ascending"),
        (["dram_channels=1024", "l2_slices_per_channel=8"], "up to 4096 slices, not 8192"),
    ],
)
def test_values_that_contradict_each_other_are_refused(overrides, message):
    with pytest.raises(InputError, match=message):
        load_gpu("rtx3070", overrides)


def test_a_linear_l2_may_have_any_number_of_sets():
    assert load_gpu("gtx480", ["l2_sets=6000"]).spec.l2_sets == 6000


def test_use_of_memory_is_busy_time_over_all_time():
    gpu = load_gpu("rtx3070")
    counters = dict.fromkeys(COUNTERS, 0)
    assert "l1d_hit_rate" not in memory_use(counters, 1000, gpu.spec, gpu.params)
    busy = memory_use(counters | {"dram_reads": 12000, "l2_accesses": 12000}, 1000, gpu.spec, gpu.params)
    assert busy["dram_use"] == pytest.approx(12000 * 1.294 / 16 / 1000) and busy["l2_hit_rate"] == 1


def test_a_burst_of_dram_writes_as_many_sectors_as_it_has_room_for():
    """64 bytes on the GTX 480: a launch that reads and writes as much looked as if it used 128 % of DRAM."""
    gpu = load_gpu("gtx480")
    counters = dict.fromkeys(COUNTERS, 0) | {"dram_reads": 1000, "dram_writes": 1000}
    found = memory_use(counters, 1000, gpu.spec, gpu.params)
    assert found["dram_use"] == pytest.approx(1500 * 1.515 / 6 / 1000)


def looped(tmp_path, body: str, threads: int, times: int, before: str = ""):
    """A launch of one thread block that goes round a loop: %rd4 is the address of a buffer, %rd6 of a lane's word."""
    (tmp_path / "k.ptx").write_text(f"""
.version 7.0
.target sm_70
.address_size 64
.visible .entry k(.param .u64 o, .param .u32 n) {{
.reg .pred %p<3>; .reg .f32 %f<99>; .reg .b32 %r<20>; .reg .b64 %rd<9>;
ld.param.u64 %rd3, [o]; ld.param.u32 %r7, [n]; mov.u32 %r8, %ntid.x; mov.u32 %r9, %ctaid.x; mov.u32 %r10, %tid.x;
mad.lo.s32 %r11, %r9, %r8, %r10; cvta.to.global.u64 %rd4, %rd3; mul.wide.s32 %rd5, %r11, 4; add.s64 %rd6, %rd4, %rd5;
{before}
L: {body} add.s32 %r7, %r7, -1; setp.ne.s32 %p1, %r7, 0; @%p1 bra L;
ret; }}""")
    return load(str(tmp_path / "k.ptx")).kernel("k").launch(1, threads, [np.zeros(threads, np.float32), times])


def multiply_adds(registers) -> str:
    return "".join(f"fma.rn.f32 %f{k}, %f{k}, 0f3F000000, 0f3F800000;\n" for k in registers)


def test_integer_instructions_wait_for_collectors_behind_those_of_fp32(tmp_path):
    """Two warps a scheduler that multiply and add keep its collectors full; GPGPU-Sim 4.2 takes 4,740 cycles on a QV100
    and a launch latency of 5,000. Collectors that are ready go round robin there and in order here, which is 6 %; if
    none overtook another, it would be 17 % less."""
    found = run(looped(tmp_path, multiply_adds(range(10, 26)), 256, 60), "qv100")
    assert found.totals["cycles"] - 5000 == pytest.approx(4740, rel=0.07)


@pytest.mark.parametrize(
    ("body", "reference"),
    [
        ("atom.global.add.u32 %r11, [%rd6], 1;", 654),  # four sectors
        ("add.s64 %rd8, %rd4, 0; atom.global.add.u32 %r11, [%rd8], 0;", 1214),  # 32 rounds, at once after its address
    ],
)
def test_an_atomic_takes_as_long_as_in_the_reference(tmp_path, body, reference):
    """20 times by one warp; cycles of GPGPU-Sim 4.2."""
    launch = looped(tmp_path, body, 32, 20, "add.s64 %rd7, %rd6, 65536;")
    assert run(launch, "gtx480_1sched").totals["cycles"] == reference


def test_results_that_are_read_late_hold_up_a_lone_warp_by_the_occupancy_model_too(tmp_path):
    """Four chains of multiply-adds, in turns: each instruction reads what the fourth before it has written."""
    launch = looped(tmp_path, multiply_adds(k % 4 for k in range(16)), 32, 40)
    exact, coarse = (run(launch, "rtx3070", model=m).totals["cycles"] - 5000 for m in ("detailed", "occupancy"))
    assert coarse == pytest.approx(exact, rel=0.02)
