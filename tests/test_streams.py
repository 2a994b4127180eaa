"""Thread blocks on demand: a stream is the run in pieces, and several threads give what one gives, bit for bit."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import numpy as np
import ptx_kernels
import pytest
from hypothesis import given
from hypothesis import strategies as st
from nightly import examples, of
from oracle.array_executor import ArrayExecutor
from test_llvm_executor import random_launch

import functional.suite as suite
from functional.errors import ExecutionError, InputError
from functional.execution.executor import Executor
from functional.launches.launch import Launch, Pointer, make_launch
from functional.launches.memory import Memory
from functional.llvm_executor import LlvmExecutor, attempts
from functional.llvm_executor.analysis import independent
from functional.llvm_executor.launch_state import Machine
from functional.programs.link import link
from functional.traces.trace import COUNTS, OFFSETS, STREAMS, Trace, concatenate, rechunk

ONE = LlvmExecutor(threads=1)
FAST = ("hotspot", "bfs", "reduction", "histogram_atomics", "micro_local_spill", "kmeans_point", "matmul_tiled", "nw")


@pytest.fixture(autouse=True)
def tiny_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Several threads, and several chunks, for every launch however small."""
    monkeypatch.setattr(attempts, "_WORTH_THREADS", 1)
    monkeypatch.setattr(attempts, "_FIRST_WARPS", 4)
    monkeypatch.setattr(attempts, "_LEAST_INSTRUCTIONS", 1 << 12)
    monkeypatch.setattr(attempts, "_MOST_INSTRUCTIONS", 1 << 16)


@pytest.fixture
def several(tiny_chunks: None) -> Iterator[LlvmExecutor]:
    yield LlvmExecutor(threads=3)


def assert_same(got: Trace, want: Trace) -> None:
    for field in dataclasses.fields(Trace):
        a, b = np.asarray(getattr(got, field.name)), np.asarray(getattr(want, field.name))
        assert np.array_equal(a, b) and a.dtype == b.dtype, field.name


def streamed(executor: Executor, launch: Launch, memory: Memory, thread_blocks=None, **options) -> Trace:
    pieces = list(executor.stream(launch, memory, thread_blocks, **options))
    return concatenate(pieces, launch.warps_per_block)


@pytest.mark.parametrize("name", of(FAST, suite.names()))
def test_suite_on_several_threads(name: str, several: LlvmExecutor) -> None:
    case = suite.case(name)
    one, more, piecewise = (case.memory.copy() for _ in range(3))
    for launch in case.launches:
        want = ONE.run(launch, one)
        assert_same(several.run(launch, more), want)
        assert_same(streamed(several, launch, piecewise, chunk_bytes=1 << 14), want)
    assert np.array_equal(one.arena, more.arena) and np.array_equal(one.arena, piecewise.arena)


def test_some_kernels_do_run_on_several_threads(several: LlvmExecutor, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the test above would say nothing."""
    found: list[bool] = []
    original = attempts.Shadow.clean

    def watched(shadow, *arguments):
        found.append(original(shadow, *arguments))
        return found[-1]

    monkeypatch.setattr(attempts.Shadow, "clean", watched)
    case = suite.case("kmeans_point")
    several.run(case.launches[0], case.memory.copy())
    assert len(found) > 2 and all(found) and not several._one_thread


@examples(10, 40)
@given(
    seed=st.integers(0, 1 << 32), size=st.integers(1, 15), grid=st.integers(1, 40),
    block=st.sampled_from([(32, 1), (70, 1), (16, 3)]), chosen=st.lists(st.integers(0, 39), max_size=30),
)  # fmt: skip
def test_random_kernels(seed: int, size: int, grid: int, block: tuple[int, int], chosen: list[int]) -> None:
    launch, memory = random_launch(seed, size, grid, block)
    blocks = [b for b in chosen if b < grid] or None
    several, memories = LlvmExecutor(threads=2), [memory.copy() for _ in range(4)]
    want = ONE.run(launch, memories[0], blocks)
    assert_same(several.run(launch, memories[1], blocks), want)
    assert_same(streamed(several, launch, memories[2], blocks, chunk_bytes=256), want)
    assert_same(streamed(ArrayExecutor(chunk_warps=4), launch, memories[3], blocks), want)
    assert all(np.array_equal(m.arena, memories[0].arena) for m in memories)


def launch_of(body: str, grid: int, words: int, block: int = 64) -> tuple[Launch, Memory]:
    """`body` gets %r0 = index of the thread, %rd0 = address of the buffer, %rd1 = address of its own word."""
    text = ptx_kernels.entry(
        "mov.u32 %r1, %ctaid.x; mov.u32 %r2, %ntid.x; mov.u32 %r3, %tid.x; mad.lo.s32 %r0, %r1, %r2, %r3;"
        "mul.wide.u32 %rd2, %r0, 4; add.s64 %rd1, %rd0, %rd2;" + body
    )
    module = ptx_kernels.module(text)
    memory = Memory(module.variables)
    memory.allocate("out", 4 * words, np.arange(words, dtype=np.uint32))
    return make_launch(link(module, "k"), grid, block, [Pointer("out")], memory), memory


# each reads the word of the block before: in block order, every block sees what that one has written
CHAIN = "ld.global.u32 %r4, [%rd1]; add.u32 %r4, %r4, 7; st.global.u32 [%rd1+256], %r4;"
# each writes the word of all: the last block's value stays
SAME_WORD = "st.global.u32 [%rd0], %r0;"


@pytest.mark.parametrize("body", [CHAIN, SAME_WORD], ids=["read after write", "write after write"])
def test_blocks_that_depend_on_one_another_run_in_order(body: str, several: LlvmExecutor) -> None:
    launch, memory = launch_of(body, grid=200, words=64 * 201)
    other, piecewise = memory.copy(), memory.copy()
    want = ONE.run(launch, memory)
    for _ in range(2):  # found out, then known
        again = other.copy()
        assert_same(several.run(launch, again), want)
        assert np.array_equal(again.arena, memory.arena) and len(several._one_thread) == 1
    assert_same(streamed(LlvmExecutor(threads=2), launch, piecewise, chunk_bytes=1), want)
    assert np.array_equal(piecewise.arena, memory.arena)


def test_a_store_to_a_buffer_that_only_later_blocks_write(several: LlvmExecutor) -> None:
    """The first chunk reads the buffer alone; the conflict is with what later ones write to it."""
    body = (
        "setp.gt.u32 %p1, %r1, 100; ld.global.u32 %r4, [%rd0+4];"
        "@%p1 add.u32 %r4, %r4, 1; @%p1 st.global.u32 [%rd0+4], %r4;"
    )
    launch, memory = launch_of(body, grid=200, words=64)
    other = memory.copy()
    want = ONE.run(launch, memory)
    assert_same(several.run(launch, other), want)
    assert np.array_equal(other.arena, memory.arena) and several._one_thread


def test_clocks_go_in_block_order() -> None:
    launch, _ = launch_of("mov.u32 %r4, %clock; st.global.u32 [%rd1], %r4;", grid=2, words=128)
    assert not independent(launch.program)


def test_atomics_are_not_even_tried(several: LlvmExecutor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attempts.Shadow, "begin", lambda *_: pytest.fail("ran on several threads"))
    launch, memory = launch_of("red.global.add.u32 [%rd0], 1; st.global.u32 [%rd1], %r0;", grid=50, words=64 * 50)
    want = ONE.run(launch, memory.copy())
    assert_same(several.run(launch, memory.copy()), want)


@pytest.mark.parametrize(
    "executor", [LlvmExecutor(threads=2), ONE, ArrayExecutor(chunk_warps=8)], ids=["threads", "one thread", "oracle"]
)
def test_a_fault_far_in_comes_behind_traces_of_what_went_well(executor: Executor) -> None:
    launch, memory = launch_of("st.global.u32 [%rd1], %r0;", grid=100, words=64 * 90)  # block 90 writes past the end
    traces = []
    with pytest.raises(ExecutionError, match=r"past the end of 'out'|at the end of 'out'"):
        for trace in executor.stream(launch, memory, chunk_bytes=64):
            traces.append(trace)
    done = np.concatenate([t.thread_blocks for t in traces])
    assert 20 < len(done) <= 90 and np.array_equal(done, np.arange(len(done)))


def test_the_budget_is_that_of_the_launch(several: LlvmExecutor) -> None:
    launch, memory = launch_of("st.global.u32 [%rd1], %r0;", grid=100, words=64 * 100)
    budget = int(ONE.run(launch, memory.copy()).thread_instructions.sum())
    several.run(launch, memory.copy(), instruction_budget=budget)
    for executor in (several, ONE, ArrayExecutor(chunk_warps=8)):
        with pytest.raises(ExecutionError, match=f"exceeds its budget of {budget - 1} thread"):
            executor.run(launch, memory.copy(), instruction_budget=budget - 1)


def test_an_endless_loop_is_run_once_before_the_oracle(several: LlvmExecutor, monkeypatch: pytest.MonkeyPatch) -> None:
    runs = []
    original = Machine.run
    monkeypatch.setattr(Machine, "run", lambda machine, blocks: runs.append(len(blocks)) or original(machine, blocks))
    launch, memory = launch_of("LOOP: bra.uni LOOP;", grid=100, words=1)
    with pytest.raises(ExecutionError, match="exceeds its budget of 1000000 thread"):
        several.run(launch, memory, instruction_budget=1_000_000)
    assert len(runs) == 1


def test_only_the_chosen_blocks_write(several: LlvmExecutor) -> None:
    launch, memory = launch_of("add.u32 %r4, %r0, 5; st.global.u32 [%rd1], %r4;", grid=40, words=64 * 40)
    trace = streamed(several, launch, memory, [30, 2, 17], chunk_bytes=1)
    assert trace.thread_blocks.tolist() == [30, 2, 17]
    words = memory.read("out", np.uint32).reshape(40, 64)
    changed = np.flatnonzero((words != np.arange(64 * 40).reshape(40, 64)).any(1))
    assert changed.tolist() == [2, 17, 30]


def test_a_stream_can_be_left(several: LlvmExecutor) -> None:
    case = suite.case("kmeans_point")
    launch, memory = case.launches[0], case.memory.copy()
    stream = several.stream(launch, memory, chunk_bytes=1 << 12)
    first = next(stream)
    stream.close()
    assert_same(ONE.run(launch, case.memory.copy(), first.thread_blocks), first)
    assert_same(several.run(launch, case.memory.copy()), ONE.run(launch, case.memory.copy()))


def test_chunks_are_as_small_as_asked() -> None:
    case = suite.case("matmul_tiled")
    whole = ONE.run(case.launches[0], case.memory.copy())
    least = whole.nbytes // 8
    largest_block = np.diff(whole.nbytes_before()).max()
    sizes = [t.nbytes for t in ONE.stream(case.launches[0], case.memory.copy(), chunk_bytes=least)]
    assert len(sizes) > 4 and max(sizes) < least + largest_block and min(sizes[:-1]) >= least


def test_chunks_are_the_same_from_every_executor(several: LlvmExecutor) -> None:
    case = suite.case("hotspot")
    launch, found = case.launches[0], []
    for executor in (ONE, several, ArrayExecutor(chunk_warps=24)):
        stream = executor.stream(launch, case.memory.copy(), chunk_bytes=1 << 13)
        found.append([t.thread_blocks.tolist() for t in stream])
    assert found[0] == found[1] == found[2] and len(found[0]) > 5


@given(st.lists(st.lists(st.integers(0, 9), max_size=5), max_size=4), st.integers(0, 40), st.integers(1, 3))
def test_rechunk(pieces: list[list[int]], chunk_bytes: int, warps: int) -> None:
    """Thread blocks of so many events a warp, in pieces."""
    traces = [synthetic(lengths, warps) for lengths in pieces]
    whole = concatenate(traces, warps)
    cut = list(rechunk(traces, chunk_bytes))
    assert_same(concatenate(cut, warps), whole)
    assert all(len(t.thread_blocks) for t in cut)
    for trace in cut[:-1]:
        assert trace.nbytes >= chunk_bytes > trace.part(0, len(trace.thread_blocks) - 1).nbytes or chunk_bytes < 1


def synthetic(lengths: list[int], warps: int) -> Trace:
    """A trace whose thread block k has lengths[k] entries of everything in each warp."""
    counts = np.repeat(np.array(lengths, np.int64), warps)
    offsets = np.concatenate([[0], counts.cumsum()]).astype(np.int64)
    numbers = np.arange(offsets[-1])
    streams = {name: numbers.astype(dtype) for name, dtype in zip(STREAMS, ("u2", "u4", "u4", "u1"), strict=True)}
    cut = dict.fromkeys(OFFSETS, offsets) | dict.fromkeys(COUNTS, counts)
    partial = {"partial_at": numbers[::3], "partial_words": numbers[::3].astype("u4")}
    return Trace(np.arange(len(lengths)), warps, **streams, **cut, **partial)


def test_no_block_at_all(several: LlvmExecutor) -> None:
    case = suite.case("hotspot")
    for executor in (several, ArrayExecutor()):
        trace = executor.run(case.launches[0], case.memory.copy(), [])
        assert len(trace.thread_blocks) == 0 and trace.block_offsets.tolist() == [0] and trace.masks.dtype == np.uint32


def test_bad_number_of_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ABSTIM_THREADS", "two")
    with pytest.raises(InputError, match="ABSTIM_THREADS = 'two' is not a number of threads"):
        LlvmExecutor()
    monkeypatch.setenv("ABSTIM_THREADS", "5")
    assert LlvmExecutor().threads == 5
