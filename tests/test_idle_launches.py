"""A launch that would change nothing is not executed again; what it would take, and what it leaves, is the same."""

from __future__ import annotations

from concurrent.futures import CancelledError
from threading import Event, Timer

import numpy as np
import pytest

import abstim
from abstim.application import launch_recorder
from abstim.application.launch_recorder import LaunchRecorder, LaunchTimer, Selection
from abstim.gpu.config import load_gpu
from functional.execution.default_executor import default_executor

# copy: y = c * x, for a constant c; grow: x += 1; say: prints
PTX = """.version 8.0
.target sm_80
.address_size 64
.const .align 4 .f32 c = 0f40000000;
.extern .func (.param .b32 r) vprintf(.param .b64 f, .param .b64 a);
.global .align 1 .b8 text[4] = {104, 105, 10, 0};
.visible .entry copy(.param .u64 x, .param .u64 y) {
 .reg .b64 %rd<6>; .reg .f32 %f<4>; .reg .b32 %r<4>;
 ld.param.u64 %rd1, [x]; ld.param.u64 %rd2, [y]; mov.u32 %r1, %tid.x; mul.wide.u32 %rd3, %r1, 4;
 add.s64 %rd4, %rd1, %rd3; add.s64 %rd5, %rd2, %rd3; ld.const.f32 %f1, [c]; ld.global.f32 %f2, [%rd4];
 mul.f32 %f3, %f1, %f2; st.global.f32 [%rd5], %f3; ret; }
.visible .entry grow(.param .u64 x) {
 .reg .b64 %rd<4>; .reg .f32 %f<3>;
 ld.param.u64 %rd1, [x]; ld.global.f32 %f1, [%rd1]; add.f32 %f2, %f1, 0f3F800000; st.global.f32 [%rd1], %f2; ret; }
.visible .entry say() {
 .reg .b64 %rd<3>;
 mov.u64 %rd1, text; cvta.global.u64 %rd2, %rd1;
 { .param .b64 f; .param .b64 a; .param .b32 r; st.param.b64 [f], %rd2; st.param.b64 [a], 0;
   call.uni (r), vprintf, (f, a); } ret; }
"""


class Counting:
    """The default executor, which says how often it was asked."""

    def __init__(self):
        self.times, self._executor = 0, default_executor()

    def run(self, *arguments, **options):
        self.times += 1
        return self._executor.run(*arguments, **options)

    def stream(self, *arguments, **options):
        self.times += 1
        return self._executor.stream(*arguments, **options)


@pytest.fixture
def program(tmp_path):
    (tmp_path / "k.ptx").write_text(PTX)
    return abstim.load(tmp_path / "k.ptx").program()


@pytest.fixture
def arrays():
    return np.arange(32, dtype=np.float32), np.zeros(32, np.float32)


def recorder(timer=None):
    return LaunchRecorder(Counting(), None, timer, Selection(), lambda timed: None)


def test_from_the_third_time_on(program, arrays):
    x, y = arrays
    copy, grow, own = program.launch("copy", 1, 32, [x, y]), program.launch("grow", 1, 1, [x]), recorder()
    for expected in (1, 2, 2, 2):  # the second shows that nothing changes
        own.launch(copy, program.memory)
        assert own.executor.times == expected
    program.memory.bytes_of(program.memory.buffers["arg0"])[2:4] = 64, 64  # the host writes, and nobody is told
    own.launch(copy, program.memory)
    assert own.executor.times == 3 and own.count == 5
    for _ in range(4):
        own.launch(grow, program.memory)
    assert own.executor.times == 7 and program.memory.read("arg0", np.float32)[0] == 7
    own.launch(copy, program.memory)
    assert program.memory.read("arg1", np.float32)[0] == 14


def test_two_that_take_turns_and_other_parameters(program, arrays):
    x, y = arrays
    there, back, own = program.launch("copy", 1, 32, [x, y]), program.launch("copy", 1, 16, [x, y]), recorder()
    for _ in range(5):
        own.launch(there, program.memory)
        own.launch(back, program.memory)
    assert own.executor.times == 4
    program.memory.const_arena[:4] = np.array([3], np.float32).view(np.uint8)
    own.launch(there, program.memory)
    assert own.executor.times == 5 and np.array_equal(program.memory.read("arg1", np.float32), 3 * x)


def test_what_prints_is_executed(program):
    say, own = program.launch("say", 1, 1), recorder()
    assert program.printed() == ("hi\n",)
    for _ in range(4):
        own.launch(say, program.memory)
    assert own.executor.times == 4


def test_too_much_memory_is_not_compared(program, arrays, monkeypatch):
    copy, own = program.launch("copy", 1, 32, [*arrays]), recorder()
    monkeypatch.setattr(launch_recorder, "MOST_BYTES", 100)
    for _ in range(4):
        own.launch(copy, program.memory)
    assert own.executor.times == 4


def test_it_is_timed_as_before(program, arrays):
    copy = program.launch("copy", 1, 32, [*arrays])
    timer = LaunchTimer([load_gpu("gtx480", ["perfect_memory=true"])], "detailed", program, "all")
    own = recorder(timer)
    seconds = [own.launch(copy, program.memory) for _ in range(4)]
    timed = timer.finish()
    assert own.executor.times == 2 and [t.number for t in timed] == [0, 1, 2, 3]
    assert len({t.results[0].cycles for t in timed}) == 1 == len({s.result() for s, _, _ in seconds})


def test_caches_are_kept_from_launch_to_launch_as_on_a_gpu(program, arrays):
    """As `abstim run --flush` has it; each launch is executed and timed, for what it finds differs."""
    found = {}
    for flush in ("none", "all"):
        timer, memory = LaunchTimer([load_gpu("gtx480")], "detailed", program, flush), program.memory
        own = recorder(timer)
        for _ in range(4):
            own.launch(program.launch("copy", 1, 32, [*arrays]), memory)
        found[flush] = [t.results[0].cycles for t in timer.finish()]
        assert own.executor.times == (4 if flush == "none" else 2)
    assert len(set(found["all"])) == 1 == len(set(found["none"][1:]))
    assert found["none"][0] == found["all"][0] > found["none"][1]
    with pytest.raises(abstim.InputError, match="empty caches"):
        LaunchTimer([load_gpu("gtx480")], "analytic", program, "none")


def test_who_waits_for_a_launch_that_is_left_out_waits_no_longer(program, arrays):
    """An interrupt cancels what has not begun; the times of streams may be waiting for it."""
    timer, busy = LaunchTimer([load_gpu("gtx480")], "detailed", program, "all"), Event()
    timer.pool.submit(busy.wait)
    seconds, *_ = recorder(timer).launch(program.launch("copy", 1, 32, [*arrays]), program.memory)
    Timer(0.2, busy.set).start()
    assert timer.stop() == []
    with pytest.raises(CancelledError):
        seconds.result(timeout=60)


def test_whose_clock_a_program_reads(tmp_path):
    from abstim.cli.application import _reads_host_clock

    programs = {
        "timed": b"\x7fELF\0clock_gettime\0",
        "other": b"\x7fELF\0cudaEventElapsedTime\0",
        "python3.11": b"\0time\0",
    }
    for name, content in programs.items():
        (tmp_path / name).write_bytes(content)
        (tmp_path / name).chmod(0o755)
    assert [_reads_host_clock(str(tmp_path / name)) for name in programs] == [True, False, False]
    assert not _reads_host_clock(str(tmp_path / "missing"))
