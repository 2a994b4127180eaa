"""Structures by value and variables that a host sets: from Python, from a launches.json, from a command line."""

from __future__ import annotations

import json

import numpy as np
import pytest

import abstim
from abstim.cli.run import prechecked
from functional.errors import InputError
from functional.launches.launch import Struct
from functional.launches.launches_json import load_case
from functional.llvm_executor import LlvmExecutor

# A float3 with a pointer beside it, as nvcc declares them; a structure that holds a pointer; two constants
PTX = """.version 8.0
.target sm_80
.address_size 64
.const .align 4 .f32 factor; .const .align 8 .b8 table[16]; .const .align 4 .f32 half = 0.5;
.visible .entry k(.param .align 4 .b8 v[12], .param .u64 out, .param .align 8 .b8 pair[16]) {
 .reg .b64 %rd<4>; .reg .f32 %f<9>; .reg .b32 %r<3>;
 ld.param.f32 %f1, [v]; ld.param.f32 %f2, [v+4]; ld.param.f32 %f3, [v+8]; ld.param.u64 %rd1, [out];
 ld.param.u32 %r1, [pair]; ld.param.u64 %rd2, [pair+8]; ld.global.f32 %f4, [%rd2];
 ld.const.f32 %f5, [factor]; ld.const.f32 %f6, [half]; ld.const.f32 %f7, [table+8];
 add.f32 %f1, %f1, %f2; add.f32 %f1, %f1, %f3; mul.f32 %f1, %f1, %f5; fma.rn.f32 %f1, %f6, %f4, %f1;
 add.f32 %f1, %f1, %f7; cvt.rn.f32.u32 %f8, %r1; add.f32 %f1, %f1, %f8; st.global.f32 [%rd1], %f1; ret; }
"""
EXPECTED = (1 + 2 + 4) * 10 + 0.5 * 6 + 100 + 3


@pytest.fixture
def kernel(tmp_path):
    (tmp_path / "k.ptx").write_text(PTX)
    return abstim.load(tmp_path / "k.ptx").kernel("k")


def vector():
    return Struct((np.float32(1), np.float32(2), np.float32(4)))


def test_from_python(kernel, capsys):
    out, other = np.zeros(1, np.float32), np.full(4, 6, np.float32)
    symbols = {"factor": np.float32(10), "table": np.array([0, 0, 100], np.float32)}
    launched = kernel.launch(1, 1, [vector(), out, Struct((np.uint32(3), other))], symbols=symbols)
    found = launched.outputs()
    assert found[0][0] == EXPECTED and np.array_equal(found[1], other) and not capsys.readouterr().err


def test_constants_that_nothing_sets_are_said(kernel, capsys):
    out = np.zeros(1, np.float32)
    kernel.launch(1, 1, [vector(), out, Struct((np.uint32(3), out))], symbols={"factor": np.float32(10)})
    said = capsys.readouterr().err
    assert "kernel 'k' reads constants that nothing sets" in said and "'table'" in said
    assert "'factor'" not in said and "'half'" not in said


def document(tmp_path, **changed):
    (tmp_path / "k.ptx").write_text(PTX)
    np.array([0, 0, 100], np.float32).tofile(tmp_path / "table.bin")
    np.array([6], np.float32).tofile(tmp_path / "x.bin")
    arguments = [{"struct": [{"f32": 1}, {"f32": 2}, {"f32": 4}]}, {"buf": "out"}]
    arguments += [{"struct": [{"u32": 3}, {"buf": "x"}]}]
    whole = {
        "ptx": "k.ptx",
        "buffers": {"out": {"bytes": 4, "dtype": "f32"}, "x": {"init": "x.bin", "dtype": "f32"}},
        "symbols": {"factor": {"f32": 10}, "table": "table.bin"},
        "launches": [{"kernel": "k", "grid": 1, "block": 1, "args": arguments}],
    }
    (tmp_path / "launches.json").write_text(json.dumps(whole | changed))
    return tmp_path / "launches.json"


def test_from_a_file(tmp_path, capsys):
    path = document(tmp_path)
    case = prechecked(lambda: load_case(path), check=False, strict=True)()  # no constant of it has no values
    LlvmExecutor().run(case.launches[0], case.memory)
    assert case.memory.read("out", np.float32)[0] == EXPECTED and not capsys.readouterr().err
    load_case(document(tmp_path, symbols={}))
    assert "'factor', 'table'" in capsys.readouterr().err


WRONG = [
    ({"symbols": {"nothing": {"f32": 1}}}, "no variable 'nothing'; it has factor, table, half"),
    ({"symbols": {"factor": {"f64": 1}}}, "'factor' has 4 bytes, 8 are given"),
    ({"symbols": {"factor": {}}}, "expected a file, or one type"),
]


@pytest.mark.parametrize("changed,message", WRONG)
def test_a_wrong_symbol_is_said(tmp_path, changed, message):
    with pytest.raises(InputError, match=message):
        load_case(document(tmp_path, **changed))


@pytest.mark.parametrize(
    "members,message",
    [([{"f32": 1}, {"f32": 2}], "expected 12 bytes, the argument has 8"), ([5], "a member of a structure is like")],
)
def test_a_wrong_structure_is_said(tmp_path, members, message):
    arguments = [{"struct": members}, {"buf": "out"}, {"struct": [{"u32": 3}, {"buf": "x"}]}]
    launches = [{"kernel": "k", "grid": 1, "block": 1, "args": arguments}]
    with pytest.raises(InputError, match=message):
        load_case(document(tmp_path, launches=launches))


def test_from_a_command_line(kernel):
    given = kernel.parse_arguments(["struct(f32:1,f32:2,f32:4)", "buf:f32:1", "struct(u32:3,buf:f32:4)"])
    symbols = {"factor": np.float32(10), "table": np.array([0, 0, 100], np.float32)}
    assert kernel.launch(1, 1, given, symbols=symbols).outputs()[0][0] == EXPECTED - 0.5 * 6
    with pytest.raises(InputError, match="a member needs its type"):
        kernel.parse_arguments(["struct(1,f32:2,f32:4)", "buf:f32:1", "5"])
    with pytest.raises(InputError, match=r"is given as struct\(f32:1"):
        kernel.parse_arguments(["5", "buf:f32:1", "5"])
