"""Foreign kernels in a process that can do nothing but compute: what it cannot do, and that results are the same."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace

import numpy as np
import pytest
from oracle.array_executor import ArrayExecutor
from ptx_kernels import HEADER, REGISTERS, prepared

from abstim.cli import main
from abstim.targets import execution
from abstim.targets.execution import ALL, FOREIGN, ISOLATE, NONE, came_along, isolating
from abstim.targets.isolation import restrict
from abstim.targets.isolation.isolated_executor import Failed, IsolatedExecutor, IsolatedProcess
from functional import suite
from functional.errors import ExecutionError, InputError
from functional.llvm_executor import LlvmExecutor
from functional.traces.trace import Trace

pytestmark = pytest.mark.skipif(bool(restrict.missing()), reason=f"this system lacks {restrict.missing()}")

# Each is done twice: in a free process, where it works, and in one that is held to computing
FORBIDDEN = {
    "write a file": "open('new', 'w')",
    "change a file": "open('there', 'r+')",
    "append to a file": "open('there', 'a')",
    "cut a file": "os.truncate('there', 0)",
    "write to what is shared with everybody": "open('/dev/shm/abstim-test', 'w'); os.unlink('/dev/shm/abstim-test')",
    "read a file of the user": "open('there').read()",
    "read a file of the system": "open('/etc/passwd').read()",
    "read the parent's memory": "open(f'/proc/{os.getppid()}/maps').read()",
    "list a folder": "os.listdir('.')",
    "make a folder": "os.mkdir('folder')",
    "remove a file": "os.unlink('there')",
    "rename a file": "os.rename('there', 'elsewhere')",
    "link a file": "os.symlink('there', 'link')",
    "change a file's mode": "os.chmod('there', 0o777)",
    "start a process": "os.waitpid(os.fork() or os._exit(0), 0)",
    "start a program": "subprocess.run(['true'], check=True)",
    "become a program": "os.execv('/bin/true', ['true'])",
    "open a socket": "socket.socket(socket.AF_INET, socket.SOCK_DGRAM)",
    "connect": "socket.create_connection(('127.0.0.1', port), 1)",
    "open a socket of this computer": "socket.socketpair()",
    "send signals": "os.kill(os.getppid(), 0)",
    "raise a limit of its own": "resource.setrlimit(resource.RLIMIT_NOFILE, (60, 60))",
    "map memory of the system": "libc.shmget(0, 4096, 0o1600) >= 0 or 1 / 0",
    "trace a process": "libc.ptrace(0, 0, 0, 0) == 0 or 1 / 0",
}
ALLOWED = {
    "memory": "bytearray(1 << 26)",
    "threads": "t = threading.Thread(target=lambda: None); t.start(); t.join()",
    "modules": "import json.tool",
    "arithmetic": "np.ones((200, 200)) @ np.ones((200, 200))",
    "time": "time.sleep(0.001)",
    "what is open": "os.write(2, b'x')",
}
TRIES = """
import ctypes, os, resource, socket, subprocess, sys, threading, time
import numpy as np
from abstim.targets.isolation.restrict import restrict, rules
libc, allowed = ctypes.CDLL(None), rules()
listening = socket.create_server(("127.0.0.1", 0)); port = listening.getsockname()[1]
for name, attempt in {attempts!r}.items():
    open("there", "w").write("x")
    read, write = os.pipe()
    child = os.fork()
    if not child:
        if {held}: restrict(allowed)
        try: exec(attempt)
        except BaseException as error: os.write(write, type(error).__name__.encode())
        os._exit(0)
    os.close(write); os.waitpid(child, 0)
    print(name, os.read(read, 100).decode(), sep=": ")
    os.close(read)
    for left in ("new", "link", "elsewhere"):
        if os.path.lexists(left): os.unlink(left)
    if os.path.isdir("folder"): os.rmdir("folder")
"""


def outcomes(folder, attempts: dict[str, str], held: bool) -> dict[str, str]:
    """The error of each attempt, "" if there is none, each in a process of its own."""
    text = TRIES.format(attempts=attempts, held=held)
    done = subprocess.run([sys.executable, "-c", text], cwd=folder, capture_output=True, text=True, timeout=120)
    return dict(line.split(": ") for line in done.stdout.splitlines())


def test_what_a_free_process_can_do_a_held_one_cannot(tmp_path) -> None:
    free = outcomes(tmp_path, FORBIDDEN, held=False)
    assert set(free) == set(FORBIDDEN)
    impossible = {name for name, error in free.items() if error}
    assert impossible <= {"trace a process", "write to what is shared with everybody"}  # in some containers
    held = outcomes(tmp_path, FORBIDDEN, held=True)
    assert {name: error for name, error in held.items() if not error} == {}
    assert set(held.values()) <= {"PermissionError", "ZeroDivisionError", "ValueError"}


def test_computing_is_left(tmp_path) -> None:
    assert outcomes(tmp_path, ALLOWED, held=True) == dict.fromkeys(ALLOWED, "")


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
def test_the_filter_of_either_processor_can_be_written(monkeypatch, machine) -> None:
    monkeypatch.setattr("platform.machine", lambda: machine)
    code = b"".join(restrict._program())
    steps = [code[at : at + 8] for at in range(0, len(code), 8)]
    assert len(steps) < 4096 and steps[-1][0] == 0x06  # ends in an answer
    assert all(at + 1 + max(step[2], step[3]) < len(steps) for at, step in enumerate(steps) if step[0] == 0x15)


BODY = (
    "mul.wide.u32 %rd1, %r0, 4; add.u64 %rd1, %rd0, %rd1; ld.global.u32 %r1, [%rd1]; mad.lo.u32 %r1, %r1, 3, %r0; "
    "st.global.u32 [%rd1], %r1;"
)


@pytest.mark.parametrize("inner", [LlvmExecutor(1), LlvmExecutor(2), ArrayExecutor()])
def test_memory_and_trace_are_the_same(inner) -> None:
    launch, memory = prepared(BODY, 8, 64)
    own, other, parts = memory.copy(), memory.copy(), memory.copy()
    expected = inner.run(launch, own)
    isolated = IsolatedExecutor(inner)
    same(isolated.run(launch, other), expected)
    chunks = list(isolated.stream(launch, parts, chunk_bytes=1))
    assert len(chunks) == 8 and np.concatenate([chunk.blocks for chunk in chunks]).tolist() == expected.blocks.tolist()
    assert np.array_equal(own.arena, other.arena) and np.array_equal(own.arena, parts.arena)
    assert not np.array_equal(own.arena, memory.arena)
    same(isolated.run(launch, other, [3, 1]), inner.run(launch, own, [3, 1]))  # the same process, asked again
    assert np.array_equal(own.arena, other.arena)


def same(one: Trace, other: Trace) -> None:
    for name in ("thread_blocks", "blocks", "masks", "records", "conflicts", "block_offsets", "thread_instructions"):
        assert np.array_equal(getattr(one, name), getattr(other, name)), name


def test_a_part_of_memory_is_shared_with_the_rest_of_it() -> None:
    launch, memory = prepared(BODY, 2, 32)
    memory.allocate("b", 8, np.arange(8, dtype=np.uint8))
    IsolatedExecutor(ArrayExecutor()).run(launch, memory.part(["a"]))
    assert memory.read("b", np.uint8).tolist() == list(range(8))
    assert memory.read("a", np.uint32)[:3].tolist() == [0, 1, 2]
    memory.allocate("c", 8)
    IsolatedExecutor(ArrayExecutor()).run(launch, memory)
    assert memory.read("a", np.uint32)[:3].tolist() == [0, 4, 8]
    assert memory.copy().read("b", np.uint8).tolist() == list(range(8))


def test_faults_budgets_and_notes_come_through(capsys, tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("ABSTIM_CACHE", str(tmp_path))  # empty: what says why a launch faults is compiled in the process
    isolated, inner = IsolatedExecutor(LlvmExecutor(2)), LlvmExecutor(2)
    bad, memory = prepared("st.global.u32 [%rd0+4000000], %r0;", 1, 32)
    spin, _ = prepared("L: bra L;", 1, 32)
    for launch in (bad, spin):
        with pytest.raises(ExecutionError) as one:
            isolated.run(launch, memory.copy(), instruction_budget=1 << 20)
        assert "cache" not in capsys.readouterr().err
        with pytest.raises(ExecutionError) as other:
            inner.run(launch, memory.copy(), instruction_budget=1 << 20)
        assert str(one.value) == str(other.value)
    good, memory = prepared(BODY, 1, 32)
    isolated.run(good, memory)
    assert memory.read("a", np.uint32)[:3].tolist() == [0, 1, 2]


class Hostile(ArrayExecutor):
    """Does something to the process it runs in, or answers what cannot be."""

    def __init__(self, what) -> None:
        super().__init__()
        self.what = what

    def whole(self, request):
        trace = super().whole(request)
        return self.what(trace) or trace


@pytest.mark.parametrize(
    "what, said",
    [
        (lambda trace: ctypes.string_at(0), "ended by SIGSEGV"),
        (lambda trace: os._exit(3), "ended by its own will"),
        (lambda trace: replace(trace, blocks=trace.blocks + np.uint16(9)), "nonsense"),
        (lambda trace: replace(trace, block_offsets=trace.block_offsets * 1000), "nonsense"),
        (lambda trace: replace(trace, thread_blocks=trace.thread_blocks + 1), "nonsense"),
        (lambda trace: os.write(answers_of_the_child(), b"\xff" * 4096) and None, "nonsense"),
    ],
)  # fmt: skip
def test_a_process_that_crashes_or_lies(what, said) -> None:
    launch, memory = prepared(BODY, 2, 32)
    with pytest.raises(ExecutionError, match=said):
        IsolatedExecutor(Hostile(what)).run(launch, memory)


def answers_of_the_child() -> int:
    """The file that a held process writes its answers to: the only one it may write, but for nowhere."""
    for number in range(3, 5000):
        try:
            os.write(number, b"")
            return number
        except OSError:
            continue
    raise AssertionError


ENDLESS = """
import sys, time
sys.path.insert(0, {tests!r})
from ptx_kernels import prepared
from abstim.targets.isolation.isolated_executor import IsolatedExecutor
from abstim.targets.isolation.isolated_executor import IsolatedProcess
from abstim.targets.isolation.isolated_executor import Failed
from oracle.array_executor import ArrayExecutor
class Endless(ArrayExecutor):
    def whole(self, request):
        while True: pass
launch, memory = prepared("mov.u32 %r1, 1;", 1, 32)
isolated = IsolatedExecutor(Endless())
process_for = isolated._process_for
def told(*request):
    found = process_for(*request); print(found[0]._process, flush=True); return found
isolated._process_for = told
isolated.run(launch, memory)
"""


def test_it_ends_with_the_process_that_made_it() -> None:
    code = ENDLESS.format(tests=os.path.dirname(__file__))
    parent = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    child = int(parent.stdout.readline())
    parent.kill()
    parent.wait()
    for _ in range(200):
        if not alive(child):
            return
        time.sleep(0.05)
    os.kill(child, signal.SIGKILL)
    pytest.fail("it goes on")


def alive(process: int) -> bool:
    try:
        with open(f"/proc/{process}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


# -- the command ------------------------------------------------------------------------------------------------------


def test_a_system_that_cannot_refuses_the_promise(monkeypatch) -> None:
    monkeypatch.delenv(ISOLATE, raising=False)
    monkeypatch.setattr("abstim.targets.isolation.restrict.landlock_version", lambda: 0)
    with pytest.raises(InputError, match="isolation needs Landlock"), isolating(True):
        pass
    with isolating(None):
        assert execution.isolated() == NONE
    monkeypatch.setenv(ISOLATE, ALL)
    with pytest.raises(InputError, match="isolation needs Landlock"), isolating(None):
        pass


def test_who_decides(monkeypatch) -> None:
    monkeypatch.delenv(ISOLATE, raising=False)
    for asked, which in ((None, FOREIGN), (True, ALL), (False, NONE)):
        with isolating(asked):
            assert execution.isolated() == which and ISOLATE not in os.environ
        assert execution.isolated() == NONE
    monkeypatch.setenv(ISOLATE, NONE)
    with isolating(None):
        assert execution.isolated() == NONE
    monkeypatch.setenv(ISOLATE, "x")
    with pytest.raises(InputError, match="is none of"):
        execution.chosen_executor()


def test_what_is_foreign() -> None:
    assert came_along(suite.case("hotspot").launches[0].program)
    assert not came_along(prepared(BODY, 1, 32)[0].program)


def test_the_command_isolates_files(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("ABSTIM_CACHE", str(tmp_path / "cache"))
    text = f".entry k(.param .u64 a) {{ {REGISTERS} ld.param.u64 %rd0, [a]; mov.u32 %r0, %tid.x; {BODY} ret; }}"
    (tmp_path / "k.ptx").write_text(HEADER + text)
    asked, ask = [], IsolatedProcess.ask
    monkeypatch.setattr(IsolatedProcess, "ask", lambda *request: (asked.append(request), ask(*request)))
    command = ["trace", str(tmp_path / "k.ptx"), "--grid", "2", "--block", "32", "--arg", "buf:u32:64", "-o"]
    for option, expected in (("--no-isolate", 0), ("--isolate", 1)):
        with pytest.raises(SystemExit) as ended:
            main([option, *command, str(tmp_path / option)])
        assert not ended.value.code and len(asked) == expected


def test_what_an_isolated_process_says_is_one_plain_line() -> None:
    assert str(Failed("ExecutionError", "a\nb \x1b[2J", []).error()) == "a b \\x1b[2J"
    assert str(Failed("\x07", "a", []).error()) == "\\x07: a"
