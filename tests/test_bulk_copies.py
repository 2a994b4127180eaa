"""What Hopper's kernels synchronise by: bulk copies, barriers that count bytes, clusters of one thread block."""

from __future__ import annotations

import numpy as np
import pytest
from both_executors import run
from oracle.array_executor import ArrayExecutor
from ptx_kernels import module

from functional.errors import ExecutionError, PtxError
from functional.launches.launch import Pointer, make_launch
from functional.launches.memory import Memory
from functional.programs.link import link
from functional.steps.mbarriers import Barrier
from functional.traces.line_record import line_of, more_follow, phase_record
from functional.traces.trace import SHARED_WINDOW_LINE

SIZE = 416  # bytes of a copy: no whole number of lines
# Thread 0 asks for two copies and says how many bytes to wait for; all threads wait, turn the words round, and thread 0
# copies them back. Twice, with the barrier's parity.
PIPELINE = f"""
.entry k(.param .u64 i, .param .u64 o) {{
 .shared .align 16 .b8 tile[{2 * SIZE}]; .shared .align 8 .b64 full;
 .reg .b32 %r<20>; .reg .b64 %rd<9>; .reg .pred %p<5>;
 ld.param.u64 %rd0, [i]; ld.param.u64 %rd1, [o]; mov.u32 %r0, %tid.x; mov.u32 %r1, tile; mov.u32 %r2, full;
 setp.eq.u32 %p0, %r0, 0;
 @%p0 mbarrier.init.shared::cta.b64 [%r2], 1; fence.mbarrier_init.release.cluster; bar.sync 0; mov.u32 %r9, 0;
L:
 @!%p0 bra W;
 mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r2], {2 * SIZE};
 cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r1], [%rd0], {SIZE}, [%r2];
 add.u64 %rd2, %rd0, {SIZE}; add.u32 %r3, %r1, {SIZE};
 cp.async.bulk.shared::cta.global.mbarrier::complete_tx::bytes [%r3], [%rd2], {SIZE}, [%r2];
W: mbarrier.try_wait.parity.acquire.cta.shared::cta.b64 %p1, [%r2], %r9, 1000; @!%p1 bra W;
 mov.u32 %r4, %r0;
T: setp.ge.u32 %p2, %r4, {SIZE // 2}; @%p2 bra D;
 shl.b32 %r5, %r4, 2; add.u32 %r5, %r5, %r1; ld.shared.u32 %r6, [%r5]; not.b32 %r6, %r6; st.shared.u32 [%r5], %r6;
 add.u32 %r4, %r4, 64; bra T;
D: fence.proxy.async.shared::cta; bar.sync 0;
 @%p0 cp.async.bulk.global.shared::cta.bulk_group [%rd1], [%r1], {2 * SIZE};
 cp.async.bulk.commit_group; cp.async.bulk.wait_group.read 0;
 add.u64 %rd0, %rd0, {2 * SIZE}; add.u64 %rd1, %rd1, {2 * SIZE};
 bar.sync 0; add.u32 %r9, %r9, 1; setp.lt.u32 %p3, %r9, 2; @%p3 bra L; ret; }}"""


def test_a_pipeline_of_bulk_copies():
    words = np.random.default_rng(1).integers(0, 1 << 32, SIZE, np.uint32)
    found, trace = run(PIPELINE, {"i": words, "o": np.zeros_like(words)}, block=64, native=False)
    assert np.array_equal(found["o"], ~words)
    lines = [int(line_of(record)) for record in trace.records if more_follow(record)]
    assert lines, "a copy touches several lines"


def test_what_a_copy_touches_is_recorded_line_by_line():
    text = """.entry k(.param .u64 i) { .shared .align 16 .b8 s[512]; .shared .align 8 .b64 m; .reg .b64 %rd<2>;
     .reg .b32 %r<4>; .reg .pred %p;
     ld.param.u64 %rd0, [i]; add.u64 %rd0, %rd0, 112; mov.u32 %r0, s; mov.u32 %r1, m; mov.u32 %r2, %tid.x;
     setp.eq.u32 %p, %r2, 5;
     @%p cp.async.bulk.shared.global.mbarrier::complete_tx::bytes [%r0], [%rd0], 272, [%r1]; ret; }"""
    _, trace = run(text, {"i": np.zeros(512, np.uint8)}, native=False)
    first = int(line_of(trace.records[1]))
    found = [(int(line_of(r)) - first, int(r >> 1) & 15) for r in trace.records[1:5]]
    assert found[:3] == [(0, 8), (1, 15), (2, 15)]  # 112 to 384
    assert trace.records[4] | 1 == phase_record(0, 0, 0) | 1  # an arrival at the first barrier
    assert [int(r >> 5) for r in trace.records[5:8]] == [SHARED_WINDOW_LINE] * 3  # 128 bytes a pass
    assert [int(more_follow(r)) for r in trace.records[1:8]] == [1, 1, 1, 1, 1, 1, 0]


def execute(body, block=1):
    parsed = module(
        ".entry k(.param .u64 i) { .shared .align 16 .b8 s[64]; .shared .align 8 .b64 m; .reg .b64 %rd<4>;"
        f".reg .b32 %r<9>; .reg .pred %p<3>; ld.param.u64 %rd0, [i]; mov.u32 %r0, s; mov.u32 %r1, m; {body} ret; }}"
    )
    memory = Memory(parsed.variables)
    memory.allocate("i", 64)
    launch = make_launch(link(parsed, "k"), 1, block, [Pointer("i")], memory)
    ArrayExecutor().run(launch, memory)
    return memory.read("i", np.uint32)


COPY = "cp.async.bulk.shared.global.mbarrier::complete_tx::bytes [%r0], [%rd0], "
FAULTS = [
    (COPY + "80, [%r1];", "16 bytes at .* are out of bounds"),
    (COPY + "24, [%r1];", "a copy of 24 bytes: the size is a multiple of 16"),
    ("add.u64 %rd0, %rd0, 8; " + COPY + "16, [%r1];", "misaligned"),
    (
        "mbarrier.init.shared.b64 [%r1], 1; mbarrier.expect_tx.relaxed.cta.shared.b64 [%r1], 16;"
        "mbarrier.arrive.shared.b64 _, [%r1]; mbarrier.arrive.shared.b64 _, [%r1];",
        "more arrivals than expected",
    ),
]


@pytest.mark.parametrize("body,message", FAULTS)
def test_faults(body, message):
    with pytest.raises(ExecutionError, match=message):
        execute(body)


def test_a_phase_ends_when_arrivals_and_bytes_are_there():
    state = Barrier(expected=2, missing=2, phase=0, tx_bytes=0)
    assert Barrier.of(state.word()) == state
    waiting = state._replace(missing=0, tx_bytes=-64)
    assert Barrier.of(waiting.word()) == waiting  # bytes came before they were expected
    assert Barrier.of(state._replace(missing=0).word()) == state._replace(phase=1)
    text = """mbarrier.init.shared.b64 [%r1], 1; mbarrier.expect_tx.relaxed.cta.shared.b64 [%r1], 48;
     mbarrier.arrive.shared.b64 %rd1, [%r1]; mbarrier.test_wait.shared.b64 %p0, [%r1], %rd1; selp.u32 %r2, 1, 0, %p0;
     mbarrier.complete_tx.relaxed.cta.shared.b64 [%r1], 32; mbarrier.test_wait.shared.b64 %p0, [%r1], %rd1;
     selp.u32 %r3, 1, 0, %p0; mbarrier.complete_tx.relaxed.cta.shared.b64 [%r1], 16;
     mbarrier.test_wait.shared.b64 %p0, [%r1], %rd1; selp.u32 %r4, 1, 0, %p0;
     st.global.u32 [%rd0], %r2; st.global.u32 [%rd0+4], %r3; st.global.u32 [%rd0+8], %r4;"""
    assert execute(text)[:3].tolist() == [0, 0, 1]


def test_a_cluster_of_one_thread_block():
    text = """.entry k(.param .u64 o) { .shared .u32 s[64]; .reg .b64 %rd<4>; .reg .b32 %r<12>; .reg .pred %p;
     setmaxnreg.dec.sync.aligned.u32 40;
     ld.param.u64 %rd0, [o]; mov.u32 %r0, %tid.x; mov.u32 %r1, s; shl.b32 %r2, %r0, 2; add.u32 %r2, %r2, %r1;
     mov.u32 %r9, %cluster_ctarank; mapa.shared::cluster.u32 %r3, %r2, %r9; st.shared::cluster.u32 [%r3], %r0;
     barrier.cluster.arrive.release.aligned; barrier.cluster.wait.acquire.aligned;
     mov.u32 %r4, 63; sub.u32 %r4, %r4, %r0; shl.b32 %r4, %r4, 2; add.u32 %r4, %r4, %r1; ld.shared.u32 %r5, [%r4];
     mov.u32 %r6, %cluster_nctarank; mov.u32 %r7, %clusterid.x; mov.u32 %r8, %cluster_nctaid.y;
     getctarank.shared::cluster.u32 %r10, %r3; add.u32 %r10, %r10, %r9;
     mad.lo.u32 %r5, %r6, 1000, %r5; mad.lo.u32 %r5, %r7, 100000, %r5; mad.lo.u32 %r5, %r8, 10000000, %r5;
     mov.u32 %r11, %ctaid.x; mad.lo.u32 %r0, %r11, 64, %r0; add.u32 %r5, %r5, %r10;
     mul.wide.u32 %rd1, %r0, 4; add.u64 %rd0, %rd0, %rd1; st.global.u32 [%rd0], %r5; ret; }"""
    found, _ = run(text, {"o": np.zeros(128, np.uint32)}, grid=2, block=64, native=False)
    block, thread = np.divmod(np.arange(128), 64)
    assert np.array_equal(found["o"], 63 - thread + 1000 + 100_000 * block + 10_000_000)


@pytest.mark.parametrize(
    "statement",
    [
        "cp.async.bulk.shared.global.mbarrier::complete_tx::bytes.multicast::cluster [%r0], [%rd0], 16, [%r1], 1;",
        "cp.reduce.async.bulk.global.shared::cta.bulk_group.cas.u32 [%rd0], [%r0], 16;",
        "cp.async.bulk.tensor.2d.shared::cluster.global.tile::gather4.mbarrier::complete_tx::bytes [%r0], [%rd0, "
        "{%r2, %r2}], [%r1];",
    ],
)
def test_what_is_not_there_is_refused_by_name(statement):
    with pytest.raises(PtxError, match="is not supported"):
        execute("mov.u32 %r2, 0;" + statement)
