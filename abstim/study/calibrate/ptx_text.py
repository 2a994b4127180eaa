"""The micro-benchmarks' kernels as PTX text. Each repeats what it measures `rounds` times, so that the time of one more
round is the difference of two launches, whatever a launch costs."""

from functools import cache
from pathlib import Path

CHAIN = 8  # dependent loads, or atomics, a round
CHAINS, LENGTH = 4, 16  # independent chains of an arithmetic round, and operations in each
# Of the kernels in memory_kernels.ptx, a round
LOADS = 8  # independent loads of shared memory
CHUNK_LOADS = 8  # of global memory: 1,024 threads read 64 KiB

# Registers of each type as the templates below name them
_REGISTERS = """.reg .pred %p<4>;
.reg .b32 %r<32>;
.reg .b64 %rd<32>;
.reg .f32 %f<32>;
.reg .f64 %d<32>;
.reg .b16 %h<16>;"""


def _entry(name: str, pointers: int, numbers: int, *body: str, before: str = "") -> str:
    """A kernel with `pointers` buffers (%rd0, ...) and `numbers` 32-bit values (%r20, ...)."""
    names = [(f"p{k}", "u64") for k in range(pointers)] + [(f"n{k}", "u32") for k in range(numbers)]
    parameters = ", ".join(f".param .{kind} {each}" for each, kind in names)
    loads = [f"ld.param.u64 %rd{k}, [p{k}];\ncvta.to.global.u64 %rd{k}, %rd{k};" for k in range(pointers)]
    loads += [f"ld.param.u32 %r{20 + k}, [n{k}];" for k in range(numbers)]
    lines = "\n".join([_REGISTERS, before, *loads, *body])
    return f".visible .entry {name}({parameters})\n{{\n{lines}\nret;\n}}\n"


def _rounds(*body: str) -> str:
    """`body`, as often as %r20 says."""
    return "\n".join(["AGAIN:", *body, "add.s32 %r20, %r20, -1;", "setp.gt.s32 %p0, %r20, 0;", "@%p0 bra AGAIN;"])


# Written and read buffers of each stream: A = c, (B), A = c B, A = B C + D, one element of 8 bytes a thread
STREAMS = {"init": 1, "read": 1, "scale": 2, "triad": 4}

# One operation on chain k: {a} its register, {b} one that no chain changes. Types: registers that hold them
OPERATIONS = {
    "fp32_fma": ("f", "fma.rn.f32 {a}, {a}, {b}, {b};"),
    "fp32_add": ("f", "add.rn.f32 {a}, {a}, {b};"),
    "fp64_fma": ("d", "fma.rn.f64 {a}, {a}, {b}, {b};"),
    "fp64_add": ("d", "add.rn.f64 {a}, {a}, {b};"),
    "int_multiply_add": ("r", "mad.lo.s32 {a}, {a}, {b}, {b};"),
    "int_min_max": ("r", "min.s32 {a}, {a}, {b};\nmax.s32 {a}, {a}, {c};"),
    "sfu_ex2": ("f", "ex2.approx.ftz.f32 {a}, {a};"),
    "sfu_rsqrt": ("f", "rsqrt.approx.ftz.f32 {a}, {a};"),
    "shuffle": ("r", "shfl.sync.down.b32 {a}, {a}, 1, 31, -1;"),
    # not back to fp32: that is no work of the XU on sm_86 (I2FP)
    "convert_fp32_int32": ("f", "cvt.rzi.s32.f32 %r19, {a};\nmov.b32 {a}, %r19;"),
    "convert_fp64_fp32": ("d", "cvt.rn.f32.f64 %f19, {a};\ncvt.f64.f32 {a}, %f19;"),
    "tensor_fp16_16x8x16": ("f", ""),
}  # fmt: skip
# Instructions an operation is, and results of each a thread
PER_OPERATION = {"int_min_max": 2, "convert_fp64_fp32": 2}
TENSOR = "tensor_fp16_16x8x16"
# Each lane has operands of its own: what all have alike is made once a warp
_LANE = """mov.u32 %r3, %tid.x;
and.b32 %r3, %r3, 31;
mul.wide.u32 %rd5, %r3, 8;
add.s64 %rd0, %rd0, %rd5;"""
_TYPES = {"f": "f32", "d": "f64", "r": "u32"}  # of registers


def arithmetic(name: str, chains: int) -> str:
    """`chains` independent chains of LENGTH operations a round; their operands come from memory."""
    if name == TENSOR:
        return _tensor(chains)
    letter, code = OPERATIONS[name]
    kind, size = _TYPES[letter], 8 if letter == "d" else 4
    operands = [f"ld.global.{kind} %{letter}{10 + j}, [%rd0+{size * j}];" for j in range(2 + chains)]
    steps = [
        code.format(a=f"%{letter}{12 + k}", b=f"%{letter}10", c=f"%{letter}11").replace("19", str(16 + k))
        for k in range(chains)
    ]
    ends = [f"st.global.{kind} [%rd1+{size * k}], %{letter}{12 + k};" for k in range(chains)]
    return _entry(name, 2, 1, _LANE, *operands, _rounds(*steps * LENGTH), *ends)


def _tensor(chains: int) -> str:
    """Products of matrices of 16 x 16 and 16 x 8, fp16, into fp32: registers %f0 to %f3 are chain 0's, and so on."""
    operands = [f"ld.global.u32 %r{k}, [%rd0+{4 * k}];" for k in range(6)]
    operands += [f"ld.global.f32 %f{k}, [%rd0+{4 * k}];" for k in range(4 * chains)]
    own = [", ".join(f"%f{4 * k + j}" for j in range(4)) for k in range(chains)]
    product = "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
    steps = [f"{product}{{{c}}}, {{%r0, %r1, %r2, %r3}}, {{%r4, %r5}}, {{{c}}};" for c in own]
    ends = [f"st.global.f32 [%rd1+{4 * k}], %f{k};" for k in range(4 * chains)]
    return _entry(TENSOR, 2, 1, _LANE, *operands, _rounds(*steps * LENGTH), *ends)


# space, whether the old value is used, operation
ATOMICS = {
    "shared_add_u32": ("shared", False, "add.u32"),
    "shared_add_u32_returned": ("shared", True, "add.u32"),
    "shared_add_f32": ("shared", False, "add.f32"),
    "global_add_u32": ("global", False, "add.u32"),
    "global_add_u32_returned": ("global", True, "add.u32"),
    "global_add_f32": ("global", False, "add.f32"),
    "global_add_f64": ("global", False, "add.f64"),
    "global_cas_u32": ("global", True, "cas.b32"),
}
ADDRESSES = {"one_address": 0, "one_a_lane": 1}  # of a warp's lanes; the stride in elements


def atomic(name: str) -> str:
    """CHAIN atomics a round, of every thread, at lane x %r21 bytes from the buffer's begin (every warp the same)."""
    space, returned, operation = ATOMICS[name]
    kind = operation.rpartition(".")[2]
    letter = {"u32": "r", "b32": "r", "f32": "f", "f64": "d"}[kind]
    address = "%r8" if space == "shared" else "%rd6"
    value = f"%{letter}10" + (f", %{letter}11" if operation.startswith("cas") else "")
    before = f"atom.{space}.{operation} %{letter}10," if returned else f"red.{space}.{operation}"
    load = _TYPES[letter]
    zero = "st.shared.u32 [%r8], %r3;\nbar.sync 0;" if space == "shared" else ""
    body = f"""mov.u32 %r3, %tid.x;
and.b32 %r4, %r3, 31;
mul.lo.s32 %r4, %r4, %r21;
mov.u64 %rd7, cell;
cvt.u32.u64 %r8, %rd7;
add.s32 %r8, %r8, %r4;
cvt.u64.u32 %rd5, %r4;
add.s64 %rd6, %rd0, %rd5;
{zero}
ld.global.{load} %{letter}10, [%rd1+64];
ld.global.{load} %{letter}11, [%rd1+72];
{_rounds(*[f"{before} [{address}], {value};"] * CHAIN)}
st.global.{load} [%rd1], %{letter}10;"""
    return _entry(f"atomic_{name}", 2, 2, body, before=".shared .align 8 .b8 cell[256];")


def ticks() -> str:
    """How many ticks of its SM's clock a loop of %r20 rounds takes."""
    return Path(__file__).with_name("ticks.ptx").read_text()


@cache
def module(target: int) -> str:
    """All kernels that GPUs of an architecture (70: sm_70) can run, as one PTX file."""
    text = Path(__file__).with_name("memory_kernels.ptx").read_text()
    found = [text.replace(".target sm_70", f".target sm_{min(target, 80)}")]
    for name in operations(target):
        found += [arithmetic(name, CHAINS), arithmetic(name, 1).replace(f"entry {name}(", f"entry {name}_latency(")]
    return "\n".join([*found, *map(atomic, ATOMICS)])


def operations(target: int) -> list[str]:
    """Names of what an architecture has units for."""
    return [name for name in OPERATIONS if name != TENSOR or target >= 80]
