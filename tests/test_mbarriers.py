"""Waiting in time at `mbarrier`s: what a trace says of them, and what the engine makes of it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import oracle
import pytest
from both_executors import run
from hypothesis import given
from hypothesis import strategies as st
from random_launches import simulate
from test_bulk_copies import PIPELINE, SIZE

import abstim
from abstim.gpu.config import load_gpu
from abstim.session.session import Session, open_session
from functional.errors import InputError
from functional.traces.line_record import (
    SHARED_PASS,
    barrier_of,
    count_of,
    in_phases,
    line_of,
    more_follow,
    phase_of,
    phase_record,
    without_phases,
)
from functional.traces.trace import Trace
from precharacterize.machine_code.assemble import toolkits
from precharacterize.projection import project
from precharacterize.synchronisation import FILLS, MEETS, MEETS_LATER

# One instruction a line, as compilers print it: a disassembler says which line a machine instruction is of
LINES = PIPELINE.strip().replace("{", "{\n").replace(";", ";\n").replace(":\n", ":\n")


def phases_of(trace: Trace) -> list[list[tuple[int, int, int]]]:
    """(barrier, phase, count) of each warp."""
    found = []
    for start, stop in zip(trace.record_offsets, trace.record_offsets[1:], strict=False):
        records = trace.records[start:stop]
        lines = line_of(records[in_phases(records)].astype(np.int64))
        found.append([(int(barrier_of(k)), int(phase_of(k)), int(count_of(k))) for k in lines])
    return found


def pipeline(tmp_path, text: str = PIPELINE) -> Session:
    path = tmp_path / "kernel.ptx"
    path.write_text(f".version 8.6\n.target sm_90a\n.address_size 64\n.visible {text.strip()}\n")
    words = np.zeros(SIZE, np.uint32)
    return open_session(abstim.load(path).kernel().launch(1, 64, [words, words.copy()]))


def test_a_trace_says_who_arrives_and_who_waits():
    words = np.zeros(SIZE, np.uint32)
    _, trace = run(PIPELINE, {"i": words, "o": words.copy()}, block=64, native=False)
    first, second = phases_of(trace)
    turns = [[*[(0, turn, 0)] * 3, (0, turn, 3)] for turn in (0, 1)]  # the arrival, two copies, and the wait for them
    assert first == turns[0] + turns[1]
    assert second == [(0, 0, 3), (0, 1, 3)]  # asked once, though the copies were not there when it came


def test_an_arrival_that_waits_for_copies():
    body = """cp.async.ca.shared.global [%r1], [%rd0], 16;
     cp.async.mbarrier.arrive.shared.b64 [%r2]; cp.async.mbarrier.arrive.noinc.shared.b64 [%r2];"""
    text = f""".entry k(.param .u64 i) {{ .shared .align 16 .b8 s[64]; .shared .align 8 .b64 m;
     .reg .b64 %rd<4>; .reg .b32 %r<9>; .reg .pred %p<3>;
     ld.param.u64 %rd0, [i]; mov.u32 %r1, s; mov.u32 %r2, m; mov.u32 %r3, %tid.x; setp.eq.u32 %p1, %r3, 0;
     @%p1 mbarrier.init.shared.b64 [%r2], 32; bar.sync 0; {body}
     W: mbarrier.try_wait.parity.shared.b64 %p0, [%r2], 0; @!%p0 bra W; ret; }}"""
    _, trace = run(text, {"i": np.zeros(64, np.uint8)}, native=False)
    assert phases_of(trace) == [[(0, 0, 0), (0, 0, 0), (0, 0, 2)]]


@pytest.mark.parametrize("name", ["gtx480_perfect", "rtx3070"])
def test_a_wait_takes_as_long_as_the_copies(tmp_path, name):
    session, gpu = pipeline(tmp_path), load_gpu(name)
    inputs = session.inputs(0, gpu, session.traces.trace(0))
    found = simulate(inputs, [gpu], [1])[0]
    assert found.cycles == oracle.simulate(inputs, gpu, 1).cycles
    alone = simulate(replace(inputs, trace=without_phases(inputs.trace)), [gpu], [1])[0]
    assert found.cycles - alone.cycles > (10 if name == "gtx480_perfect" else 500)  # two turns


CROSSED = """.entry k(.param .u64 i, .param .u64 o) {
 .shared .align 8 .b64 m; .reg .b32 %r<9>; .reg .pred %p<3>;
 mov.u32 %r1, m; mov.u32 %r2, %tid.x; setp.eq.u32 %p1, %r2, 0; setp.lt.u32 %p2, %r2, 32; mov.u32 %r3, %nctaid.x;
 @%p1 mbarrier.init.shared.b64 [%r1], 32; bar.sync %r3; @%p2 bra FIRST; bar.arrive %r3, 64;
 W: mbarrier.try_wait.parity.shared.b64 %p0, [%r1], 0; @!%p0 bra W; ret;
 FIRST: bar.sync %r3, 64; mbarrier.arrive.shared.b64 _, [%r1]; ret; }"""


@pytest.mark.parametrize("name", ["gtx480_perfect", "rtx3070", "h100"])
def test_warps_meet_at_barriers_whose_numbers_are_computed(tmp_path, name):
    """All of them for all warps would never end: the second warp waits at an `mbarrier` for the first."""
    session, gpu = pipeline(tmp_path, CROSSED), load_gpu(name)
    inputs = session.inputs(0, gpu, session.traces.trace(0))
    both, first, second = [(0, 0, 0), (0, 0, 2)], [(0, 1, 0), (0, 1, 2), (1, 0, 0)], [(0, 1, 0), (1, 0, 1)]
    assert phases_of(inputs.trace) == [both + first, both + second]
    found = simulate(inputs, [gpu], [1])[0].cycles
    assert name == "h100" or found == oracle.simulate(inputs, gpu, 1).cycles


@pytest.mark.parametrize("gpu", ["gtx480_perfect", "gtx480_perfect scheduler=two_level", "rtx3070"])
def test_a_wait_that_nothing_ends_is_an_error_that_says_who_waits(tmp_path, gpu):
    """Of a trace from which an arrival is lost."""
    text, (name, *changes) = CROSSED.replace("mov.u32 %r3, %nctaid.x;", "").replace("%r3", "0"), gpu.split()
    session, own = pipeline(tmp_path, text), load_gpu(name, changes)
    inputs = session.inputs(0, own, session.traces.trace(0))
    records = inputs.trace.records.copy()
    lost = in_phases(records) & (count_of(line_of(records.astype(np.int64))) == 0)
    records[lost] += np.uint32(9 << (17 + 5))  # of another barrier
    broken = replace(inputs, trace=replace(inputs.trace, records=records))
    with pytest.raises(InputError, match=r"1 thread block wait .* number 0: warp 1 at mbarrier . .phase 0: 0 of 1 a"):
        simulate(broken, [own], [1])


@pytest.mark.skipif(not toolkits(), reason="no assembler")
def test_machine_code_meets_at_the_same_phases(tmp_path):
    session, gpu = pipeline(tmp_path, LINES), load_gpu("h100")
    inputs = session.inputs(0, gpu, session.traces.trace(0))
    assert session.timed_code(0, gpu).description.startswith("machine code")
    assert {MEETS, FILLS} <= set(inputs.table.copies.tolist())
    assert phases_of(inputs.trace) == phases_of(session.traces.trace(0))


def test_waits_that_cannot_be_kept_are_left_out(tmp_path):
    session, gpu = pipeline(tmp_path), load_gpu("h100")
    trace, code = session.traces.trace(0), session.timed_code(0, gpu)
    assert project(trace, code).waits_kept == 1
    rows = np.flatnonzero(code.accesses[:, 2] > code.accesses[:, 1])
    code.accesses[rows, 2] = code.accesses[rows, 1]  # an assembler that has lost them all
    found = project(trace, code)
    assert found.waits_kept == 0 and not in_phases(found.trace.records).any()


LINE = st.integers(1 << 20, 1 << 21).map(lambda line: line << 5 | 0b11110)
ACCESS = st.tuples(
    st.lists(LINE, max_size=2),
    st.lists(st.builds(phase_record, st.integers(0, 127), st.integers(0, 999), st.integers(0, 511)), max_size=2),
    st.lists(st.just(SHARED_PASS), max_size=2),
)


@given(st.lists(st.lists(ACCESS, max_size=4), min_size=1, max_size=3))
def test_a_trace_without_phases_has_the_same_accesses(warps):
    def trace_of(accesses):
        rows = [[record | (k < len(a) - 1) for a in warp for k, record in enumerate(a)] for warp in accesses]
        offsets = np.cumsum([0, *map(len, rows)])
        empty = np.zeros(len(rows) + 1, np.int64)
        records = np.array([r for row in rows for r in row], np.uint32)
        none = np.zeros(0, np.uint8)
        return Trace(np.zeros(1, np.int64), len(rows), none, none, records, none, empty, offsets, empty, empty, empty)

    whole = trace_of([[[*a, *b, *c] or [0] for a, b, c in warp] for warp in warps])
    expected = trace_of([[[*a, *c] or [0] for a, _, c in warp] for warp in warps])
    found = without_phases(whole)
    assert found.records.tolist() == expected.records.tolist()
    assert found.record_offsets.tolist() == expected.record_offsets.tolist()
    assert not in_phases(found.records).any()
    assert int((more_follow(found.records) == 0).sum()) == sum(map(len, warps))
    assert MEETS_LATER != MEETS
