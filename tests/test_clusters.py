"""Clusters of several thread blocks: who is who, each other's shared memory, barriers, copies to several."""

from __future__ import annotations

import json

import numpy as np
import pytest
from both_executors import run
from oracle.array_executor import ArrayExecutor
from ptx_kernels import HEADER, module
from ptx_kernels import launch as execute

from functional.errors import ExecutionError, InputError
from functional.launches.launch import Dim3, cuda_shape, make_launch
from functional.launches.memory import Memory
from functional.programs.link import link

REGISTERS = ".reg .b64 %rd<9>; .reg .b32 %r<30>; .reg .pred %p<5>; .reg .b16 %h<4>;"
OWN = """ld.param.u64 %rd0, [o]; mov.u32 %r0, %ctaid.x; mov.u32 %r1, %ctaid.y; mov.u32 %r2, %nctaid.x;
 mad.lo.u32 %r0, %r1, %r2, %r0; mov.u32 %r1, %tid.x;"""


def test_special_registers():
    names = ["cluster_ctaid.x", "cluster_ctaid.y", "cluster_nctaid.x", "cluster_nctaid.y", "clusterid.x", "clusterid.y",
             "nclusterid.x", "nclusterid.y", "cluster_ctarank", "cluster_nctarank"]  # fmt: skip
    lines = "".join(f"mov.u32 %r4, %{name}; st.global.u32 [%rd0+{4 * n}], %r4;" for n, name in enumerate(names))
    text = f""".entry k(.param .u64 o) {{ {REGISTERS} {OWN} mul.wide.u32 %rd1, %r0, 48; add.u64 %rd0, %rd0, %rd1;
     {lines}
     mov.pred %p0, %is_explicit_cluster; selp.u32 %r4, 1, 0, %p0; st.global.u32 [%rd0+44], %r4; ret; }}"""
    found, _ = run(text, {"o": np.zeros(12 * 24, np.uint32)}, grid=(6, 4), block=1, native=False, cluster=(3, 2))
    for block, row in enumerate(found["o"].reshape(24, 12)):
        x, y = block % 6, block // 6
        assert row.tolist() == [x % 3, y % 2, 3, 2, x // 3, y // 2, 2, 2, x % 3 + 3 * (y % 2), 6, 0, 1]
    found, _ = run(text, {"o": np.zeros(12 * 24, np.uint32)}, grid=(6, 4), block=1)
    assert found["o"].reshape(24, 12)[13].tolist() == [0, 0, 1, 1, 1, 2, 6, 4, 0, 1, 0, 0]


EXCHANGE = f""".entry k(.param .u64 o) .reqnctapercluster 4 {{ .shared .align 8 .u32 s[64]; {REGISTERS} {OWN}
 mov.u32 %r3, s; shl.b32 %r4, %r1, 2; add.u32 %r5, %r3, %r4; mad.lo.u32 %r6, %r0, 100, %r1;
 mov.u32 %r7, %cluster_ctarank; add.u32 %r8, %r7, 1; and.b32 %r8, %r8, 3;
 mapa.shared::cluster.u32 %r9, %r5, %r8; st.shared::cluster.u32 [%r9], %r6;
 barrier.cluster.arrive.release; barrier.cluster.wait.acquire;
 ld.shared.u32 %r10, [%r5];
 cvt.u64.u32 %rd2, %r5; cvta.shared.u64 %rd2, %rd2; mapa.u64 %rd3, %rd2, %r8; ld.u32 %r11, [%rd3];
 isspacep.shared %p0, %rd3; selp.u32 %r12, 1, 0, %p0; isspacep.shared::cluster %p1, %rd3; @%p1 add.u32 %r12, %r12, 2;
 getctarank.u64 %r13, %rd3; getctarank.shared::cluster.u32 %r14, %r5;
 atom.shared::cluster.add.u32 %r15, [%r9+128], %r1;
 barrier.cluster.arrive; barrier.cluster.wait; ld.shared.u32 %r16, [%r5+128];
 mad.lo.u32 %r17, %r0, 32, %r1; mul.wide.u32 %rd4, %r17, 24; add.u64 %rd0, %rd0, %rd4;
 st.global.u32 [%rd0], %r10; st.global.u32 [%rd0+4], %r11; st.global.u32 [%rd0+8], %r12; st.global.u32 [%rd0+12], %r13;
 st.global.u32 [%rd0+16], %r14; st.global.u32 [%rd0+20], %r16; ret; }}"""


def test_shared_memory_of_each_other():
    found, _ = run(EXCHANGE, {"o": np.zeros(6 * 32 * 8, np.uint32)}, grid=8, native=False)
    for block, rows in enumerate(found["o"].reshape(8, 32, 6)):
        rank, first = block % 4, block // 4 * 4
        lane = np.arange(32)
        left, right = first + (rank - 1) % 4, (rank + 1) % 4
        assert np.array_equal(rows[:, 0], 100 * left + lane)  # what the block before it wrote here
        assert np.array_equal(rows[:, 1], 100 * block + lane)  # what it wrote there itself
        assert rows[:, 2:5].tolist() == [[2, right, rank]] * 32
        assert np.array_equal(rows[:, 5], lane)


def test_chunks_cut_no_cluster():
    whole = {"o": np.zeros(6 * 32 * 8, np.uint32)}
    results = [execute(EXCHANGE, whole, grid=8, chunk_warps=warps) for warps in (1, 5, 1024)]
    assert len({r.memory.read("o", np.uint32).tobytes() for r in results}) == 1
    half = execute(EXCHANGE, whole, grid=8, thread_blocks=[7, 5, 4, 6])
    assert not half.memory.read("o", np.uint32)[: 6 * 32 * 4].any()
    with pytest.raises(InputError, match="none of a cluster can be left out"):
        execute(EXCHANGE, whole, grid=8, thread_blocks=[0, 1])


def test_a_barrier_is_arrived_at_before_it_is_waited_for():
    """The second block waits only once the first one, which does not wait yet, has seen a word of it."""
    text = f""".entry k(.param .u64 o) .reqnctapercluster 2 {{ .shared .u32 s[1]; {REGISTERS} {OWN}
     setp.ne.u32 %p0, %r0, 0; mov.u32 %r3, s; mov.u32 %r4, 0; mov.u32 %r5, 1; st.shared.u32 [%r3], %r4;
     barrier.cluster.arrive; barrier.cluster.wait; barrier.cluster.arrive; @%p0 bra B;
     W: ld.volatile.shared.u32 %r6, [%r3]; setp.eq.u32 %p1, %r6, 0; @%p1 bra W; st.global.u32 [%rd0], %r6; bra E;
     B: barrier.cluster.wait; mapa.shared::cluster.u32 %r7, %r3, %r4; st.shared::cluster.u32 [%r7], %r5; ret;
     E: barrier.cluster.wait; ret; }}"""
    found, _ = run(text, {"o": np.zeros(1, np.uint32)}, grid=2, block=1, native=False)
    assert found["o"].tolist() == [1]


def test_threads_that_exit_count_as_arrived():
    text = f""".entry k(.param .u64 o) .reqnctapercluster 2 {{ {REGISTERS} {OWN} setp.eq.u32 %p0, %r0, 1; @%p0 ret;
     barrier.cluster.arrive; barrier.cluster.wait; st.global.u32 [%rd0], 3; ret; }}"""
    found, _ = run(text.replace(", 3;", ", %r2;"), {"o": np.zeros(1, np.uint32)}, grid=2, block=1, native=False)
    assert found["o"].tolist() == [2]


MULTICAST = f""".entry k(.param .u64 i, .param .u64 o) .reqnctapercluster 4 {{ .shared .align 128 .b8 s[64];
 .shared .align 8 .b64 m; {REGISTERS} {OWN} ld.param.u64 %rd5, [i]; mov.u32 %r3, s; mov.u32 %r4, m;
 mov.u32 %r7, %cluster_ctarank; setp.eq.u32 %p0, %r1, 0; setp.eq.u32 %p1, %r7, 2; and.pred %p1, %p0, %p1;
 @%p0 mbarrier.init.shared.b64 [%r4], 1; @%p0 mbarrier.expect_tx.relaxed.cta.shared.b64 [%r4], 64;
 @%p0 mbarrier.arrive.shared.b64 _, [%r4];
 barrier.cluster.arrive; barrier.cluster.wait; mov.u16 %h0, 11; setp.eq.u32 %p3, %r7, 2; @%p3 bra S;
 bra W; S:
 @%p1 cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster
  [%r3], [%rd5], 64, [%r4], %h0;
 bra E;
 W: mbarrier.try_wait.parity.shared.b64 %p2, [%r4], 0; @!%p2 bra W;
 E: barrier.cluster.arrive; barrier.cluster.wait;
 shl.b32 %r8, %r1, 2; add.u32 %r9, %r3, %r8; ld.shared.u32 %r10, [%r9]; mad.lo.u32 %r11, %r0, 16, %r1;
 mul.wide.u32 %rd2, %r11, 4; add.u64 %rd0, %rd0, %rd2; st.global.u32 [%rd0], %r10; ret; }}"""


def test_a_copy_to_several_thread_blocks():
    words = np.arange(1, 17, dtype=np.uint32)
    found, _ = run(MULTICAST, {"i": words, "o": np.zeros(64, np.uint32)}, grid=4, block=16, native=False)
    assert np.array_equal(found["o"].reshape(4, 16), np.outer([1, 1, 0, 1], words))  # 11: not the block of rank 2


def test_stores_and_copies_that_count_at_a_barrier_elsewhere():
    text = f""".entry k(.param .u64 o) .reqnctapercluster 2 {{ .shared .align 128 .b8 s[64];
     .shared .align 16 .b8 z[16]; .shared .align 8 .b64 m; {REGISTERS} {OWN} mov.u32 %r3, s; mov.u32 %r4, m;
     mov.u32 %r20, z; mov.u32 %r7, %cluster_ctarank; xor.b32 %r8, %r7, 1;
     setp.eq.u32 %p0, %r1, 0; mul.lo.u32 %r9, %r0, 7;
     @%p0 mbarrier.init.shared.b64 [%r4], 1; @%p0 mbarrier.arrive.expect_tx.shared.b64 _, [%r4], 28;
     @%p0 st.shared.v4.u32 [%r20], {{%r9, %r9, %r7, %r8}};
     barrier.cluster.arrive; barrier.cluster.wait; fence.proxy.async;
     mapa.shared::cluster.u32 %r5, %r3, %r8; mapa.shared::cluster.u32 %r6, %r4, %r8; add.u32 %r21, %r5, 16;
     @%p0 st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.u32 [%r5], %r9, [%r6];
     @%p0 st.async.shared::cluster.mbarrier::complete_tx::bytes.v2.b32 [%r5+8], {{%r9, %r7}}, [%r6];
     @%p0 cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [%r21], [%r20], 16, [%r6];
     W: mbarrier.try_wait.parity.shared.b64 %p2, [%r4], 0; @!%p2 bra W;
     shl.b32 %r8, %r1, 2; add.u32 %r9, %r3, %r8; ld.shared.u32 %r10, [%r9]; mad.lo.u32 %r11, %r0, 8, %r1;
     mul.wide.u32 %rd2, %r11, 4; add.u64 %rd0, %rd0, %rd2; st.global.u32 [%rd0], %r10;
     barrier.cluster.arrive; barrier.cluster.wait; ret; }}"""
    found, _ = run(text, {"o": np.zeros(16, np.uint32)}, grid=2, block=8, native=False)
    assert found["o"].reshape(2, 8).tolist() == [[7, 0, 7, 1, 7, 7, 1, 0], [0, 0, 0, 0, 0, 0, 0, 1]]


WRONG = [
    (dict(grid=3), ".reqnctapercluster 2", "not made of whole clusters"),
    (dict(grid=4, cluster=4), ".reqnctapercluster 2", "requires clusters of 2x1x1"),
    (dict(grid=32, cluster=32), "", "a cluster has 1 to 16"),
    (dict(grid=4), ".blocksareclusters .reqntid 32", "goes with"),
    (dict(grid=4), ".explicitcluster", "must be launched in clusters"),
    (dict(grid=4, cluster=4), ".maxclusterrank 2", "allows 2 thread blocks a cluster"),
]


@pytest.mark.parametrize("options,directives,message", WRONG)
def test_clusters_that_cannot_be(options, directives, message):
    parsed = module(f".entry k() {directives} {{ ret; }}")
    cluster = options.get("cluster")
    with pytest.raises(InputError, match=message):
        make_launch(link(parsed, "k"), options["grid"], 32, [], Memory(), cluster=cluster)


@pytest.mark.parametrize(
    "first,second,message",
    [
        ("dec.sync.aligned.u32 24", "inc.sync.aligned.u32 104", ""),
        ("inc.sync.aligned.u32 72", "dec.sync.aligned.u32 64", "want 272 registers .*; it has 256"),
        ("inc.sync.aligned.u32 56", "dec.sync.aligned.u32 40", "the warp has 64 registers a thread"),
    ],
)
def test_warps_hand_registers_to_each_other(first, second, message):
    parsed = module(f""".entry k() .maxnreg 64 {{ .reg .b32 %r; .reg .pred %p; mov.u32 %r, %tid.x;
     setp.lt.u32 %p, %r, 64; @%p bra L; setmaxnreg.{second}; ret; L: setmaxnreg.{first}; ret; }}""")
    launch = make_launch(link(parsed, "k"), 2, 128, [], Memory())
    if not message:
        ArrayExecutor().run(launch, Memory())
        return
    with pytest.raises(ExecutionError, match=message):
        ArrayExecutor().run(launch, Memory())


def test_a_grid_that_counts_clusters():
    parsed = module(".entry k() .blocksareclusters .reqntid 32 .reqnctapercluster 2, 3 { ret; }")
    program = link(parsed, "k")
    assert make_launch(program, (4, 5), 32, [], Memory()).grid == (8, 15, 1)
    assert cuda_shape(program, Dim3(4, 5, 1), Dim3(1, 1, 1), 0) == (Dim3(8, 15, 1), Dim3(32, 1, 1))
    for block, shared_bytes in ((32, 0), (1, 16)):
        with pytest.raises(InputError, match="CUDA defines 1 and 0 alone"):
            cuda_shape(program, Dim3(4, 5, 1), Dim3(block, 1, 1), shared_bytes)
    named = module(".entry k() .explicitcluster .maxclusterrank 4 { ret; }")
    assert make_launch(link(named, "k"), 8, 32, [], Memory(), cluster=4).cluster == (4, 1, 1)


def test_a_block_that_is_not_there():
    text = f""".entry k() .reqnctapercluster 2 {{ .shared .u32 s[4]; {REGISTERS} mov.u32 %r1, s; mov.u32 %r2, 3;
     mapa.shared::cluster.u32 %r3, %r1, %r2; ld.shared::cluster.u32 %r4, [%r3]; ret; }}"""
    parsed = module(text)
    launch = make_launch(link(parsed, "k"), 2, 1, [], Memory())
    with pytest.raises(ExecutionError, match="there is no rank 3"):
        ArrayExecutor().run(launch, Memory())


def test_a_cluster_and_a_tensor_map_in_a_launches_json(tmp_path):
    from test_tensor_copies import load_text, loaded, tensor_of

    from functional.launches.launches_json import load_case

    tensor, data = tensor_of(np.random.default_rng(1), (64, 4), "f16", (8, 2))
    (tmp_path / "k.ptx").write_text(HEADER + load_text(tensor, (3, 1)))
    data.tofile(tmp_path / "t.bin")
    described = {"tensor_map": "t", "element": "f16", "size": [64, 4], "strides_bytes": [128], "box": [8, 2]}
    launch = {"kernel": "k", "grid": 2, "block": 32, "cluster": 2, "args": [{"buf": "t"}, {"buf": "o"}, described]}
    buffers = {"t": {"init": "t.bin"}, "o": {"bytes": 32}}
    path = tmp_path / "launches.json"
    path.write_text(json.dumps({"ptx": "k.ptx", "buffers": buffers, "launches": [launch]}))
    case = load_case(path)
    ArrayExecutor().run(case.launches[0], case.memory)
    assert case.launches[0].cluster.total == 2
    assert np.array_equal(case.memory.read("o", np.uint8), loaded(tensor, data, (3, 1)))
    path.write_text(path.read_text().replace('"box": [8, 2]', '"box": "x"'))
    with pytest.raises(InputError, match="does not describe a tensor map"):
        load_case(path)
