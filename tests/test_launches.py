"""launches.json, device memory, parameter blocks, and kernels loaded from Python."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from abstim.targets.loading import load, parse_argument
from functional.errors import InputError
from functional.launches.launch import Dim3, Pointer, Scalar, layout, make_launch, static_bytes
from functional.launches.launches_json import load_case, read_resources
from functional.launches.memory import GLOBAL_BASE, Memory, function_address
from functional.programs.link import link
from functional.ptx.ir import Parameter
from functional.ptx.parser import parse
from functional.traces.trace import LINE_BYTES, LOCAL_WINDOW_LINE

HEAD = ".version 9.0\n.target sm_80\n.address_size 64\n"
PTX = (
    HEAD
    + ".entry k(.param .u64 p, .param .u32 n, .param .f32 a, .param .u8 c, .param .align 8 .b8 s[16])\n"
    + "{ .reg .b32 %r; .shared .align 16 .b8 x[20]; .shared .f64 y; ret; }\n"
    + ".entry fixed() .reqntid 64, 1, 1 { ret; }\n.entry most() .maxntid 32, 2, 1 { ret; }\n"
    + ".extern .shared .align 16 .b8 dyn[];\n.entry d() { .reg .b32 %r; .shared .b8 z[3]; mov.u32 %r, dyn; ret; }\n"
)


@pytest.fixture(scope="module")
def module():
    return parse(PTX)


def arguments(**changes):
    values = {"p": Pointer("b", 4), "n": -1, "a": 0.5, "c": 7, "s": bytes(range(16)), **changes}
    return list(values.values())


def memory():
    made = Memory()
    made.allocate("b", 64)
    return made


def test_parameter_block(module):
    where = memory()
    launch = make_launch(link(module, "k"), (2, 3), 96, arguments(), where)
    address = where.buffers["b"].address + 4
    assert launch.parameters == (
        address.to_bytes(8, "little") + b"\xff" * 4 + np.float32(0.5).tobytes() + b"\x07" + bytes(7) + bytes(range(16))
    )
    assert launch.grid == Dim3(2, 3, 1) and launch.thread_blocks == 6
    assert launch.warps_per_block == 3 and launch.threads_per_block == 96


ILL_FITTING = [
    ({"n": 0.5}, "argument 1 (n, .u32): 0.5 is not an integer"),
    ({"n": 1 << 32}, "does not fit in 32 bits"),
    ({"n": Scalar("f32", 1.0)}, "a floating-point argument does not fit an integer parameter"),
    ({"n": Scalar("i64", 1)}, "expected 4 bytes, the argument has 8"),
    ({"a": Scalar("i32", 1)}, "an integer argument does not fit a floating-point parameter"),
    ({"n": Pointer("b")}, "buffer 'b' needs a 64-bit parameter"),
    ({"p": Pointer("c")}, "there is no buffer 'c'"),
    ({"p": Pointer("b", 65)}, "offset 65 is outside buffer 'b' of 64 bytes"),
    ({"s": b"123"}, "argument 4 (s, 16 bytes): expected 16 bytes, the argument has 3"),
    ({"s": 5}, "expected 16 bytes, the argument has 1"),
    ({"n": "5"}, "a str cannot be passed to a kernel"),
]


@pytest.mark.parametrize(("changes", "message"), ILL_FITTING, ids=[m for _, m in ILL_FITTING])
def test_ill_fitting_arguments(module, changes, message):
    with pytest.raises(InputError) as caught:
        make_launch(link(module, "k"), 1, 32, arguments(**changes), memory())
    assert message in str(caught.value) and "kernel 'k'" in str(caught.value)


def test_missing_and_superfluous_arguments(module):
    expected = r"'k' takes 5 arguments, {} were given: p \(.u64\), n \(.u32\), a \(.f32\), c \(.u8\), s \(16 bytes\)"
    with pytest.raises(InputError, match=expected.format(4)):
        make_launch(link(module, "k"), 1, 32, arguments()[:4], memory())
    with pytest.raises(InputError, match=expected.format(6)):
        make_launch(link(module, "k"), 1, 32, [*arguments(), 1], memory())


SHAPES = [
    ("most", 0, 32, "grid 0x1x1 must be positive in x"),
    ("most", (1, -1), 32, "must be positive in y"),
    ("most", 1, (1, 1, 65), "over the limit of 64 in z"),
    ("most", (1, 65536), 32, "over the limit of 65535 in y"),
    ("most", 1, (32, 64), "block 32x64x1 has 2048 threads, the limit is 1024"),
    ("most", 1, 65, "allows 64 threads a block (.maxntid), not 65"),
    ("fixed", 1, 32, "requires blocks of 64x1x1 (.reqntid), not 32x1x1"),
    ("most", (1, 1, 1, 1), 32, "is not one to three integers"),
    ("most", 1, "32", "is not one to three integers"),
]


@pytest.mark.parametrize(("kernel", "grid", "block", "message"), SHAPES, ids=[s[3] for s in SHAPES])
def test_shapes_no_gpu_could_launch(module, kernel, grid, block, message):
    with pytest.raises(InputError) as caught:
        make_launch(link(module, kernel), grid, block, [], Memory())
    assert message in str(caught.value)


def test_shared_layout(module):
    assert layout(link(module, "k"), "shared") == {"x": 0, "y": 24}
    assert static_bytes(link(module, "k"), "shared") == 32
    assert layout(link(module, "d"), "shared") == {"z": 0, "dyn": 16}
    launch = make_launch(link(module, "d"), 1, 32, [], Memory(), 100)
    assert launch.shared_bytes == 116
    with pytest.raises(InputError, match="-1 bytes of dynamic shared memory is outside"):
        make_launch(link(module, "d"), 1, 32, [], Memory(), -1)


@given(st.lists(st.integers(0, 700), max_size=6), st.lists(st.integers(-600, 6000), max_size=20))
def test_bounds_are_exact(sizes, offsets):
    made = Memory()
    for number, size in enumerate(sizes):
        region = made.allocate(str(number), size, np.full(size, number, np.uint8))
        assert region.address % 256 == 0 and region.address // LINE_BYTES < LOCAL_WINDOW_LINE
    regions = list(made.buffers.values())
    addresses = np.array([GLOBAL_BASE + o for o in offsets], np.uint64)
    for size in (1, 4, 16):
        inside = [any(r.address <= a and a + size <= r.address + r.bytes for r in regions) for a in addresses.tolist()]
        assert made.valid(addresses, size).tolist() == inside
    for number, size in enumerate(sizes):
        assert np.array_equal(made.read(str(number), np.uint8), np.full(size, number))


def test_memory_messages_and_copies():
    made = Memory()
    assert made.describe(5) == "no buffer is allocated"
    region = made.allocate("a", 8)
    made.allocate("b", 8)
    assert made.describe(region.address + 8) == "at the end of 'a' (8 bytes)"
    assert made.describe(region.address + 12) == "4 bytes past the end of 'a' (8 bytes)"
    assert made.describe(made.buffers["b"].address - 2) == "2 bytes before 'b'"
    assert made.describe(region.address - 1) == "1 bytes before 'a'"
    assert made.describe(region.address + 3) == "byte 3 of 'a' (8 bytes)"
    other = made.copy()
    other.bytes_of(region)[:] = 9
    assert not made.bytes_of(region).any() and other.read("a", np.uint32)[0] == 0x09090909
    assert other.buffers == made.buffers
    with pytest.raises(InputError, match="'a' is defined twice"):
        made.allocate("a", 1)
    with pytest.raises(InputError, match="does not fit: device memory ends"):
        made.allocate("huge", 1 << 40)


def test_module_variables_are_placed():
    text = ".const .b32 c[2] = {5, 6};\n.global .b32 g[2] = {1, 2};\n"
    text += ".global .b64 p = generic(g)+4;\n.const .b64 q = c;\n"
    made = Memory(parse(HEAD + text).variables)
    target = made.global_variables["g"].address + 4
    assert made.bytes_of(made.global_variables["p"]).view("<u8")[0] == target
    assert made.const_variables["q"].address == 8 and made.const_arena[:8].view("<u4").tolist() == [5, 6]
    pointers = Memory(parse(HEAD + ".func f() { ret; }\n.global .b64 t[2] = {f, f};\n").variables)
    table = pointers.bytes_of(pointers.global_variables["t"]).view("<u8")
    assert table.tolist() == [function_address("f")] * 2 and table[0] != function_address("g")
    with pytest.raises(InputError, match="'p' points to 's', which is not in global memory"):
        Memory(parse(HEAD + ".shared .b32 s;\n.global .b64 p = s;\n").variables)
    with pytest.raises(InputError, match="constant memory is 65536 bytes; 'big' would end at byte 65540"):
        Memory(parse(HEAD + ".const .b32 big[16385];\n").variables)


def write_case(folder, **changes):
    (folder / "k.ptx").write_text(HEAD + ".entry k(.param .u64 p, .param .u32 n) { ret; }\n")
    np.arange(4, dtype=np.float32).tofile(folder / "a.bin")
    np.save(folder / "b.npy", np.ones((2, 2), np.float32))
    document = {
        "ptx": "k.ptx",
        "buffers": {
            "a": {"bytes": 16, "init": "a.bin", "expect": "b.npy", "dtype": "f32", "rtol": 1e-5, "atol": 0},
            "z": {"bytes": 8},
            "n": {"init": "b.npy", "dtype": "f32"},
        },
        "launches": [{"kernel": "k", "grid": [1, 1, 1], "block": [32, 1, 1], "args": [{"buf": "a"}, {"i32": 5}]}],
    }
    document.update(changes)
    path = folder / "launches.json"
    path.write_text(json.dumps(document))
    return path


def test_a_users_case(tmp_path):
    (tmp_path / "resources.json").write_text('{"k": {"registers": 12, "smem": 0}}')
    (tmp_path / "labels.json").write_text('["first"]')
    case = load_case(write_case(tmp_path))
    assert case.launches[0].label == "first" and case.launches[0].dynamic_shared_bytes == 0
    assert case.buffer("a").tolist() == [0, 1, 2, 3] and case.buffer("n").tolist() == [1] * 4
    assert case.memory.buffers["z"].bytes == 8
    assert (case.registers(case.launches[0]).count, case.registers(case.launches[0]).source) == (12, "resources.json")
    (mismatch,) = case.compare(case.memory)
    assert (mismatch.buffer, mismatch.elements) == ("a", 3)


def launch_of(**changes):
    return {"launches": [{"kernel": "k", "grid": 1, "block": 32, "args": [{"buf": "a"}, {"i32": 5}], **changes}]}


BAD_CASES = [
    ({"ptxx": 1}, "unknown key 'ptxx'; did you mean 'ptx'?"),
    (launch_of(gird=1), "unknown key 'gird' in launches[0]; did you mean 'grid'?"),
    ({"buffers": {"a": {"bites": 1}}}, "unknown key 'bites' in buffers[...]; did you mean 'bytes'?"),
    ({"ptx": "none.ptx"}, "'ptx' names none.ptx, but there is no such file"),
    ({"buffers": {"a": {"bytes": 4, "init": "x.bin"}}}, "'buffers.a.init' names x.bin"),
    ({"buffers": {"a": {"bytes": 4, "init": "a.bin"}}}, "buffer 'a' has 4 bytes, but a.bin has 16"),
    ({"buffers": {"a": {"bytes": 6, "dtype": "f32"}}}, "6 bytes is not a whole number of f32"),
    ({"buffers": {"a": {}}}, "buffer 'a' needs 'bytes', since it has no file"),
    ({"buffers": {"a": {"init": "b.npy", "dtype": "i32"}}}, "holds float32, but buffer 'a' is declared int32"),
    ({"buffers": {"a": {"bytes": 4, "dtype": "f31"}}}, "Invalid enum value 'f31'"),
    ({"buffers": {"a": {"bytes": -4}}}, "negative"),
    ({"buffers": {"a": {"bytes": 16, "rtol": -1}}}, "rtol and atol must not be negative"),
    ({"launches": []}, "'launches' is empty"),
    (launch_of(args=[{"buf": "a"}]), "launch 0: kernel 'k' takes 2 arguments, 1 was given"),
    (launch_of(args=[{"buf": "aa"}, {"i32": 1}]), "there is no buffer 'aa'; did you mean 'a'?"),
    (launch_of(args=[{"buf": "a", "ofset": 1}, {"i32": 1}]), "unknown key 'ofset'; did you mean 'offset'?"),
    (launch_of(args=[{"buf": "a"}, {"i33": 1}]), "unknown key 'i33'; did you mean 'i32'?"),
    (launch_of(args=[{"buf": "a"}, {"i32": "1"}]), "the value of 'i32' must be a number"),
    (launch_of(args=[{"buf": "a"}, {}]), "launch 0: argument 1: expected one of buf, i32"),
    (launch_of(args=[{"buf": "a", "offset": 99}, {"i32": 1}]), "offset 99 is outside buffer 'a'"),
    (launch_of(kernel="kk"), "no kernel 'kk'; did you mean 'k'?"),
    (launch_of(grid="1"), "Expected `int | array`".replace("`", "'")),
]


@pytest.mark.parametrize(("changes", "message"), BAD_CASES, ids=[m for _, m in BAD_CASES])
def test_bad_cases(tmp_path, changes, message):
    with pytest.raises(InputError) as caught:
        load_case(write_case(tmp_path, **changes))
    assert message in str(caught.value) and "\n" not in str(caught.value)


def test_files_that_are_no_case(tmp_path):
    with pytest.raises(InputError, match="cannot be read"):
        load_case(tmp_path / "launches.json")
    path = write_case(tmp_path)
    path.write_text("{")
    with pytest.raises(InputError, match="is not JSON"):
        load_case(path)
    path = write_case(tmp_path)
    (tmp_path / "labels.json").write_text('["a", "b"]')
    with pytest.raises(InputError, match="2 labels for 1 launches"):
        load_case(path)
    (tmp_path / "resources.json").write_text('{"k": {"regs": 12}}')
    with pytest.raises(InputError, match="missing required field 'registers'"):
        read_resources(tmp_path / "resources.json")
    np.save(tmp_path / "b.npy", np.ones((2, 2), np.float32, "F"))
    with pytest.raises(InputError, match=r"b\.npy: an array in Fortran's order"):
        load_case(path)
    (tmp_path / "b.npy").write_bytes(b"not numpy")
    with pytest.raises(InputError, match="cannot read buffer"):
        load_case(path)


@pytest.fixture
def kernel(tmp_path):
    parameters = ".param .u64 p, .param .u64 q, .param .u32 n, .param .f32 a"
    (tmp_path / "k.ptx").write_text(f"{HEAD}.entry k({parameters}) {{ ret; }}\n")
    return load(tmp_path / "k.ptx").kernel("k")


def test_launch_from_numpy_arrays(kernel):
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    launched = kernel.launch(2, (8, 4), [x, x, 6, 0.5])
    assert len(launched.memory.buffers) == 1 and launched.launches[0].block == Dim3(8, 4, 1)
    assert launched.launches[0].parameters[:8] == launched.launches[0].parameters[8:16]
    other = kernel.launch(1, 32, [x, x.copy(), np.int32(6), np.float32(0.5)])
    assert len(other.memory.buffers) == 2 and other.buffer("arg1").tolist() == x.reshape(-1).tolist()
    with pytest.raises(InputError, match="an array of object cannot be passed"):
        kernel.launch(1, 32, [np.array([None]), x, 6, 0.5])
    with pytest.raises(InputError, match="takes 4 arguments, 1 was given"):
        kernel.launch(1, 32, [x])


def test_choosing_a_kernel(tmp_path):
    (tmp_path / "two.ptx").write_text(HEAD + ".entry a() { ret; }\n.entry b() { ret; }\n.func f() { ret; }\n")
    loaded = load(tmp_path / "two.ptx")
    assert loaded.kernels == ("a", "b") and loaded.kernel("b").name == "b"
    with pytest.raises(InputError, match="choose a kernel: a, b"):
        loaded.kernel()


def test_arguments_as_text(kernel, tmp_path):
    np.save(tmp_path / "x.npy", np.arange(3))
    p, _, n, a = kernel.parameters
    assert parse_argument("i32:-5", n) == Scalar("i32", -5) and parse_argument("0x10", n) == Scalar("u32", 16)
    assert parse_argument("3", a) == Scalar("f32", 3.0) and parse_argument("f64:1e3", a) == Scalar("f64", 1000.0)
    assert parse_argument("buf:f32:4", p).tolist() == [0] * 4
    random = parse_argument("buf:i32:1000:random", p)
    assert random.dtype == np.int32 and random.min() >= 0 and random.max() < 1000
    assert np.array_equal(random, parse_argument("buf:i32:1000:random", p))
    assert parse_argument(f"npy:{tmp_path / 'x.npy'}", p).tolist() == [0, 1, 2]
    untyped = Parameter("b", "b32", 4, 4, 0)
    assert parse_argument("1.5", untyped) == Scalar("f32", 1.5) and parse_argument("-2", untyped) == Scalar("i32", -2)
    assert parse_argument("1e3", untyped) == Scalar("f32", 1000.0)
    assert parse_argument("0xff", untyped) == Scalar("i32", 255)
    assert len(kernel.launch(1, 32, kernel.parse_arguments(["buf:f32:4", "buf:f32:4", "4", "0.5"])).memory.buffers) == 2


BAD_TEXTS = [
    ("0.5", "'0.5' is not an integer"), ("i32:x", "'x' is not an integer"), ("buf:f31:4", "expected buf:TYPE:COUNT"),
    ("buf:f32:-4", "expected buf:f32:COUNT"), ("buf:f32:4:ones", "expected buf:f32:COUNT"),
    ("x:1", "expected buf:TYPE"),
    ("npy:none.npy", "cannot read none.npy"), ("", "'' is not an integer"),
    ("buf:f32:99999999999999999", "do not fit"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "message"), BAD_TEXTS)
def test_bad_argument_texts(kernel, text, message):
    with pytest.raises(InputError) as caught:
        parse_argument(text, kernel.parameters[2])
    assert message in str(caught.value) and "for n" in str(caught.value)


def test_calls_structures_and_pointers_to_local_memory():
    """A file from nvcc with calls: the outputs are those of calls.cu."""
    kernel = load(Path(__file__).parent / "data" / "calls.ptx").kernel("calls")
    n, start = 70, np.array([(5, 1.5, [10, 20, 30, 40, 50, 60])], [("a", "<i4"), ("b", "<f4"), ("c", "<i2", 6)])
    out, weight = np.zeros(n, np.int32), np.zeros(n, np.float32)
    got_out, got_weight = kernel.launch(2, 48, [out, weight, n, start.tobytes()]).outputs()
    for i in range(n):
        steps, rest = i & 7, start["c"][0].tolist()
        for step in range(steps):
            rest[step % 6] += step
        first = 5 + i + 7
        assert got_out[i] == first + rest[first % 6]
        assert got_weight[i] == np.float32(1.5 * steps + [2, 4][steps & 1])
    assert not out.any()


@pytest.mark.parametrize("outside", ["../k.ptx", "{above}/k.ptx"])
def test_files_of_a_launches_json_lie_in_its_folder(outside, tmp_path, monkeypatch):
    """It may be a stranger's; whoever knows better says so."""
    from functional.launches.launches_json import OUTSIDE, load_case

    (tmp_path / "k.ptx").write_text(".version 7.8\n.target sm_80\n.address_size 64\n.visible .entry k() { ret; }\n")
    (tmp_path / "in").mkdir()
    path = tmp_path / "in" / "launches.json"
    launch = {"kernel": "k", "grid": 1, "block": 32}
    path.write_text(json.dumps({"ptx": outside.format(above=tmp_path), "launches": [launch]}))
    with pytest.raises(InputError, match="outside of its folder"):
        load_case(path)
    monkeypatch.setenv(OUTSIDE, "1")
    assert len(load_case(path).launches) == 1
