"""Several launches on one memory: pointers in it, variables, parts of it that are expected; from Python and a file."""

from __future__ import annotations

import json

import numpy as np
import pytest

import abstim
from functional.errors import InputError
from functional.launches.launch import Struct
from functional.launches.launches_json import load_case
from functional.llvm_executor import LlvmExecutor

# `scale<float>(float *x)` multiplies by a variable; `walk(node *first, float *sum)` follows {next, value, pad} to a
# null pointer; `through()` adds one to what a variable points to
PTX = """.version 8.0
.target sm_80
.address_size 64
.global .align 4 .f32 factor = 0f40000000; .global .align 8 .u64 target;
.visible .entry _Z5scaleIfEvPT_(.param .u64 x) {
 .reg .b64 %rd<4>; .reg .f32 %f<4>; .reg .b32 %r<4>;
 ld.param.u64 %rd1, [x]; mov.u32 %r1, %tid.x; mul.wide.u32 %rd2, %r1, 4; add.s64 %rd3, %rd1, %rd2;
 ld.global.f32 %f1, [%rd3]; ld.global.f32 %f2, [factor]; mul.f32 %f3, %f1, %f2; st.global.f32 [%rd3], %f3; ret; }
.visible .entry walk(.param .align 8 .b8 list[16]) {
 .reg .b64 %rd<4>; .reg .f32 %f<4>; .reg .pred %p;
 ld.param.u64 %rd1, [list]; ld.param.u64 %rd2, [list+8]; mov.f32 %f1, 0f00000000;
AGAIN: setp.eq.u64 %p, %rd1, 0; @%p bra DONE;
 ld.global.f32 %f2, [%rd1+8]; add.f32 %f1, %f1, %f2; ld.global.u64 %rd1, [%rd1]; bra AGAIN;
DONE: st.global.f32 [%rd2], %f1; ret; }
.visible .entry through() {
 .reg .b64 %rd<2>; .reg .f32 %f<3>;
 ld.global.u64 %rd1, [target]; ld.global.f32 %f1, [%rd1]; 
 add.f32 %f2, %f1, 0f3F800000; st.global.f32 [%rd1], %f2; ret; }
"""
NODE = np.dtype([("next", "<u8"), ("value", "<f4"), ("pad", "<u4")])


@pytest.fixture
def program(tmp_path):
    (tmp_path / "k.ptx").write_text(PTX)
    return abstim.load(tmp_path / "k.ptx").program()


def chain(count=3):
    nodes = np.zeros(count, NODE)
    nodes["value"] = np.arange(1, count + 1)
    return nodes.view(np.uint8)


def test_launches_share_memory(program):
    x = np.arange(8, dtype=np.float32)
    program.set("factor", np.float32(3))
    program.launch("scale<float>", 1, 8, [x])
    assert np.array_equal(program.output(x), 3 * np.arange(8))
    program.launch("_Z5scaleIfEvPT_", 1, 4, [program.pointer(x, 16)])
    assert np.array_equal(program.output(x), [0, 3, 6, 9, 36, 45, 54, 63]) and np.array_equal(x, np.arange(8))
    assert program.variable("factor", np.float32)[0] == 3 and len(program.outputs()) == 1
    result = abstim.run(program, overrides={"perfect_memory": True})
    assert [launch.kernel for launch in result.launches] == ["_Z5scaleIfEvPT_"] * 2


def test_what_a_launch_comes_after_is_read_once(program):
    x = np.arange(8, dtype=np.float32)
    first = program.launch("scale<float>", 1, 8, [x], stream="a")
    assert program.launch("scale<float>", 1, 8, [x], stream="b", after=(one for one in [first])).order.after == (0,)


def test_structures_in_memory_and_a_variable_that_points(program):
    nodes, total = chain(), np.zeros(1, np.float32)
    program.point(nodes, 0, nodes, 2 * NODE.itemsize)  # 1, then 3, then 2
    program.point(nodes, 2 * NODE.itemsize, nodes, NODE.itemsize)
    program.set("target", program.address(nodes, 8))
    program.launch("through", 1, 1)
    program.launch("walk", 1, 1, [Struct((nodes, total))])
    assert program.output(total)[0] == 1 + 1 + 3 + 2


def test_what_is_expected_of_a_part(program):
    x = np.arange(8, dtype=np.float32)
    program.launch("scale<float>", 1, 8, [x])
    program.expect(x, [4, 0, 8], first=2, compared=[True, False, True])
    (output,) = abstim.run(program, overrides={"perfect_memory": True}).outputs
    assert (output.elements, output.mismatches) == (2, 0)
    program.expect(x, [4, 0, 8], first=2)
    (output,) = abstim.run(program, overrides={"perfect_memory": True}).outputs
    assert (output.elements, output.mismatches) == (3, 1) and "first [3] is 6.0, expected 0.0" in output.message


@pytest.mark.parametrize(
    "act,message",
    [
        (lambda p, x: p.set("nothing", np.float32(1)), "no variable 'nothing'; it has factor, target"),
        (lambda p, x: (p.launch("through", 1, 1), p.set("factor", np.float32(1))), "before the first launch"),
        (lambda p, x: p.pointer(x, 33), "offset 33 is outside"),
        (lambda p, x: p.point(x, 28, x), "a pointer at byte 28 is outside"),
        (lambda p, x: p.expect(x, np.zeros(9)), "does not fit its 8 elements"),
        (lambda p, x: p.output(x), "no launch was given this array"),
        (lambda p, x: p.address("text"), "a str is no array"),
        (lambda p, x: p.launch("scale<int>", 1, 1, [x]), "did you mean 'scale<float>'"),
        (lambda p, x: p.variable("none", np.int32), "no .global variable 'none'"),
        (lambda p, x: p.set("factor", 2), "a number with its type, like numpy.float32"),
        (lambda p, x: p.set("factor", [2.0]), "a number with its type, like numpy.float32"),
        (lambda p, x: p.set("factor", np.ones(1, ">f4")), "an order that no GPU reads"),
        (lambda p, x: p.expect(x.view(np.int32), [1.5]), "cannot be held by its int32"),
        (
            lambda p, x: (p.pointer(x), p.pointer(x[4:])),
            "array: memory of array, given as another array|would be copied",
        ),
        (
            lambda p, x: (p.launch("scale<float>", 1, 8, [x]), x.fill(3), p.launch("scale<float>", 1, 8, [x])),
            "has changed",
        ),
    ],
)
def test_what_is_wrong_is_said(program, act, message):
    with pytest.raises(InputError, match=message):
        act(program, np.arange(8, dtype=np.float32))


def test_a_name_of_two_kernels_is_refused(tmp_path):
    body = "(.param .u64 x) { ret; }\n.visible .entry "
    text = PTX.partition(".global")[0] + f".visible .entry _Z3addPf{body}_Z3addPi(.param .u64 x) {{ ret; }}\n"
    (tmp_path / "k.ptx").write_text(text)
    loaded = abstim.load(tmp_path / "k.ptx")
    assert loaded.kernel("_Z3addPi").name == "_Z3addPi"
    with pytest.raises(InputError, match="2 kernels are called 'add'; choose _Z3addPf or _Z3addPi"):
        loaded.kernel("add")


def document(tmp_path, **changed):
    (tmp_path / "k.ptx").write_text(PTX)
    chain().tofile(tmp_path / "nodes.bin")
    np.save(tmp_path / "part.npy", np.array([4, 0, 8], np.float32))
    np.array([1, 0, 1], np.uint8).tofile(tmp_path / "mask.bin")
    np.save(tmp_path / "x.npy", np.arange(8, dtype=np.float32))
    x = {"init": "x.npy", "dtype": "f32", "expect": "part.npy", "expect_offset": 8, "expect_mask": "mask.bin"}
    pointers = [{"at": 0, "buf": "nodes", "offset": 32}, {"at": 32, "buf": "nodes", "offset": 16}]
    whole = {
        "ptx": "k.ptx",
        "buffers": {
            "x": x | changed.pop("x", {}),
            "nodes": {"init": "nodes.bin", "pointers": changed.pop("pointers", pointers)},
            "total": {"bytes": 4, "dtype": "f32"},
        },
        "symbols": {"target": {"buf": "nodes", "offset": 8}},
        "launches": [
            {"kernel": "scale<float>", "grid": 1, "block": 8, "args": [{"buf": "x"}]},
            {"kernel": "through", "grid": 1, "block": 1},
            {"kernel": "walk", "grid": 1, "block": 1, "args": [{"struct": [{"buf": "nodes"}, {"buf": "total"}]}]},
        ],
    }
    (tmp_path / "launches.json").write_text(json.dumps(whole | changed))
    return tmp_path / "launches.json"


def test_the_same_from_a_file(tmp_path):
    case, executor = load_case(document(tmp_path)), LlvmExecutor()
    for launch in case.launches:
        executor.run(launch, case.memory)
    assert case.memory.read("total", np.float32)[0] == 7 and not case.compare(case.memory)
    assert [str(m) for m in load_case(document(tmp_path, x={"expect_mask": None})).compare(case.memory)] == [
        "x: 1 of 3 elements differ, first [3] is 6.0, expected 0.0"
    ]


@pytest.mark.parametrize(
    "changed,message",
    [
        ({"x": {"expect_offset": 6}}, "expect_offset 6 is not a whole number of f32"),
        ({"x": {"expect_offset": 24}}, "has 32 bytes, but part.npy has 12"),
        ({"x": {"expect_offset": None}}, "has 32 bytes, but part.npy has 12"),
        ({"x": {"expect_mask": "nodes.bin"}}, "expect_mask has 48 elements, part.npy has 3"),
        ({"pointers": [{"at": 44, "buf": "x"}]}, "a pointer at byte 44 is outside buffer 'nodes'"),
        ({"pointers": [{"at": 0, "buf": "none"}]}, "no buffer 'none'"),
        ({"pointers": [{"at": 0, "bufer": "x"}]}, "unknown key 'bufer' in buffers"),
        ({"symbols": {"target": {"struct": [{"f32": 1}]}}}, "a buffer's address or a texture"),
    ],
)
def test_a_wrong_file_is_said(tmp_path, changed, message):
    with pytest.raises(InputError, match=message):
        load_case(document(tmp_path, **changed))
