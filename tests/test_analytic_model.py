"""The analytic model: traffic and times against the engine, slopes, determinism, and the order of design points."""

from __future__ import annotations

from functools import partial
from threading import local
from types import SimpleNamespace

import jax
import numpy as np
import pytest
from fresh_kernels import cases
from nightly import of

import abstim
from abstim.analytic import BOUNDS, analytic_cycles, as_arrays, points_of, predict, predictions, summaries, summary
from abstim.analytic.line_sample import make_places
from abstim.analytic.lone_warp import LOOK_UP, NOTHING, WRITE
from abstim.analytic.model import PREDICTION
from abstim.analytic.point import random_points
from abstim.analytic.predictions import look_at
from abstim.analytic.reuse_distance import L1_NODES, miss_matrix
from abstim.analytic.summary import Asking, given_of, kept
from abstim.gpu.config import load_gpu
from abstim.gpu.spec import INSTRUCTION_CLASSES
from abstim.gradient.kernel_time import cycles_with_slopes
from abstim.models import run, run_many
from abstim.occupancy_vector.kept_programs import kept_programs
from abstim.session.session import open_session
from abstim.study.validate import pooled, rank_random
from functional.errors import InputError
from functional.jit import machine_code

REAL = load_gpu("gtx480")


@pytest.fixture(scope="module")
def hotspot():
    return summaries(open_session("hotspot"), load_gpu("gtx480_perfect"))[0]


def own_look(session, number, gpu):
    """A launch, and what is said of it on one GPU."""
    summary, (found,) = look_at(session, number, gpu, session.traces.trace(number), Asking(points_of([gpu])))
    return kept(summary), found


def test_a_gpu_gets_the_same_number_alone_among_others_and_by_the_summary_for_all():
    session, gpu = open_session("hotspot"), load_gpu("rtx3070")
    others = [load_gpu("rtx3070", [f"sm_count={n}", f"max_warps_per_sm={w}"]) for n in (2, 23, 61) for w in (8, 32)]
    alone = [run_many("hotspot", [one], model="analytic")[0].launches[0].cycles for one in (gpu, *others)]
    assert [one.launches[0].cycles for one in run_many("hotspot", [gpu, *others], model="analytic")] == alone
    assert len(set(alone)) > 4
    whole = predict(summaries(session, gpu)[0], points_of([gpu]))
    assert whole["cycles"] == own_look(session, 0, gpu)[1]["cycles"]


def test_jax_traces_what_is_compiled(hotspot):
    points = points_of([REAL, load_gpu("gtx480_perfect"), load_gpu("rtx3070"), *random_points(13, seed=3)])
    traced = jax.jit(jax.vmap(analytic_cycles, in_axes=(None, 0)))(as_arrays(hotspot), as_arrays(points))
    np.testing.assert_allclose(traced, predict(hotspot, points)["cycles"], rtol=1e-3)


def test_code_that_is_optimised_says_the_same(hotspot, monkeypatch, tmp_path):
    """Tests run code that few passes went over; LLVM's vectoriser left elements out of a loop of `maxnum`."""
    points = points_of(random_points(97, seed=0))
    monkeypatch.setenv("ABSTIM_CACHE", str(tmp_path))
    monkeypatch.setattr(machine_code, "assembled", partial(machine_code.assembled, passes=(), level=1))
    found = np.empty(len(points), PREDICTION)
    machine_code.Native("abstim.analytic.model", "predict_all")(*hotspot, points, miss_matrix(), found)
    np.testing.assert_allclose(found["cycles"], predict(hotspot, points)["cycles"], rtol=1e-9)


@pytest.fixture(scope="module")
def slopes(hotspot):
    """Of the GTX 480 with real memory, then of 31 random points."""
    points = points_of([REAL, *random_points(31, seed=5)])
    with kept_programs():
        found = [cycles_with_slopes(as_arrays(hotspot), as_arrays(point))[1] for point in points]
    return jax.tree.map(lambda *each: np.stack(each), *found)


@pytest.mark.parametrize("memory", ["true", "false"])
@pytest.mark.parametrize("name", ["pathfinder", "nn_euclid", "transpose"])
def test_near_the_engine(name, memory):
    overrides = [f"perfect_memory={memory}"]
    engine, analytic = (
        run(name, "gtx480", overrides),
        run_many(name, [load_gpu("gtx480", overrides)], model="analytic")[0],
    )
    assert analytic.totals["cycles"] == pytest.approx(engine.totals["cycles"], rel=0.2)
    for exact, estimated in zip(engine.launches, analytic.launches, strict=True):
        assert estimated.caches["l1d_accesses"] == exact.caches["l1d_accesses"]
        assert estimated.caches["l1d_misses"] == pytest.approx(exact.caches["l1d_misses"], rel=0.15, abs=20)
        if memory == "false":
            assert estimated.caches["dram_reads"] == pytest.approx(exact.caches["dram_reads"], rel=0.15, abs=200)
        assert (estimated.blocks_per_sm, estimated.occupancy_limiter) == (exact.blocks_per_sm, exact.occupancy_limiter)
        assert estimated.limit in BOUNDS


@pytest.mark.parametrize(
    ("name", "gpu"),
    [
        ("aes256_encrypt", "gtx480_1sched"),  # the last warps leave the scheduler idle
        ("fir", "titanx"),  # all warps want one line of L2 at once
        ("kmeans_point", "rtx3070"),  # sectors of lines that came for other ones
        ("mandelbrot", "qv100"),  # few warps, of which one has most to do
    ],
)
def test_near_the_engine_on_others(name, gpu):
    engine, analytic = run(name, gpu), run_many(name, [load_gpu(gpu)], model="analytic")[0]
    assert analytic.totals["cycles"] == pytest.approx(engine.totals["cycles"], rel=0.1)


@pytest.mark.parametrize(
    ("name", "gpu"),
    [
        ("erode", "rtx3070"),  # a thread block's last warp alone asks for new rows
        ("chol16", "qv100"),  # between barriers now one warp is long, now another
        ("oddeven", "rtx3070"),  # behind a barrier all warps ask for shared memory at once
        ("gather", "rtx3070"),  # what a warp asks for between two waits comes in one piece
        ("jaccard", "titanx"),  # a saturated L2 idles for the last loads only
    ],
)
def test_near_the_engine_outside_the_suite(name, gpu):
    engine, analytic = (run_many(lambda: cases()[name], [load_gpu(gpu)], model=m)[0] for m in ("detailed", "analytic"))
    # 6 % but for oddeven, which the formula times 6.4 % short: it knows no order among a sub-core's collectors
    assert analytic.totals["cycles"] == pytest.approx(engine.totals["cycles"], rel=0.065)


def test_warps_that_take_turns_come_to_their_loads_together():
    cycles = [run("relu", "rtx3070", [f"scheduler={p}"], model="analytic").totals["cycles"] for p in ("lrr", "gto")]
    assert cycles[0] > 1.005 * cycles[1]


def session_of(tmp_path, body, blocks, threads, words):
    """A kernel with an array of numbers at %d0."""
    path = tmp_path / "kernel.ptx"
    path.write_text(
        ".version 8.0\n.target sm_75\n.address_size 64\n.visible .entry kernel(.param .u64 p) { .reg .b64 %d<3>;"
        f" .reg .b32 %r<5>; ld.param.u64 %d0, [p]; mov.u32 %r0, %tid.x; {body} ret; }}"
    )
    return open_session(abstim.load(path).kernel().launch(blocks, threads, [np.zeros(words, np.uint32)]))


def accesses_by_lane(tmp_path, access, stride_bytes):
    """16 thread blocks of a warp each, whose lanes make an access so far apart."""
    body = f"mul.wide.u32 %d1, %r0, {stride_bytes}; add.s64 %d2, %d0, %d1; {access}"
    return session_of(tmp_path, body, 16, 32, 1024)


THREAD = "mov.u32 %r1, %ctaid.x; mov.u32 %r2, %ntid.x; mad.lo.u32 %r1, %r1, %r2, %r0;"
MIXED = (
    "mad.lo.u32 %r1, %r1, 1664525, 1013904223; shr.u32 %r2, %r1, {}; mul.wide.u32 %d1, %r2, 4; add.u64 %d2, %d0, %d1;"
)
APART = "mul.wide.u32 %d1, %r1, 128; add.u64 %d2, %d0, %d1;"


@pytest.mark.parametrize("gpu", ["rtx3070", "titanx", "qv100"])
@pytest.mark.parametrize(
    "body, words",
    [
        (4 * (MIXED.format(11) + "ld.global.u32 %r3, [%d2]; add.u32 %r1, %r1, %r3;"), 1 << 21),  # each in another row
        (APART + "ld.global.u32 %r3, [%d2];", 1 << 20),  # of a row so many wait together
        (MIXED.format(12) + "red.global.add.u32 [%d2], 1;", 1 << 20),
    ],
)
def test_dram_opens_a_row_for_all_that_wait_for_it(tmp_path, gpu, body, words):
    session, point = session_of(tmp_path, THREAD + body, 256, 128, words), load_gpu(gpu)
    detailed, formula = (run(session, point, model=model).launches[0] for model in ("detailed", "analytic"))
    assert formula.cycles == pytest.approx(detailed.cycles, rel=0.16)
    assert formula.caches["dram_reads"] == pytest.approx(detailed.caches["dram_reads"], rel=0.1)


@pytest.mark.parametrize("gpu", ["gtx480", "rtx3070", "titanx"])
def test_atomics_on_one_address_take_their_turn_once(tmp_path, gpu):
    session = session_of(tmp_path, "red.global.add.u32 [%d0], 1;", 120, 128, 8)
    detailed, formula = (run(session, load_gpu(gpu), model=m).launches[0].cycles for m in ("detailed", "analytic"))
    assert formula == pytest.approx(detailed, rel=0.14)


@pytest.mark.parametrize("stride_bytes, gpu, most", [(4, "rtx3070", 4), (8, "rtx3070", 4), (8, "qv100", 8)])
def test_atomics_on_lines_of_a_slice_take_their_turn_sector_by_sector(tmp_path, stride_bytes, gpu, most):
    """A warp's words are four sectors of a line, or of two lines, which some GPUs have in one slice."""
    session = accesses_by_lane(tmp_path, "red.global.add.u32 [%d2], 1;", stride_bytes)
    summary, _ = own_look(session, 0, load_gpu(gpu))
    assert summary.work["atomics"] == 16 * stride_bytes and summary.work["hottest_atomics"] == 16 * most


def test_a_store_of_bytes_writes_a_sector_for_each_that_it_uses(tmp_path):
    """Lanes 96 bytes apart: some lines have their first sector used, and their last."""
    summary, _ = own_look(accesses_by_lane(tmp_path, "st.global.u8 [%d2], 1;", 96), 0, REAL)
    assert summary.work["store_sectors"] == summary.work["stores"] == 16 * 32


def test_steps_are_what_is_on_lines_or_waits_for_a_load():
    """Five parameters; a load of two numbers, each of which an instruction waits for; a store."""
    session, gpu = open_session("nn_euclid"), load_gpu("gtx480")
    steps = given_of(session, 0, gpu, session.traces.trace(0)).code.value.steps
    assert steps["action"].tolist() == [NOTHING] * 5 + [LOOK_UP, NOTHING, NOTHING, WRITE]
    assert steps["bytes"].tolist() == [128] * 6 + [0, 0, 128]
    assert steps["loaded"].tolist() == [0] * 5 + [3, 0, 0, 0]
    assert steps["awaited"].tolist() == [0] * 5 + [3, 1, 2, 0]  # the load for its own two registers


def test_warps_that_take_turns_ask_first_and_work_then():
    """A thread loads nine numbers, and sorts them: one after the other, if all are in step."""
    session, cycles = open_session(cases()["median3"]), {}
    for scheduler in ("lrr", "gto"):
        gpu = load_gpu("rtx3070", ["perfect_memory=true", "launch_latency_cycles=0", f"scheduler={scheduler}"])
        detailed, formula = (run(session, gpu, model=model).launches[0] for model in ("detailed", "analytic"))
        cycles[scheduler] = detailed.cycles, formula.cycles
        assert formula.cycles == pytest.approx(detailed.cycles, rel=0.16)
    assert all(in_step > 1.1 * out_of_step for in_step, out_of_step in zip(*cycles.values(), strict=True))


@pytest.mark.parametrize("gpu, near", [("rtx3070", 0.01), ("gtx480", 0.25)])  # write-backs of few ways are not foreseen
def test_local_memory_is_of_each_warp_and_its_stores_stay_where_l1d_keeps_them(gpu, near):
    formula, detailed = (
        run("micro_local_spill", load_gpu(gpu), model=m).launches[0].caches for m in ("analytic", "detailed")
    )
    assert formula["l2_accesses"] == pytest.approx(detailed["l2_accesses"], rel=near)


def test_local_memory_is_looked_up_in_an_l1d_that_global_accesses_pass_by():
    formula, detailed = (
        run("micro_local_spill", load_gpu("titanx"), model=m).totals["cycles"] for m in ("analytic", "detailed")
    )
    assert formula == pytest.approx(detailed, rel=0.05)


def test_batches_of_a_loop_are_chosen_as_if_by_chance():
    """Of the twelve loads of a thread, one after the other, the first finds no sector of its line; of 67 batches that
    are looked at, within a standard deviation."""
    gpu = load_gpu("rtx3070")
    summary, _ = own_look(open_session("kmeans_invert_mapping"), 0, gpu)
    assert summary.tables.misses[0, 1 + L1_NODES, -1] == pytest.approx(2 / 12, abs=0.05)


def test_a_lone_warp_takes_the_engines_time():
    """Of the chase's launches those that are one warp's dependent loads, but for a short start."""
    large = load_gpu("gtx480_perfect", ["l1d_sets=1024"])  # without conflicts, which the model takes for random
    engine, analytic = run("micro_pointer_chase", large), run_many("micro_pointer_chase", [large], model="analytic")[0]
    for exact, estimated in zip(engine.launches[:6], analytic.launches[:6], strict=True):
        assert estimated.cycles == pytest.approx(exact.cycles, rel=0.005)


def test_the_first_blocks_of_a_long_launch_stand_for_all(hotspot, monkeypatch):
    monkeypatch.setattr("abstim.analytic.summary.MOST_INSTRUCTIONS", 40_000)
    part = summaries(open_session("hotspot"), load_gpu("gtx480_perfect"))[0]
    assert part.work["lines"] != hotspot.work["lines"]
    assert part.work["lines"] == pytest.approx(hotspot.work["lines"], rel=0.1)
    expected, found = (predict(launch, points_of([REAL]))["cycles"] for launch in (hotspot, part))
    assert found == pytest.approx(expected, rel=0.1)


def test_thread_blocks_far_apart_stand_for_all(monkeypatch):
    """Of a kernel whose warps do different amounts of work; the longest one is walked always."""
    session, gpu, found = open_session("bfs"), load_gpu("gtx480"), []
    for least in (1 << 17, 500):
        monkeypatch.setattr("abstim.analytic.summary.LEAST_WALKED", least)
        found.append(own_look(session, 2, gpu)[0].work)
    whole, part = found
    assert (part["longest_path"] == whole["longest_path"]).all() and (part["path"] != whole["path"]).any()
    assert part["path"].sum() == pytest.approx(whole["path"].sum(), rel=0.1)
    assert part["fetches"] == pytest.approx(whole["fetches"], rel=0.1)
    assert all(part[name] == whole[name] for name in ("lookups", "lines", "load_sectors", "stores", "atomics"))


def test_the_smallest_launches_have_room_for_the_least_hash_map(monkeypatch):
    for records in (1, 15, 16, 31, 32, 33):
        monkeypatch.setattr(summary, "_of_thread", local())
        make_places(size := SimpleNamespace(), records)
        assert len(summary.scratch_for(*[records] * 7).value.lines.table) >= size.places


def test_some_lines_stand_for_all(monkeypatch):
    session, gpu, found = open_session("spmv_csr"), load_gpu("gtx480"), []
    for least in (1 << 30, 1 << 8):
        monkeypatch.setattr("abstim.analytic.summary.LEAST_LINES", least)
        found.append(own_look(session, 0, gpu)[1])
    whole, part = found
    assert (
        part["l1d_misses"] == pytest.approx(whole["l1d_misses"], rel=0.1) and part["l1d_misses"] != whole["l1d_misses"]
    )
    assert part["dram_reads"] == pytest.approx(whole["dram_reads"], rel=0.15)  # 256 lines: a sixteenth


def test_bound_of_a_kernel_that_has_one():
    assert run_many("micro_sfu", [load_gpu("gtx480_perfect")], model="analytic")[0].launches[-1].limit == "SFU"
    narrow = load_gpu("gtx480", ["dram_channels=1", "dram_sector_cycles=6"])
    assert run_many("micro_stream_copy", [narrow], model="analytic")[0].launches[-1].limit == "DRAM"


SLOWER = {
    "l2_request_cycles": 40.0, "dram_latency_cycles": 40.0, "dram_sector_cycles": 2.0, "l1d_latency_cycles": 20.0,
    "sm_count": -5.0, "schedulers_per_sm": -0.5, "dram_channels": -3.0,
}  # fmt: skip


@pytest.mark.parametrize("key", SLOWER)
def test_slope_is_the_difference_and_has_the_right_sign(hotspot, slopes, key):
    value, slope = float(points_of([REAL])[key][0]), float(getattr(slopes, key)[0])
    points = points_of([REAL] * 4)
    points[key] += [0, SLOWER[key], -0.02 * value, 0.02 * value]
    cycles = predict(hotspot, points)["cycles"]
    assert cycles[1] > cycles[0] and slope * SLOWER[key] > 0
    if key not in ("sm_count", "schedulers_per_sm"):  # steps: the slope is that of the line through them
        assert slope == pytest.approx((cycles[3] - cycles[2]) / (0.04 * value), rel=0.1, abs=0.02)


def test_launches_that_are_alike_are_looked_at_once(monkeypatch):
    session, gpu, looked = open_session("dct8x8"), load_gpu("rtx3070"), []  # three kernels, four times on the same data
    alone = [own_look(session, n, gpu)[1]["cycles"] for n in range(len(session))]
    (look,) = predictions.look_at.__defaults__
    monkeypatch.setattr(predictions.look_at, "__defaults__", (lambda *given: (looked.append(given), look(*given)),))
    launches = run(session, gpu, model="analytic").launches
    assert len(looked) == 3 and [launch.cycles for launch in launches] == [round(cycles) for cycles in alone]


def test_every_slope_is_finite(slopes):
    assert all(np.isfinite(np.asarray(column)).all() for column in slopes)
    assert np.asarray(slopes.l1d_sets).any() and np.asarray(slopes.l2_sets).any()


def test_larger_caches_miss_less(hotspot):
    sizes = [load_gpu("gtx480", [f"l2_sets={2 ** (k // 4)}"]) for k in range(32)]
    sectors = predict(hotspot, points_of(sizes))["dram_reads"]
    assert (np.diff(sectors) <= 1e-3).all() and sectors[-1] < sectors[0]


def test_a_point_does_not_depend_on_those_beside_it(hotspot):
    points = points_of(random_points(32, seed=1))
    forward, backward, some = (predict(hotspot, own)["cycles"] for own in (points, points[::-1].copy(), points[:20]))
    assert (forward == backward[::-1]).all() and (some == forward[:20]).all() and some.shape == (20,)


def test_summaries_are_the_same_each_time(hotspot):
    again = summaries(open_session("hotspot"), load_gpu("gtx480_perfect"))[0]
    jax.tree.map(np.testing.assert_array_equal, tuple(hotspot), tuple(again))


def test_a_block_that_does_not_fit_is_refused():
    with pytest.raises(InputError, match="does not fit"):
        run_many("hotspot", [load_gpu("gtx480", ["max_threads_per_sm=128"])], model="analytic")


def test_order_of_design_points_is_the_engines():
    found = rank_random(["pathfinder"], of(10, 32))
    assert found[0].correlation == pooled(found) > 0.9
    assert found[0].mean_error < 0.25


@pytest.mark.slow
def test_order_of_many_design_points_is_the_engines():
    targets = ["matmul_tiled", "transpose", *of([], ["hotspot"])]  # pathfinder: the test above
    found = rank_random(targets, of(8, 24), seed=1)
    # 0.991, 0.975 and 0.883; together 0.932 (of 64 points 0.936, 0.944 and 0.990; 0.946). The engine pays for every
    # write-back, and of L2s with few lines sectors written in part leave several times; the model counts a line that
    # several warps write in one turn once
    assert min(r.correlation for r in found) > 0.87 and pooled(found) > 0.925


@pytest.mark.slow
def test_every_benchmark_has_a_prediction():
    from functional import suite

    gpus = [load_gpu("gtx480", [f"perfect_memory={memory}"]) for memory in ("true", "false")]
    for k, name in enumerate(suite.names()):  # of either memory every second one: neighbours are alike
        (result,) = run_many(name, [gpus[k % 2]], model="analytic")
        assert all(np.isfinite(launch.cycles) and launch.cycles > 0 for launch in result.launches), name


def test_a_product_of_a_warpgroup_holds_its_unit_as_long_as_many_of_a_warp(tmp_path):
    """64 x 64 x 16 by four warps: as often as mma of 16 x 8 x 16."""
    registers = ", ".join(f"%d{n}" for n in range(32))
    product = f"wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 {{{registers}}}, %m0, %m0, %p0, 1, 1, 0, 0;"
    path = tmp_path / "products.ptx"
    path.write_text(
        ".version 8.0\n.target sm_90a\n.address_size 64\n.visible .entry products() { .reg .f32 %d<32>;"
        " .reg .b64 %m<1>; .reg .pred %p<1>; .shared .align 1024 .b8 s[16384]; mov.u64 %m0, 0x4000004000010000;"
        " setp.ne.u32 %p0, 0, 0;"
        f" wgmma.fence.sync.aligned; {product * 6} wgmma.commit_group.sync.aligned;"
        " wgmma.wait_group.sync.aligned 0; ret; }"
    )
    session = open_session(abstim.load(path).kernel().launch(1, 128, []))
    (summary,) = summaries(session, load_gpu("gtx480"))
    assert summary.work["by_class"][INSTRUCTION_CLASSES.index("wgmma")] == 4 * 6 * 8
