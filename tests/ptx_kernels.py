"""Small PTX kernels for tests: `evaluate` an instruction, `per_thread` a body, or `launch` a whole module."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from oracle.array_executor import ArrayExecutor

from functional.execution.executor import Executor
from functional.launches.launch import Launch, Pointer, make_launch
from functional.launches.memory import Memory
from functional.programs.link import link
from functional.ptx.parser import parse
from functional.traces.line_record import line_of, more_follow, sectors_of
from functional.traces.trace import Trace

HEADER = ".version 8.5\n.target sm_90\n.address_size 64\n"
REGISTERS = (
    ".reg .pred %p<20>; .reg .b16 %h<40>; .reg .b32 %r<60>; .reg .b64 %rd<60>; .reg .f32 %f<20>; .reg .f64 %fd<20>;\n"
)
_DTYPES = {"b": "u", "u": "u", "s": "i"}


def dtype_of(type_: str) -> np.dtype:
    """NumPy type of a PTX type; packed and bf16 types as unsigned integers."""
    special = {"f16": "f2", "f32": "f4", "f64": "f8", "bf16": "u2", "f16x2": "u4", "bf16x2": "u4", "pred": "u4"}
    return np.dtype(special.get(type_) or f"{_DTYPES[type_[0]]}{int(type_[1:]) // 8}")


def module(text: str):
    """Parse PTX given without its header."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "kernel.ptx"
        path.write_text(HEADER + text)
        return parse(path)


@dataclass
class Run:
    """A launch after its execution."""

    launch: Launch
    memory: Memory
    trace: Trace

    def blocks(self, warp: int = 0) -> list[int]:
        return self.trace.blocks[slice(*self.trace.block_offsets[warp : warp + 2])].tolist()

    def masks(self, warp: int = 0) -> list[int]:
        return self.trace.masks[slice(*self.trace.block_offsets[warp : warp + 2])].tolist()

    def records(self, warp: int = 0) -> list[tuple[int, int, int]]:
        """(line, sector bits, more) of a warp."""
        found = self.trace.records[slice(*self.trace.record_offsets[warp : warp + 2])].tolist()
        return [(line_of(r), sectors_of(r), more_follow(r)) for r in found]

    def conflicts(self, warp: int = 0) -> list[int]:
        return self.trace.conflicts[slice(*self.trace.conflict_offsets[warp : warp + 2])].tolist()


def launch(
    text: str, buffers: dict[str, np.ndarray], grid=1, block=32, scalars=(), chunk_warps: int = 1024, budget=1 << 30,
    dynamic_shared_bytes: int = 0, thread_blocks=None, kernel: str = "k", executor: Executor | None = None,
) -> Run:  # fmt: skip
    """Run kernel `k` of a module text; the buffers, then the scalars are its arguments."""
    parsed = module(text)
    memory = Memory(parsed.variables)
    for name, values in buffers.items():
        memory.allocate(name, values.nbytes, values)
    arguments = [*(Pointer(name) for name in buffers), *scalars]
    made = make_launch(link(parsed, kernel), grid, block, arguments, memory, dynamic_shared_bytes)
    trace = (executor or ArrayExecutor(chunk_warps)).run(made, memory, thread_blocks, budget)
    return Run(made, memory, trace)


def entry(body: str, pointers: int = 1, before: str = "") -> str:
    """Kernel `k` with 64-bit pointer parameters a0, a1, ... in %rd0, %rd1, ... and %tid.x in %r0."""
    parameters = ", ".join(f".param .u64 a{i}" for i in range(pointers))
    loads = "".join(f"ld.param.u64 %rd{i}, [a{i}];\n" for i in range(pointers))
    return f"{before}\n.entry k({parameters}) {{\n{REGISTERS}{loads}mov.u32 %r0, %tid.x;\n{body}\nret;\n}}\n"


def prepared(body: str, grid: int = 1, block: int = 32) -> tuple[Launch, Memory]:
    """A launch of `entry(body)` on one buffer 'a' of 64 words, and its memory."""
    parsed = module(entry(body))
    memory = Memory(parsed.variables)
    memory.allocate("a", 256, np.zeros(64, np.uint32))
    return make_launch(link(parsed, "k"), grid, block, [Pointer("a")], memory), memory


def evaluate(instruction: str, out: str, *sources: tuple[str, object], setup: str = "") -> np.ndarray:
    """Execute one instruction (or several) in one thread an element.

    `instruction` names its result `%d`, its sources `%a %b %c %e`; `out` and the sources' types are PTX types, "pred"
    results come back as 0 or 1. `setup` declares further registers or precedes the instruction.
    """
    arrays = [np.ascontiguousarray(np.atleast_1d(np.asarray(v, dtype_of(t)))) for t, v in sources]
    count = max(len(a) for a in arrays) if arrays else 1
    arrays = [np.ascontiguousarray(np.broadcast_to(a, (count,))) for a in arrays]
    result = np.zeros(count, dtype_of(out))
    parameters = ", ".join(f".param .u64 a{i}" for i in range(len(arrays) + 1))
    lines = ["mov.u32 %r0, %ctaid.x; mov.u32 %r1, %tid.x; mad.lo.u32 %r0, %r0, 32, %r1; cvt.u64.u32 %rd9, %r0;"]
    for i, ((type_, _), name) in enumerate(zip(sources, "abce", strict=False)):
        lines.append(_declare(type_, name))
        lines.append(f"ld.param.u64 %rd0, [a{i}]; mad.lo.u64 %rd0, %rd9, {dtype_of(type_).itemsize}, %rd0;")
        bits = 8 * dtype_of(type_).itemsize
        if type_ == "pred":
            lines.append(f"ld.global.b32 %r2, [%rd0]; setp.ne.b32 %{name}, %r2, 0;")
        else:
            lines.append(f"ld.global.b{bits} %{name}, [%rd0];")
    lines += [_declare(out, "d"), setup, instruction]
    size = dtype_of(out).itemsize
    lines.append(f"ld.param.u64 %rd0, [a{len(arrays)}]; mad.lo.u64 %rd0, %rd9, {size}, %rd0;")
    lines.append(
        "selp.u32 %r2, 1, 0, %d; st.global.b32 [%rd0], %r2;" if out == "pred" else f"st.global.b{8 * size} [%rd0], %d;"
    )
    text = f".entry k({parameters}) {{\n{REGISTERS}" + "\n".join(lines) + "\nret;\n}\n"
    padded = 32 * -(-count // 32)
    buffers = {f"in{i}": np.concatenate([a, np.zeros(padded - count, a.dtype)]) for i, a in enumerate(arrays)}
    buffers["out"] = np.zeros(padded, result.dtype)
    run = launch(text, buffers, padded // 32, 32)
    return run.memory.read("out", result.dtype)[:count]


def _declare(type_: str, name: str) -> str:
    kept = type_ if type_ == "pred" else f"b{max(16, 8 * dtype_of(type_).itemsize)}"
    return f".reg .{kept} %{name};"


_STORE = "mul.wide.u32 %rd30, %r0, 4; add.s64 %rd30, %rd0, %rd30; st.global.u32 [%rd30], {};"


def per_thread(body: str, value: str = "%r1", before: str = "", **options) -> tuple[np.ndarray, Run]:
    """Run a body that leaves one u32 a thread in `value`; yields those, for one block of 32 threads unless told."""
    threads = int(np.prod(options.get("block", 32))) * int(options.get("grid", 1))
    run = launch(entry(body + _STORE.format(value), before=before), {"out": np.zeros(threads, np.uint32)}, **options)
    return run.memory.read("out", np.uint32), run
