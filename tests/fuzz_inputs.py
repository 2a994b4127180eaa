"""What a stranger could send, made at random: for each kind of input, `make(rng)` its bytes and `judge(data, folder)`
what becomes of them.

`judge` ends with a verdict, "runs" or "refused". Anything but an InputError of one line is a find, and so are executors
that differ, traces of our own that the engine's door refuses, and other cycles the second time.
"""

from __future__ import annotations

import contextlib
import io
import json
import re
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass, fields, replace
from functools import cache
from pathlib import Path
from random import Random

import numpy as np
from fuzz_kept import judge_kept, make_kept
from ptx_kernels import HEADER, REGISTERS
from random_kernels import KernelText
from sass_traces import EXIT
from sass_traces import kernel as sass_kernel

from abstim.cli import main
from abstim.engine import simulate_point
from abstim.engine.inputs import LaunchInputs
from abstim.gpu.config import load_gpu
from abstim.gpu.spec import SECTIONS
from abstim.models import run
from abstim.target.check_trace import block_counts, check_traces, problem
from abstim.target.isolation.pipe_messages import Done, Failed, receive, send, send_trace
from functional import suite
from functional.case import Case
from functional.errors import ExecutionError, InputError
from functional.findings import findings
from functional.launch import Argument, Launch, Pointer, make_launch
from functional.launches_json import load_case
from functional.link import link
from functional.llvm_executor import LlvmExecutor
from functional.memory import Memory
from functional.numpy_executor import NumpyExecutor
from functional.parser import parse_bytes
from functional.program import Program
from functional.trace import Trace
from functional.trace_store import coding
from functional.trace_store.frames import DamagedError
from precharacterize.build import build_table

BUDGET = 200_000  # thread instructions of a launch
LLVM, NUMPY = LlvmExecutor(1), NumpyExecutor()
NUMBERS = [
    "0",
    "1",
    "-1",
    "2",
    "3",
    "7",
    "31",
    "32",
    "33",
    "64",
    "127",
    "128",
    "255",
    "256",
    "1024",
    "1025",
    "4096",
    "65535",
    "65536",
    "1048576",
    "2147483647",
    "-2147483648",
    "4294967295",
    "4294967296",
    "9223372036854775807",
    "18446744073709551615",
    "99999999999999999999999",
    "0x10",
    "1e400",
    "1.5",
    "-0.0",
    "nan",
    "inf",
]


# -- PTX --------------------------------------------------------------------------------------------------------------

TYPES = [
    "u8",
    "u16",
    "u32",
    "u64",
    "s8",
    "s16",
    "s32",
    "s64",
    "b8",
    "b16",
    "b32",
    "b64",
    "b128",
    "f16",
    "f16x2",
    "bf16",
    "f32",
    "f64",
    "pred",
]
SPACES = ("global", "shared", "local", "const", "param")
LINES = (
    "ld.global.u32 %r1, [%rd0+{n}];", "st.global.u32 [%rd0+{n}], %r1;", "ld.shared.u32 %r1, [s+{n}];",
    "st.shared.v4.u32 [s+{n}], {{%r1,%r1,%r1,%r1}};", "st.local.u32 [l+{n}], %r1;", "ld.local.u64 %rd2, [l+{n}];",
    "ld.const.u32 %r2, [c+{n}];", "ld.u32 %r1, [%rd2+{n}];", "mov.u64 %rd2, {n};", "mov.u32 %r2, {n};",
    "atom.global.add.u32 %r1, [%rd0+{n}], %r2;", "red.shared.max.u32 [s+{n}], %r2;", "shl.b32 %r2, %r1, {n};",
    "add.s64 %rd2, %rd0, {n};", "mul.wide.u32 %rd2, %r0, {n};", "div.u32 %r1, %r1, %r2;", "rem.s64 %rd3, %rd2, %rd3;",
    "setp.lt.u32 %p1, %r0, {n};", "@%p1 bra T{k};", "@!%p1 bra T{k};", "bra T{k};", "bar.sync {n};", "@%p1 exit;",
    "shfl.sync.idx.b32 %r1, %r1, {n}, 31, -1;", "vote.sync.ballot.b32 %r1, %p1, -1;", "cvt.u64.u32 %rd2, %r1;",
    "cp.async.ca.shared.global [s+{n}], [%rd0], 16;", "prefetch.global.L1 [%rd2];", "trap;", "membar.gl;", "ret;",
    "wmma.load.a.sync.aligned.row.m16n16k16.global.f16 {{%r1,%r2,%r3,%r4,%r5,%r6,%r7,%r8}}, [%rd0], %r2;",
    "ldmatrix.sync.aligned.m8n8.x2.shared.b16 {{%r3,%r4}}, [s+{n}];", "brx.idx %r1, L;",
    "fma.rn.f32 %f1, %f1, %f2, %f1;",
    "cvta.to.shared.u64 %rd2, %rd0;", "cvta.shared.u64 %rd2, %rd3;", "isspacep.local %p1, %rd2;", "activemask.b32 %r1;",
    "{{ .param .align 8 .b8 x[{m}]; .param .align 8 .b8 y[{m}]; st.param.u32 [x], %r1; call (y), f, (x); "
    "ld.param.u32 %r1, [y]; }}",
    "mov.u64 %rd3, f; {{ .param .b64 x; .param .b32 y; st.param.b64 [x], %rd2; call (y), %rd3, (x), P; }}",
)  # fmt: skip
FUNCTION = (
    ".func (.param .align 8 .b8 o[{a}]) f(.param .align 8 .b8 i[{b}]) {{ .reg .b32 %q<3>; .reg .b64 %w<3>; "
    "ld.param.u32 %q1, [i]; add.u32 %q1, %q1, {n}; st.param.u32 [o], %q1; {more} ret; }}\n"
)


def make_ptx(rng: Random) -> bytes:
    """A text of lines that do something, or one that ran, then altered."""
    text = _lines(rng) if rng.random() < 0.6 else _other(rng)
    for _ in range(rng.choice([0, 0, 1, 1, 2, 4])):
        text = _altered(text, rng)
    return text.encode("utf-8", "surrogateescape")


def _lines(rng: Random) -> str:
    count = rng.randrange(1, 12)
    sizes = [rng.choice([4, 8, 16, 64, 600, 2048]) for _ in range(3)]
    if rng.random() < 0.7:
        sizes = [sizes[0]] * 3
    body = []
    for k in range(count):
        number = rng.choice(("0", "4", "16", "32") if rng.random() < 0.7 else NUMBERS[:24])
        line = rng.choice(LINES).format(n=number, k=rng.randrange(count), m=sizes[0])
        body.append(f"T{k}: {line}")
    more = rng.choice(["", "", "ld.param.u64 %w1, [i+8];", "st.param.u64 [o+2040], %w1;"])
    function = FUNCTION.format(a=sizes[1], b=sizes[2], n=rng.choice(NUMBERS[:12]), more=more)
    if not any("f," in line or ", f;" in line for line in body):
        function = ""
    return (
        HEADER + ".shared .align 16 .b8 s[256]; .const .align 8 .b8 c[64] = {1,2,3};\n" + function
        + ".entry k(.param .u64 a0) {\n" + REGISTERS + ".local .align 8 .b8 l[32];\n"
        + ("P: .callprototype (.param .b32 _) _ (.param .b64 _);\n" if "P;" in "".join(body) else "")
        + ("L: .branchtargets T0;\n" if "brx" in "".join(body) else "")
        + "ld.param.u64 %rd0, [a0]; mov.u32 %r0, %tid.x; mov.u32 %r1, %laneid;\n" + "\n".join(body) + "\nret;\n}\n"
    )  # fmt: skip


@cache
def _suite_texts() -> tuple[str, ...]:
    found = (suite.ptx_path(name).read_text() for name in suite.names())
    return tuple(text for text in found if len(text) < 12_000)


def _other(rng: Random) -> str:
    if rng.random() < 0.5:
        return rng.choice(_suite_texts())
    return HEADER + KernelText(rng.randrange(1 << 30), rng.randrange(1, 20), 32).text


def _altered(text: str, rng: Random) -> str:
    lines = text.split("\n")
    at = rng.randrange(len(lines))
    parts = re.findall(r"%?[\w$]+|\s+|[^\w\s]", lines[at]) or [""]
    part = rng.randrange(len(parts))
    match rng.randrange(9):
        case 0:
            del lines[at]
        case 1:
            lines.insert(rng.randrange(len(lines)), lines[at])
        case 2:
            parts[part] = rng.choice(NUMBERS)
        case 3:
            parts[part] = rng.choice(TYPES)
        case 4:
            parts[part] = rng.choice(SPACES)
        case 5:
            del parts[part]
        case 6:
            parts[part] = rng.choice(re.findall(r"%?[\w$]+", text) or [""])
        case 7:
            parts.insert(part, rng.choice(["{", "}", ";", ",", "@", "[", "]", "\x00", "\xe9", ".", "-"]))
        case 8:
            return text[: rng.randrange(len(text))]
    if lines and at < len(lines):
        lines[at] = "".join(parts) if parts != [""] else lines[at]
    return "\n".join(lines)


def judge_ptx(data: bytes, _: Path) -> str:
    """Every entry on 32 threads: both executors, then the engine."""
    module = parse_bytes(data, "fuzz.ptx")
    for kernel in [k.name for k in module.kernels.values() if k.is_entry]:
        program = link(module, kernel)
        memory = Memory(module.variables)
        arguments: list[Argument] = []
        for number, parameter in enumerate(program.parameters):
            if parameter.bytes == 8 and not parameter.type.startswith("f"):
                memory.allocate(f"b{number}", 1024, np.arange(256, dtype=np.uint32))
                arguments.append(Pointer(f"b{number}"))
            else:
                arguments.append(bytes(parameter.bytes))
        launch = make_launch(program, 1, 32, arguments, memory)
        findings(program)
        trace = _both(launch, memory)
        check_traces(Case("fuzz", module, memory, (launch,)), (trace,))
        _timed(launch, trace)
    return "runs"


def _both(launch: Launch, memory: Memory) -> Trace:
    """One warp through both executors. Raises AssertionError if they differ, where they may not."""
    results = []
    for executor in (LLVM, NUMPY):
        own = memory.copy()
        try:
            results.append((executor.run(launch, own, instruction_budget=BUDGET), own))
        except ExecutionError as error:
            results.append((None, re.sub(r"(?s).*budget.*", "budget", str(error))))
    (trace, own), (expected, other) = results
    if trace is None or expected is None:
        assert own == other or _may_differ(launch.program), f"{own!r}, the oracle: {other!r}"
        raise InputError(str(own if trace is None else other))
    if not _may_differ(launch.program):
        assert np.array_equal(own.arena, other.arena), "memory"
        for field in fields(Trace):
            assert np.array_equal(getattr(trace, field.name), getattr(expected, field.name)), field.name
    return trace


def _may_differ(program: Program) -> bool:
    """What lanes that are not there hold, and floats in the order of lanes (docs/deviations.md)."""
    lanes = ("shfl", "vote", "match", "redux", "movmatrix", "mma", "wmma", "elect")
    return any(i.opcode in lanes or i.type.startswith(("f", "bf")) for i in program.instructions)


def _timed(launch: Launch, trace: Trace) -> None:
    """The engine takes the trace, and gives the same cycles twice."""
    gpu = load_gpu("gtx480", ["sm_count=1", "perfect_memory=false"])
    table = build_table(launch.program, gpu.pipeline)
    cycles = {simulate_point(LaunchInputs(table, trace, launch.shared_bytes), gpu, 1).cycles for _ in range(2)}
    assert len(cycles) == 1, cycles


# -- launches.json ----------------------------------------------------------------------------------------------------

WEIRD = (
    None, True, False, 0, 1, -1, 1 << 31, 1 << 32, 1 << 63, 1 << 64, 10**30, 1.5, -0.0, 1e308, float("nan"), "", "x",
    "../x", "/etc/passwd", "/dev/zero", "a" * 400, "\x00", "\x1b[31m", "k.ptx", "d.bin", ".", "..", [], [1], [1, 2, 3],
    [[1]], {}, {"buf": "a"}, {"a": 1}, [0, 0, 0], [-1], [1 << 31, 1, 1], [1] * 10, "u32", "f64",
)  # fmt: skip
KEYS = [
    "ptx",
    "buffers",
    "launches",
    "kernel",
    "grid",
    "block",
    "args",
    "bytes",
    "init",
    "expect",
    "dtype",
    "rtol",
    "atol",
    "dynamic_smem",
    "label",
    "buf",
    "u32",
]
LAUNCHES = {
    "ptx": "k.ptx", "buffers": {"a": {"bytes": 256, "init": "d.bin", "expect": "d.bin", "dtype": "u32", "rtol": 0.1}},
    "launches": [
        {"kernel": "k", "grid": [1, 1], "block": 32, "args": [{"buf": "a"}], "dynamic_smem": 16, "label": "x"},
    ],
}  # fmt: skip
PTX = HEADER + f".entry k(.param .u64 a) {{ {REGISTERS} ld.param.u64 %rd0, [a]; st.global.u32 [%rd0], 1; ret; }}\n"


def _places(value: object, path: tuple = ()) -> list[tuple]:
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(place for key, one in inner for place in _places(one, (*path, key)))]


def make_launches(rng: Random) -> bytes:
    """A launches.json with other values, keys, or characters."""
    document = json.loads(json.dumps(LAUNCHES))
    for _ in range(rng.choice([1, 1, 2, 4])):
        *path, last = rng.choice([place for place in _places(document) if place] or [("ptx",)])
        holder = document
        for key in path:
            holder = holder[key]
        if rng.random() < 0.2:
            del holder[last]
        elif rng.random() < 0.3 and isinstance(holder, dict):
            holder[rng.choice(KEYS)] = deepcopy(rng.choice(WEIRD))
        else:
            holder[last] = deepcopy(rng.choice(WEIRD))
    text = json.dumps(document)
    if rng.random() < 0.1:
        at = rng.randrange(len(text))
        text = text[:at] + rng.choice(["", "[" * 3000, "9" * 5000, "\x00", '"']) + text[at + 1 :]
    return text.encode()


def judge_launches(data: bytes, folder: Path) -> str:
    """Read beside its PTX and data, and every launch run."""
    (folder / "k.ptx").write_text(PTX)
    (folder / "d.bin").write_bytes(bytes(256))
    (folder / "launches.json").write_bytes(data)
    case = load_case(folder / "launches.json")
    for launch in case.launches[:3]:
        if launch.thread_blocks < 1 << 10:
            LLVM.run(launch, case.memory, instruction_budget=BUDGET)
    return "runs"


# -- descriptions of GPUs ---------------------------------------------------------------------------------------------


def make_gpu(rng: Random) -> bytes:
    """A TOML file with some keys set, most of them to values that are allowed."""
    lines = [f'base = "{rng.choice(["gtx480", "gtx480", "rtx3070", "h100", "titanx", "x"])}"']
    sections: dict[str, dict[str, str]] = {}
    for _ in range(rng.choice([1, 2, 4, 8])):
        section = rng.choice(list(SECTIONS))
        key = rng.choice(list(SECTIONS[section]))
        sections.setdefault(section, {})[key] = _toml(SECTIONS[section][key], rng)
    if rng.random() < 0.05:
        lines.append(rng.choice(["sources = 5", "title = 5", "[x]", "x = 1", "[[spec]]", "spec = 3", "a" * 300]))
    for section, values in sections.items():
        lines += [f"[{section}]", *(f"{key} = {value}" for key, value in values.items())]
    return "\n".join(lines).encode()


def _toml(domain: object, rng: Random) -> str:
    small = [0, 1, 2, 4, 8, 16, 32, 48, 64, 128, 256, 1024, True, False, 0.5, "gto", "lrr", "oldest", "two_level",
             "hash", "sp", "sfu", "int", "ipoly", "linear", "evict", "through", "sector", ""]  # fmt: skip
    if rng.random() < 0.1:
        return rng.choice([*NUMBERS, '"x"', "[1]", "{}", "9" * 5000, "true", '"\\u001b"'])
    right = [v for v in small if isinstance(v, domain.type) and (domain.type is bool or not isinstance(v, bool))]  # type: ignore[attr-defined]
    return json.dumps(rng.choice([v for v in right if domain.accepts(v)] or [1]))  # type: ignore[attr-defined]


@cache
def _small() -> tuple[Case, Launch, Trace]:
    """A launch of two blocks, and its trace."""
    body = (
        ".shared .b32 s[64]; mul.wide.u32 %rd1, %r0, 4; add.u64 %rd1, %rd0, %rd1; ld.global.u32 %r1, [%rd1]; "
        "mov.u32 %r2, s; mad.lo.u32 %r2, %r0, 4, %r2; st.shared.u32 [%r2], %r1; bar.sync 0; setp.gt.u32 %p1, %r0, 40; "
        "@%p1 bra X; add.u32 %r1, %r1, 5; X: st.global.u32 [%rd1], %r1;"
    )
    text = (
        HEADER + f".entry k(.param .u64 a) {{ {REGISTERS} ld.param.u64 %rd0, [a]; mov.u32 %r0, %tid.x; {body} ret; }}"
    )
    module = parse_bytes(text.encode(), "small.ptx")
    memory = Memory(module.variables)
    memory.allocate("a", 256, np.arange(64, dtype=np.uint32))
    launch = make_launch(link(module, "k"), 2, 64, [Pointer("a")], memory)
    trace = NUMPY.run(launch, memory.copy())
    return Case("small", module, memory, (launch,)), launch, trace


def judge_gpu(data: bytes, folder: Path) -> str:
    """Loaded, and a small launch timed on it, twice alike."""
    (folder / "g.toml").write_bytes(data)
    gpu = load_gpu(str(folder / "g.toml"))
    case, _, trace = _small()
    case = replace(case, traces=(trace,), resources={"k": 16})
    cycles = {run(case, gpu).totals["cycles"] for _ in range(2)}
    assert len(cycles) == 1, cycles
    return "runs"


# -- trace stores: whole checksums, other contents --------------------------------------------------------------------


def make_store(rng: Random) -> bytes:
    """A frame of a trace whose arrays were altered, or a frame whose bytes were."""
    _, _, trace = _small()
    changes = {}
    for name in rng.sample([f.name for f in fields(Trace) if f.name != "warps_per_block"], rng.choice([0, 1, 1, 2])):
        changes[name] = _array(getattr(trace, name), rng)
    forged = replace(trace, **changes)
    if rng.random() < 0.1:
        forged = replace(forged, warps_per_block=rng.choice([0, 1, 3, -1, 1 << 40]))
    data = bytearray(coding.encode(forged))
    if rng.random() < 0.4:
        for _ in range(rng.choice([1, 1, 3])):
            data[rng.randrange(len(data))] = rng.randrange(256)
    return bytes(data[: rng.randrange(1, len(data))] if rng.random() < 0.1 else data)


def _array(values: np.ndarray, rng: Random) -> np.ndarray:
    found = values.copy()
    if rng.random() < 0.2 or not len(found):
        return found[: rng.randrange(len(found) + 1)]
    for _ in range(rng.choice([1, 1, 2])):
        near = int(found[rng.randrange(len(found))]) + rng.choice([-1, 0, 1])
        number = rng.choice([near, rng.getrandbits(16), rng.getrandbits(63), -rng.getrandbits(40), 0])
        found[rng.randrange(len(found))] = np.array([number & ((1 << 64) - 1)], np.uint64).astype(found.dtype)[0]
    return found


def warm_up() -> None:
    """Compile and load what every kind needs: a child has it from the start."""
    _, launch, trace = _small()
    _timed(launch, trace)
    judge_ptx(PTX.encode(), Path())


def judge_store(data: bytes, _: Path) -> str:
    """Decoded, held against its launch, and timed if nothing shows."""
    _, launch, _ = _small()
    try:
        trace = coding.decode(data, launch.thread_blocks * launch.warps_per_block)
    except DamagedError as error:
        raise InputError(str(error)) from None
    if wrong := problem(trace, launch, block_counts(launch.program), np.arange(launch.thread_blocks)):
        raise InputError(wrong)
    _timed(launch, trace)
    return "runs"


# -- what an isolated process answers ---------------------------------------------------------------------------------


def make_answer(rng: Random) -> bytes:
    """A trace and the end, of which some bytes or arrays were altered."""
    _, _, trace = _small()
    if rng.random() < 0.5:
        name = rng.choice([f.name for f in fields(Trace) if f.name != "warps_per_block"])
        trace = replace(trace, **{name: _array(getattr(trace, name), rng)})
    file = io.BytesIO()
    send_trace(file, trace)
    send(file, Done(["x"], (0, 0), []) if rng.random() < 0.8 else Failed("InputError", "x", ["\x1b[2J"]))
    data = bytearray(file.getvalue())
    for _ in range(rng.choice([0, 1, 1, 3])):
        data[rng.randrange(rng.choice([40, len(data)]))] = rng.randrange(256)
    return bytes(data[: rng.randrange(1, len(data))] if rng.random() < 0.1 else data)


def judge_answer(data: bytes, _: Path) -> str:
    """Received, held against its launch, and timed if nothing shows."""
    _, launch, _ = _small()
    file = io.BytesIO(data)
    try:
        while isinstance(message := receive(file), Trace):
            if wrong := problem(message, launch, block_counts(launch.program), np.arange(launch.thread_blocks)):
                raise InputError(wrong)
            _timed(launch, message)
    except (EOFError, ValueError) as error:
        raise InputError(f"no message: {error}") from None
    return "runs" if isinstance(message, Done) else "refused"


# -- Accel-Sim --------------------------------------------------------------------------------------------------------

WARP = (
    "0000 ffffffff 1 R1 IMAD 2 R2 R3 0 ", "0010 ffffffff 1 R2 LDG.E 1 R4 4 1 0x7f0000000000 4 ",
    "0020 0000ffff 0 STG.E 2 R4 R2 4 1 0x7f0000000100 4 ", "0030 ffffffff 0 BAR.SYNC 0 0 ", EXIT,
)  # fmt: skip
TOKENS = [
    *NUMBERS,
    "R1",
    "R255",
    "R300",
    "R-1",
    "(1,1,1)",
    "(0,0,0)",
    "LDG.E.64",
    "EXIT",
    "BAR.SYNC",
    "FOO",
    "0x",
    "",
    "=",
]


def make_accelsim(rng: Random) -> bytes:
    """A trace of one warp with other words."""
    lines = sass_kernel(WARP, WARP, block_dim="(64,1,1)").split("\n")
    for _ in range(rng.choice([1, 1, 2, 4])):
        at = rng.randrange(len(lines))
        words = lines[at].split(" ")
        place = rng.randrange(len(words))
        match rng.randrange(5):
            case 0:
                del lines[at]
            case 1:
                lines.insert(at, rng.choice(lines))
            case 2:
                words[place] = rng.choice(TOKENS)
            case 3:
                words.insert(place, rng.choice(TOKENS))
            case 4:
                del words[place]
        if at < len(lines) and words:
            lines[at] = " ".join(words)
        lines = lines or [""]
    return "\n".join(lines).encode()


def judge_accelsim(data: bytes, folder: Path) -> str:
    """Read and timed."""
    (folder / "kernelslist.g").write_text("kernel-1.traceg\n")
    (folder / "kernel-1.traceg").write_bytes(data)
    from abstim.target.trace_directory import trace_case

    case = trace_case(str(folder))
    if case.launches[0].thread_blocks > 1 << 12:
        return "runs"
    run(case, load_gpu("gtx480_perfect"))
    return "runs"


# -- the command ------------------------------------------------------------------------------------------------------

COMMANDS = [
    "run",
    "explore",
    "fit",
    "sample",
    "report",
    "gpus",
    "suite",
    "trace",
    "characterize",
    "validate",
    "import-config",
    "coldstart",
    "bench",
]
OPTIONS = [
    "--gpu",
    "--set",
    "--kernel",
    "--grid",
    "--block",
    "--arg",
    "--dynamic-shared",
    "--instruction-budget",
    "--flush",
    "--check",
    "--strict",
    "--model",
    "--vary",
    "--define",
    "--constraint",
    "--strategy",
    "--points",
    "--seed",
    "--objective",
    "--top",
    "--params",
    "--split",
    "--rounds",
    "--method",
    "--inside",
    "--warm-up",
    "--reference",
    "--benchmark",
    "--group",
    "--title",
    "--listing",
    "--help",
    "--json",
    "--version",
]
VALUES = [
    "gtx480",
    "sm_count=2",
    "sm_count=0",
    "perfect_memory=false",
    "x=1",
    "=",
    "64",
    "8x8x8",
    "1x1x1x1",
    "buf:f32:64",
    "u32:-1",
    "npy:/etc/passwd",
    "all",
    "none",
    "sm_count=1,2",
    "sm_count=1:1e9:1",
    "a=1/0",
    "time<1",
    "grid",
    "latin",
    "full",
    "pks",
    "photon",
    "first",
    "micro",
    "nothing",
    "\x1b[2J",
    "{}",
]


def make_command(rng: Random) -> bytes:
    """Words of a command line, of which few make sense together."""
    words = [rng.choice(COMMANDS), rng.choice(["nosuch", "k.ptx", "nn_euclid", ".", "/", "a" * 300])]
    if rng.random() < 0.2:
        words = rng.choice([["gpus", "gtx480"], ["suite"], ["characterize", "nn_euclid"], ["gpus"]])
    for _ in range(rng.choice([0, 1, 1, 2, 3, 4])):
        words.append(rng.choice(OPTIONS))
        if rng.random() < 0.8:
            words.append(rng.choice([*VALUES, *NUMBERS]))
    if len(words) > 1 and words[0] in ("bench", "fit", "coldstart", "sample", "validate"):
        words[1] = "nosuch"  # others take minutes
    return "\0".join(words).encode("utf-8", "surrogateescape")


def judge_command(data: bytes, folder: Path) -> str:
    """One line on stderr, or none."""
    (folder / "k.ptx").write_text(PTX)
    words = data.decode("utf-8", "surrogateescape").split("\0")
    words = [str(folder / word) if word == "k.ptx" else word for word in words]
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), contextlib.chdir(folder):
        try:
            main(words)
            code: object = 0
        except SystemExit as end:
            code = end.code
    said = err.getvalue()
    assert code in (0, 1, 2), (code, said)
    assert "Traceback" not in said and not (code == 2 and said.count("\n") != 1), said
    return "runs" if code == 0 else "refused"


# -- kernels that are right -------------------------------------------------------------------------------------------


def make_kernel(rng: Random) -> bytes:
    """A seed."""
    return str(rng.randrange(1 << 40)).encode()


def judge_kernel(data: bytes, _: Path) -> str:
    """A valid random kernel of several blocks: executors agree on everything."""
    from test_llvm_executor import LLVM as COMPILED
    from test_llvm_executor import assert_equal, random_launch

    seed = int(data)
    rng = np.random.default_rng(seed)
    size, grid, block = int(rng.integers(1, 61)), int(rng.integers(1, 4)), BLOCKS[rng.integers(len(BLOCKS))]
    launch, memory = random_launch(seed, size, grid, block)
    assert COMPILED.supports(launch.program), "handed over"
    assert_equal(launch, memory)
    return "runs"


def judge_hopper(data: bytes, _: Path) -> str:
    """A valid random kernel of clusters: executors agree, chunks of any size too, and warps' streams fit the kinds of
    their instructions."""
    from both_executors import assert_streams_fit
    from random_hopper import random_hopper_launch
    from test_llvm_executor import assert_equal

    seed = int(data)
    rng = np.random.default_rng(seed)
    launch, memory = random_hopper_launch(seed, int(rng.integers(1, 12)), int(rng.choice([1, 2, 4])))
    other = memory.copy()
    trace = assert_equal(launch, memory)
    assert_streams_fit(trace, launch.program)
    in_chunks = NumpyExecutor(4).run(launch, other)
    assert np.array_equal(memory.arena, other.arena), "memory, in chunks"
    for field in fields(Trace):
        assert np.array_equal(getattr(trace, field.name), getattr(in_chunks, field.name)), field.name
    return "runs"


BLOCKS = ((32, 1), (8, 1), (70, 1), (64, 1), (16, 3), (5, 9), (128, 1))


@dataclass(frozen=True)
class Kind:
    """A kind of input. `weight`: its share of the tries."""

    make: Callable[[Random], bytes]
    judge: Callable[[bytes, Path], str]
    weight: int


KINDS = {
    "ptx": Kind(make_ptx, judge_ptx, 30),
    "kernel": Kind(make_kernel, judge_kernel, 1),
    "hopper": Kind(make_kernel, judge_hopper, 1),
    "launches": Kind(make_launches, judge_launches, 15),
    "gpu": Kind(make_gpu, judge_gpu, 12),
    "store": Kind(make_store, judge_store, 25),
    "accelsim": Kind(make_accelsim, judge_accelsim, 12),
    "command": Kind(make_command, judge_command, 4),
    "kept": Kind(make_kept, judge_kept, 8),
    "answer": Kind(make_answer, judge_answer, 8),
}


def judged(kind: str, data: bytes, folder: Path) -> str:
    """The verdict on an input. Raises whatever is a find."""
    try:
        return KINDS[kind].judge(data, folder)
    except InputError as error:
        message = str(error)
        assert message and "\n" not in message, f"no line: {message[:200]!r}"
        return "refused"
    except MemoryError:  # the child has less than the computer; the command makes one line of it
        return "refused"
