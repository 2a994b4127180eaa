"""Textures and surfaces against values worked out by hand from the CUDA programming guide's formulas."""

from __future__ import annotations

import json
from fractions import Fraction

import numpy as np
import pytest
from ptx_kernels import HEADER, REGISTERS, module

from abstim.models import run
from functional.errors import ExecutionError, InputError
from functional.launches.launch import Pointer, make_launch
from functional.launches.launches_json import load_case
from functional.launches.memory import Memory
from functional.launches.views import Texture
from functional.llvm_executor import LlvmExecutor
from functional.programs.link import link


def kernel(body: str) -> str:
    """`body` in 32 threads: the object is %rd1, %f1 and %f2 the thread's coordinates; it leaves %f5 and %f6."""
    return (
        f".entry k(.param .u64 t, .param .u64 c, .param .u64 o) {{ {REGISTERS} ld.param.u64 %rd1, [t]; "
        f"ld.param.u64 %rd2, [c];\n"
        "ld.param.u64 %rd3, [o]; mov.u32 %r0, %tid.x; mad.wide.u32 %rd2, %r0, 8, %rd2; "
        "mad.wide.u32 %rd3, %r0, 8, %rd3;\n"
        f"ld.global.v2.f32 {{%f1, %f2}}, [%rd2];\n{body}\nst.global.v2.f32 [%rd3], {{%f5, %f6}}; ret; }}\n"
    )  # fmt: skip


def sample(
    body: str, texels: np.ndarray, coordinates: np.ndarray, **texture: object
) -> tuple[np.ndarray, Memory, list]:
    """(results [32, 2], memory, trace records)."""
    parsed = module(kernel(body))
    memory = Memory(parsed.variables)
    memory.allocate("texels", texels.nbytes, texels)
    spread = np.zeros((32, 2), np.float32)
    spread[: len(coordinates)] = coordinates
    memory.allocate("c", 256, spread)
    memory.allocate("o", 256)
    arguments = [Texture("texels", **texture), Pointer("c"), Pointer("o")]  # type: ignore[arg-type]
    trace = LlvmExecutor().run(make_launch(link(parsed, "k"), 1, 32, arguments, memory), memory)
    return memory.read("o", np.float32).reshape(32, 2), memory, trace.records.tolist()


TEX2D = "tex.2d.v4.f32.f32 {%f5, %f6, %f7, %f8}, [%rd1, {%f1, %f2}];"
GRID = (np.arange(12, dtype=np.float32) ** 2).reshape(3, 4)  # 4 texels wide, 3 high


def test_nearest_texel_and_clamp() -> None:
    at = np.array([[0.0, 0.0], [3.99, 1.2], [-5, 2.5], [7, -1], [1.5, 9]], np.float32)
    out, _, _ = sample(TEX2D, GRID, at, size=(4, 3))
    assert out[:5, 0].tolist() == [GRID[0, 0], GRID[1, 3], GRID[2, 0], GRID[0, 3], GRID[2, 1]]
    assert out[:5, 1].tolist() == [0] * 5  # no second channel


def test_linear_filtering() -> None:
    at = np.array([[1.0, 1.0], [2.25, 1.5], [0.1, 0.5], [3.7, 2.9]], np.float32)
    out, _, _ = sample(TEX2D, GRID, at, size=(4, 3), linear=True)

    def texel(x: int, y: int) -> Fraction:
        return Fraction(float(GRID[min(max(y, 0), 2), min(max(x, 0), 3)]))

    for n, (x, y) in enumerate(at.astype(float).tolist()):
        i, j = int(np.floor(x - 0.5)), int(np.floor(y - 0.5))
        a, b = (Fraction(round((v - 0.5 - k) * 256), 256) for v, k in ((x, i), (y, j)))
        want = (1 - a) * (1 - b) * texel(i, j) + a * (1 - b) * texel(i + 1, j) + (1 - a) * b * texel(i, j + 1)
        assert out[n, 0] == np.float32(float(want + a * b * texel(i + 1, j + 1)))


@pytest.mark.parametrize(
    "mode,want", [("border", [0, 0, 3]), ("wrap", [1, 3, 3]), ("mirror", [2, 0, 3]), ("clamp", [3, 0, 3])]
)
def test_address_modes(mode: str, want: list[int]) -> None:
    texels = np.arange(4, dtype=np.float32)
    at = np.array([[1.4, 0], [-0.125, 0], [0.875, 0]], np.float32)
    out, _, _ = sample(
        "tex.1d.v4.f32.f32 {%f5, %f6, %f7, %f8}, [%rd1, {%f1}];", texels, at, size=(4,), address=mode, normalized=True
    )
    assert out[:3, 0].tolist() == want


def test_integer_texels_channels_and_fetches() -> None:
    texels = np.array([[0, 255, 51, 102], [10, 20, 30, 40]], np.uint8)
    out, _, _ = sample(TEX2D, texels, np.array([[0, 0], [1, 0]]), size=(2, 1), type="u8", channels=4, as_float=True)
    assert out[:2].tolist() == [[0.0, 1.0], [np.float32(10 / 255), np.float32(20 / 255)]]
    body = (
        "cvt.rzi.s32.f32 %r1, %f1; tex.1d.v4.s32.s32 {%r2, %r3, %r4, %r5}, [%rd1, {%r1}]; "
        "cvt.rn.f32.s32 %f5, %r3; cvt.rn.f32.s32 %f6, %r5;"
    )
    out, _, _ = sample(
        body, np.arange(-8, 0, dtype=np.int16), np.array([[0, 0], [3, 0], [4, 0]]), size=(4,), type="s16", channels=2
    )
    assert out[:3].tolist() == [[-7, 1], [-1, 1], [0, 1]]  # the last one is outside


def test_layers_volumes_and_lines() -> None:
    cube = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
    body = (
        "mov.f32 %f3, 0f3F800000; tex.3d.v4.f32.f32 {%f5, %f9, %f7, %f8}, [%rd1, {%f1, %f2, %f3, %f3}]; mov.u32 %r1, 1;"
    )
    body += "tex.a2d.v4.f32.f32 {%f6, %f9, %f7, %f8}, [%rd1, {%r1, %f1, %f2, %f2}];"
    out, _, records = sample(body, cube, np.array([[2, 1]] * 32), size=(4, 3, 2))
    assert out[:, 0].tolist() == [cube[1, 1, 2]] * 32 and out[:, 1].tolist() == [cube[1, 1, 2]] * 32
    assert len(records) == 3 + 2 + 1 + 1 + 2  # parameters, coordinates, one line a fetch, results


# direction (x, y; z = 0.5) -> face and texel, by hand from the table of the CUDA C++ Programming Guide
DIRECTIONS = [
    ((1, 0.25), (0, 0, 0)), ((-1, -0.25), (1, 1, 1)), ((0.25, 1), (2, 1, 1)), ((0.25, -1), (3, 0, 1)),
    ((-0.25, 0.25), (4, 0, 0)), ((0.25, -0.25), (4, 1, 1)),
]  # fmt: skip


def test_cube_maps() -> None:
    """Texel values are face, row, column; the last layer of two; behind it the direction with z = -0.5."""
    faces = np.array([[[100 * f + 10 * r + c for c in range(2)] for r in range(2)] for f in range(12)], np.float32)
    body = (
        "mov.f32 %f3, 0f3F000000; tex.cube.v4.f32.f32 {%f5, %f9, %f7, %f8}, [%rd1, {%f1, %f2, %f3, %f3}];"
        "mov.u32 %r1, 1; neg.f32 %f3, %f3; tex.acube.v4.f32.f32 {%f6, %f9, %f7, %f8}, [%rd1, {%r1, %f1, %f2, %f3}];"
    )
    places = np.array([place for place, _ in DIRECTIONS] * 4)
    out, _, _ = sample(body, faces, places, size=(2, 2, 12), normalized=True)
    assert out[:6, 0].tolist() == [faces[face, row, column] for _, (face, row, column) in DIRECTIONS]
    backwards = [(6, 0, 1), (7, 1, 0), (8, 0, 1), (9, 1, 1), (11, 0, 1), (11, 1, 0)]
    assert out[:6, 1].tolist() == [faces[place] for place in backwards]


SURFACE = (
    "cvt.rzi.s32.f32 %r1, %f1; cvt.rzi.s32.f32 %r2, %f2; "
    "suld.b.2d.v2.b32.zero {%r3, %r4}, [%rd1, {%r1, %r2}]; mov.b32 %f5, %r3; mov.b32 %f6, %r4;"
)


def test_surfaces() -> None:
    plane = np.arange(32, dtype=np.float32).reshape(4, 4, 2)
    out, _, _ = sample(SURFACE, plane, np.array([[8, 1], [0, 3], [-8, 0], [0, 4]]), size=(4, 4), channels=2)
    assert out[:4].tolist() == [plane[1, 1].tolist(), plane[3, 0].tolist(), [0, 0], [0, 0]]
    write = (
        "mul.lo.u32 %r1, %r0, 4; mov.u32 %r2, 1; cvt.rn.f32.u32 %f5, %r0; mov.f32 %f6, %f5; "
        "mov.b32 %r3, %f5; sust.b.2d.b32.clamp [%rd1, {%r1, %r2}], {%r3};"
    )
    _, memory, _ = sample(write, np.zeros((3, 32), np.float32), np.zeros((1, 2)), size=(32, 3))
    assert memory.read("texels", np.float32).reshape(3, 32)[1].tolist() == list(range(32))
    with pytest.raises(
        ExecutionError, match=r"suld.b.2d.v2.b32.trap, thread \(1, 0, 0\) .*surface coordinate 32 is outside 0 to 24"
    ):
        sample(SURFACE.replace("zero", "trap"), plane, np.array([[8, 1], [32, 0]]), size=(4, 4), channels=2)


def test_lanes_may_name_different_objects() -> None:
    """Handles that a kernel reads from memory: a warp of two textures ended as if they were none."""
    body = (
        "and.b32 %r1, %r0, 1; setp.eq.u32 %p1, %r1, 1; selp.b64 %rd1, %rd2, %rd1, %p1; cvt.rn.f32.u32 %f1, %r0;"
        "tex.grad.1d.v4.f32.f32 {%f5, %f6, %f7, %f8}, [%rd1, {%f1}], {%f1}, {%f1};"
    )
    parsed = module(
        kernel(body).replace("mad.wide.u32 %rd2, %r0, 8, %rd2;", "").replace("ld.global.v2.f32 {%f1, %f2}, [%rd2];", "")
    )
    memory = Memory(parsed.variables)
    for name in ("first", "second"):
        memory.allocate(name, 128, np.arange(32, dtype=np.float32) + 100 * (name == "second"))
    memory.allocate("o", 256)
    arguments = [Texture("first", size=(32,)), Texture("second", size=(16,), linear=True), Pointer("o")]
    trace = LlvmExecutor().run(make_launch(link(parsed, "k"), 1, 32, arguments, memory), memory)
    want = [n + 0.0 if n % 2 == 0 else min(n + 99.5, 115.0) for n in range(32)]
    assert memory.read("o", np.float32)[::2].tolist() == want
    assert len(trace.records) == 3 + 2 + 2  # parameters, a line of each texture, two that are stored to


def test_what_is_no_texture_is_refused() -> None:
    with pytest.raises(InputError, match="the texture has 256 bytes, buffer 'texels' only 48"):
        sample(TEX2D, GRID, np.zeros((1, 2)), size=(8, 8))
    with pytest.raises(InputError, match="'wrap' needs normalized coordinates"):
        sample(TEX2D, GRID, np.zeros((1, 2)), size=(4, 3), address="wrap")
    with pytest.raises(ExecutionError, match="handle 0x7 is not a texture or surface of this launch"):
        sample("mov.u64 %rd1, 7;" + TEX2D, GRID, np.zeros((1, 2)), size=(4, 3))


def test_launch_description(tmp_path) -> None:
    (tmp_path / "k.ptx").write_text(HEADER + kernel(TEX2D))
    GRID.tofile(tmp_path / "g.bin")
    entry = {"texture": "g", "size": [4, 3], "linear": False, "address": "border"}
    document = {
        "ptx": "k.ptx",
        "buffers": {"g": {"bytes": 48, "init": "g.bin", "dtype": "f32"}, "c": {"bytes": 256}, "o": {"bytes": 256}},
        "launches": [
            {"kernel": "k", "grid": [1, 1, 1], "block": [32, 1, 1], "args": [entry, {"buf": "c"}, {"buf": "o"}]}
        ],
    }  # fmt: skip
    (tmp_path / "launches.json").write_text(json.dumps(document))
    case = load_case(tmp_path / "launches.json")
    assert len(case.launches) == 1 and case.memory.texture(int.from_bytes(case.launches[0].parameters[:8], "little"))
    entry["size"] = [4.5]
    (tmp_path / "launches.json").write_text(json.dumps(document))
    with pytest.raises(InputError, match="does not describe a texture"):
        load_case(tmp_path / "launches.json")


def test_textures_have_a_cache_of_their_own(tmp_path) -> None:
    """The second launch of a run that keeps its caches finds every texel."""
    (tmp_path / "k.ptx").write_text(HEADER + kernel(TEX2D))
    GRID.tofile(tmp_path / "g.bin")
    entry = {"texture": "g", "size": [4, 3], "linear": False, "address": "border"}
    launch = {"kernel": "k", "grid": [1, 1, 1], "block": [32, 1, 1], "args": [entry, {"buf": "c"}, {"buf": "o"}]}
    document = {
        "ptx": "k.ptx",
        "buffers": {"g": {"bytes": 48, "init": "g.bin", "dtype": "f32"}, "c": {"bytes": 256}, "o": {"bytes": 256}},
        "launches": [launch, launch],
    }
    (tmp_path / "launches.json").write_text(json.dumps(document))
    first, second = run(str(tmp_path / "launches.json"), "gtx480", ["perfect_memory=false"], flush="l1d").launches
    assert first.caches["l1t_accesses"] == second.caches["l1t_accesses"] > 0
    assert (first.caches["l1t_misses"] > 0, second.caches["l1t_misses"]) == (True, 0) and second.cycles < first.cycles


REFERENCES = """.tex .u64 old; .global .texref bound;
.entry k(.param .u64 o) { .reg .f32 %f<9>; .reg .b64 %rd1; .reg .s32 %r1; ld.param.u64 %rd1, [o];
mov.f32 %f1, 0f3FC00000;
tex.2d.v4.f32.f32 {%f2, %f3, %f4, %f5}, [bound, {%f1, %f1, %f1, %f1}]; st.global.f32 [%rd1], %f2; mov.u32 %r1, 3;
"""


@pytest.mark.parametrize("bind", [True, False])
def test_a_texture_reference(tmp_path, bind) -> None:
    """Bound by the host: in launches.json it is a symbol that is set to a texture."""
    GRID.tofile(tmp_path / "g.bin")
    body = "tex.1d.v4.f32.s32 {%f2, %f3, %f4, %f5}, [old, {%r1, %r1, %r1, %r1}]; st.global.f32 [%rd1+4], %f2; ret; }"
    (tmp_path / "k.ptx").write_text(HEADER + REFERENCES + body)
    buffers = {"texels": {"bytes": 48, "init": "g.bin", "dtype": "f32"}, "o": {"bytes": 8, "dtype": "f32"}}
    old = {"texture": "texels", "size": [12]}
    symbols = {"old": old, **({"bound": {"texture": "texels", "size": [4, 3]}} if bind else {})}
    launch = {"kernel": "k", "grid": [1, 1, 1], "block": [1, 1, 1], "args": [{"buf": "o"}]}
    document = {"ptx": "k.ptx", "buffers": buffers, "symbols": symbols, "launches": [launch]}
    (tmp_path / "launches.json").write_text(json.dumps(document))
    case = load_case(tmp_path / "launches.json")
    if not bind:
        with pytest.raises(ExecutionError, match="handle 0x0 of reference 'bound' is not a texture"):
            LlvmExecutor().run(case.launches[0], case.memory)
        return
    LlvmExecutor().run(case.launches[0], case.memory)
    assert case.memory.read("o", np.float32).tolist() == [GRID[1, 1], GRID[0, 3]]
