"""What a new user does wrong: one clear line and exit code 2, or 1 where nothing could be done; nothing silent."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys

import pytest
from call_command import call
from nightly import of
from processes import at_work, interrupted

from abstim.cli.watch import Watch

ADD = """.version 9.0
.target sm_75
.address_size 64
.visible .entry add_one(.param .u64 data, .param .u32 count)
{
    .reg .pred %p<2>;
    .reg .b32 %r<8>;
    .reg .f32 %f<3>;
    .reg .b64 %rd<5>;
    ld.param.u64 %rd1, [data];
    ld.param.u32 %r1, [count];
    mov.u32 %r2, %ctaid.x;
    mov.u32 %r3, %ntid.x;
    mov.u32 %r4, %tid.x;
    mad.lo.s32 %r5, %r2, %r3, %r4;
    setp.ge.u32 %p1, %r5, %r1;
    @%p1 bra DONE;
    cvta.to.global.u64 %rd2, %rd1;
    mul.wide.u32 %rd3, %r5, 4;
    add.s64 %rd4, %rd2, %rd3;
    ld.global.f32 %f1, [%rd4];
    add.f32 %f2, %f1, 0f3F800000;
    st.global.f32 [%rd4], %f2;
DONE:
    ret;
}
"""
CUDA = """extern "C" __global__ void add_one(float* data, int count)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < count) data[i] += 1.0f;
}
"""
LAUNCH = ["--grid", "8", "--block", "128", "--arg", "buf:f32:1024", "--arg", "1024"]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A place with what people have: a kernel, a table of cycles nobody knows, JSON that is no result."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "add.ptx").write_text(ADD)
    (tmp_path / "add.cu").write_text(CUDA)
    (tmp_path / "bad.cu").write_text(CUDA.replace("int i", "itn i"))
    (tmp_path / "cycles.csv").write_text("benchmark,launch,variant,cycles\nhotspot,0,GTX999,5\n")
    (tmp_path / "alien.csv").write_text("benchmark,launch,variant,cycles\nno_such_benchmark,0,GTX480_a,5\n")
    (tmp_path / "other.json").write_text('{"kind": "soup"}')
    return tmp_path


@pytest.mark.parametrize(
    ("line", "said"),
    [
        # options that would have no effect
        ("run relu --timeline t.json --gpu gtx480 --gpu rtx3070", "--timeline is of one GPU, and 2 were given"),
        ("run relu --timeline t.json --model analytic", "--timeline is of the detailed model"),
        ("run relu --hot --gpu gtx480 --gpu titanx", "--hot is of one GPU, and 2 were given"),
        ("run relu --limits --model occupancy", "--limits is of the detailed model"),
        ("run relu --grid 4", "--grid: only for a .ptx or .cu target"),
        ("explore relu --vary sm_count=4 --block 4", "--block: only for a .ptx or .cu target"),
        ("explore relu --vary sm_count=4 --points 5", "--points: no effect with --strategy grid"),
        ("explore relu --vary sm_count=4 --seed 5", "--seed: no effect with --strategy grid"),
        ("sample relu -o x", "--output: no effect without --select-only"),
        ("sample relu --select-only -o x --method pks --warm-up 1", "--warm-up: no effect with --select-only"),
        ("bench relu --variant GTX480_a", "--variant: no effect without"),
        ("bench relu --group micro", "--group: no effect beside names"),
        ("validate --points 5 --benchmark relu --plot x.svg", "--plot: no effect with --points"),
        ("validate --points 5 --benchmark relu --variant a", "--variant: no effect with --points"),
        ("validate --silicon t.csv --group apps", "--group: no effect with --silicon"),
        ("validate --reference cycles.csv --programs x", "--programs: no effect without --silicon"),
        # nothing was done
        ("validate --reference cycles.csv", "nothing was compared, 1 skipped; the first: variant GTX999"),
        ("validate --reference alien.csv", "nothing was compared, 1 skipped; the first: no_such_benchmark"),
        ("validate --reference cycles.csv --flush none", "nothing was compared, 0 skipped"),
        ("explore relu --vary unit.int_add=int", "needs int units"),
        ("run add.ptx --check " + " ".join(LAUNCH), "--check: add_one has no expected outputs"),
        ("coldstart relu --gpu gtx480_perfect", "perfect memory, which leaves nothing to warm up"),
        # sources
        ("run add.ptx", "a .ptx target also needs --grid and --block"),
        ("run add.cu --grid 8", "a .cu target also needs --block"),
        ("run none.cu " + " ".join(LAUNCH), "none.cu: no such file"),
        ("coldstart add.ptx", "a .ptx target also needs --grid and --block"),
        ("export-trace add.ptx -o d", "a .ptx target also needs --grid and --block"),
        ("report other.json -o x.html", "other.json"),
        ("gpus gtx48", "did you mean gtx480?"),
        ("run relu --gpu gtx480 --set l2_kib=5", "unknown key 'l2_kib'"),
    ],
)  # fmt: skip
def test_it_is_refused_in_one_line(folder, line, said):
    code, out, err = call(*line.split())
    assert code in (1, 2) and said in err, (code, out, err)
    assert "Traceback" not in err and not (folder / "t.json").exists()
    assert err.strip().splitlines()[-1].startswith("abstim: ")


@pytest.mark.parametrize("command", ["explore --vary sm_count=4,8", "coldstart", "sample", "export-trace -o traces"])
def test_a_kernel_alone_can_be_given_to_every_command(folder, command):
    name, *options = command.split()
    code, _, err = call(name, "add.ptx", *LAUNCH, *options)
    assert code == 0, err


def test_a_sweep_without_a_point_says_so_in_json_too(folder):
    code, out, err = call("explore", "relu", "--vary", "max_threads_per_sm=32,64", "--json")
    assert code == 2 and "none of 2 points could be timed" in err
    assert not call("explore", "relu", "--vary", "max_threads_per_sm=32,64").out  # by no formula
    assert all(row["error"] for row in json.loads(out)["rows"])


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="no nvcc")
def test_a_cuda_source_is_compiled(folder):
    code, out, err = call("run", "add.cu", *LAUNCH, "--json")
    assert code == 0 and json.loads(out)["launches"][0]["kernel"] == "add_one", err
    code, _, err = call("run", "bad.cu", *LAUNCH)
    assert code == 2 and "nvcc refuses it" in err and "itn" in err


def test_without_a_compiler_it_says_what_to_type(folder, monkeypatch):
    monkeypatch.setattr("precharacterize.machine_code.assemble.tool", lambda name: None)
    code, _, err = call("run", "add.cu", *LAUNCH)
    assert code == 2 and "type `nvcc -ptx" in err and "-o add.ptx`" in err


def test_byte_order_marks_are_no_part_of_a_file(folder):
    for name in ("add.ptx", "cycles.csv"):
        (folder / name).write_bytes(b"\xef\xbb\xbf" + (folder / name).read_bytes())
    (folder / "mine.toml").write_bytes(b'\xef\xbb\xbfbase = "gtx480"\r\n[spec]\r\nsm_count = 3\r\n')
    code, out, err = call("run", "add.ptx", *LAUNCH, "--gpu", "mine.toml", "--json")
    assert code == 0 and json.loads(out)["gpu_values"]["sm_count"] == 3, err
    (folder / "old.json").write_bytes(b"\xef\xbb\xbf" + out.encode())
    assert call("report", "old.json", "-o", "x.html")[0] == 0
    assert call("run", "add.ptx", *LAUNCH, "--against", "old.json")[0] == 0
    assert "variant GTX999" in call("validate", "--reference", "cycles.csv")[2]


def command(*words, **options):
    # A shell has what it runs in the background ignore interrupts, and so their children
    code = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); "
    code += "from abstim.cli import main; main()"
    return subprocess.Popen([sys.executable, "-c", code, *words], stderr=subprocess.PIPE, **options)


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full")
@pytest.mark.parametrize("words", [("run", "relu", "--limits"), ("run", "relu", "--hot")])
def test_where_nothing_can_be_written_it_says_so(words):
    with open("/dev/full", "w") as full:
        process = command(*words, stdout=full)
        err = process.communicate(timeout=300)[1].decode()
    assert process.returncode == 2 and "No space left" in err and "Traceback" not in err and err.count("\n") == 1


INTERRUPTED = [("run", "lavamd_16x", "--limits"), ("run", "lavamd_16x", "--hot")]  # `advise` times as --limits does


@pytest.mark.parametrize("words", of(INTERRUPTED[:1], INTERRUPTED))  # each works for a minute and more
def test_an_interrupt_ends_it_within_two_seconds(words):
    process = command(*words, stdout=subprocess.PIPE)
    at_work(process, 1.5)
    out, err, used = interrupted(process)
    assert used < 1.0 + (os.cpu_count() or 1)  # each thread has a second to end what it is at
    assert process.returncode == 130 and b"interrupted" in err and b"Traceback" not in err and out == b""


def test_an_interrupt_when_all_is_said_changes_nothing():
    kill = "atexit.register(os.kill, os.getpid(), signal.SIGINT)"
    code = f"import atexit, os, signal; from abstim.cli import main; {kill}; main()"
    done = subprocess.run([sys.executable, "-c", code, "gpus"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0 and "gtx480" in done.stdout and done.stderr == ""


def test_an_interrupt_where_nothing_can_be_raised_is_no_traceback(capfd):
    """As in the callback of a library when memory is collected."""

    class Interrupted:
        def __del__(self):
            raise KeyboardInterrupt

    class Wrong:
        def __del__(self):
            raise ValueError("a fault")

    before = sys.unraisablehook
    with Watch(None):
        Interrupted()
        assert capfd.readouterr().err == ""
        Wrong()
        assert "ValueError: a fault" in capfd.readouterr().err
    assert sys.unraisablehook is before
