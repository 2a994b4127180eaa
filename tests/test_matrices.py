"""Matrix instructions against products of Python integers, with the fragment layouts as the PTX ISA prints them."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from both_executors import each_lane, run

from functional.errors import ExecutionError
from functional.traces.line_record import line_of, more_follow, sectors_of

# element -> (bits, registers' elements); layout functions below give (row, column) of element i of a lane
BITS = {"f16": 16, "bf16": 16, "tf32": 32, "f64": 64, "s8": 8, "u8": 8, "s4": 4, "u4": 4, "b1": 1, "e4m3": 8, "e5m2": 8}
RANGE = {
    "s8": (-128, 128),
    "u8": (0, 256),
    "s4": (-8, 8),
    "u4": (0, 16),
    "b1": (0, 2),
    "e4m3": (-8, 9),
    "e5m2": (-4, 5),
}


def place_a(m: int, bits: int, lane: int, i: int) -> tuple[int, int]:
    group, thread, per = lane >> 2, lane % 4, max(1, 32 // bits)
    register, part = divmod(i, per)
    if m == 8:
        return group, thread * per + part
    row = group if register in (0, 2, 4, 6) else group + 8
    return row, thread * per + part + (register // 2) * 4 * per


def place_b(bits: int, lane: int, i: int) -> tuple[int, int]:
    per = max(1, 32 // bits)
    return (lane % 4) * per + i % per + i // per * 4 * per, lane >> 2


def place_c(lane: int, i: int) -> tuple[int, int]:
    return (lane >> 2) + (0 if i < 2 else 8), (lane % 4) * 2 + (i & 1)


def code(value: int, name: str) -> int:
    """The bits of a small integer as an element."""
    if name in ("f16", "f64"):
        return int(np.array(value, f"f{BITS[name] // 8}").view(f"u{BITS[name] // 8}"))
    if name in ("bf16", "tf32"):
        return int(np.float32(value).view(np.uint32)) >> (16 if name == "bf16" else 0)
    if name in ("e4m3", "e5m2"):  # by definition: sign, exponent, mantissa
        mantissa_bits, bias = (3, 7) if name == "e4m3" else (2, 15)
        if value == 0:
            return 0
        exponent = abs(value).bit_length() - 1
        mantissa = Fraction(abs(value), 1 << exponent) - 1
        return (value < 0) << 7 | (exponent + bias) << mantissa_bits | int(mantissa * (1 << mantissa_bits))
    return value & ((1 << BITS[name]) - 1)


def pack(matrix: np.ndarray, place, name: str, count: int) -> np.ndarray:
    """Fragment words uint32 [32, n] of a matrix."""
    bits = BITS[name]
    words = np.zeros((32, max(1, count * bits // 32)), np.uint32)
    for lane in range(32):
        whole = sum(code(int(matrix[place(lane, i)]), name) << (bits * i) for i in range(count))
        words[lane] = [whole >> (32 * w) & 0xFFFFFFFF for w in range(words.shape[1])]
    return words


MMA = [
    ("m16n8k16", "f32", "f16", "f16", ""), ("m16n8k8", "f16", "f16", "f16", ""), ("m16n8k8", "f32", "f16", "f16", ""),
    ("m16n8k16", "f32", "bf16", "bf16", ""), ("m16n8k8", "f32", "bf16", "bf16", ""),
    ("m16n8k8", "f32", "tf32", "tf32", ""), ("m16n8k4", "f32", "tf32", "tf32", ""),
    ("m16n8k32", "s32", "s8", "u8", ""), ("m16n8k16", "s32", "u8", "u8", ""), ("m8n8k16", "s32", "s8", "s8", ""),
    ("m16n8k64", "s32", "s4", "u4", ""), ("m16n8k32", "s32", "u4", "u4", ""), ("m8n8k32", "s32", "s4", "s4", ""),
    ("m16n8k256", "s32", "b1", "b1", ".xor.popc"), ("m16n8k128", "s32", "b1", "b1", ".and.popc"),
    ("m8n8k128", "s32", "b1", "b1", ".xor.popc"), ("m16n8k32", "f32", "e4m3", "e5m2", ""),
]  # fmt: skip
NATIVE = {"f16", "bf16", "tf32", "s8", "u8"}


@pytest.mark.parametrize("shape,d,a,b,options", MMA, ids=lambda x: str(x))
def test_mma(shape: str, d: str, a: str, b: str, options: str) -> None:
    m, k = int(shape[1 : shape.index("n")]), int(shape[shape.index("k") + 1 :])
    rng = np.random.default_rng(k + m)
    left, right = rng.integers(*RANGE.get(a, (-8, 9)), (m, k)), rng.integers(*RANGE.get(b, (-8, 9)), (k, 8))
    third = rng.integers(-50, 50, (m, 8))
    counts = [m * k // 32, k * 8 // 32, m * 8 // 32]
    words_a = pack(left, lambda lane, i: place_a(m, BITS[a], lane, i), a, counts[0])
    words_b = pack(right, lambda lane, i: place_b(BITS[b], lane, i), b, counts[1])
    values = np.array([[third[place_c(lane, i)] for i in range(counts[2])] for lane in range(32)])
    dtype = {"f32": np.float32, "f16": np.float16, "s32": np.int32}[d]
    words_c = np.ascontiguousarray(values.astype(dtype)).view(np.uint32)
    names = [f"%i{n}" for n in range(words_a.shape[1] + words_b.shape[1] + words_c.shape[1])]
    first, second = words_a.shape[1], words_a.shape[1] + words_b.shape[1]
    vectors = ["{" + ", ".join(part) + "}" for part in (names[:first], names[first:second], names[second:])]
    outputs = "{" + ", ".join(f"%o{n}" for n in range(words_c.shape[1])) + "}"
    body = f"mma.sync.aligned.{shape}.row.col.{d}.{a}.{b}.{d}{options} {outputs}, {', '.join(vectors)};"
    native = m == 16 and {a, b} <= NATIVE
    out = each_lane(body, np.hstack([words_a, words_b, words_c]), words_c.shape[1], native)
    if "xor" in options:
        product = (left[:, :, None] != right[None, :, :]).sum(axis=1)
    else:
        product = left.astype(object) @ right.astype(object)
    got = np.ascontiguousarray(out).view(dtype)
    want = (product + third).astype(np.int64)
    assert [[int(got[lane, i]) for i in range(counts[2])] for lane in range(32)] == [
        [int(want[place_c(lane, i)]) for i in range(counts[2])] for lane in range(32)
    ]


@pytest.mark.parametrize("shape", ["m8n8k4", "m16n8k4", "m16n8k8", "m16n8k16"])
def test_mma_f64(shape: str) -> None:
    m, k = int(shape[1 : shape.index("n")]), int(shape[shape.index("k") + 1 :])
    rng = np.random.default_rng(k)
    left, right, third = (rng.integers(-999, 999, s) for s in ((m, k), (k, 8), (m, 8)))
    counts = [m * k // 32, k * 8 // 32, m * 8 // 32]
    parts = [
        pack(left, lambda lane, i: place_a(m, 64, lane, i), "f64", counts[0]),
        pack(right, lambda lane, i: place_b(64, lane, i), "f64", counts[1]),
        pack(third, place_c, "f64", counts[2]),
    ]
    total = sum(counts)
    moves = " ".join(f"mov.b64 %fd{n}, {{%i{2 * n}, %i{2 * n + 1}}};" for n in range(total))
    names = [f"%fd{n}" for n in range(total)]
    a, b, c = names[: counts[0]], names[counts[0] : counts[0] + counts[1]], names[counts[0] + counts[1] :]
    vectors = ", ".join("{" + ", ".join(v) + "}" for v in (a, b, c))
    back = " ".join(f"mov.b64 {{%o{2 * n}, %o{2 * n + 1}}}, {v};" for n, v in enumerate(c))
    body = f"{moves} mma.sync.aligned.{shape}.row.col.f64.f64.f64.f64 {{{', '.join(c)}}}, {vectors}; {back}"
    out = each_lane(body, np.hstack(parts), 2 * counts[2], native=False).view(np.float64)
    want = left @ right + third
    assert [[out[lane, i] for i in range(counts[2])] for lane in range(32)] == [
        [want[place_c(lane, i)] for i in range(counts[2])] for lane in range(32)
    ]


def volta_place(which: str, lane: int, i: int) -> tuple[int, int]:
    """Row and column of element i, as the PTX ISA has it, word by word."""
    if which == "a row":
        return (lane % 4 if lane < 16 else lane % 4 + 4), i
    if which == "a col":
        return (i % 4 if lane < 16 else i % 4 + 4), lane % 4
    if which == "b row":
        return lane % 4, (i if lane < 16 else i + 4)
    if which == "b col":
        return i, (lane % 4 if lane < 16 else lane % 4 + 4)
    if which == "c f16":
        return (lane % 4 if lane < 16 else lane % 4 + 4), i
    x = (lane & 0b1) + (i & 0b10)
    return (x if lane < 16 else x + 4), (i & 0b100) + (lane & 0b10) + (i & 0b1)


@pytest.mark.parametrize(
    "a,b,d,c", [("row", "col", "f32", "f32"), ("col", "row", "f16", "f32"), ("row", "row", "f16", "f16")]
)
def test_mma_of_quarters(a: str, b: str, d: str, c: str) -> None:
    rng, lanes = np.random.default_rng(5), range(32)
    left, right, third = (rng.integers(-8, 9, (4, *extent)) for extent in ((8, 4), (4, 8), (8, 8)))
    numbers = [lane % 16 // 4 for lane in lanes]

    def words(matrices: np.ndarray, which: str, count: int, dtype: str) -> np.ndarray:
        values = [[matrices[numbers[lane]][volta_place(which, lane, i)] for i in range(count)] for lane in lanes]
        return np.ascontiguousarray(np.array(values).astype(dtype)).view(np.uint32)

    dtypes = {"f32": "f4", "f16": "f2"}
    given = np.hstack(
        [words(left, f"a {a}", 4, "f2"), words(right, f"b {b}", 4, "f2"), words(third, f"c {c}", 8, dtypes[c])]
    )
    names, results = [f"%i{n}" for n in range(given.shape[1])], 8 if d == "f32" else 4
    vectors = ", ".join("{" + ", ".join(part) + "}" for part in (names[:2], names[2:4], names[4:]))
    outputs = "{" + ", ".join(f"%o{n}" for n in range(results)) + "}"
    body = f"mma.sync.aligned.m8n8k4.{a}.{b}.{d}.f16.f16.{c} {outputs}, {vectors};"
    found = each_lane(body, given, results, native=False)
    assert np.array_equal(found, words(left @ right + third, f"c {d}", 8, dtypes[d]))


def test_mma_saturates_integers() -> None:
    words = np.hstack([np.full((32, 6), 0x7F7F7F7F, np.uint32), np.full((32, 4), 0x7FFFFFF0, np.uint32)])
    form = (
        "mma.sync.aligned.m16n8k32.row.col{}.s32.s8.s8.s32 {{%o0, %o1, %o2, %o3}}, {{%i0, %i1, %i2, %i3}}, "
        "{{%i4, %i5}}, {{%i6, %i7, %i8, %i9}};"
    )
    assert (each_lane(form.format(".satfinite"), words, 4, native=False) == 0x7FFFFFFF).all()
    wrapped = (0x7FFFFFF0 + 32 * 127 * 127) & 0xFFFFFFFF
    assert (each_lane(form.format(""), words, 4) == wrapped).all()


def test_mma_f16_is_rounded_once() -> None:
    """The sum of exact products within half an ulp of float32, plus the rounding of the float64 sum."""
    rng = np.random.default_rng(3)
    left, right = (rng.standard_normal(s).astype(np.float16) for s in ((16, 16), (16, 8)))
    a = np.array([[left[place_a(16, 16, n, i)] for i in range(8)] for n in range(32)], np.float16).view(np.uint32)
    b = np.array([[right[place_b(16, n, i)] for i in range(4)] for n in range(32)], np.float16).view(np.uint32)
    body = (
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%o0, %o1, %o2, %o3}, {%i0, %i1, %i2, %i3}, {%i4, %i5}, "
        "{%r9, %r9, %r9, %r9};"
    )
    out = each_lane("mov.b32 %r9, 0;" + body, np.hstack([a, b]), 4).view(np.float32)
    for lane in range(32):
        for i in range(4):
            row, column = place_c(lane, i)
            exact = sum(Fraction(float(left[row, k])) * Fraction(float(right[k, column])) for k in range(16))
            assert abs(Fraction(float(out[lane, i])) - exact) <= Fraction(float(np.spacing(np.abs(np.float32(exact)))))


# -- ldmatrix and friends --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [1, 2, 4])
@pytest.mark.parametrize("transposed", ["", ".trans"])
def test_ldmatrix(count: int, transposed: str) -> None:
    """Shared memory holds half h at byte 2 h; lane i names row (i * 5) % 32 of 16 bytes."""
    body = "mov.u32 %r9, s; mul.lo.u32 %r1, %r0, 16;"
    body += "".join(f"mad.lo.u32 %r3, {i}, 0x00020002, 0; mad.lo.u32 %r3, %r0, 0x00080008, %r3; add.u32 %r3, %r3, "
                    f"0x00010000; st.shared.u32 [%r1+{4 * i}], %r3;" for i in range(4))  # fmt: skip
    outputs = ", ".join(f"%o{n}" for n in range(count))
    body += "mul.lo.u32 %r4, %r0, 5; and.b32 %r4, %r4, 31; shl.b32 %r4, %r4, 4;"
    body += f"ldmatrix.sync.aligned.m8n8.x{count}{transposed}.shared.b16 {{{outputs}}}, [%r4];"
    out = each_lane(body, np.zeros((32, 1), np.uint32), count, before=".shared .align 16 .b8 s[512];\n")
    halves = np.ascontiguousarray(out).view(np.uint16).reshape(32, count, 2)
    for lane in range(32):
        for matrix in range(count):
            for i in range(2):
                row, column = lane // 4, 2 * (lane % 4) + i
                row, column = (column, row) if transposed else (row, column)
                assert halves[lane, matrix, i] == ((8 * matrix + row) * 5 % 32) * 8 + column


def test_stmatrix_and_movmatrix() -> None:
    body = "mov.u32 %r9, s; shl.b32 %r1, %r0, 4; stmatrix.sync.aligned.m8n8.x2.trans.shared.b16 [%r1], {%i0, %i1};"
    body += "ld.shared.u32 %o0, [%r1+4]; movmatrix.sync.aligned.m8n8.trans.b16 %o1, %i0;"
    halves = np.arange(32 * 4, dtype=np.uint16).reshape(32, 2, 2)  # [lane, matrix, element]
    words = halves.view(np.uint32)[..., 0]
    out = each_lane(body, words, 2, native=False, before=".shared .align 16 .b8 s[512];\n")
    tile = [halves[:, m].reshape(8, 8) for m in range(2)]
    for lane in range(16):
        column = tile[lane // 8][:, lane % 8]
        assert out[lane, 0] == int(column[2]) | int(column[3]) << 16
    moved = np.ascontiguousarray(out[:, 1]).view(np.uint16).reshape(8, 8)
    assert (moved == tile[0].T).all()


# -- wmma ------------------------------------------------------------------------------------------------------------

WMMA = [
    ("m16n16k16", "f16", "f32", 8, 8, 8), ("m8n32k16", "f16", "f16", 8, 8, 4), ("m32n8k16", "s8", "s32", 4, 1, 8),
    ("m16n16k16", "u8", "s32", 2, 2, 8), ("m16n16k16", "bf16", "f32", 4, 4, 8), ("m16n16k8", "tf32", "f32", 4, 4, 8),
    ("m8n8k4", "f64", "f64", 1, 1, 2), ("m8n8k32", "s4", "s32", 1, 1, 2), ("m8n8k128", "b1", "s32", 1, 1, 2),
]  # fmt: skip


def stored(matrix: np.ndarray, name: str, by_column: bool, leading: int) -> np.ndarray:
    """Bytes of a matrix in memory with a leading dimension of `leading` elements."""
    lines = matrix.T if by_column else matrix
    bits = BITS.get(name, 32)
    out = []
    for line in lines:
        codes = [code(int(v), name) if name in BITS else int(v) & 0xFFFFFFFF for v in line]
        if name == "f32":
            codes = [int(np.float32(v).view(np.uint32)) for v in line]
        whole = sum(c << (bits * i) for i, c in enumerate(codes))
        out.append(whole.to_bytes(leading * bits // 8, "little"))
    return np.frombuffer(b"".join(out), np.uint8)


@pytest.mark.parametrize("shape,type_,result,na,nb,nc", WMMA)
@pytest.mark.parametrize("layouts", [("row", "col"), ("col", "row")])
def test_wmma(shape: str, type_: str, result: str, na: int, nb: int, nc: int, layouts: tuple[str, str]) -> None:
    small = type_ in ("s4", "b1")
    if small and layouts == ("col", "row"):
        pytest.skip("sub-byte matrices are row by column only")
    m, n, k = (int(x) for x in shape[1:].replace("n", " ").replace("k", " ").split())
    rng = np.random.default_rng(m * n)
    left, right = (rng.integers(*RANGE.get(type_, (-8, 9)), s) for s in ((m, k), (k, n)))
    third = rng.integers(-9, 9, (m, n))
    a_lead, b_lead = (
        (k if layouts[0] == "row" else m) + (0 if small else 16),
        (n if layouts[1] == "row" else k) + (0 if small else 16),
    )
    c_lead = n + 8
    c_name = {"f16": "f16", "f64": "f64", "f32": "f32", "s32": "s32"}[result]
    kind = {"f64": "f64", "f32": "f32"}
    registers = [(c, f".reg .{kind.get(t, 'b32')} %{c}<{count + 1}>;") for c, t, count in (
        ("a", type_, na), ("b", type_, nb), ("c", result, nc))]  # fmt: skip
    vector = {
        c: "{" + ", ".join(f"%{c}{i}" for i in range(count)) + "}" for c, count in (("a", na), ("b", nb), ("c", nc))
    }
    types = f"{result}.{result}" if type_ == "f16" else f"{result}.{type_}.{type_}.{result}"
    opcode = "wmma.mma.xor.popc" if type_ == "b1" else "wmma.mma"
    text = f""".entry k(.param .u64 p, .param .u64 q, .param .u64 r) {{
{" ".join(r for _, r in registers)} .reg .b64 %rd<4>;
ld.param.u64 %rd1, [p]; ld.param.u64 %rd2, [q]; ld.param.u64 %rd3, [r];
wmma.load.a.sync.aligned.{layouts[0]}.{shape}.global.{type_} {vector["a"]}, [%rd1], {a_lead};
wmma.load.b.sync.aligned.{layouts[1]}.{shape}.global.{type_} {vector["b"]}, [%rd2], {b_lead};
wmma.load.c.sync.aligned.row.{shape}.global.{result} {vector["c"]}, [%rd3], {c_lead};
{opcode}.sync.aligned.{layouts[0]}.{layouts[1]}.{shape}.{types}
{vector["c"]}, {vector["a"]}, {vector["b"]}, {vector["c"]};
wmma.store.d.sync.aligned.row.{shape}.global.{result} [%rd3], {vector["c"]}, {c_lead};
ret; }}"""
    buffers = {
        "p": stored(left, type_, layouts[0] == "col", a_lead), "q": stored(right, type_, layouts[1] == "col", b_lead),
        "r": stored(third, c_name, False, c_lead),
    }  # fmt: skip
    out, trace = run(text, buffers, native=not small and type_ != "f64")
    product = (left[:, :, None] != right[None]).sum(axis=1) if type_ == "b1" else left @ right
    dtype = {"f16": np.float16, "f32": np.float32, "f64": np.float64, "s32": np.int32}[result]
    got = out["r"].view(dtype).reshape(m, c_lead)[:, :n]
    assert (got == product + third).all()
    assert trace.warp_instructions.tolist() == [9]


def test_wmma_records_name_every_line_once() -> None:
    """16 rows of 16 halves, 128 bytes apart: one line and one sector a row; from shared memory, 8 words a row."""
    text = """.shared .align 128 .b8 s[2048];
.entry k(.param .u64 p) { .reg .b32 %a<9>; .reg .b64 %rd<3>; .reg .b32 %r<3>; ld.param.u64 %rd1, [p]; mov.u32 %r1, s;
wmma.load.a.sync.aligned.row.m16n16k16.global.f16 {%a0, %a1, %a2, %a3, %a4, %a5, %a6, %a7}, [%rd1], 64;
wmma.load.a.sync.aligned.row.m16n16k16.shared.f16 {%a0, %a1, %a2, %a3, %a4, %a5, %a6, %a7}, [%r1], 64; ret; }"""
    _, trace = run(text, {"p": np.zeros(2048, np.uint8)})
    sectors = [sectors_of(int(r)) for r in trace.records[1:]]
    assert sectors == [1] * 16 and [more_follow(int(r)) for r in trace.records[1:]] == [1] * 15 + [0]
    assert trace.conflicts.tolist() == [16]
    generic = text.replace(".shared.f16", ".f16").replace("[%r1]", "[%rd2]").replace(".global.f16", ".f16")
    generic = generic.replace("mov.u32 %r1, s;", "mov.u64 %rd2, s; cvta.shared.u64 %rd2, %rd2;")
    _, same = run(generic, {"p": np.zeros(2048, np.uint8)})
    assert same.records[:17].tolist() == [*trace.records[:16], trace.records[16]] and not len(same.conflicts)
    assert [line_of(int(r)) for r in same.records[17:]] == [(1 << 27) - 1] * 16


@pytest.mark.parametrize(("space", "name"), [("shared", "s"), ("global", "g")])
def test_wmma_that_begins_before_its_memory_is_out_of_bounds(space: str, name: str) -> None:
    text = f""".shared .align 128 .b8 s[4096]; .global .align 128 .b8 g[4096];
.entry k(.param .u64 p) {{ .reg .b32 %a<9>; .reg .b64 %rd<3>; ld.param.u64 %rd1, [p]; mov.u64 %rd2, {name};
cvta.{space}.u64 %rd2, %rd2; sub.s64 %rd2, %rd2, 32;
wmma.load.a.sync.aligned.row.m16n16k16.f16 {{%a0, %a1, %a2, %a3, %a4, %a5, %a6, %a7}}, [%rd2], 16; ret; }}"""
    with pytest.raises(ExecutionError, match="out of bounds"):
        run(text, {"p": np.zeros(64, np.uint8)})
    with pytest.raises(ExecutionError, match="out of bounds"):
        run(text.replace("sub.s64 %rd2, %rd2, 32;", "mov.u64 %rd2, -32;"), {"p": np.zeros(64, np.uint8)})
