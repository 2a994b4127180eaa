"""What a hostile or unlucky kernel can take of time and memory: each thing ends, with one clear line."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import numpy as np
import pytest
from nightly import of
from processes import at_work, interrupted
from ptx_kernels import HEADER, entry, prepared

from abstim.cli.watch import seconds_allowed
from functional.errors import BudgetSpent, ExecutionError, InputError
from functional.llvm_executor import LlvmExecutor

BUDGET = 1 << 24


class _Untouched:
    """In place of the oracle: nothing may be executed a second time."""

    def chunks(self, *_: object) -> None:
        raise AssertionError("executed again by the oracle")


@pytest.mark.parametrize(
    "body,grid",
    [
        ("LOOP: bra.uni LOOP;", 4),  # nothing to wait for
        ("LOOP: ld.volatile.global.u32 %r1, [%rd0]; setp.eq.u32 %p0, %r1, 0; @%p0 bra LOOP;", 1),  # nobody to wait for
    ],
)
def test_what_is_over_budget_is_not_executed_again(body: str, grid: int) -> None:
    launch, memory = prepared(body, grid)
    executor = LlvmExecutor(1)
    executor.oracle = _Untouched()  # type: ignore[assignment]
    with pytest.raises(BudgetSpent, match=rf"kernel.ptx:\d+: the launch exceeds its budget of {BUDGET} thread"):
        executor.run(launch, memory, instruction_budget=BUDGET)


def test_a_spin_on_what_nobody_writes_ends_soon() -> None:
    launch, memory = prepared(
        "LOOP: ld.volatile.global.u32 %r1, [%rd0]; setp.eq.u32 %p0, %r1, 0; @%p0 bra LOOP;", 2, 128
    )
    with pytest.raises(ExecutionError, match="deadlock: 8 warps of 2 thread blocks wait for what none of them does"):
        LlvmExecutor(1).run(launch, memory, instruction_budget=BUDGET)


def test_blocks_that_wait_for_later_ones_run() -> None:
    """Block 0 waits for what block 1 writes: in block order it never ends."""
    launch, memory = prepared(
        "mov.u32 %r1, %ctaid.x; setp.ne.u32 %p0, %r1, 0; @%p0 bra WRITE; "
        "LOOP: ld.volatile.global.u32 %r2, [%rd0]; setp.eq.u32 %p1, %r2, 0; @%p1 bra LOOP; "
        "st.global.u32 [%rd0+4], 7; bra END; WRITE: st.global.u32 [%rd0], 1; END:",
        2,
    )
    LlvmExecutor(1).run(launch, memory, instruction_budget=BUDGET)
    assert memory.read("a", np.uint32)[:2].tolist() == [1, 7]


def test_a_loop_may_be_as_long_as_the_budget_allows() -> None:
    """A lone thread: more basic blocks than a 1024th of the budget."""
    launch, memory = prepared(
        "mov.u32 %r1, 400000; LOOP: sub.u32 %r1, %r1, 1; setp.ne.u32 %p0, %r1, 0; @%p0 bra LOOP; "
        "st.global.u32 [%rd0], 5;", 1, 1,
    )  # fmt: skip
    trace = LlvmExecutor(1).run(launch, memory, instruction_budget=BUDGET)
    assert len(trace.blocks) > 400_000 and memory.read("a", np.uint32)[0] == 5


# -- the command ----------------------------------------------------------------------------------------------------

SPIN = entry("LOOP: ld.volatile.global.u32 %r1, [%rd0]; setp.eq.u32 %p0, %r1, 0; @%p0 bra LOOP;")
BRANCHES = "mov.u32 %r2, 0;\n" + "".join(
    f"setp.gt.u32 %p1, %r0, {i}; @%p1 bra B{i}; add.u32 %r2, %r2, 1; B{i}:\n" for i in range(600)
)
NESTED = "mov.u32 %r2, 0;\n" + "".join(f"setp.gt.u32 %p1, %r0, {i % 32}; @!%p1 bra E{i};\n" for i in range(400))
NESTED += "add.u32 %r2, %r2, 1;\n" + "".join(f"E{i}: add.u32 %r2, %r2, {i};\n" for i in reversed(range(400)))
# More registers than 16 bits name
MANY = "mov.u32 %r2, 0;\n" + "".join(f"mov.b64 {{%z{i}, %z{i + 1}}}, %rd0;\n" for i in range(0, 33_000, 2))
LARGE = [
    pytest.param(BRANCHES, id="wide"),
    pytest.param(NESTED, id="deep"),
    pytest.param(".reg .b32 %z<40000>;\n" + MANY, id="registers"),
]


def command(tmp_path, text: str, *more: str, **environment: str) -> subprocess.Popen[str]:
    """`abstim run` of a PTX text on one warp and 64 words, started."""
    (tmp_path / "k.ptx").write_text(HEADER + text)
    arguments = ["run", str(tmp_path / "k.ptx"), "--grid", "1", "--block", "32", "--arg", "buf:u32:64", *more]
    # A shell has what it runs in the background ignore interrupts, and so their children
    code = "import signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler); "
    code += "from abstim.cli import main; main(sys.argv[1:])"
    return subprocess.Popen(
        [sys.executable, "-c", code, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env={**os.environ, "ABSTIM_THREADS": "1", **environment},
    )  # fmt: skip


def test_an_interrupt_ends_the_machine_code_within_two_seconds(tmp_path) -> None:
    process = command(tmp_path, SPIN, "--instruction-budget", str(1 << 50))
    at_work(process, 2)  # in the kernel, which would run for days
    out, err, used = interrupted(process)
    assert used < 3
    said = "abstim: interrupted; what was executed is kept, and a rerun times from the first launch on\n"
    assert (process.returncode, out) == (130, "") and str(err).splitlines(keepends=True)[
        -1
    ] == said  # before it: progress


def test_the_time_a_command_has_ends_it(tmp_path) -> None:
    process = command(tmp_path, SPIN, "--instruction-budget", str(1 << 50), ABSTIM_SECONDS="6")
    out, err = process.communicate(timeout=40)
    assert (process.returncode, out) == (2, "")
    assert err.startswith(
        "abstim: stopped after 6 s (ABSTIM_SECONDS), "
    )  # in the kernel, or, on a busy machine, before
    assert err.endswith("; what was finished is kept\n") and err.count("\n") == 1


@pytest.mark.parametrize("value", ["x", "0", "-1", "nan", "inf"])
def test_a_time_that_is_none_is_refused(monkeypatch, value) -> None:
    monkeypatch.setenv("ABSTIM_SECONDS", value)
    with pytest.raises(InputError, match="is not a number of seconds above 0"):
        seconds_allowed()


@pytest.mark.slow
@pytest.mark.parametrize("body", of(LARGE[-1:], LARGE))
def test_large_kernels_are_compiled(tmp_path, body) -> None:
    """1,500 branches once took LLVM minutes, 700 nested ones ten seconds, 33,000 registers had no room in tables.
    What larger ones take: docs/results.md#large-kernels."""
    process = command(tmp_path, entry(body + "st.global.u32 [%rd0], %r2;"))
    out, err = process.communicate(timeout=300)
    assert (process.returncode, err) == (0, "") and "Total:" in out


# -- guard pages ------------------------------------------------------------------------------------------------------

TOUCH = (
    "import ctypes; from functional.llvm_executor.launch_state import PAD_BYTES, Storage; "
    "s, n = Storage.of({size}), {size}; s.view(n)[:] = 1; ctypes.memset(s.address - PAD_BYTES, 0, n + 2 * PAD_BYTES); "
    "ctypes.memset({where}, 0, 1)"
)


@pytest.mark.parametrize("size", of([1, 4096], [0, 1, 4096, 100_000]))
def test_guard_pages_end_who_writes_beyond_a_storage(size) -> None:
    def ended(where: str) -> int:
        command = [sys.executable, "-c", TOUCH.format(size=size, where=where)]
        return subprocess.run(command, env={**os.environ, "ABSTIM_GUARD_PAGES": "1"}, check=False).returncode

    assert ended("s.address + n") == 0
    assert ended("s.address + n + PAD_BYTES + 64") == -signal.SIGSEGV == ended("s.data.ctypes.data + 4095")


def test_kernels_run_between_guard_pages(monkeypatch) -> None:
    monkeypatch.setenv("ABSTIM_GUARD_PAGES", "1")
    launch, memory = prepared(
        ".shared .align 4 .b8 s[128]; .local .align 4 .b8 l[64]; st.shared.u32 [s+124], %r0; st.local.u32 [l+60], %r0; "
        "ld.local.u32 %r1, [l+60]; mul.wide.u32 %rd1, %r0, 4; add.u64 %rd1, %rd0, %rd1; st.global.u32 [%rd1], %r1;",
        1, 64,
    )  # fmt: skip
    LlvmExecutor(1).run(launch, memory)
    assert memory.read("a", np.uint32).tolist() == list(range(64))
