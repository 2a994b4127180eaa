"""PTX: lines that do something, or a text that ran, altered; both executors, then the engine."""

from __future__ import annotations

import re
from dataclasses import fields
from functools import cache
from pathlib import Path
from random import Random

import numpy as np
from ptx_kernels import HEADER, REGISTERS
from random_kernels import KernelText

from abstim.targets.check_trace import check_traces
from functional import suite
from functional.errors import ExecutionError, InputError
from functional.execution.findings import findings
from functional.launches.case import Case
from functional.launches.launch import Argument, Launch, Pointer, make_launch
from functional.launches.memory import Memory
from functional.programs.link import link
from functional.programs.program import Program
from functional.ptx.parser import parse_bytes
from functional.traces.trace import Trace
from fuzz_kinds.small_launch import BUDGET, LLVM, NUMBERS, NUMPY, timed

TYPES = [
    "u8", "u16", "u32", "u64", "s8", "s16", "s32", "s64", "b8", "b16", "b32", "b64", "b128", "f16", "f16x2", "bf16",
    "f32", "f64", "pred",
]  # fmt: skip
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
        timed(launch, trace)
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
