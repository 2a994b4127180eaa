"""The micro-benchmarks' kernels as PTX text. Each repeats what it measures `rounds` times, so that the time of one more
round is the difference of two launches, whatever a launch costs.

`operations.csv` has a row an arithmetic operation, on a chain: {a} its register, {b} and {c} ones that no chain
changes; `registers` is the letter of what holds its type, `instructions` how many it is, and results of each a thread.
A float converted to an integer is not converted back: that is no work of the XU on sm_86 (I2FP). `atomics.csv` has a
row an atomic, `returned` where the old value is used. Files that end in .ptx.txt are parts of kernels with places to
fill."""

from collections.abc import Iterable
from functools import cache
from pathlib import Path

from functional.files import rows_beside

CHAIN = 8  # dependent loads, or atomics, a round
CHAINS, LENGTH = 4, 16  # independent chains of an arithmetic round, and operations in each
# Of the kernels in memory_kernels.ptx, a round
LOADS = 8  # independent loads of shared memory
CHUNK_LOADS = 8  # of global memory: 1,024 threads read 64 KiB
# Written and read buffers of each stream: A = c, (B), A = c B, A = B C + D, one element of 8 bytes a thread
STREAMS = {"init": 1, "read": 1, "scale": 2, "triad": 4}
OPERATIONS = {row["name"]: row for row in rows_beside(__file__, "operations.csv")}
TENSOR = "tensor_fp16_16x8x16"
ATOMICS = {row["name"]: row for row in rows_beside(__file__, "atomics.csv")}
ADDRESSES = {"one_address": 0, "one_a_lane": 1}  # of a warp's lanes; the stride in elements
_LETTERS = {"u32": "r", "b32": "r", "f32": "f", "f64": "d"}  # of the registers that hold a type
_TYPES = {"f": "f32", "d": "f64", "r": "u32"}


def _file(name: str, /, **places: str) -> str:
    """A file beside this module, its places filled."""
    text = Path(__file__).with_name(name).read_text()
    return text.format(**places).rstrip("\n") if places else text


def _entry(name: str, numbers: int, body: str, before: str = "") -> str:
    """A kernel with two buffers (%rd0, %rd1) and `numbers` 32-bit values (%r20, ...)."""
    names = ["p0", "p1", *(f"n{k}" for k in range(numbers))]
    parameters = ", ".join(f".param .{'u64' if each[0] == 'p' else 'u32'} {each}" for each in names)
    loads = [f"ld.param.u64 %rd{k}, [p{k}];\ncvta.to.global.u64 %rd{k}, %rd{k};" for k in range(2)]
    loads += [f"ld.param.u32 %r{20 + k}, [n{k}];" for k in range(numbers)]
    return _file("kernel.ptx.txt", name=name, parameters=parameters, lines="\n".join([before, *loads, body])) + "\n"


def _rounds(body: Iterable[str]) -> str:
    """`body`, as often as %r20 says."""
    return "\n".join(["AGAIN:", *body, "add.s32 %r20, %r20, -1;", "setp.gt.s32 %p0, %r20, 0;", "@%p0 bra AGAIN;"])


def arithmetic(name: str, chains: int) -> str:
    """`chains` independent chains of LENGTH operations a round. Their operands come from memory, each lane's own: what
    all have alike is made once a warp. Of TENSOR, products of matrices of 16 x 16 and 16 x 8, fp16, into fp32:
    registers %f0 to %f3 are chain 0's, and so on."""
    letter, code = OPERATIONS[name]["registers"], OPERATIONS[name]["code"]
    kind, size, first, count = _TYPES[letter], 8 if letter == "d" else 4, 12, chains
    operands = [f"ld.global.{kind} %{letter}{10 + j}, [%rd0+{size * j}];" for j in range(2 + chains)]
    steps = [
        code.format(a=f"%{letter}{12 + k}", b=f"%{letter}10", c=f"%{letter}11").replace("19", str(16 + k))
        for k in range(chains)
    ]
    if name == TENSOR:
        first, count = 0, 4 * chains
        operands = [f"ld.global.u32 %r{k}, [%rd0+{4 * k}];" for k in range(6)]
        operands += [f"ld.global.f32 %f{k}, [%rd0+{4 * k}];" for k in range(count)]
        own = [", ".join(f"%f{4 * k + j}" for j in range(4)) for k in range(chains)]
        product = "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
        steps = [f"{product}{{{c}}}, {{%r0, %r1, %r2, %r3}}, {{%r4, %r5}}, {{{c}}};" for c in own]
    ends = "\n".join(f"st.global.{kind} [%rd1+{size * k}], %{letter}{first + k};" for k in range(count))
    rounds = _rounds(steps * LENGTH)
    return _entry(name, 1, _file("arithmetic.ptx.txt", operands="\n".join(operands), rounds=rounds, ends=ends))


def atomic(name: str) -> str:
    """CHAIN atomics a round, of every thread, at lane x %r21 bytes from the buffer's begin (every warp the same)."""
    space, operation = ATOMICS[name]["space"], ATOMICS[name]["operation"]
    letter, shared = _LETTERS[operation.rpartition(".")[2]], space == "shared"
    value = f"%{letter}10" + (f", %{letter}11" if operation.startswith("cas") else "")
    returned = ATOMICS[name]["returned"] == "yes"
    before = f"atom.{space}.{operation} %{letter}10," if returned else f"red.{space}.{operation}"
    rounds = _rounds([f"{before} [{'%r8' if shared else '%rd6'}], {value};"] * CHAIN)
    zero = "st.shared.u32 [%r8], %r3;\nbar.sync 0;" if shared else ""
    body = _file("atomic.ptx.txt", kind=_TYPES[letter], letter=letter, rounds=rounds, zero=zero)
    return _entry(f"atomic_{name}", 2, body, before=".shared .align 8 .b8 cell[256];")


def ticks() -> str:
    """How many ticks of its SM's clock a loop of %r20 rounds takes."""
    return _file("ticks.ptx")


@cache
def module(target: int) -> str:
    """All kernels that GPUs of an architecture (70: sm_70) can run, as one PTX file."""
    found = [_file("memory_kernels.ptx").replace(".target sm_70", f".target sm_{min(target, 80)}")]
    for name in operations(target):
        found += [arithmetic(name, CHAINS), arithmetic(name, 1).replace(f"entry {name}(", f"entry {name}_latency(")]
    return "\n".join([*found, *map(atomic, ATOMICS)])


def operations(target: int) -> list[str]:
    """Names of what an architecture has units for."""
    return [name for name in OPERATIONS if name != TENSOR or target >= 80]
