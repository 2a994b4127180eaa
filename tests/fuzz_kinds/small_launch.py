"""A launch of two thread blocks, numbers that are often wrong, and what judges a trace."""

from __future__ import annotations

from functools import cache

import numpy as np
from oracle.array_executor import ArrayExecutor
from ptx_kernels import HEADER, REGISTERS

from abstim.engine import simulate_point
from abstim.engine.simulation import LaunchInputs
from abstim.gpu.config import load_gpu
from functional.launches.case import Case
from functional.launches.launch import Launch, Pointer, make_launch
from functional.launches.memory import Memory
from functional.llvm_executor import LlvmExecutor
from functional.programs.link import link
from functional.ptx.parser import parse_bytes
from functional.traces.trace import Trace
from precharacterize.build import build_table

BUDGET = 200_000  # thread instructions of a launch
LLVM, NUMPY = LlvmExecutor(1), ArrayExecutor()
NUMBERS = [
    "0", "1", "-1", "2", "3", "7", "31", "32", "33", "64", "127", "128", "255", "256", "1024", "1025", "4096",
    "65535", "65536", "1048576", "2147483647", "-2147483648", "4294967295", "4294967296", "9223372036854775807",
    "18446744073709551615", "99999999999999999999999", "0x10", "1e400", "1.5", "-0.0", "nan", "inf",
]  # fmt: skip


@cache
def small_launch() -> tuple[Case, Launch, Trace]:
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


def timed(launch: Launch, trace: Trace) -> None:
    """The engine takes the trace, and gives the same cycles twice."""
    gpu = load_gpu("gtx480", ["sm_count=1", "perfect_memory=false"])
    table = build_table(launch.program, gpu.pipeline)
    cycles = {simulate_point(LaunchInputs(table, trace, launch.shared_bytes), gpu, 1).cycles for _ in range(2)}
    assert len(cycles) == 1, cycles
