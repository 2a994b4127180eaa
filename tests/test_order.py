"""Programs whose outcome depends on the order of thread blocks: executed in turns, and by the engine's clock."""

from __future__ import annotations

import numpy as np
import pytest
from call_command import call
from oracle.array_executor import ArrayExecutor
from order_programs import PROGRAMS, histogram, look_back, queue, spin_flag, tiles
from ptx_kernels import entry, module

from abstim import load_gpu, open_session, run, run_many
from abstim.session import coupled
from abstim.session.session import Session
from abstim.session.turns import turns_of
from abstim.targets.execution import execute_case, execution_key
from functional import suite
from functional.errors import ExecutionError, InputError
from functional.execution.default_executor import default_executor
from functional.execution.executor import Interleaving
from functional.launches.case import Case
from functional.launches.launch import Pointer, make_launch
from functional.launches.memory import Memory
from functional.programs.link import link
from functional.traces.trace import DTYPES, Trace

GPU, PERFECT = load_gpu("gtx480"), load_gpu("gtx480_perfect")
SMALL = {
    "queue": dict(grid=40, items=200), "steal": dict(grid=20, each=6), "stream_k": dict(grid=20, tiles=14, depth=12),
    "look_back": dict(grid=40), "grid_barrier": dict(grid=20, steps=3), "ticket_lock": dict(grid=15, rounds=2),
    "spin_flag": dict(grid=20), "frontier": dict(grid=30, nodes=200), "hash_insert": dict(grid=20, n=3000),
    "histogram": dict(grid=10, n=600), "producer_consumer": dict(grid=20, items=10), "tiles": dict(grid=20, side=6),
}  # fmt: skip


def small(name: str) -> Case:
    return PROGRAMS[name](**SMALL[name])


def case_of(text: str, grid: int, buffers: dict[str, np.ndarray], block: int = 32) -> Case:
    parsed = module(text)
    memory = Memory(parsed.variables)
    for name, values in buffers.items():
        memory.allocate(name, values.nbytes, values)
    launch = make_launch(link(parsed, "k"), grid, block, [Pointer(name) for name in buffers], memory)
    return Case("k", parsed, memory, (launch,), dtypes={name: v.dtype for name, v in buffers.items()})


def interleaving(case: Case, resident: int, cycles: int = 10) -> Interleaving:
    return Interleaving(resident, np.full(len(case.launches[0].program.blocks), cycles))


def executed(case: Case, resident: int, executor=None) -> tuple[Memory, Trace]:
    memory = case.memory.copy()
    chosen = executor or default_executor()
    return memory, chosen.run(case.launches[0], memory, interleaving=interleaving(case, resident))


def same(a: Trace, b: Trace) -> bool:
    return all(np.array_equal(getattr(a, name), getattr(b, name)) for name in DTYPES)


def holds_the_keys(case: Case, memory: Memory) -> bool:
    """A hash table: each key once, with how often it came."""
    table, values = (memory.read(name, np.dtype(np.uint32)) for name in ("table", "values"))
    keys, counts = np.unique(case.buffer("keys"), return_counts=True)
    used = np.flatnonzero(table)
    order = np.argsort(table[used])
    return np.array_equal(table[used][order], keys) and np.array_equal(values[used][order], counts)


@pytest.mark.parametrize("name", PROGRAMS)
def test_outputs_are_right_however_many_blocks_are_resident(name: str) -> None:
    case = small(name)
    waits = name in ("grid_barrier", "spin_flag", "producer_consumer")  # for blocks that must be resident, too
    for resident in (4, case.launches[0].thread_blocks)[waits:]:
        memory, trace = executed(case, resident)
        assert case.compare(memory) == []
        assert name != "hash_insert" or holds_the_keys(case, memory)
        assert same(trace, executed(case, resident)[1])


def test_first_block_does_not_take_the_whole_queue() -> None:
    case = queue(grid=40, items=400)
    shares = np.bincount(executed(case, 20)[0].read("owner", np.dtype(np.uint32)), minlength=40)
    assert shares[:20].min() > 15 and shares[20:].max() == 0  # those come when nothing is left
    assert np.bincount(executed(case, 1)[0].read("owner", np.dtype(np.uint32)), minlength=40)[0] == 400


def test_a_block_that_waits_for_a_later_one_needs_it_to_be_resident() -> None:
    case = spin_flag(grid=20)
    with pytest.raises(
        ExecutionError, match=r"deadlock: 19 warps of 19 thread blocks .* 19 of 20 .* resident at a time"
    ):
        executed(case, 19)


def test_waiting_for_what_never_comes_is_a_deadlock() -> None:
    body = "LOOP: ld.volatile.global.u32 %r1, [%rd0]; setp.eq.u32 %p0, %r1, 0; @%p0 bra LOOP; ret;"
    case = case_of(entry(body), 6, {"flag": np.zeros(1, np.uint32)})
    with pytest.raises(ExecutionError, match=r"ld\.volatile\.global\.u32: deadlock: 4 warps of 4 .*; 4 of 6"):
        executed(case, 4)


ORDERED = {
    "atom.global.add.u32 %r1, [%rd0], 1; st.global.u32 [%rd0], %r1;": True,
    "atom.global.add.u32 %r1, [%rd0], 1;": False,  # nobody looks at what it found
    "red.global.add.u32 [%rd0], 1;": False,
    "ld.volatile.global.u32 %r1, [%rd0]; st.global.u32 [%rd0], %r1;": False,
    "LOOP: ld.volatile.global.u32 %r1, [%rd0]; setp.eq.u32 %p0, %r1, 0; @%p0 bra LOOP;": True,
    "LOOP: ld.acquire.gpu.global.u32 %r1, [%rd0]; setp.eq.u32 %p0, %r1, 0; @%p0 bra LOOP;": True,
    "LOOP: ld.acquire.cta.global.u32 %r1, [%rd0]; setp.eq.u32 %p0, %r1, 0; @%p0 bra LOOP;": False,
    "LOOP: ld.global.u32 %r1, [%rd0]; setp.eq.u32 %p0, %r1, 0; @%p0 bra LOOP;": False,
    "nanosleep.u32 100;": True,
}


@pytest.mark.parametrize("body", ORDERED)
def test_what_depends_on_the_order_of_blocks(body: str) -> None:
    assert bool(link(module(entry(body + " ret;")), "k").order_points) == ORDERED[body]


def test_kernels_without_such_order_are_as_they_were() -> None:
    case = suite.case("hotspot")
    launch = case.launches[0]
    assert not launch.program.order_points
    (a, b), executor = (case.memory.copy(), case.memory.copy()), default_executor()
    assert same(executor.run(launch, a), executor.run(launch, b, interleaving=interleaving(case, 30)))
    session = Session(case)
    assert turns_of(session, GPU)(0) is None
    assert execution_key(case, "x") == execution_key(case, "x", None, turns_of(session, GPU))


@pytest.mark.parametrize("name", PROGRAMS)
def test_array_executor_takes_the_same_turns(name: str) -> None:
    """But for warps that come to one place within what its basic block takes: it runs them together."""
    case = small(name)
    waits = name in ("grid_barrier", "spin_flag", "producer_consumer")
    resident = case.launches[0].thread_blocks if waits else 10
    memory, trace = executed(case, resident, ArrayExecutor())
    assert case.compare(memory) == []
    ours, others = (
        t.warp_instructions.reshape(-1, t.warps_per_block).sum(1) for t in (trace, executed(case, resident)[1])
    )
    assert np.abs(ours - others).sum() / 2 <= 0.1 * others.sum()
    assert np.array_equal(ours, others) or name not in ("queue", "steal", "frontier", "hash_insert", "tiles")


def test_what_a_cluster_waits_for_takes_time() -> None:
    """The second thread block has nothing to do but to wait for the first one of its cluster, which takes longest."""
    text = """.entry k(.param .u64 a, .param .u64 b) .reqnctapercluster 2 {
     .reg .b32 %r<9>; .reg .b64 %rd<9>; .reg .pred %p<9>;
     ld.param.u64 %rd0, [a]; ld.param.u64 %rd1, [b]; mov.u32 %r0, %ctaid.x;
     setp.eq.u32 %p0, %r0, 0; setp.gt.u32 %p1, %r0, 1; selp.u32 %r1, 50, 1, %p0; @%p1 mov.u32 %r1, 10;
     LOOP: sub.u32 %r1, %r1, 1; setp.ne.u32 %p2, %r1, 0; @%p2 bra LOOP;
     barrier.cluster.arrive; barrier.cluster.wait;
     atom.global.add.u32 %r2, [%rd0], 1; mul.wide.u32 %rd2, %r0, 4; add.u64 %rd1, %rd1, %rd2; st.global.u32 [%rd1], %r2;
     ret; }"""
    case = case_of(text, 4, {"next": np.zeros(1, np.uint32), "turn": np.zeros(4, np.uint32)}, block=1)
    turn = executed(case, 4, ArrayExecutor())[0].read("turn", np.dtype(np.uint32))
    assert sorted(turn[2:].tolist()) == [0, 1] and sorted(turn[:2].tolist()) == [2, 3]


def test_the_key_of_an_execution_knows_how_many_are_resident() -> None:
    case = small("queue")
    session = Session(case)
    keys = {execution_key(case, "x", None, turns_of(session, load_gpu(name))) for name in ("gtx480", "rtx3070")}
    assert len({*keys, execution_key(case, "x")}) == 3


def test_every_gpu_of_a_run_has_an_execution_of_its_own() -> None:
    case = queue(grid=400, items=800)
    gpus = [GPU, load_gpu("rtx3070")]
    both = run_many(lambda: case, gpus)
    assert [r.launches for r in both] == [run_many(lambda: case, [gpu])[0].launches for gpu in gpus]
    assert all("atom.global.add.u32" in r.note and "--coupled" in r.note for r in both)
    assert not any(output.mismatches for r in both for output in r.outputs)


def test_a_trace_says_in_which_turn_its_thread_blocks_came(tmp_path) -> None:
    assert call("trace", "micro_atomics:return_4096", "-o", str(tmp_path / "store"))[0] == 0
    assert "as when the trace was made" in run(str(tmp_path / "store")).note


def test_block_order_is_said(capsys) -> None:
    case = tiles(grid=9, side=4)
    open_session(lambda: case)
    said = capsys.readouterr().err
    assert "kernel 'tiles', line" in said and "'atom.global.add.u32'" in said


# -- by the engine's clock


def by_clock(case: Case, gpu) -> tuple[coupled.CoupledExecutor, Session, Trace]:
    session = Session(case)
    executor = coupled.CoupledExecutor(default_executor(), session, gpu)
    found = execute_case(case, executor)
    assert not any(output.mismatches for output in found.outputs)
    return executor, session, found.traces[0]


@pytest.mark.parametrize(
    ("name", "gpu"), [("queue", GPU), ("grid_barrier", GPU), ("look_back", PERFECT), ("ticket_lock", PERFECT)]
)
def test_turns_are_about_those_of_the_clock(name: str, gpu) -> None:
    case = small(name)
    executor, session, trace = by_clock(case, gpu)
    again, turns = session.simulate(0, gpu, trace).cycles, open_session(lambda: case, [gpu])
    assert abs(executor.cycles[0] / again - 1) < 0.15  # a warp waits for the end of a window before it is executed
    assert abs(turns.simulate(0, gpu).cycles / again - 1) < 0.25
    assert same(trace, by_clock(case, gpu)[2])


VECTORS = """.entry k(.param .u64 a) { .reg .u64 %a<4>; .reg .u32 %r<9>; .local .align 16 .b8 l[64];
  ld.param.u64 %a1, [a]; mov.u64 %a2, l; mov.u32 %r1, %tid.x;
  st.local.v4.u32 [%a2+16], {%r1, %r1, %r1, %r1};
  ld.local.v2.u32 {%r2, %r3}, [%a2+24]; st.global.u32 [%a1], %r2; ret; }"""


@pytest.mark.parametrize(("name", "gpu"), [("nn_euclid", GPU), ("hotspot", PERFECT), ("vectors", GPU)])
def test_without_order_points_the_clock_is_the_engines(name: str, gpu) -> None:
    case = case_of(VECTORS, 40, {"a": np.zeros(1, np.uint32)}) if name == "vectors" else suite.case(name)
    session, launch, memory = open_session(lambda: case, [gpu]), case.launches[0], case.memory.copy()
    trace = default_executor().run(launch, case.memory.copy())
    request = coupled.Request(launch, memory, np.arange(launch.thread_blocks), 1 << 34)
    with default_executor().stepped(request) as stepped:
        found = coupled._Coupled(stepped, session, 0, gpu)
        found.run()
        assert same(stepped.trace(), trace)
    assert found.simulation.result().cycles == session.simulate(0, gpu, trace).cycles


def test_what_cannot_be_coupled_is_refused() -> None:
    with pytest.raises(InputError, match="rtx3080 times machine code; add --timed-code ptx"):
        run_many(lambda: small("queue"), [load_gpu("rtx3080")], coupled=True)
    with pytest.raises(InputError, match="occupancy model has no clock"):
        run_many(lambda: small("queue"), [GPU], model="occupancy", coupled=True)
    with pytest.raises(InputError, match="leave out --flush"):
        run_many(lambda: small("queue"), [GPU], flush="none", coupled=True)
    with pytest.raises(InputError, match="no effect on nn_euclid"):
        run_many("nn_euclid", [GPU], coupled=True)


def test_compare_and_swap_is_repeated_where_others_come_between() -> None:
    case = histogram(grid=10, n=600, count=4)
    alone, together = (executed(case, resident)[1].warp_instructions.sum() for resident in (1, 10))
    assert together > 1.5 * alone


def test_scan_looks_back_at_what_is_there() -> None:
    case = look_back(grid=40)
    assert executed(case, 40)[1].warp_instructions.sum() > executed(case, 1)[1].warp_instructions.sum()
