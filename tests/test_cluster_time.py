"""Thread blocks of clusters in time: they come together, and wait for each other; warps wait for registers."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import oracle
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from nightly import examples
from ptx_kernels import HEADER
from random_launches import simulate

import abstim
from abstim.engine.simulation import Simulation
from abstim.gpu.config import load_gpu
from abstim.gpu.occupancy import first_sm
from abstim.session.session import Session, open_session
from functional.errors import InputError
from functional.traces.line_record import away_of, count_of, in_phases, line_of
from precharacterize.machine_code.assemble import toolkits

REGISTERS = ".reg .b64 %rd<9>; .reg .b32 %r<30>; .reg .pred %p<5>;"
# Each block goes round as often as its rank says before it comes to the cluster's barrier, twice; then the first warp
# of each arrives at an mbarrier of the next block, which waits for that
MEETING = f""".entry k(.param .u64 o) {{
 .shared .align 8 .b64 m[2];
 {REGISTERS}
 ld.param.u64 %rd0, [o];
 mov.u32 %r0, %cluster_ctarank;
 mov.u32 %r1, %cluster_nctarank;
 mov.u32 %r2, %tid.x;
 mov.u32 %r3, m;
 setp.eq.u32 %p0, %r2, 0;
 @%p0 mbarrier.init.shared.b64 [%r3], 1;
 mul.lo.u32 %r4, %r0, 40;
 add.u32 %r4, %r4, 1;
 L: sub.u32 %r4, %r4, 1;
 setp.ne.u32 %p1, %r4, 0;
 @%p1 bra L;
 barrier.cluster.arrive.release;
 barrier.cluster.wait.acquire;
 add.u32 %r5, %r0, 1;
 rem.u32 %r5, %r5, %r1;
 mapa.shared::cluster.u32 %r6, %r3, %r5;
 @%p0 mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%r6];
 W: mbarrier.try_wait.parity.acquire.cluster.shared.b64 %p2, [%r3], 0;
 @!%p2 bra W;
 st.shared::cluster.u32 [%r6+8], %r0;
 ld.shared::cluster.u32 %r9, [%r6+12];
 add.u32 %r0, %r0, %r9;
 mov.u32 %r7, %ctaid.x;
 mov.u32 %r8, %ntid.x;
 mad.lo.u32 %r7, %r7, %r8, %r2;
 mul.wide.u32 %rd1, %r7, 4;
 add.u64 %rd0, %rd0, %rd1;
 st.global.u32 [%rd0], %r0;
 barrier.cluster.arrive;
 barrier.cluster.wait;
 ret; }}"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("clusters")


def opened(folder, text: str, grid, block: int, words: int, cluster=None) -> Session:
    path = folder / f"{abs(hash(text))}.ptx"
    path.write_text(HEADER.replace("sm_90", "sm_90a") + ".visible " + text)
    return open_session(abstim.load(path).kernel().launch(grid, block, [np.zeros(words, np.uint32)], cluster=cluster))


@cache
def meeting(folder, grid, block: int, cluster) -> Session:
    return opened(folder, MEETING, grid, block, int(np.prod(grid)) * block, cluster)


def assert_follows_the_rules(inputs, gpu, blocks_per_sm: int) -> int:
    (found,) = simulate(inputs, [gpu], [blocks_per_sm], threads=1)
    expected = oracle.simulate(inputs, gpu, blocks_per_sm)
    assert found.cycles == expected.cycles and found.sm_cycles.tolist() == expected.sm_cycles
    assert found.issue_slots[:, 0].tolist() == expected.issued
    assert found.counters == dict.fromkeys(found.counters, 0) | expected.counters
    return found.cycles


def test_a_trace_says_who_arrives_where(folder):
    trace = meeting(folder, 4, 64, 4).traces.trace(0)
    for warp in range(8):
        records = trace.records[trace.record_offsets[warp] : trace.record_offsets[warp + 1]].astype(np.int64)
        records = records[in_phases(records)]
        waits, away = count_of(line_of(records)), away_of(records)
        first = warp % 2 == 0
        assert waits[waits > 0].tolist() == [8, 1, 8] and not away[waits > 0].any()
        arrivals = away[waits == 0].tolist()
        assert sorted(arrivals) == sorted([0, 1, 2, 3] * 2 + [1] * first)


shapes = st.sampled_from([((8,), 2), ((8,), 4), ((16,), 8), ((4, 4), (2, 2)), ((3,), 3)])


@examples(4, 12)
@given(
    shapes, st.sampled_from([32, 96]), st.sampled_from(["gtx480_perfect", "gtx480", "rtx3070", "rtx3080"]),
    st.integers(2, 20), st.integers(1, 3), st.integers(1, 3), st.integers(0, 400),
)  # fmt: skip
def test_the_engine_follows_the_rules(folder, shape, block, name, sms, gpcs, blocks_per_sm, way):
    changes = [f"sm_count={sms}", f"gpcs={gpcs}", f"cluster_cycles={way}", "timed_code=ptx"]
    gpu, session = load_gpu(name, changes), meeting(folder, *shape[:1], block, shape[1])
    largest = max(first_sm(sms, gpcs, g + 1) - first_sm(sms, gpcs, g) for g in range(gpcs))
    assume(session.launch(0).cluster.total <= largest)
    assert_follows_the_rules(session.inputs(0, gpu), gpu, blocks_per_sm)


def test_thread_blocks_of_a_cluster_come_in_one_cycle_to_one_gpc(folder):
    gpu = load_gpu("h100", ["timed_code=ptx", "max_blocks_per_sm=1"])
    session = meeting(folder, 272, 32, 8)
    inputs, blocks = session.inputs(0, gpu), None
    launch = Simulation(inputs, gpu, 1)
    launch.run(inputs.order, drain=True)
    blocks = launch.blocks.reshape(-1, 8)
    assert (blocks["dispatch_cycle"] == blocks["dispatch_cycle"][:, :1]).all()
    starts = [first_sm(132, 8, gpc) for gpc in range(9)]
    assert np.diff(starts).tolist() == [18, 16, 16, 16, 18, 16, 16, 16]
    gpcs = np.searchsorted(starts, blocks["sm"], side="right")
    assert (gpcs == gpcs[:, :1]).all() and all(len({*row}) == 8 for row in blocks["sm"].tolist())
    first = blocks["dispatch_cycle"].ravel() < blocks["retire_cycle"].min()
    assert first.sum() == 16 * 8 == len({*blocks["sm"].ravel()[first].tolist()})  # two a GPC; four SMs stay empty


def test_a_wait_takes_the_way_to_the_slowest_block(folder):
    """Rank 3 goes round 120 times before it arrives; alone, without others, nobody waits for anybody."""
    cycles = {}
    for way in (0, 100, 1000):
        gpu = load_gpu("gtx480_perfect", [f"cluster_cycles={way}"])
        cycles[way] = meeting(folder, 4, 32, 4).simulate(0, gpu).cycles
    assert cycles[100] - cycles[0] == pytest.approx(400, abs=4 * 32)  # two barriers, an arrival, a load
    assert cycles[1000] - cycles[100] == 3600
    alone = meeting(folder, 4, 32, 1).simulate(0, load_gpu("gtx480_perfect")).cycles
    assert cycles[0] > 120 * 3 * 4 > 2 * alone


@pytest.mark.parametrize("name", ["gtx480_perfect", "rtx3070"])
def test_any_number_of_threads_gives_the_same_times(folder, name):
    session, gpu = meeting(folder, 64, 96, 4), load_gpu(name, ["gpcs=3"])
    one, *others = (session.simulate(0, gpu, threads=threads) for threads in (1, 2, 7))
    assert all(other.cycles == one.cycles and other.counters == one.counters for other in others)


def test_a_cluster_that_no_gpc_holds_is_refused(folder):
    session = meeting(folder, 16, 32, 8)
    with pytest.raises(InputError, match="a cluster has 8 thread blocks, each for an SM of one GPC, which has 2"):
        abstim.run(session, load_gpu("gtx480_perfect", ["sm_count=8", "gpcs=4"]))


@pytest.mark.parametrize("model", ["analytic", "occupancy", "detailed"])
def test_models_that_know_no_clusters_say_so(folder, model):
    said = abstim.run(meeting(folder, 8, 32, 4), "gtx480_perfect", model=model).note
    assert ("wait for each other by the detailed model alone" in said) == (model != "detailed")


@pytest.mark.skipif(not toolkits(), reason="no assembler")
def test_machine_code_meets_at_the_same_phases(folder):
    session, gpu = meeting(folder, 8, 64, 4), load_gpu("h100")
    assert session.timed_code(0, gpu).description.startswith("machine code")
    own, timed = session.traces.trace(0).records, session.inputs(0, gpu).trace.records
    assert np.array_equal(own[in_phases(own)] | 1, timed[in_phases(timed)] | 1)
    slow = load_gpu("h100", ["cluster_cycles=1180"])
    assert session.simulate(0, slow).cycles - session.simulate(0, gpu).cycles == pytest.approx(4000, abs=8)


# The first warp gives registers back after a while, the second wants them at once
HANDED = f""".entry k(.param .u64 o) .maxnreg 64 {{
 {REGISTERS}
 mov.u32 %r0, %tid.x;
 ld.param.u64 %rd0, [o];
 setp.lt.u32 %p0, %r0, 32;
 @%p0 bra FIRST;
 setmaxnreg.inc.sync.aligned.u32 88;
 st.global.u32 [%rd0], %r0;
 ret;
 FIRST: ld.global.u32 %r1, [%rd0];
 add.u32 %r1, %r1, 100;
 L: mad.lo.u32 %r2, %r2, %r1, %r0;
 sub.u32 %r1, %r1, 1;
 setp.ne.u32 %p1, %r1, 0;
 @%p1 bra L;
 setmaxnreg.dec.sync.aligned.u32 40;
 st.global.u32 [%rd0], %r2;
 ret; }}"""


@pytest.mark.parametrize("name", ["gtx480_perfect", "gtx480_perfect scheduler=two_level", "rtx3070", "h100"])
def test_a_warp_waits_until_registers_are_free(folder, name):
    name, *changes = name.split()
    gpu, session = load_gpu(name, changes), opened(folder, HANDED, 3, 64, 1)
    inputs = session.inputs(0, gpu)
    assert inputs.registers == 64
    plain = replace(inputs, table=replace(inputs.table, copies=np.full_like(inputs.table.copies, -1)))
    launch = Simulation(inputs, gpu, 2)
    launch.run(np.arange(3), drain=True)
    first, second = launch.warps["retire_cycle"].reshape(-1, 2).T
    other = Simulation(plain, gpu, 2)
    other.run(np.arange(3), drain=True)
    early = other.warps["retire_cycle"].reshape(-1, 2)[:, 1]
    assert (second >= first - 20).all() and (early < first - 100).all()
    if gpu.spec.timed_code == "ptx":
        assert_follows_the_rules(inputs, gpu, 2)


def test_registers_that_nobody_gives_back_are_a_deadlock_that_says_so(folder):
    session, gpu = opened(folder, HANDED, 1, 64, 1), load_gpu("gtx480_perfect")
    inputs = session.inputs(0, gpu)
    table = replace(inputs.table, word=np.where(inputs.table.word > 0, 96, inputs.table.word))
    with pytest.raises(InputError, match="warp 1 at 32 registers more"):
        simulate(replace(inputs, table=table), [gpu], [1])
