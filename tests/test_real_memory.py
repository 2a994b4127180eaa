"""L2 and DRAM behind the SMs: traffic against the reference's counters, limits, determinism."""

from __future__ import annotations

import csv
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from ptx_kernels import HEADER, entry

import abstim
from abstim.gpu.config import load_gpu
from abstim.session.session import open_session
from abstim.targets.resolve import ptx_case

CYCLES = Path(__file__).parent / "data" / "cycles.csv"


@cache
def run(target: str, *overrides: str):
    return abstim.run(target, "gtx480", ["perfect_memory=false", *overrides])


def reference(benchmark: str, variant: str) -> list[dict[str, str]]:
    """Rows of a benchmark's launches, caches cold, in order."""
    with CYCLES.open() as file:
        rows = [
            r for r in csv.DictReader(file) if (r["benchmark"], r["variant"], r["flush"]) == (benchmark, variant, "all")
        ]
    return sorted(rows, key=lambda r: int(r["launch"]))


@pytest.mark.parametrize("benchmark", ["micro_pointer_chase", "micro_stream_copy", "micro_global_stride", "transpose"])
def test_l2_traffic_is_the_references_to_the_sector(benchmark: str) -> None:
    """Kernels whose lines miss in an order no policy changes."""
    for launch, row in zip(
        run(benchmark, "schedulers_per_sm=1").launches, reference(benchmark, "GTX480_c"), strict=True
    ):
        assert launch.caches["l1d_accesses"] == int(row["l1d_accesses"])
        # 256 threads of the pointer chase touch its lines at once: which stay is a matter of the order of arrival
        assert launch.caches["l1d_misses"] == pytest.approx(int(row["l1d_misses"]), rel=0.002)
        assert launch.caches["l2_accesses"] == pytest.approx(int(row["l2_accesses"]), rel=0.002)
        # the reference evicts one line in two thousand in another order once the footprint passes the L2
        assert launch.caches["l2_misses"] == pytest.approx(int(row["l2_misses"]), rel=0.001)
        assert launch.caches["dram_reads"] == pytest.approx(int(row["dram_reads"]), abs=1, rel=0.001)


@pytest.mark.parametrize("scheduler", ["lrr", "gto"])
def test_dependent_loads_take_the_references_time_at_every_footprint(scheduler: str) -> None:
    """8 KB in L1D to 2 MB in DRAM, within 1 %: one warp chases pointers, so that no policy decides, once all eight have
    touched the lines. The reference's policy is gto; with it that first part, too, goes as it does there."""
    launches = run("micro_pointer_chase", "schedulers_per_sm=1", f"scheduler={scheduler}").launches
    for launch, row in zip(launches, reference("micro_pointer_chase", "GTX480_c"), strict=True):
        assert launch.cycles == pytest.approx(int(row["cycles"]), rel=0.01)


def test_real_memory_is_never_faster_than_perfect_memory_for_a_streaming_kernel() -> None:
    perfect = abstim.run("nn_euclid", "gtx480_perfect")
    assert run("nn_euclid").totals["cycles"] > perfect.totals["cycles"]


def test_a_launch_is_over_when_l2_has_all_that_it_stored() -> None:
    """No warp waits for these stores, and a slow L2 has many left when the last warp ends: copies of as much on more
    and more warps are all counted, and none is much shorter than the others."""
    gpu = load_gpu("rtx3080", ["sm_count=8", "dram_channels=2", "l2_sector_cycles=16"], timed_code="ptx")
    launches = abstim.run("micro_stream_copy", gpu).launches
    assert len({launch.memory["l2_bytes"] for launch in launches}) == 1
    assert min(launch.cycles for launch in launches) > 28_000


@pytest.mark.parametrize(
    ("benchmark", "slower"),
    [
        ("micro_global_stride", "dram_sector_cycles=6"),
        ("micro_global_stride", "dram_channels=2"),
        ("micro_pointer_chase", "l2_request_cycles=256"),
        ("micro_pointer_chase", "dram_latency_cycles=300"),
        ("micro_atomics", "l2_atomic_cycles=4"),
        ("matmul_naive", "l1d_mshr_merges=1"),
        ("micro_global_stride", "l1d_mshrs=2"),
        ("micro_const_load", "const_mshrs=1"),
        ("micro_stream_copy", "flit_bytes=8"),
    ],
)
def test_less_memory_makes_a_kernel_that_needs_it_slower(benchmark: str, slower: str) -> None:
    assert run(benchmark, slower).totals["cycles"] > 1.03 * run(benchmark).totals["cycles"]


def test_a_read_of_a_sector_written_in_part_fetches_it(tmp_path: Path) -> None:
    """32 lanes store every other word of 8 sectors, in L1D too where it allocates them; then the words between. The
    reference takes the second of four sectors of a Fermi's packet for whole: eight words have been written by then."""
    store = "st.global.u32 [%rd1], %r0; bar.sync 0;"
    begin = "mad.wide.u32 %rd1, %r0, 8, %rd0;"
    bodies = {"part": store, "whole": store + "st.global.u32 [%rd1 + 4], %r0; bar.sync 0;"}
    for name, stores in bodies.items():
        (tmp_path / f"{name}.ptx").write_text(HEADER + entry(begin + stores + "ld.global.u32 %r1, [%rd1];"))
    for gpu, fetched in (("gtx480", 6), ("rtx3070", 8), ("rtx3080", 0)):
        reads = {}
        for name in bodies:
            case = ptx_case(str(tmp_path / f"{name}.ptx"), "", [1], [32], ["buf:u32:64"])
            point = load_gpu(gpu, ["perfect_instruction_cache=true"], timed_code="ptx")
            reads[name] = abstim.run(open_session(case), point).launches[0].caches["dram_reads"]
        assert reads["part"] - reads["whole"] == fetched, gpu


def test_a_bank_that_nobody_else_wants_answers_within_a_turn() -> None:
    """The second instruction line of nn_euclid is asked for while 5,000 sectors of data wait; in order it took 1,400
    cycles more."""
    assert run("nn_euclid").totals["cycles"] == pytest.approx(3324, rel=0.06)  # the same file


def test_the_same_cycles_every_time() -> None:
    again = abstim.run("nn_euclid", "gtx480", ["perfect_memory=false"])
    assert [launch.cycles for launch in again.launches] == [launch.cycles for launch in run("nn_euclid").launches]


PLACE = (
    "ld.param.u64 %rd1, [x]; mov.u32 %r1, %tid.x; mov.u32 %r2, %ctaid.x; mov.u32 %r3, %ntid.x;"
    "mad.lo.u32 %r1, %r2, %r3, %r1; mul.wide.u32 %rd2, %r1, 4; add.s64 %rd3, %rd1, %rd2;"
)
LOAD = PLACE + "ld.global.u32 %r4, [%rd3]; add.u32 %r5, %r4, 1;"


@pytest.mark.parametrize(
    "gpu, body, blocks, threads, cycles",
    [("gtx480", "", 1, 32, 275), ("gtx480", "", 15, 32, 327), ("gtx480", PLACE, 1, 32, 555),
     ("gtx480", PLACE, 5, 32, 564), ("gtx480", PLACE, 6, 32, 676), ("gtx480", PLACE, 15, 32, 689),
     ("gtx480", LOAD, 1, 32, 864), ("gtx480", LOAD, 6, 256, 1011),
     ("titanx", LOAD, 6, 256, 5358), ("titanx", LOAD, 40, 256, 5527), ("qv100", LOAD, 6, 256, 5417),
     ("qv100", LOAD, 40, 256, 5447)],
)  # fmt: skip
def test_the_first_cycles_are_the_references(
    gpu: str, body: str, blocks: int, threads: int, cycles: int, tmp_path: Path
) -> None:
    """Code, parameters and data that nobody has read before, by GPGPU-Sim. GTX 480: one row of a bank after the other,
    and from the sixth SM on the second sector of the parameters once more. TITAN X: slices drawn in the order of time,
    two issues a turn. Both others: whose access the load/store unit takes of a sub-core's."""
    registers = ".reg .b32 %r<9>; .reg .b64 %rd<9>;"
    (tmp_path / "k.ptx").write_text(f"{HEADER}.visible .entry k(.param .u64 x) {{ {registers} {body} ret; }}")
    session = open_session(ptx_case(str(tmp_path / "k.ptx"), "", [blocks], [threads], ["buf:u32:16384"]))
    assert abs(abstim.run(session, load_gpu(gpu)).totals["cycles"] - cycles) <= 1


CONSTANTS = """
.const .align 4 .u32 c[64] = {1, 2, 3};
.visible .entry k(.param .u32 distinct, .param .u64 out) {
.reg .b32 %r<6>; .reg .b64 %rd<4>; .reg .pred %p;
ld.param.u32 %r1, [distinct]; ld.param.u64 %rd1, [out];
mov.u32 %r2, %laneid; rem.u32 %r2, %r2, %r1; mov.u64 %rd2, c; mul.wide.u32 %rd3, %r2, 4; add.u64 %rd2, %rd2, %rd3;
mov.u32 %r3, 0; mov.u32 %r4, 0;
L: ld.const.u32 %r5, [%rd2]; shr.u32 %r5, %r5, 8; cvt.u64.u32 %rd3, %r5; add.u64 %rd2, %rd2, %rd3;
ld.const.u32 %r5, [%rd2+128]; shr.u32 %r5, %r5, 8; cvt.u64.u32 %rd3, %r5; add.u64 %rd2, %rd2, %rd3;
cvt.u32.u64 %r4, %rd2; mov.u32 %r5, %ntid.x; add.u32 %r3, %r3, 1; setp.lt.u32 %p, %r3, %r5; @%p bra L;
st.global.u32 [%rd1], %r4; ret;
}
"""


@pytest.mark.parametrize("gpu", ["h100", "gtx480 const_address_cycles=2", "gtx480_perfect const_address_cycles=2"])
def test_each_address_of_constants_holds_the_unit(gpu: str, tmp_path: Path) -> None:
    """Two cycles each, as measured on an H100 by 1,024 threads that read 2 to 32 words of one line."""
    (tmp_path / "constants.ptx").write_text(HEADER + CONSTANTS)
    kernel = abstim.load(tmp_path / "constants.ptx").kernel()
    name, *overrides = gpu.split()

    def cycles(distinct: int) -> int:
        launch = kernel.launch(grid=1, block=256, args=[np.uint32(distinct), np.zeros(1, np.uint32)])
        return abstim.run(launch, name, overrides).totals["cycles"]

    loads, each = 8 * 2 * 256, 2
    assert cycles(32) - cycles(16) == pytest.approx(16 * each * loads, rel=0.01)
    assert max(cycles(1), cycles(2)) < cycles(16)  # of one or two the latency decides


def test_slices_are_drawn_with_real_memory_alone() -> None:
    """With perfect memory nothing behind the SMs is there; a TITAN X's fetches wrote into it, and ended the process."""
    launch = abstim.run("fir", "titanx", ["perfect_memory=true", "sm_count=2"]).launches[0]
    assert launch.caches["l2_accesses"] == 0 and launch.cycles > 0
