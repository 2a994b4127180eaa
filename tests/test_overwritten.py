"""Shared memory that is overwritten with no barrier behind its reads: warps read first, as side by side on a GPU."""

from __future__ import annotations

import numpy as np
import pytest
from ptx_kernels import entry, launch, module

from functional.llvm_executor import LlvmExecutor
from functional.llvm_executor.overwritten import overwriting
from functional.programs.link import link

SHARED = ".shared .b32 s[64];\n.shared .b32 other[64];"
BEGIN = "mov.u32 %r1, s; mov.u32 %r2, other; shl.b32 %r3, %r0, 2; add.u32 %r4, %r1, %r3; setp.eq.u32 %p0, %r0, "
READ, WRITE, BARRIER = "ld.shared.u32 %r5, [s];", "@%p0 st.shared.u32 [s], 7;", "bar.sync 0;"


@pytest.mark.parametrize("writer", [0, 40, 95])
@pytest.mark.parametrize("between", ["", "add.u32 %r9, %r5, 1; bra ON; ON:"])
def test_warps_read_what_another_is_about_to_overwrite(writer, between):
    body = f"{BEGIN}{writer}; @%p0 st.shared.u32 [s], 5; {BARRIER} {READ} {between} {WRITE} {BARRIER}"
    body += "ld.shared.u32 %r6, [s]; mad.lo.u32 %r7, %r5, 16, %r6; cvt.u64.u32 %rd1, %r3; add.u64 %rd2, %rd0, %rd1;"
    buffers = {"a": np.zeros(96, np.uint32)}
    run = launch(
        entry(f"{body} st.global.u32 [%rd2], %r7;", before=SHARED), buffers, block=96, executor=LlvmExecutor(1)
    )
    assert set(run.memory.read("a", np.uint32).tolist()) == {5 * 16 + 7}
    assert run.trace.warp_instructions.tolist() == [run.trace.warp_instructions[0]] * 3


@pytest.mark.parametrize(
    "body,count",
    [
        (f"{READ} {WRITE}", 1),
        (f"{READ} {BARRIER} {WRITE}", 0),
        (f"{WRITE} {READ}", 0),
        (f"{WRITE} {READ} {WRITE} {WRITE}", 1),  # those behind it are as safe
        (f"LOOP: {WRITE} {READ} @%p0 bra LOOP;", 1),  # of the next round
        (f"LOOP: {WRITE} {READ} {BARRIER} @%p0 bra LOOP;", 0),
        (f"{READ} @%p0 bra ON; {BARRIER} ON: {WRITE}", 1),  # on one way
        (f"{READ} st.shared.u32 [%r2], 7;", 0),  # another variable
        (f"{READ} atom.shared.add.u32 %r6, [%r4], 7;", 0),
        (f"atom.shared.exch.b32 %r6, [%r2], 1; {READ} {WRITE}", 0),  # perhaps a lock
        ("ld.shared.u32 %r5, [%r4]; st.shared.u32 [%r4], 7;", 0),  # each its own
        ("ld.shared.u32 %r5, [%r4+4]; st.shared.u32 [%r4], 7;", 1),
        (f"{READ} mov.u32 %r8, %r5; st.shared.u32 [%r8], 7;", 1),  # nobody knows where
    ],
)
def test_where_a_warp_gives_way(body, count):
    program = link(module(entry(f"{BEGIN}0; {body}", before=SHARED)), "k")
    found = overwriting(program)
    assert len(found) == count and all(program.instructions[position].opcode == "st" for position in found)
