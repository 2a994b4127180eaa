"""Latency tables: classes, issue gaps against what the reference measures, the file on disk."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from abstim.gpu.config import load_gpu
from functional.programs.link import link
from functional.ptx.parser import parse
from precharacterize import characterize
from precharacterize.bounds import block_bounds
from precharacterize.classify import Kind, hardware_class, kind_of, latency_class
from precharacterize.table import brought

PIPELINE = load_gpu("gtx480_perfect").pipeline
HEAD = """.version 9.0
.target sm_80
.address_size 64
.visible .entry k(.param .u64 p, .param .u32 n)
{
.reg .pred %p<9>; .reg .b32 %r<40>; .reg .f32 %f<40>; .reg .b64 %rd<40>; .reg .f64 %fd<40>;
.shared .align 4 .b8 s[256];
"""


def program(body: str):
    """A kernel around some instructions."""
    return link(parse(HEAD + body + "\nret;\n}\n"), "k")


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("add.s32 %r1, %r2, %r3;", "int_add"),
        ("sub.f32 %f1, %f2, %f3;", "fp32_add"),
        ("mad.wide.u32 %rd1, %r2, %r3, %rd4;", "int_mad"),
        ("fma.rn.f64 %fd1, %fd2, %fd3, %fd4;", "fp64_mad"),
        ("max.f32 %f1, %f2, %f3;", "fp32_max"),
        ("rem.s32 %r1, %r2, %r3;", "int_div"),
        ("div.rn.f32 %f1, %f2, %f3;", "fp32_div"),
        ("sqrt.rn.f32 %f1, %f2;", "sfu"),
        ("cvt.f64.f32 %fd1, %f2;", "other"),
        ("setp.lt.s32 %p1, %r2, %r3;", "other"),
    ],
)
def test_latency_classes(text: str, name: str) -> None:
    assert latency_class(program(text).instructions[0]) == name


@pytest.mark.parametrize("text, name", [
    ("cvt.rzi.s64.f32 %rd1, %f1;", "convert_64bit"), ("cvt.rn.f32.u64 %f1, %rd1;", "convert_64bit"),
    ("cvt.rzi.s32.f32 %r1, %f1;", "convert"), ("cvt.u64.u32 %rd1, %r1;", "other"),
    ("fma.rn.f16x2 %r1, %r1, %r1, %r1;", "fp16"), ("fma.rn.f32 %f1, %f1, %f1, %f1;", "fp32_mad"),
])  # fmt: skip
def test_classes_of_hardware(text: str, name: str) -> None:
    assert hardware_class(program(text).instructions[0]) == name


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("ld.param.u64 %rd1, [p];", Kind.PARAM_LOAD),
        ("ld.shared.f32 %f1, [s];", Kind.SHARED_LOAD),
        ("st.global.f32 [%rd1], %f1;", Kind.GLOBAL_STORE),
        ("ld.f32 %f1, [%rd1];", Kind.GLOBAL_LOAD),
        ("ld.global.cg.f32 %f1, [%rd1];", Kind.L2_LOAD),
        ("atom.shared.add.u32 %r1, [s], 1;", Kind.SHARED_ATOMIC),
        ("red.global.add.u32 [%rd1], %r1;", Kind.GLOBAL_ATOMIC),
        ("bar.sync 0;", Kind.BARRIER),
        ("bar.warp.sync -1;", Kind.ALU),
        ("membar.gl;", Kind.FENCE),
    ],
)
def test_kinds(text: str, kind: Kind) -> None:
    assert kind_of(program(text).instructions[0], in_entry=True) == kind


@pytest.mark.parametrize(
    ("text", "gap_cycles"),  # "Issue-to-issue on a RAW dependency" of the reference: latency + 6
    [
        ("and.b32 %r1, %r2, %r3; and.b32 %r4, %r1, %r1;", 7),
        ("add.s32 %r1, %r2, %r3; add.s32 %r4, %r1, %r1;", 10),
        ("fma.rn.f32 %f1, %f2, %f3, %f4; add.f32 %f5, %f1, %f1;", 11),
        ("max.s32 %r1, %r2, %r3; add.s32 %r4, %r1, %r1;", 19),
        ("sin.approx.f32 %f1, %f2; add.f32 %f5, %f1, %f1;", 14),
        ("add.f64 %fd1, %fd2, %fd3; add.f64 %fd4, %fd1, %fd1;", 14),
        ("div.rn.f32 %f1, %f2, %f3; add.f32 %f5, %f1, %f1;", 45),
        ("div.s32 %r1, %r2, %r3; add.s32 %r5, %r1, %r1;", 151),
        ("div.rn.f64 %fd1, %fd2, %fd3; add.f64 %fd5, %fd1, %fd1;", 336),
        ("ld.shared.u32 %r1, [%r2]; add.s32 %r5, %r1, %r1;", 32),
        ("ld.global.u32 %r1, [%rd2]; add.s32 %r5, %r1, %r1;", 40),
        ("ld.param.u32 %r1, [n]; add.s32 %r5, %r1, %r1;", 4),
        ("mov.u32 %r1, 5; add.s32 %r5, %r1, %r1;", 6),  # latency + 5: nothing is read from the register file
        ("add.s32 %r1, %r2, %r18; add.s32 %r4, %r1, %r1;", 11),  # 2 and 18 share bank 2
    ],
)
def test_gaps_of_dependent_instructions_equal_the_reference(text: str, gap_cycles: int) -> None:
    assert characterize(program(text), PIPELINE).gap_cycles[0] == gap_cycles


def test_products_of_24_bits_take_a_cycle_more() -> None:
    """As in GPGPU-Sim 4.2 (set_opcode_and_latency)."""
    body = "mul.lo.s32 %r1, %r2, %r3; mul24.lo.s32 %r4, %r5, %r6;"
    table = characterize(program(body), PIPELINE)
    for column in (table.latency_cycles, table.initiation_cycles):
        assert column[1] == column[0] + 1


def test_predicates_are_read_and_written_as_registers() -> None:
    """A number is read once, whatever it is of."""
    table = characterize(program("setp.lt.s32 %p3, %r1, %r2; selp.b32 %r1, %r3, %r5, %p3;"), PIPELINE)
    assert table.write_banks[0].tolist()[0] == 3 and [b for b in table.read_banks[1].tolist() if b >= 0] == [3, 5]


def test_a_wide_fetch_stays_on_its_line_and_a_pair_does_not() -> None:
    """As GPGPU-Sim 4.2 decodes, and as hardware, whose fetches are wider, would have to look up two lines."""
    assert [brought(8, 64, pc) for pc in (0, 56, 60, 63, 64)] == [8, 8, 4, 1, 8]
    assert [brought(2, 16, pc) for pc in (14, 15)] == [2, 2]


def test_independent_instructions_issue_in_fetch_pairs() -> None:
    body = "".join(f"add.s32 %r{2 * i + 2}, %r0, %r1;" for i in range(8))
    assert characterize(program(body), PIPELINE).gap_cycles[:7].tolist() == [1, 2, 1, 2, 1, 2, 1]


@pytest.fixture
def own_cache(tmp_path: Path, monkeypatch) -> Path:
    monkeypatch.setenv("ABSTIM_CACHE", str(tmp_path))
    return tmp_path / "tables"


def test_a_table_is_kept_and_read_back(own_cache: Path, monkeypatch) -> None:
    code = program("add.s32 %r1, %r2, %r3;")
    first = characterize(code, PIPELINE)
    monkeypatch.setattr("precharacterize.build.build_table", lambda *_: pytest.fail("built again"))
    again = characterize(code, PIPELINE)
    assert len(list(own_cache.iterdir())) == 1
    assert again.key == first.key and (again.waits == first.waits).all()


@pytest.mark.parametrize("damage", [b"", b"nonsense", None])
def test_a_damaged_table_is_made_again_and_said_so(own_cache: Path, capsys, damage: bytes | None) -> None:
    code = program("add.s32 %r1, %r2, %r3;")
    first = characterize(code, PIPELINE)
    (file,) = own_cache.iterdir()
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(bytes(content) if damage is None else damage)
    again = characterize(code, PIPELINE)
    (said,) = capsys.readouterr().err.splitlines()
    assert str(file) in said and "damaged" in said and "made again" in said
    assert (again.gap_cycles == first.gap_cycles).all()
    characterize(code, PIPELINE)
    assert not capsys.readouterr().err


def test_the_key_depends_on_program_and_pipeline() -> None:
    one, two = program("add.s32 %r1, %r2, %r3;"), program("add.s32 %r1, %r2, %r4;")
    other = replace(PIPELINE, shared_cycles=PIPELINE.shared_cycles + 1)
    keys = {characterize(p, pipeline).key for p in (one, two) for pipeline in (PIPELINE, other)}
    assert len(keys) == 4


def test_the_longest_chain_and_the_busiest_unit_of_a_block():
    """By hand: c needs a and b, d needs c; e is alone."""
    table = SimpleNamespace(
        waits=np.array([[-1, -1], [-1, -1], [1, 2], [3, -1], [-1, -1]]), writes=np.array([[1], [2], [3], [4], [5]]),
        result_cycles=np.array([4, 20, 6, 10, 30]), unit=np.array([0, 1, 0, 0, 2]),
        initiation_cycles=np.array([1, 8, 2, 1, 0]),
    )  # fmt: skip
    found = block_bounds(table, 0, 5)
    assert found.path == (1, 2, 3) and found.path_cycles == 36
    assert found.unit_cycles == {"sp": 4, "sfu": 8, "mem": 1}
    assert block_bounds(table, 4, 5).path == (4,) and block_bounds(table, 2, 2).path_cycles == 0


def test_the_chain_of_a_real_program():
    found = program("add.s32 %r1, %r2, %r3;\nmul.lo.s32 %r4, %r1, %r1;\nadd.s32 %r6, %r2, %r3;\nadd.s32 %r5, %r4, %r2;")
    table = characterize(found, PIPELINE)
    bounds = block_bounds(table, 0, 4)
    assert bounds.path == (0, 1, 3) and bounds.path_cycles == table.result_cycles[[0, 1, 3]].sum()
    assert sum(bounds.unit_cycles.values()) == table.initiation_cycles[:4].clip(1).sum()
