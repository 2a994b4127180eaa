"""Line records, bank passes and their place in the trace, against brute force over lane addresses."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from ptx_kernels import HEADER, entry, launch
from test_llvm_executor import LLVM, assert_traces_equal

from abstim.gpu.config import load_gpu
from abstim.models import run_many
from abstim.session.memory_accesses import first_elements, words_of_vectors
from abstim.session.session import open_session
from abstim.targets.resolve import ptx_case
from functional.launches.memory import GLOBAL_BASE
from functional.traces.line_record import (
    atomic_records,
    bank_passes,
    line_of,
    line_records,
    more_follow,
    sector_numbers,
    sectors_of,
    with_places,
)
from functional.traces.trace import LOCAL_WINDOW_LINE, PARAM_WINDOW_LINE
from precharacterize import characterize

U32 = np.uint32
FIRST_LINE = GLOBAL_BASE // 128  # of the first buffer
_PATTERNS = st.one_of(
    st.lists(st.integers(0, 4000), min_size=32, max_size=32),  # scattered
    st.builds(lambda base, step: [base + step * i for i in range(32)], st.integers(0, 500), st.integers(0, 70)),
    st.builds(lambda base: [base] * 32, st.integers(0, 4000)),
)


def _unpack(rows: np.ndarray, packed: np.ndarray, row: int) -> list[tuple[int, int, int]]:
    return [
        (line_of(int(p)), sectors_of(int(p)), more_follow(int(p)))
        for r, p in zip(rows, packed, strict=True)
        if r == row
    ]


def _brute(words: list[int]) -> list[tuple[int, int, int]]:
    lines: dict[int, int] = {}
    for word in words:
        lines[word * 4 // 128] = lines.get(word * 4 // 128, 0) | 1 << (word * 4 // 32 % 4)
    ordered = sorted(lines.items())
    return [(line, bits, int(i + 1 < len(ordered))) for i, (line, bits) in enumerate(ordered)]


@settings(max_examples=100)
@given(st.lists(_PATTERNS, min_size=1, max_size=6))
def test_line_records_equal_a_set_of_lines(warps: list[list[int]]) -> None:
    addresses = np.array(warps, np.uint64) * np.uint64(4)
    rows, packed = line_records(sector_numbers(addresses))
    assert (np.diff(rows) >= 0).all()
    for row, words in enumerate(warps):
        assert _unpack(rows, packed, row) == _brute(words)


@settings(max_examples=100)
@given(st.lists(_PATTERNS, min_size=1, max_size=6))
def test_bank_passes_equal_the_fullest_bank(warps: list[list[int]]) -> None:
    passes = bank_passes(np.array(warps, U32))
    for words, got in zip(warps, passes, strict=True):
        assert got == max(Counter(word % 32 for word in set(words)).values())


@settings(max_examples=50)
@given(_PATTERNS, st.integers(0, 2**32 - 1))
def test_atomics_have_a_record_of_each_line_and_round(words: list[int], mask: int) -> None:
    active = np.array([[mask >> lane & 1 for lane in range(32)]], bool)
    rows, packed = atomic_records(np.array([words], np.uint64) * np.uint64(4), active, 4)
    chosen = [word for lane, word in enumerate(words) if mask >> lane & 1]
    named, expected = Counter(chosen), []
    for line in sorted({word // 32 for word in chosen}):
        for turn in range(max(n for word, n in named.items() if word // 32 == line)):
            there = [word for word, n in named.items() if word // 32 == line and n > turn]
            expected += [(line, bits) for _, bits, _ in _brute(there)]
    got = _unpack(rows, packed, 0)
    assert [(line, bits) for line, bits, _ in got] == expected
    assert [more for *_, more in got] == [1] * (len(got) - 1) + [0] * bool(got)


def test_global_records_of_vectors_strides_and_no_lane() -> None:
    body = (
        "mul.wide.u32 %rd1, %r0, 16; add.s64 %rd1, %rd0, %rd1; ld.global.v4.u32 {%r1, %r2, %r3, %r4}, [%rd1];\n"
        "mul.wide.u32 %rd2, %r0, 256; add.s64 %rd2, %rd0, %rd2; setp.lt.u32 %p0, %r0, 2; "
        "@%p0 st.global.u32 [%rd2+32], %r1;\n"
        "setp.gt.u32 %p1, %r0, 99; @%p1 ld.global.u32 %r1, [%rd2]; ld.global.u32 %r1, [%rd0+96];"
    )
    records = launch(entry(body), {"a": np.zeros(2048, U32)}).records()
    assert records[0] == (PARAM_WINDOW_LINE, 1, 0)  # ld.param
    assert records[1:5] == [(FIRST_LINE + i, 15, int(i < 3)) for i in range(4)]
    assert records[5:7] == [(FIRST_LINE, 2, 1), (FIRST_LINE + 2, 2, 0)]
    assert records[7:] == [(0, 0, 0), (FIRST_LINE, 8, 0)]


def test_constant_and_parameter_records() -> None:
    before = ".const .align 4 .b8 c[512];"
    body = (
        "shl.b32 %r1, %r0, 3; cvt.u64.u32 %rd1, %r1; mov.u64 %rd2, c; add.s64 %rd2, %rd2, %rd1; "
        "ld.const.u32 %r2, [%rd2+128];"
    )
    records = launch(entry(body, before=before), {"a": np.zeros(1, U32)}).records()
    further = [(0, 0, 1)] * 29 + [(0, 0, 0)]  # 32 addresses in two lines
    assert records == [(PARAM_WINDOW_LINE, 1, 0), (1, 15, 1), (2, 15, 1), *further]


def test_local_words_of_a_warp_are_one_line() -> None:
    body = (
        ".local .align 8 .b8 l[32]; setp.lt.u32 %p0, %r0, 9; st.local.u32 [l+4], %r0; @%p0 ld.local.u32 %r1, [l+8];\n"
        "mov.u64 %rd2, 5; st.local.u64 [l+16], %rd2; and.b32 %r2, %r0, 1; shl.b32 %r2, %r2, 2; mov.u64 %rd3, l;\n"
        "cvt.u64.u32 %rd4, %r2; add.s64 %rd3, %rd3, %rd4; ld.local.u32 %r1, [%rd3];"
    )
    run = launch(entry(body), {"a": np.zeros(1, U32)}, block=64)
    base = LOCAL_WINDOW_LINE
    assert run.records()[1:] == [(base + 1, 15, 0), (base + 2, 3, 0), (base + 4, 15, 1), (base + 5, 15, 0),
                                 (base, 15, 1), (base + 1, 15, 0)]  # fmt: skip
    assert run.records(1)[1] == (base + 1, 15, 0)
    assert run.records(1)[2] == (0, 0, 0)


def test_resident_warps_have_a_word_of_local_memory_side_by_side() -> None:
    body = ".local .align 4 .b8 l[16]; st.local.u32 [l], %r0; st.local.u32 [l+8], %r0;"
    trace = launch(entry(body), {"a": np.zeros(1, U32)}, block=64, grid=3).trace
    records = with_places(trace, places=4)  # those of the third thread block are there again
    lines = [line_of(records[start:stop])[1:] for start, stop in pairwise(trace.record_offsets.tolist())]
    first = [line - LOCAL_WINDOW_LINE for line, _ in lines]
    assert first == [0, 1, 2, 3, 0, 1] and [other - LOCAL_WINDOW_LINE - 8 for _, other in lines] == first


def test_gpgpusim_accesses_the_first_element_of_a_vector_in_local_memory() -> None:
    body = (
        ".local .align 16 .b8 l[64]; mov.u64 %rd2, 5; st.local.v2.u64 [l+16], {%rd2, %rd2};\n"
        "st.local.v4.u32 [l+32], {%r0, %r0, %r0, %r0}; st.local.u64 [l], %rd2; ld.local.u32 %r1, [l+44];"
    )
    run = launch(entry(body), {"a": np.zeros(1, U32)})
    table = characterize(run.launch.program, load_gpu("gtx480").pipeline)
    words = words_of_vectors(run.launch.program, table)
    assert words is not None
    found = first_elements(run.trace, table, words).records
    lines = [int(line_of(r)) - LOCAL_WINDOW_LINE for r in found if line_of(r) < PARAM_WINDOW_LINE]
    assert lines == [4, 5, 8, 0, 1, 11] and [more_follow(int(r)) for r in found][-6:] == [1, 0, 0, 1, 0, 0]
    other = launch(entry("st.global.v2.u32 [%rd0], {%r0, %r0};"), {"a": np.zeros(64, U32)}).launch.program
    assert words_of_vectors(other, characterize(other, load_gpu("gtx480").pipeline)) is None


def test_hardware_accesses_all_of_a_vector_in_local_memory(tmp_path) -> None:
    body = ".local .align 16 .b8 l[16]; st.local.v4.u32 [l], {%r0, %r0, %r0, %r0};"
    (tmp_path / "k.ptx").write_text(HEADER + entry(body))
    case = ptx_case(str(tmp_path / "k.ptx"), "", [1], [32], ["buf:u32:64"])
    gpus = [load_gpu("qv100", [f"posted_stores={posted}"]) for posted in ("false", "true")]
    session = open_session(case)  # one, whose traces are held
    for model in ("detailed", "analytic"):
        runs = run_many(session, gpus, model=model)
        assert [run.launches[0].caches["l1d_accesses"] for run in runs] == [4, 16]  # sectors


def test_what_stores_leave_out_of_the_sectors_they_touch() -> None:
    """Of vectors all but the first element; of a word all that is not written whole."""
    body = (
        ".local .align 4 .b8 l[8]; .reg .b64 %x; mad.wide.u32 %rd1, %r0, 8, %rd0; mad.wide.u32 %rd2, %r0, 4, %rd0;\n"
        "cvt.u64.u32 %rd3, %r0; add.s64 %rd3, %rd0, %rd3; cvt.u16.u32 %h0, %r0; mad.wide.u32 %rd4, %r0, 2, %rd0;\n"
        "st.global.u32 [%rd2], %r0; st.global.u32 [%rd1], %r0; st.global.v2.u32 [%rd1], {%r0, %r0};\n"
        "st.global.u64 [%rd1], %rd0; st.global.u8 [%rd3], %h0; st.global.u8 [%rd2], %h0; st.global.u16 [%rd4], %h0;\n"
        "setp.lt.u32 %p0, %r0, 9; @%p0 st.global.u32 [%rd2], %r0; mov.u64 %x, l; @%p0 st.local.u32 [%x + 4], %r0;\n"
        "st.local.u32 [%x], %r0; st.local.u8 [%x], %h0; cvta.local.u64 %x, %x; @%p0 st.u32 [%x], %r0;\n"
        "ld.global.u32 %r1, [%rd1]; @%p0 ld.local.u32 %r1, [l];"
    )
    run = launch(entry(body), {"a": np.zeros(64, U32)})
    odd, lanes = 0x55555555, 0x1FF
    expected = {2: odd, 3: odd, 4: odd, 5: odd, 9: 0, 11: lanes, 12: lanes, 14: 0, 15: lanes}
    assert dict(zip(run.trace.partial_at.tolist(), run.trace.partial_words.tolist(), strict=True)) == expected
    assert_traces_equal(LLVM.run(run.launch, run.memory), run.trace)


def test_shared_conflicts_use_the_first_word_of_a_vector() -> None:
    body = (
        ".shared .align 16 .b8 s[8192]; mov.u32 %r1, s; mad.lo.u32 %r2, %r0, 4, %r1; ld.shared.u32 %r9, [%r2];\n"
        "mad.lo.u32 %r3, %r0, 8, %r1; ld.shared.u32 %r9, [%r3]; mad.lo.u32 %r4, %r0, 128, %r1; "
        "ld.shared.u32 %r9, [%r4];\n"
        "ld.shared.u32 %r9, [%r1]; mad.lo.u32 %r5, %r0, 16, %r1; ld.shared.v4.u32 {%r6, %r7, %r8, %r9}, [%r5];\n"
        "setp.gt.u32 %p0, %r0, 99; @%p0 ld.shared.u32 %r9, [%r1]; setp.lt.u32 %p1, %r0, 3; "
        "@%p1 ld.shared.u32 %r9, [%r4];"
    )
    run = launch(entry(body), {"a": np.zeros(1, U32)})
    assert run.conflicts() == [1, 2, 32, 1, 4, 0, 3]


def test_atomic_contention_in_the_trace() -> None:
    body = (
        "atom.global.add.u32 %r1, [%rd0], 1; and.b32 %r2, %r0, 7; mul.wide.u32 %rd1, %r2, 4; "
        "add.s64 %rd1, %rd0, %rd1;\n"
        "red.global.add.u32 [%rd1], 1; setp.gt.u32 %p0, %r0, 99; @%p0 red.global.add.u32 [%rd1], 1;"
    )
    records = launch(entry(body), {"a": np.zeros(64, U32)}).records()[1:]
    assert records[:32] == [(FIRST_LINE, 1, 1)] * 31 + [(FIRST_LINE, 1, 0)]
    assert records[32:36] == [(FIRST_LINE, 1, 1)] * 3 + [(FIRST_LINE, 1, 0)]
    assert records[36:] == [(0, 0, 0)]


def test_offsets_cut_the_streams_by_warp() -> None:
    text = entry(
        "setp.lt.u32 %p0, %r0, 32; @%p0 bra J; mul.wide.u32 %rd1, %r0, 4; add.s64 %rd1, %rd0, %rd1; "
        "ld.global.u32 %r1, [%rd1];\nJ:"
    )
    run = launch(text, {"a": np.zeros(64, U32)}, grid=3, block=64)
    trace = run.trace
    assert np.diff(trace.block_offsets).tolist() == [2, 3] * 3 and np.diff(trace.record_offsets).tolist() == [1, 2] * 3
    assert trace.blocks.tolist() == [0, 2, 0, 1, 2] * 3 and trace.warp_instructions.tolist() == [5, 8] * 3
    assert trace.thread_instructions.tolist() == [5 * 32, 7 * 32] * 3  # the branch counts for lanes that take it
