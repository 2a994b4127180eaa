"""Timed code: machine code read back and aligned, PTX with loads hoisted, and the trace of either."""

from __future__ import annotations

import re
from dataclasses import asdict, replace
from functools import cache

import numpy as np
import pytest

import abstim
from abstim.gpu.config import load_gpu, refuse_machine_code
from abstim.gradient.timed_kernel import kernel_of
from abstim.session import result
from abstim.session.issue_logs import issue_logs
from abstim.session.session import open_session
from abstim.study.sample.automatic import Aim
from abstim.study.sample.sampler import sample
from functional.errors import InputError
from functional.programs.link import link
from functional.ptx.parser import open_module, parse
from functional.traces.line_record import line_of, sectors_of
from functional.traces.trace import PARAM_WINDOW_LINE
from precharacterize.build_timed import assembly_of, build_timed_code, hoisted, is_dropped, timed_code_of
from precharacterize.classify import Kind, kinds_of
from precharacterize.machine_code import assemble
from precharacterize.machine_code.alignment import machine_blocks
from precharacterize.machine_code.assemble import (
    Assembly,
    MachineInstruction,
    assembled_for,
    control_fields,
    functions_of,
    toolkits,
)
from precharacterize.machine_code.timed_blocks import _row
from precharacterize.machine_code.timing_classes import tensor_share
from precharacterize.projection import project
from precharacterize.table import UNITS, decoded, encoded
from precharacterize.timed_code import TimedCode, consumes

GPU = load_gpu("rtx3080", ["sm_count=4"])
HEAD = """.version 8.0
.target sm_80
.address_size 64
.visible .entry k(.param .u64 p, .param .u64 q)
{
.reg .pred %p<9>; .reg .b32 %r<40>; .reg .f32 %f<40>; .reg .b64 %rd<40>;
.shared .align 4 .b8 s[256];
ld.param.u64 %rd1, [p];
ld.param.u64 %rd2, [q];
"""
needs_tools = pytest.mark.skipif(not toolkits(), reason="needs ptxas and nvdisasm")
LISTING = """
\t.section\t.text.k,"ax",@progbits
k:
.text.k:
\t//## File ".nv_debug_ptx_txt", line 12
        /*0000*/                   LDG.E.64 R2, [R4.64] ;                         /* 0x0000000402027981 */
                                                                                  /* 0x000ea8000c1e1b00 */
.L_x_1:
\t//## File ".nv_debug_ptx_txt", line 13
        /*0010*/              @!P0 FADD R3, R2, R3 ;                              /* 0x0000000302038221 */
                                                                                  /* 0x004fca0000000000 */
        /*0020*/               @P1 BRA `(.L_x_1) ;                                /* 0xffffffe000007947 */
                                                                                  /* 0x000fea000383ffff */
"""


def program(body: str):
    """A kernel around some instructions, one a line."""
    return link(parse(HEAD + body + "\nret;\n}\n"), "k")


def order(body: str) -> list[str]:
    """Instructions of the only block as they are timed."""
    code = program(body)
    (block,) = code.blocks
    return [code.instructions[i].name for i in hoisted(block, code, kinds_of(code))]


FETCHES = """add.f32 %f2, %f1, 0f3F000000;
add.f32 %f3, %f1, 0f3FC00000;
tex.2d.v4.f32.f32 {%f5,%f6,%f7,%f8}, [%rd2, {%f2, %f1}];
tex.2d.v4.f32.f32 {%f9,%f10,%f11,%f12}, [%rd2, {%f3, %f1}];
add.f32 %f14, %f5, %f9;
st.global.f32 [%rd1], %f14;"""


def test_texture_fetches_bear_the_line_of_what_stands_before_them():
    """As ptxas has it: found in turn, again from the first in a loop that was unrolled."""
    code = program(FETCHES)
    lines = [i.line for i in code.instructions]
    first = next(i.index for i in code.instructions if i.opcode == "tex")

    def made(opcode: str, line: int) -> MachineInstruction:
        return MachineInstruction(0, "", "", opcode, "R0, R1", line, 1, 7, 7, 0)

    fetch = made("TEX.SCR.LL", lines[first - 1])
    (block,) = machine_blocks([made("FADD", lines[first - 1]), *[fetch] * 4, made("EXIT", lines[-1])], code)
    assert block.ptx == [first - 1, first, first + 1, first, first + 1, len(lines) - 1]
    (block,) = machine_blocks(
        [made("TEX", lines[first + 1]), made("EXIT", lines[-1])], code
    )  # its own line is believed
    assert block.ptx[0] == first + 1


SEEN_BY_OTHERS = """ld.global.ca.u32 %r1, [%rd1];
ld.global.cg.u32 %r2, [%rd1+4];
ld.volatile.global.u32 %r3, [%rd1+8];
ld.relaxed.gpu.global.u32 %r4, [%rd1+12];
ld.relaxed.cta.global.u32 %r5, [%rd1+16];
ld.global.nc.u32 %r6, [%rd1+20];
cp.async.cg.shared.global [s], [%rd1+32], 16;
cp.async.ca.shared.global [s+16], [%rd1+48], 16;
add.u32 %r1, %r1, %r2;
add.u32 %r3, %r3, %r4;
add.u32 %r5, %r5, %r6;
add.u32 %r1, %r1, %r3;
add.u32 %r1, %r1, %r5;
st.global.u32 [%rd2], %r1;"""


@pytest.mark.parametrize("machine", [pytest.param(True, marks=needs_tools), False])
def test_l1d_answers_no_load_that_must_see_other_sms_stores(machine, tmp_path) -> None:
    (tmp_path / "k.ptx").write_text(HEAD + SEEN_BY_OTHERS + "\nret;\n}\n")
    code = link(open_module(tmp_path / "k.ptx"), "k")
    assembly = assembly_of(code, "sm_80") if machine else Assembly("no assembler")
    table = build_timed_code(code, GPU.pipeline, assembly).table
    fallback = len(code.blocks)  # rows of PTX come first, those of machine code behind them
    start = table.block_start[fallback] if machine else 0
    loads = [k for k in table.kind[start:].tolist() if k in (Kind.GLOBAL_LOAD, Kind.L2_LOAD)]
    assert loads.count(Kind.L2_LOAD) == loads.count(Kind.GLOBAL_LOAD) == 4


def test_a_listing_is_read() -> None:
    first, second, third = functions_of(LISTING)["k"]
    assert (first.name, first.modifiers, first.line, first.label) == ("LDG", ("E", "64"), 12, ".text.k")
    assert (second.guard, second.label, second.line, second.address) == ("@!P0", ".L_x_1", 13, 16)
    assert (third.name, third.target) == ("BRA", ".L_x_1")
    # the load counts on scoreboard 2, and what uses its result waits for that one
    assert first.write_scoreboard == 2 and second.wait_mask == 1 << 2
    assert (second.stall, second.write_scoreboard) == (5, 7)


def test_control_fields() -> None:
    word = 11 << 41 | 3 << 46 | 5 << 49 | 0b101010 << 52
    assert control_fields(word) == (11, 3, 5, 0b101010)


@pytest.mark.parametrize(
    ("target", "wanted", "found"),
    [
        ("sm_80", "sm_86", "sm_86"),
        ("sm_90", "sm_86", "sm_90"),
        ("sm_50", "sm_70", "sm_75"),
        ("sm_90a", "sm_80", "sm_90a"),
    ],
)
def test_the_architecture_to_assemble_for(target: str, wanted: str, found: str) -> None:
    assert assembled_for(f".version 8.0\n.target {target}, debug\n".encode(), wanted) == found


def test_loads_come_first() -> None:
    body = """ld.global.f32 %f1, [%rd1];
        add.f32 %f2, %f1, %f1;
        st.shared.f32 [s], %f2;
        ld.global.f32 %f3, [%rd1+4];
        st.shared.f32 [s+4], %f3;"""
    assert order(body) == ["ld.global.f32", "ld.global.f32", "add.f32", "st.shared.f32", "st.shared.f32", "ret"]


@pytest.mark.parametrize(
    ("between", "passes"),
    [
        ("st.global.f32 [%rd1+8], %f9;", True),  # another word behind the same register
        ("st.global.f32 [%rd1+4], %f9;", False),  # the same word
        ("st.global.f32 [%rd2], %f9;", False),  # may be the same
        ("st.shared.f32 [s], %f9;", True),
        ("red.global.add.u32 [%rd2], %r1;", False),
        ("membar.gl;", False),
        ("mov.b32 %r9, %r8;", True),
    ],
)
def test_what_a_load_passes(between: str, passes: bool) -> None:
    names = order(f"add.f32 %f9, %f8, %f7;\n{between}\nld.global.f32 %f3, [%rd1+4];")
    assert (names[0] == "ld.global.f32") == passes


@pytest.mark.parametrize("name", ["hotspot", "nw", "scan", "reduction"])
def test_hoisting_keeps_every_instruction_and_dependence(name: str) -> None:
    code = open_session(name).launch(0).program
    kinds = kinds_of(code)
    for block in code.blocks:
        placed = hoisted(block, code, kinds)
        assert len(set(placed)) == len(placed)
        every = set(range(block.start, block.stop))
        assert every - set(placed) <= {i for i in every if is_dropped(code.instructions[i], kinds[i])}
        at = {i: n for n, i in enumerate(placed)}
        for early in placed:  # whoever reads a register does so on the same side of each of its writers
            for late in (i for i in placed if i > early and set(code.instructions[early].writes()) & _touched(code, i)):
                assert at[early] < at[late]


def _touched(code, i: int) -> set:
    instruction = code.instructions[i]
    guard = {instruction.guard.register} if instruction.guard else set()
    return {*instruction.reads(), *instruction.writes(), *guard}


@cache
def fallback(name: str):
    """A benchmark opened, and its first launch as PTX with loads hoisted."""
    session = open_session(name)
    code = build_timed_code(session.launch(0).program, GPU.pipeline, Assembly("no assembler"))
    return session, code


@pytest.mark.parametrize("name", ["hotspot", "nw", "bfs", "histogram_atomics"])
def test_without_an_assembler_every_access_is_made_once(name: str) -> None:
    session, code = fallback(name)
    trace = session.traces.trace(0)
    found = project(trace, code)
    assert found.accesses == found.matched_accesses and found.machine_instructions == 0
    assert np.array_equal(np.diff(found.trace.conflict_offsets), np.diff(trace.conflict_offsets))
    own, made = (records_by_warp(t) for t in (trace, found.trace))
    assert all(np.array_equal(a, b) for a, b in zip(own, made, strict=True))
    assert "hoisted" in code.description and "no assembler" in code.description


def records_by_warp(trace):
    """Sorted (line, sectors) of each warp, parameters left out."""
    for start, end in zip(trace.record_offsets, trace.record_offsets[1:], strict=False):
        records = trace.records[start:end]
        keep = (line_of(records) < PARAM_WINDOW_LINE) | (sectors_of(records) == 0)
        yield np.sort(records[keep] & ~np.uint32(1))


def test_timed_code_as_a_file() -> None:
    _, code = fallback("hotspot")
    again = decoded(TimedCode, encoded(code))
    for name, value in asdict(code).items():
        if name != "table":
            assert np.array_equal(getattr(again, name), value)
    assert np.array_equal(again.table.waits, code.table.waits)


def test_a_gpu_of_the_reference_is_timed_as_ptx() -> None:
    session, gtx480 = open_session("nn_euclid"), load_gpu("gtx480_perfect")
    assert session.timed_code(0, gtx480) is None
    inputs = session.inputs(0, gtx480)
    assert inputs.trace is session.traces.trace(0) and inputs.table is session.table(0, gtx480)


def test_the_result_names_what_was_timed(monkeypatch) -> None:
    monkeypatch.setattr(assemble, "toolkits", lambda: ())
    with_none = abstim.run("nn_euclid", gpu=GPU).launches[0]
    assert "hoisted" in with_none.timed_code and "abstim[sass]" in with_none.timed_code
    assert with_none.machine_code_share == 0 and with_none.matched_access_share == 1
    assert abstim.run("nn_euclid", gpu="gtx480").launches[0].timed_code == "PTX"


def test_halves_of_a_register_wait_for_it() -> None:
    code = program("ld.global.u64 %rd3, [%rd1];\nmov.b64 {%r1, %r2}, %rd3;\nst.global.u32 [%rd2], %r2;")
    table = build_timed_code(code, GPU.pipeline, Assembly("no assembler")).table
    names = [r.name for r in code.registers]
    (load,) = (row.tolist() for row in table.writes if names.index("%rd3") in row)
    stores = [row.tolist() for row, kind in zip(table.waits, table.kind, strict=True) if kind == Kind.GLOBAL_STORE]
    assert load and names.index("%rd3") in stores[0] and names.index("%r2") not in stores[0]


@needs_tools
def test_several_instructions_in_a_line_are_told_apart(tmp_path) -> None:
    text, found = HEAD + SEEN_BY_OTHERS + "\nst.global.u32 [%rd2+4], %r2; // done; done\nret;\n}\n", []
    for name, lines in (("apart", text), ("joined", text.replace(";\nadd", "; /* next; */ add"))):
        (tmp_path / name).write_text(lines)
        code = link(open_module(tmp_path / name), "k")
        found.append(build_timed_code(code, GPU.pipeline, assembly_of(code, "sm_86")))
    assert found[1].description == found[0].description and "machine code" in found[0].description
    assert found[1].origins.tolist() == found[0].origins.tolist()
    assert found[1].table.kind.tolist() == found[0].table.kind.tolist()


def test_time_does_not_follow_the_clock() -> None:
    slow, fast = (load_gpu("rtx3080", [f"core_clock_hz={hz}"]) for hz in (1e9, 2e9))
    assert fast.params.dram_sector_cycles == pytest.approx(2 * slow.params.dram_sector_cycles)
    assert fast.params.dram_latency_cycles == pytest.approx(2 * slow.params.dram_latency_cycles, abs=1)
    assert fast.params.launch_latency_cycles == 2 * slow.params.launch_latency_cycles
    assert fast.params.l1d_latency_cycles == slow.params.l1d_latency_cycles


@needs_tools
@pytest.mark.parametrize("name", ["hotspot", "nw", "matmul_tiled", "dct8x8", "lavamd", "micro_divergence"])
def test_machine_code_makes_every_access(name: str) -> None:
    session = open_session(name)
    for number, _, trace in session.each():
        code = session.timed_code(number, GPU)
        found = project(trace, code)
        assert "ptxas" in code.description
        assert found.machine_instructions == found.instructions
        assert found.matched_accesses == found.accesses
        touched = {int(line_of(r)) for r in trace.records if line_of(r) < PARAM_WINDOW_LINE and sectors_of(r)}
        assert touched == {int(line_of(r)) for r in found.trace.records if sectors_of(r)}


OPERATIONS = """.version 8.0
.target sm_80
.address_size 64
.visible .entry k(.param .u64 p)
{
.reg .pred %p<3>; .reg .b32 %r<9>; .reg .f32 %f<9>; .reg .f64 %d<9>; .reg .b64 %rd<9>;
ld.param.u64 %rd1, [p];
mov.u32 %r1, %tid.x;
mul.wide.u32 %rd2, %r1, 8;
add.s64 %rd3, %rd1, %rd2;
ld.global.f32 %f1, [%rd3];
fma.rn.f32 %f2, %f1, %f1, %f1;
mul.f32 %f3, %f2, %f1;
st.global.f32 [%rd3], %f3;
setp.gt.u32 %p1, %r1, 4;
@%p1 bra DONE;
ld.global.f64 %d1, [%rd3+2048];
fma.rn.f64 %d2, %d1, %d1, %d1;
st.global.f64 [%rd3+2048], %d2;
DONE:
ret;
}
"""


GUARDED = """.version 8.0
.target sm_80
.address_size 64
.visible .entry k(.param .u64 p)
{
.reg .pred %p<3>; .reg .b32 %r<9>; .reg .f32 %f<9>; .reg .b64 %rd<9>;
ld.param.u64 %rd1, [p];
mov.u32 %r1, %tid.x;
mul.wide.u32 %rd2, %r1, 4;
add.s64 %rd3, %rd1, %rd2;
ld.global.f32 %f1, [%rd3];
setp.gt.u32 %p1, %r1, 4;
@%p1 bra REST;
st.global.f32 [%rd3+4096], %f1;
REST:
fma.rn.f32 %f2, %f1, %f1, %f1;
fma.rn.f32 %f2, %f2, %f2, %f1;
mov.u32 %r2, 0;
LOOP: .pragma "nounroll";
add.f32 %f2, %f2, %f1;
st.global.f32 [%rd3], %f2;
add.u32 %r2, %r2, 1;
setp.lt.u32 %p2, %r2, %r1;
@%p2 bra LOOP;
ret;
}
"""


@needs_tools
def test_code_around_a_guarded_store_is_timed_for_those_who_do_not_store(tmp_path) -> None:
    """The store stands in a block of the PTX that three of four warps do not come to."""
    path = tmp_path / "k.ptx"
    path.write_text(GUARDED)
    (launch,) = abstim.run(abstim.load(path).kernel().launch(1, 128, [np.ones(2048, np.float32)]), gpu=GPU).launches
    assert launch.operations["fp32"] == 4 * 128 + sum(max(1, thread) for thread in range(128))
    assert launch.matched_access_share == 1


@pytest.mark.parametrize("tools", [pytest.param(True, marks=needs_tools), False])
def test_operations_are_those_of_the_threads_that_execute_them(tools, tmp_path, monkeypatch) -> None:
    """64 threads do three fp32 operations each, five of them two fp64 ones, whether as a branch or under a guard."""
    if not tools:
        monkeypatch.setattr(assemble, "toolkits", lambda: ())
    path = tmp_path / "k.ptx"
    path.write_text(OPERATIONS)
    (launch,) = abstim.run(abstim.load(path).kernel().launch(1, 64, [np.ones(512)]), gpu=GPU).launches
    assert launch.machine_code_share == tools
    assert launch.operations["fp32"] == 3 * 64 and launch.operations["fp64"] == 2 * 5
    assert 2 * 64 <= launch.operations["integer"] <= 8 * 64


@needs_tools
def test_what_accesses_are_taken_from_is_kept(monkeypatch) -> None:
    """However few events a timed block may cover beside those."""
    monkeypatch.setattr("precharacterize.machine_code.timed_blocks.MOST_COVERING", 1)
    session = open_session("matmul_tiled")
    program = session.launch(0).program
    code = build_timed_code(program, GPU.pipeline, assembly_of(program, "sm_86"))
    assert code.sources[:, 0].max() >= 1
    for n, (first, end) in enumerate(zip(code.accesses_at, code.accesses_at[1:], strict=False)):
        sources = code.sources[code.accesses[first, 1] : code.accesses[end - 1, 2], 0] if end > first else []
        assert all(s < code.covers_at[n + 1] - code.covers_at[n] for s in sources)


@needs_tools
def test_parameters_come_from_a_line_of_their_own() -> None:
    """The first instruction of a kernel that reads them, so that a cold SM waits once more; nothing else moves."""
    program = open_session("nn_euclid").launch(0).program
    code = timed_code_of(program, GPU.pipeline, "sm_86")
    machine = code.table.pcs[code.table.block_start[len(program.blocks)] :]
    line = GPU.pipeline.fetch_line_instructions
    assert machine[0] % line == line - 1 and machine[0] - line > machine[1:].max()
    assert (np.diff(np.sort(machine[1:])) >= 1).all()


@pytest.mark.parametrize(
    ("opcode", "share"),
    [("HMMA.16816.F32", 1), ("HMMA.1688.F32.BF16", 0.5), ("HMMA.1688.F32.TF32", 1), ("IMMA.16832.S8.S8", 1),
     ("IMMA.16864.S4.S4", 1), ("DMMA.884", 2), ("DMMA.16816", 64 / 6)],
)  # fmt: skip
def test_a_matrix_unit_is_held_for_products_times_bits(opcode: str, share: float) -> None:
    """On an A100 (8 cycles of a sub-core) these are 1,024 products of fp16 a cycle an SM, and 64 of fp64; on an H100
    (6) 128 of fp64."""
    assert tensor_share(MachineInstruction(0, "", "", opcode, "", 0, 1, 7, 7, 0)) == pytest.approx(share, rel=0.002)


def test_an_h100_multiplies_faster_by_warpgroups_than_by_warps() -> None:
    """6 cycles of a sub-core (measured 6.5) where a part of `wgmma` as large takes 4."""
    pipeline = load_gpu("h100").pipeline
    times = [MachineInstruction(0, "", "", op, "", 0, 1, 7, 7, 0) for op in ("HMMA.16816.F32", "HGMMA.64x8x16.F32")]
    rows = [_row(code, None, None, pipeline, 8) for code in times]
    assert [(row.initiation_cycles, UNITS[row.unit]) for row in rows] == [(6, "tensor"), (4, "tensor")]


@needs_tools
def test_a_launch_ends_with_its_last_store(tmp_path) -> None:
    path = tmp_path / "k.ptx"
    path.write_text(HEAD + "st.global.u32 [%rd1], %r1;\nret;\n}\n")
    case = abstim.load(path).kernel().launch(1, 1, [np.zeros(4), np.zeros(4)])
    ways = [["perfect_instruction_cache=true", f"l2_request_cycles={n}"] for n in (200, 900)]
    near, far = (abstim.run(case, "rtx3080", way).launches[0].cycles for way in ways)
    assert far - near == 700


@needs_tools
def test_what_is_written_goes_to_dram_early() -> None:
    """All but a line a set of what a kernel writes, where the reference keeps as much as L2 holds."""
    kept, early = (
        abstim.run("transpose", "rtx3080", ["sm_count=8", f"l2_dirty_ways={ways}"]).launches[0].caches
        for ways in (0, 1)
    )
    assert early["dram_writes"] > kept["dram_writes"] and early["dram_reads"] == kept["dram_reads"]


@needs_tools
def test_machine_code_waits_for_what_is_written() -> None:
    code = timed_code_of(open_session("hotspot").launch(0).program, GPU.pipeline, "sm_86")
    table, first = code.table, int(code.table.block_start[len(code.streams)])
    waited = {r for r in table.waits[first:].ravel().tolist() if r >= 0}
    set_ = {r for r in (*table.writes[first:].ravel().tolist(), *table.release[first:].tolist()) if r >= 0}
    assert waited and waited <= set_
    assert (table.stall_cycles >= 1).all() and (table.stall_cycles <= 15).all()
    for start, stop, accesses in zip(
        table.block_start, table.block_stop, np.diff(code.accesses_at).tolist(), strict=True
    ):
        assert sum(consumes(k) >= 0 for k in table.kind[start:stop].tolist()) == accesses


@needs_tools
def test_kept_by_architecture_and_tool(monkeypatch, tmp_path) -> None:
    monkeypatch.setenv("ABSTIM_CACHE", str(tmp_path))
    code = open_session("nn_euclid").launch(0).program
    made = []
    monkeypatch.setattr(assemble, "_functions", lambda *a, own=assemble._functions: made.append(a[1]) or own(*a))
    for architecture in ("sm_86", "sm_86", "sm_90"):
        assembly_of(code, architecture)
    assert made == ["sm_86", "sm_90"]
    other = replace(toolkits()[0], version="V1.2.3")
    monkeypatch.setattr(assemble, "toolkits", lambda: (other,))
    assert "V1.2.3" in assembly_of(code, "sm_86").made_by and made[2:] == ["sm_86"]


RETRIES = """.reg .f64 %d<9>;
    mov.u32 %r1, %tid.x;
    cvt.rn.f64.u32 %d1, %r1;
    mov.u32 %r2, s;
    atom.shared.add.f64 %d2, [%r2], %d1;
    atom.shared.add.f64 %d3, [%r2+8], %d1;
    bar.sync 0;
    ld.shared.f64 %d4, [%r2];
    st.global.f64 [%rd1], %d4;
    ret;
    }
    """


@needs_tools
def test_an_atomic_that_became_a_loop_takes_a_round_a_lane(tmp_path) -> None:
    """The lanes of all warps take turns at a word; at the second word warps come one after the other, as each has left
    the first."""
    path = tmp_path / "k.ptx"
    path.write_text(HEAD + RETRIES)
    kernel = abstim.load(path).kernel()
    cases = {n: kernel.launch(1, n, [np.zeros(4), np.zeros(4)]) for n in (8, 32, 128)}
    code = open_session(cases[32]).timed_code(0, GPU)
    (round_cycles,) = set(code.table.round_cycles[code.table.round_cycles > 0].tolist())
    assert set(code.table.word[code.table.round_cycles > 0].tolist()) == {0, 1}
    apart = load_gpu("rtx3080", ["retry_cycles=0"])
    cycles = {n: abstim.run(case, apart).launches[0].cycles for n, case in cases.items()}
    assert cycles[32] - cycles[8] == 2 * 24 * round_cycles
    assert abs(cycles[128] - cycles[32] - 3 * 32 * round_cycles) < round_cycles
    together = abstim.run(cases[128], GPU).launches[0].cycles  # the first warp meets none, the last three others
    assert together - cycles[128] >= GPU.params.retry_cycles * 32 * (1 + 2 + 3)


@needs_tools
def test_an_unrolled_loop_is_timed_by_rounds() -> None:
    code = timed_code_of(open_session("matmul_tiled").launch(0).program, GPU.pipeline, "sm_86")
    assert code.numbers[:, 1].max() > 1 and re.match(r"machine code \(ptxas V[\d.]+ for sm_\d+\)", code.description)


def test_what_counts_ptx_instructions_refuses_machine_code() -> None:
    with pytest.raises(InputError, match="machine code"):
        refuse_machine_code(GPU, "this counts")
    with pytest.raises(InputError, match="box=True"):
        kernel_of("occupancy")("nn_euclid", ["latency_cycles.sfu"], GPU)


@needs_tools
@pytest.mark.parametrize("model", ["detailed", "occupancy"])
def test_derivatives_of_a_box_are_differences_of_what_the_model_says(model):
    kernel = kernel_of(model)("nn_euclid", ["l1d_latency_cycles"], GPU, box=True)
    (value,) = kernel.defaults()
    step = round(0.1 * value)
    less, more = (
        abstim.run("nn_euclid", load_gpu("rtx3080", ["sm_count=4", f"l1d_latency_cycles={moved:g}"]), model=model)
        .launches[0]
        .cycles
        for moved in (value - step, value + step)
    )
    assert kernel(np.array([value]))[1] == pytest.approx([(more - less) / (2 * step)])
    assert more != less  # of 9,000 cycles a tenth of the latency is some ten, in either direction


def test_a_timeline_holds_every_instruction_timed() -> None:
    session = open_session("nn_euclid")
    (launch,) = issue_logs(session, GPU)
    made = session.projected(session.traces.trace(0), session.timed_code(0, GPU))
    assert len(launch.log.cycle) == made.instructions


@needs_tools
def test_a_long_launch_of_equal_blocks_is_sampled_and_what_counts_ptx_is_refused(monkeypatch) -> None:
    gpu = load_gpu("rtx3080", ["sm_count=1"])
    monkeypatch.setattr(result, "ENOUGH_TIMED", 1.1)  # so that what is timed is said of any launch
    truth, sampled = abstim.run("nn_euclid", gpu).totals["cycles"], sample("nn_euclid", gpu, aim=Aim(error=0.05))
    assert any("are timed" in note for note in sampled.notes)
    found = sampled.estimate
    assert found.basis == "sampled" and found.detailed_fraction < 0.5 and found.low <= truth <= found.high
    for name in ("photon", "pkp"):
        with pytest.raises(InputError, match="machine code"):
            sample("nn_euclid", gpu, "full", inside=name)


@needs_tools
@pytest.mark.parametrize("gpu", ["a100", "h100"])
def test_reductions_without_a_result_are_atomics(gpu):
    """RED on the A100, REDG on the H100: those of all threads to one address take their time in L2."""
    one, many = (abstim.run(f"micro_atomics:global_{n}", gpu).launches[0] for n in (1, 4096))
    assert one.matched_access_share == 1 and one.cycles > 4 * many.cycles
