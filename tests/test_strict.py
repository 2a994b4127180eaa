"""What no GPU promises: noted where the text shows it, an error under `--strict` where running shows it, and never said
of what is right."""

from __future__ import annotations

import numpy as np
import pytest
from nightly import of
from ptx_kernels import HEADER, REGISTERS, entry, module, prepared

from abstim.cli import main
from abstim.targets.execution import execute_case
from functional import suite
from functional.errors import ExecutionError
from functional.execution.default_executor import StrictExecutor
from functional.execution.findings import findings
from functional.llvm_executor import LlvmExecutor
from functional.programs.link import link

BLOCK = "mov.u32 %r5, %ctaid.x;"
EACH = "mad.lo.u32 %r6, %r5, 32, %r0; mul.wide.u32 %rd1, %r6, 4; add.u64 %rd1, %rd0, %rd1;"  # a word a thread
SHARED = ".shared .align 4 .b8 s[128]; shl.b32 %r1, %r0, 2; mov.u32 %r2, s; add.u32 %r2, %r2, %r1;"
LOCAL = ".local .align 4 .b8 l[16];"


def strict(body: str, grid: int = 2) -> np.ndarray:
    launch, memory = prepared(body, grid, 32)
    StrictExecutor().run(launch, memory)
    return memory.read("a", np.uint32)


UNWRITTEN = {
    "shared, all of it": SHARED + "ld.shared.u32 %r3, [%r2];",
    "shared, one lane's word": SHARED + "setp.ne.u32 %p1, %r0, 7; @%p1 st.shared.u32 [%r2], 1; "
    "ld.shared.u32 %r3, [%r2];",
    "shared, one byte of a word": SHARED + "st.shared.u16 [%r2], %h1; st.shared.u8 [%r2+2], %h1; "
    "ld.shared.u32 %r3, [%r2];",
    "shared, before the others write": SHARED + "ld.shared.u32 %r3, [s]; st.shared.u32 [%r2], 1;",
    "shared, by an atomic": SHARED + "atom.shared.add.u32 %r3, [%r2], 1;",
    "shared, by another name": SHARED + "cvta.shared.u64 %rd1, s; ld.u32 %r3, [%rd1];",
    "local": LOCAL + "ld.local.u32 %r3, [l];",
    "local, half of a vector": LOCAL + "st.local.u32 [l], 1; ld.local.v2.u32 {%r3, %r4}, [l];",
}  # fmt: skip


@pytest.mark.parametrize("body", UNWRITTEN.values(), ids=UNWRITTEN)
def test_memory_that_nothing_has_written(body) -> None:
    with pytest.raises(ExecutionError, match=r"k.*:\d+: .* memory (are|is) read, and nothing has written"):
        strict("mov.u16 %h1, 1;" + body)


WRITTEN = {
    "shared": SHARED + "st.shared.u32 [%r2], 1; bar.sync 0; ld.shared.u32 %r3, [s];",
    "shared, by bytes": SHARED + "st.shared.u8 [%r2], %h1; st.shared.u16 [%r2+2], %h1; st.shared.u8 [%r2+1], %h1; "
    "ld.shared.u32 %r3, [%r2];",
    "shared, by another name": SHARED + "cvta.shared.u64 %rd1, s; st.u32 [%rd1], 1; bar.sync 0; "
    "ld.shared.u32 %r3, [s];",
    "shared, by a copy": SHARED + "cp.async.ca.shared.global [%r2], [%rd0], 4; cp.async.wait_all; "
    "ld.shared.u32 %r3, [%r2];",
    "shared, not read by lanes that are off": SHARED + "setp.eq.u32 %p1, %r0, 7; @%p1 st.shared.u32 [%r2], 1; "
    "@%p1 ld.shared.u32 %r3, [%r2];",
    "local": LOCAL + "st.local.v4.u32 [l], {%r0, %r0, %r0, %r0}; ld.local.u64 %rd1, [l+8];",
}  # fmt: skip


@pytest.mark.parametrize("body", WRITTEN.values(), ids=WRITTEN)
def test_memory_that_is_written(body) -> None:
    strict("mov.u16 %h1, 1;" + body)


RACES = {
    "writes": "st.global.u32 [%rd0], %r5;",
    "writes, of the same value by the first lane": "mul.lo.u32 %r7, %r5, %r0; st.global.u32 [%rd0], %r7;",
    "writes, of bytes": "cvt.u16.u32 %h1, %r5; st.global.u8 [%rd0+3], %h1;",
    "write and read": EACH + "st.global.u32 [%rd1], 1; ld.global.u32 %r1, [%rd0];",
    "read and write": "ld.global.u32 %r1, [%rd0]; add.u32 %r1, %r1, %r5; setp.eq.u32 %p1, %r5, 1; "
    "@%p1 st.global.u32 [%rd0], 3;",
    "atomic and write": "setp.eq.u32 %p1, %r5, 0; @%p1 red.global.add.u32 [%rd0], 1; @!%p1 st.global.u32 [%rd0], 9;",
    "atomic and read": "setp.eq.u32 %p1, %r5, 0; @%p1 red.global.add.u32 [%rd0], 1; @!%p1 ld.global.u32 %r1, [%rd0];",
    "atomics of a block alone": "atom.cta.global.add.u32 %r1, [%rd0], 1;",
    "a flag without order": "setp.eq.u32 %p1, %r5, 0; @%p1 st.global.u32 [%rd0+4], 1; "
    "@%p1 st.volatile.global.u32 [%rd0], 1; "
    "@!%p1 ld.global.u32 %r1, [%rd0+4];",
}  # fmt: skip


@pytest.mark.parametrize("body", RACES.values(), ids=RACES)
def test_thread_blocks_that_race(body) -> None:
    with pytest.raises(ExecutionError, match=r"of block \((0|1), 0, 0\): thread blocks race: byte \d of 'a'"):
        strict(BLOCK + body)


ORDERED = {
    "a word each": EACH + "ld.global.u32 %r1, [%rd1]; add.u32 %r1, %r1, 1; st.global.u32 [%rd1], %r1;",
    "bytes of a word each": "cvt.u64.u32 %rd2, %r5; add.u64 %rd2, %rd0, %rd2; cvt.u16.u32 %h1, %r5; "
    "st.global.u8 [%rd2], %h1;",
    "the same value": "st.global.u32 [%rd0], 7;",
    "what is there already": EACH + "ld.global.u32 %r1, [%rd0+128]; st.global.u32 [%rd0+128], 0;",
    "atomics": "atom.global.add.u32 %r1, [%rd0], %r0;",
    "volatile": "ld.volatile.global.u32 %r1, [%rd0]; st.volatile.global.u32 [%rd0], %r5;",
    # the block that counts last reads what the others have left
    "the last block sums": "mul.wide.u32 %rd2, %r5, 4; add.u64 %rd2, %rd0, %rd2; setp.eq.u32 %p2, %r0, 0; "
    "@%p2 st.global.u32 [%rd2+16], %r5; membar.gl; mov.u32 %r7, 0; @%p2 atom.global.add.u32 %r7, [%rd0], 1; "
    "setp.eq.u32 %p1, %r7, 1; @!%p1 bra END; ld.global.u32 %r1, [%rd0+16]; ld.global.u32 %r2, [%rd0+20]; END:",
}  # fmt: skip


@pytest.mark.parametrize("body", ORDERED.values(), ids=ORDERED)
def test_thread_blocks_that_do_not_race(body) -> None:
    launch, memory = prepared(BLOCK + body, 2, 32)
    expected = memory.copy()
    LlvmExecutor(1).run(launch, expected)
    assert strict(BLOCK + body).tolist() == expected.read("a", np.uint32).tolist()


def test_races_of_blocks_that_never_run_together() -> None:
    """Thousands of warps lie between the first and the last: the answer does not hang on what runs at a time."""
    with pytest.raises(ExecutionError, match="thread blocks race"):
        strict(BLOCK + "setp.ne.u32 %p1, %r5, 0; setp.ne.u32 %p2, %r5, 2999; and.pred %p1, %p1, %p2; @%p1 exit; "
               "st.global.u32 [%rd0], %r5;", grid=3000)  # fmt: skip


@pytest.mark.parametrize("name", ["reduction", "gemm_mma", *of([], ["bfs", "scan", "histogram_atomics"])])
def test_nothing_is_said_of_the_suite(name) -> None:
    """All 58 were run so (docs/security.md)."""
    outputs = execute_case(suite.case(name), StrictExecutor()).outputs
    assert outputs and not any(output.mismatches for output in outputs)


@pytest.mark.parametrize(
    "body, found",
    [
        (SHARED + "ld.shared.u32 %r3, [%r2];", ["shared"]),
        (LOCAL + "ld.local.u32 %r3, [l];", ["local"]),
        (SHARED + LOCAL + "ld.shared.u32 %r3, [%r2]; ld.local.u32 %r4, [l];", ["shared", "local"]),
        (SHARED + "ld.shared.u32 %r3, [%r2]; st.shared.u32 [%r2], 1;", []),
        (SHARED + "ld.shared.u32 %r3, [%r2]; st.u32 [%rd0], 1;", []),  # perhaps
        (SHARED + "atom.shared.add.u32 %r3, [%r2], 1;", []),
        ("st.global.u32 [%rd0], 1;", []),
    ],
)
def test_what_the_text_shows_is_noted(body, found) -> None:
    said = [line for line in findings(link(module(entry(body)), "k")) if "memory is read" in line]
    assert [line.partition(": ")[2].split()[0] for line in said] == found


def test_the_command_refuses(tmp_path, monkeypatch, capsys) -> None:
    text = f".entry k(.param .u64 a) {{ {REGISTERS} ld.param.u64 %rd0, [a]; {BLOCK} st.global.u32 [%rd0], %r5; ret; }}"
    (tmp_path / "k.ptx").write_text(HEADER + text)
    command = ["run", str(tmp_path / "k.ptx"), "--grid", "2", "--block", "32", "--arg", "buf:u32:64"]
    for threads in "12":
        monkeypatch.setenv("ABSTIM_THREADS", threads)
        with pytest.raises(SystemExit) as ended:
            main([*command, "--strict"])
        said = capsys.readouterr().err
        assert ended.value.code == 2 and said.count("\n") == 1 and "thread blocks race" in said, threads
    with pytest.raises(SystemExit) as ended:
        main(["trace", *command[1:], "-o", str(tmp_path / "store")])
    assert not ended.value.code
    with pytest.raises(SystemExit) as ended:
        main(["run", str(tmp_path / "store"), "--strict"])
    assert ended.value.code == 2 and "--strict" in capsys.readouterr().err
