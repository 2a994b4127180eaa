# ruff: noqa: E501  the tables
"""What is typed wrong, points at the wrong file, or meets a full disk: one clear line and exit code 2, each time."""

from __future__ import annotations

import os
import resource
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from call_command import call

BLEND = """.version 9.0
.target sm_75
.address_size 64
.file 1 "blend.cu"
.visible .entry blend(.param .u64 x, .param .u64 y, .param .u64 out, .param .u32 n)
{
    .reg .pred %p<2>;
    .reg .b32 %r<8>;
    .reg .f32 %f<4>;
    .reg .b64 %rd<10>;
    .loc 1 3 5
    ld.param.u64 %rd1, [x];
    ld.param.u64 %rd2, [y];
    ld.param.u64 %rd3, [out];
    ld.param.u32 %r1, [n];
    mov.u32 %r2, %ctaid.x;
    mov.u32 %r3, %ntid.x;
    mov.u32 %r4, %tid.x;
    mad.lo.s32 %r5, %r2, %r3, %r4;
    setp.ge.u32 %p1, %r5, %r1;
    @%p1 bra DONE;
    .loc 1 4 9
    mul.wide.u32 %rd4, %r5, 4;
    add.s64 %rd5, %rd1, %rd4;
    add.s64 %rd6, %rd2, %rd4;
    add.s64 %rd7, %rd3, %rd4;
    ld.global.f32 %f1, [%rd5];
    ld.global.f32 %f2, [%rd6];
    add.f32 %f3, %f1, %f2;
    st.global.f32 [%rd7], %f3;
DONE:
    ret;
}
"""
ENDLESS = """.version 9.0
.target sm_75
.address_size 64
.visible .entry endless()
{
AGAIN:
    bra.uni AGAIN;
}
"""
GPU = 'base = "gtx480"\n[spec]\nsm_count = 3\n'
TABLE = "benchmark,launch,variant,cycles\n"
CYCLES = Path(__file__).parent / "data" / "cycles.csv"
SHAPE = "--grid 4 --block 64"
BUFFER = "--arg buf:f32:256"
GIVEN = f"{SHAPE} {BUFFER} {BUFFER} {BUFFER} --arg 256"
REST = f"{BUFFER} {BUFFER} --arg 256"

# command | what it must say
TYPED = f"""
rnu relu                                            | Did you mean 'run'?
helpp                                               | No such command 'helpp'
--helpp                                             | No such option: --helpp
run                                                 | Missing argument 'TARGET'
run relu srad                                       | unexpected extra argument(s) (srad)
run relu --gpus a100                                | No such option: --gpus
run relu --instruction-budget {10**30}              | is not in the range 1<=x<=4611686018427387904
sample srad --seed -1                               | seed -1 is below 0
sample srad --warm-up ²                             | give a number of launches
explore relu --vary sm_count=1,2 --strategy latin --points 1 --seed -1 | seed -1 is below 0
tune blend.ptx --vary block_x=32,64 --strategy random --points 1 --seed -1 --grid 4 --block block_x {BUFFER} {REST} | seed -1 is below 0
fit --reference {CYCLES} --params l1d_latency_cycles --seed -1 | seed -1 is below 0
fit --reference {CYCLES} --params l1d_latency_cycles --factor inf | choose a number above 1, up to 4,096
run hotsopt                                         | did you mean hotspot?
run Relu                                            | did you mean relu?
run ""                                              | the target is empty
run relu --gpu a1000                                | did you mean a100?
run relu --gpu GTX480                               | did you mean gtx480?
run relu --gpu nope                                 | unknown GPU 'nope'; known: a100, a100_80
run relu --gpu ""                                   | unknown GPU ''
run relu --gpu                                      | Option '--gpu' requires an argument
run relu --json=yes                                 | Option '--json' does not take a value
run relu --set sm_cuont=3                           | did you mean sm_count?
run relu --set 5                                    | write it as key=value
run relu --set =5                                   | write it as key=value
run relu --set sm_count=                            | write it as key=value
run relu --set sm_count=abc                         | 'abc' is not a whole number from 1 to 4096
run relu --set sm_count=-4                          | -4 is not a whole number
run relu --set sm_count=0                           | 0 is not a whole number
run relu --set sm_count=2.5                         | 2.5 is not a whole number
run relu --set sm_count=1e1                         | 10.0 is not a whole number
run relu --set sm_count=٣                           | '٣' is not a whole number
run relu --set core_clock_hz=nan                    | nan is not a number from 1e+06
run relu --set core_clock_hz=inf                    | inf is not a number
run relu --set perfect_memory=no                    | 'no' is not true or false
run relu --set l1d_sets=7                           | 7 is not a power of two
run relu --set sm_count=3 --set sm_count=4          | sm_count was set already, by sm_count=3
run relu --flush l2                                 | there are all, data, l1, l1d, none
run relu --flush ""                                 | there are all, data, l1, l1d, none
run relu --model detaild                            | no model 'detaild'; did you mean detailed?
run relu --model foo                                | no model 'foo'; known: analytic, detailed, occupancy
run relu --backend array                            | No such option: --backend
run relu --instruction-budget 5                     | exceeds its budget of 5 thread instructions
run relu --instruction-budget -5                    | -5 is not in the range 1<=x<=
run relu --gpu gtx480 --gpu a100 --timeline x.json  | --timeline is of one GPU
gpus h10                                            | did you mean h100?
run relu --set SM_COUNT=5                           | did you mean sm_count?
gpus ""                                             | unknown GPU ''
suite --group tabel1                                | no group 'tabel1'; there are table1, apps
calibrate nogpu                                     | unknown GPU 'nogpu'
calibrate v100 --only nothing                       | no such micro-benchmark; there are atomics, bandwidth
explore relu                                        | Missing option '--vary'
explore nope --vary sm_count=1,2                    | 'nope' is no suite benchmark
explore relu --vary sm_cuont=1,2                    | did you mean sm_count?
explore relu --vary sm_count=                       | write it as key=values
explore relu --vary sm_count=8:64                   | a range is first:last:step
explore relu --vary sm_count=4:1:1                  | is empty or has more than 1,000,000 values
explore relu --vary sm_count=1:8:0                  | is empty
explore relu --vary sm_count=1,1                    | 1 is in it twice
explore relu --vary sm_count=1,2 --vary sm_count=3  | given twice; put all its values into one
explore relu --vary sm_count=1,2 --set sm_count=4   | --set sm_count=4: no effect beside --vary sm_count=1,2
explore relu --vary l2_kib=512,1024 --set l2_sets=8 | --set l2_sets=8: no effect beside --vary l2_kib
explore relu --vary scheduler=foo                   | 'foo' is not one of gto, lrr
explore relu --vary sm_count=1,2 --constraint ""    | not an expression
explore relu --vary sm_count=1,2 --constraint foo<3 | unknown name 'foo'
explore relu --vary sm_count=1,2 --constraint sm_count>3 | no point keeps every --constraint
explore relu --vary sm_count=1,2 --define x         | write it as name=expression
explore relu --vary sm_count=1,2 --define cycles=3  | is the name of a result
explore relu --vary sm_count=1,2 --define error=3   | is the name of a result
explore relu --vary sm_count=1,2 --define cycles_relu=3 | is the name of a result
explore relu --vary sm_count=1,2 --define a=3 --define a=4 | give every name once
explore relu --vary sm_count=1,2 --define "x=__import__('os')" | is no call of abs, ceil
explore relu --vary sm_count=1,2 --objective foo    | unknown name 'foo'
explore relu --vary sm_count=1,2 --strategy foo     | no strategy 'foo'
explore relu --vary sm_count=1,2 --strategy random  | --strategy random needs --points
explore relu --vary sm_count=1,2 --strategy random --points 0 | --points 0 is not a whole number above 0
explore relu --vary sm_count=1,2 --model foo        | no model 'foo'
explore relu --vary sm_count=1:4096:1 --vary max_threads_per_sm=32:2048:32 --vary l1d_ways=1:32:1 | is more than 1,000,000
sample relu --method foton                          | did you mean photon?
sample relu --method zzz                            | no method 'zzz'; known: auto, first, full
sample relu --gpu nope                              | unknown GPU 'nope'
fit --params l1d_latency_cycles                     | needs --reference CSV, or --silicon CSV
fit --reference {CYCLES} --params l1d_latency       | did you mean l1d_latency_cycles?
validate                                            | needs --reference CSV
validate --points 3 --benchmark relu --measured-by me | --measured-by: no effect without --reference and --plot
validate --reference {CYCLES} --variant NOPE        | no variant 'NOPE'
validate --points 3                                 | --benchmark
bench nope                                          | 'nope' is no suite benchmark
bench relu --stage foo                              | no stage 'foo'; there are parse
bench relu --rounds 0                               | 0
run relu --flush all --flush none                   | --flush was given 2 times; it takes one value
run relu --gpu gtx480 --gpu gtx480                  | --gpu gtx480: given twice
run relu --against result.json --limits             | result.json
advise relu --gpu gtx480 --gpu h100                 | --gpu was given 2 times
explore relu --vary sm_count=4,8 --gpu gtx480 --gpu h100 | --gpu was given 2 times
explore relu --vary sm_count=4,x                    | 'x' is not a whole number
explore relu relu --vary sm_count=4,8               | two targets are called relu
explore relu --vary sm_count=4,8 --top 0            | 0 is not in the range x>=1
sample relu --error 0%                              | more than 0 % and less than 100 %
sample relu --error 200%                            | an error of 200 % cannot be aimed at
fit --reference {CYCLES} --params zzz               | `abstim gpus gtx480` lists them
sample relu --error two                             | give a percentage, as in 2%
sample relu --inside foo                            | known: full, photon
sample relu --warm-up -3                            | give a number of launches, all
sample relu --times wide.toml                       | relu: cannot be read (No such file or directory); name what
fit --reference {CYCLES} --params sm_count --variant GTX480_a | 'sm_count' is no latency or service time
calibrate                                           | needs a GPU's name, or --native
calibrate v100 -o x.toml                            | --output describes what --native measured
app --launches 5:2 true                             | ends before it begins
--isolate                                           | Missing command
advise nope                                         | 'nope' is no suite benchmark
coldstart relu --gpu nope                           | unknown GPU 'nope'
trace relu                                          | Missing option '--out' / '-o'
export-trace relu                                   | Missing option '-o'
app                                                 | Missing argument
app no_such_program                                 | no_such_program
"""
LAUNCHED = f"""
run blend.ptx --block 64 {REST}                     | a .ptx target also needs --grid
run blend.ptx                                       | also needs --grid and --block, as in --grid 64
run none.ptx                                        | none.ptx: no such file
run relu --grid 4                                   | only for a .ptx or .cu target, which 'relu' is not
run blend.txt {SHAPE}                               | only for a .ptx or .cu target, which 'blend.txt' is not
run blend.ptx --kernel blen {GIVEN}                 | did you mean 'blend'?
run blend.ptx {GIVEN} --grid 8                      | --grid was given 2 times
run blend.ptx {SHAPE} --arg 5                       | takes 4 arguments, 1 was given: x (.u64)
run blend.ptx {GIVEN} --arg 7                       | takes 4 arguments, 5 were given
run blend.ptx {SHAPE} {BUFFER} {REST[:-3]}0.5       | '0.5' is not an integer
run blend.ptx {SHAPE} {BUFFER} {REST[:-3]}nan       | 'nan' is not an integer
run blend.ptx {SHAPE} {BUFFER} {REST[:-3]}5000000000 | 5000000000 does not fit in 32 bits
run blend.ptx {SHAPE} {BUFFER} {REST[:-3]}f32:3     | a floating-point argument does not fit an integer
run blend.ptx {SHAPE} {BUFFER} {REST[:-3]}u64:3     | expected 4 bytes, the argument has 8
run blend.ptx {SHAPE} {BUFFER} {REST[:-3]}buf:f32:1 | buffer 'arg3' needs a 64-bit parameter
run blend.ptx {SHAPE} --arg "" {REST}               | '' is not an integer
run blend.ptx {SHAPE} --arg buf:f32 {REST}          | expected buf:f32:COUNT
run blend.ptx {SHAPE} --arg buf:float:256 {REST}    | a type of f16, f32
run blend.ptx {SHAPE} --arg buf:f32:-5 {REST}       | expected buf:f32:COUNT
run blend.ptx {SHAPE} --arg buf:f32:256:rand {REST} | expected buf:f32:COUNT
run blend.ptx {SHAPE} --arg buf:f32:99999999999999 {REST} | do not fit in this computer's memory
run blend.ptx {SHAPE} --arg npy:none.npy {REST}     | cannot read none.npy: No such file
run blend.ptx {SHAPE} --arg npy:folder {REST}       | cannot read folder: Is a directory
run blend.ptx {SHAPE} --arg npy:text.npy {REST}     | text.npy is no .npy file of numbers
run blend.ptx {SHAPE} --arg npy:zip.npz {REST}      | zip.npz is no .npy file of numbers
run blend.ptx --grid -1 --block 64 {BUFFER} {REST}  | must be positive in x
run blend.ptx --grid 0 --block 64 {BUFFER} {REST}   | must be positive in x
run blend.ptx --grid 16;16 --block 64 {BUFFER} {REST} | as in 64, 64x64 or 8x8x8
run blend.ptx --grid 1x1x1x1 --block 64             | as in 64, 64x64 or 8x8x8
run blend.ptx --grid 4 --block 4096 {BUFFER} {REST} | over the limit of 1024 in x
run blend.ptx --grid 4 --block 1x1x512 {BUFFER} {REST} | over the limit of 64 in z
run blend.ptx --grid 2147483647 --block 256 {BUFFER} {REST} | warps; 134,217,728 can be held
run blend.ptx --grid 99999999999 --block 64 {BUFFER} {REST} | over the limit of 2147483647 in x
run blend.ptx {GIVEN} --dynamic-shared 9999999      | more than shared_bytes_per_sm = 49,152
run blend.ptx {GIVEN} --dynamic-shared -1           | outside 0 to 16777216
run blend.ptx {SHAPE} --arg 5 {REST}                | 4 bytes at 0x5 are out of bounds
run blend.ptx {SHAPE} --arg buf:f32:200 {REST}      | blend.ptx:27 (blend.cu:4): ld.global.f32, thread (8, 0, 0) of block (3, 0, 0)
run blend.ptx {SHAPE} --arg buf:f32:200 {REST}      | at the end of 'arg0' (800 bytes); so are 55 more addresses of it
run blend.ptx {SHAPE} --arg buf:f32:0 {REST}        | 'arg0' (0 bytes); so are 255 more addresses
run endless.ptx --grid 1 --block 32 --instruction-budget 1000 | endless.ptx:7: the launch exceeds its budget of 1000
"""
FILES = f"""
run none.ptx {GIVEN}                                | none.ptx: cannot read the PTX file: No such file
run loop.ptx {GIVEN}                                | Too many levels of symbolic links
run folder                                          | names kernel-1.traceg, which is not there
run folder/kernelslist.g                            | names kernel-1.traceg, which is not there
run folder.ptx {GIVEN}                              | Is a directory
run empty.ptx {GIVEN}                               | found the end of the file
run binary.ptx {GIVEN}                              | is not text; is this a PTX file?
run cut.ptx {GIVEN}                                 | found the end of the file
run utf16.ptx {GIVEN}                               | byte 0xff is not text
run folder.json                                     | Is a directory
run bad.json                                        | bad.json: is not JSON
run other.json                                      | other.json: unknown key 'a'
run nokey.json                                      | unknown key 'module'; a launches.json has ptx, buffers
run result.json                                     | a result of abstim, and no launches.json
run relu --gpu folder                               | folder: no GPU description
run relu --gpu none.toml                            | none.toml: no such GPU description
run relu --gpu lacks.toml                           | no value for gpcs, core_clock_hz
run relu --gpu empty.toml                           | no value for sm_count
run relu --gpu binary.toml                          | binary.toml: not TOML
run relu --gpu circle.toml                          | `base` leads back to this file
run relu --gpu orphan.toml                          | unknown GPU 'nope'
run relu --gpu typed.toml                           | 'three' is not a whole number
run relu --gpu misspelt.toml                        | did you mean sm_count?
run relu --against bad.json                         | bad.json: not JSON
run relu --against other.json                       | not a result of `abstim run --json`
run relu --against nan.json                         | not a result of `abstim run --json`
run relu --against none.json                        | none.json: No such file
run relu --timeline blend.ptx                       | blend.ptx: the name must end in .json
report result.json -o blend.ptx                     | blend.ptx: the name must end in .html or .htm
export-trace relu -o blend.ptx                      | blend.ptx: File exists
export-trace relu -o stored                         | stored: is a folder of `abstim trace`
validate --reference twice.csv                      | has launch 0 twice
run relu --gpu twice.toml                           | not TOML: Cannot overwrite a value
run relu --timeline none/x.json                     | none/x.json: cannot be written: there is no folder
run registers/blend.ptx {GIVEN}                     | registers/resources.json: 'blend': Expected 'int', got 'str'
report none.json                                    | none.json: No such file
report bad.json -o x.html                           | bad.json: not JSON
report other.json -o x.html                         | not a result of abstim
report empty.ptx                                    | empty.ptx: not JSON
report wrong.csv -o x.html                          | no column cycles, seconds
report binary.parquet -o x.html                     | not a Parquet file
report bad.json -o folder                           | folder: cannot be written: it is a folder
report bad.json -o none/x.html                      | there is no folder
report result.json -o result.json                   | it is one of the results
explore relu --vary sm_count=1,2 -o a.xlsx          | the name must end in .parquet or .csv or .json
explore relu --vary sm_count=1,2 -o none/x.csv      | there is no folder
explore relu --vary sm_count=1,2 --cluster tcp://127.0.0.1:1 | no scheduler answers there
validate --reference none.csv                       | none.csv
validate --reference folder                         | folder
validate --reference text.csv                       | cycles = 'abc' is not a whole number
validate --reference negative.csv                   | cycles = '-100' is not a whole number
validate --reference {CYCLES} --plot none/x.svg     | there is no folder
fit --reference wide.toml --params l1d_latency_cycles | no column benchmark, launch, variant, cycles
bench relu --compare other.json                     | not a result of `abstim bench --json`
import-config none.config                           | none.config
import-config wide.toml                             | expected an option such as -gpgpu_n_clusters
import-config empty.toml                            | no options in this file
characterize none.ptx                               | none.ptx: cannot read the PTX file
characterize binary.ptx                             | is not text
trace relu -o wide.toml                             | wide.toml
app folder                                          | folder
app result.json                                     | result.json
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("abstim.study.explore.cluster.CONNECT_SECONDS", 0.2)
    texts = {
        "blend.ptx": BLEND, "endless.ptx": ENDLESS, "cut.ptx": BLEND[:500], "empty.ptx": "", "text.npy": "hello",
        "blend.txt": "", "bad.json": '{"kind": "run", ', "other.json": '{"a": [1, 2]}', "nokey.json": '{"module": 1}', 
        "result.json": '{"kind": "run"}',
        "nan.json": '{"kind": "run", "launches": [], "totals": {"cycles": NaN, "seconds": 1}}',
        "wide.toml": GPU, "lacks.toml": "[spec]\nsm_count = 3\n", "empty.toml": "",
        "circle.toml": 'base = "circle.toml"\n', "orphan.toml": 'base = "nope"\n',
        "typed.toml": 'base = "gtx480"\n[spec]\nsm_count = "three"\n',
        "misspelt.toml": 'base = "gtx480"\n[spec]\nsm_cuont = 3\n', "wrong.csv": "a,b\n1,2\n",
        "text.csv": TABLE + "relu,0,GTX480_a,abc\n", "negative.csv": TABLE + "relu,0,GTX480_a,-100\n",
        "twice.csv": TABLE + "relu,0,GTX480_a,500\n" * 2, "twice.toml": GPU + "sm_count = 4\n",
        "stored/manifest.json": "{}", "folder/kernelslist.g": "kernel-1.traceg\n", "registers/blend.ptx": BLEND,
        "registers/resources.json": '{"blend": {"registers": "many"}}',
    }  # fmt: skip
    for name, text in texts.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    noise = bytes(range(128, 256)) * 4
    for name in ("binary.ptx", "binary.toml", "binary.parquet"):
        (tmp_path / name).write_bytes(noise)
    (tmp_path / "utf16.ptx").write_bytes(b"\xff\xfe" + BLEND.encode("utf-16-le"))
    np.savez(tmp_path / "zip.npz", a=np.zeros(3))
    for name in ("folder.ptx", "folder.json"):
        (tmp_path / name).mkdir()
    (tmp_path / "loop.ptx").symlink_to("loop.ptx")
    return tmp_path


def cases(table):
    return [tuple(part.strip() for part in line.split(" | ")) for line in table.strip().splitlines()]


@pytest.mark.parametrize(("line", "said"), cases(TYPED) + cases(LAUNCHED) + cases(FILES))
def test_one_clear_line_and_exit_code_2(folder, line, said):
    before = sorted(folder.rglob("*"))
    code, out, err = call(*shlex.split(line))
    lines = err.strip().splitlines()
    assert code == 2 and said in err and "Traceback" not in out + err, (code, out, err)
    assert len(lines) == 1 and lines[0].startswith("abstim: ") and out == ""
    assert sorted(folder.rglob("*")) == before  # and nothing is left behind


def test_the_tables_hold_as_many_as_were_promised():
    found = cases(TYPED) + cases(LAUNCHED) + cases(FILES)
    assert all(len(case) == 2 for case in found) and len(found) >= 133


def test_a_source_without_a_kernel_is_named_itself(folder, monkeypatch):
    if shutil.which("nvcc") is None:
        pytest.skip("no nvcc")
    (folder / "blend.cu").write_text("int main() {}")
    assert call(*shlex.split(f"run blend.cu {GIVEN}")).err == "abstim: blend.cu: choose a kernel: the file has none\n"


def test_registers_of_another_kernel_are_said_to_be_another_kernels(folder):
    (folder / "registers" / "resources.json").write_text('{"blendd": {"registers": 20}}')
    code, _, err = call(*shlex.split(f"run registers/blend.ptx {GIVEN}"))
    assert code == 0 and "resources.json says nothing of kernel 'blend'" in err


def test_a_trace_is_not_overwritten_not_executed_and_not_timed_where_it_is_damaged(folder):
    assert call("trace", "relu", "-o", "t.trace").code == 0
    lines = "trace relu -o t.trace", "bench t.trace", "export-trace t.trace -o accelsim"
    said = [call(*line.split()) for line in lines]
    os.truncate(folder / "t.trace" / "launch-00000.trace", 100)
    said.append(call("run", "t.trace"))
    assert [found.code for found in said] == [2] * 4
    parts = "is there already", "no data to execute on", "no data to execute on", "damaged (it has 100"
    for found, part in zip(said, parts, strict=True):
        assert part in found.err and found.err.count("\n") == 1


def small_files():
    resource.setrlimit(resource.RLIMIT_FSIZE, (512, 512))


def shell(line, folder, before=None, **variables):
    """A line of a shell in which `abstim` is the command."""
    command = f'abstim() {{ {shlex.quote(sys.executable)} -c "from abstim.cli import main; main()" "$@"; }}; {line}'
    environment = {key: value for key, value in (os.environ | variables).items() if value is not None}
    environment["PYTHONPATH"] = os.pathsep.join([str(Path(__file__).parents[1]), environment.get("PYTHONPATH", "")])
    return subprocess.run(
        ["bash", "-c", command], cwd=folder, env=environment, capture_output=True, preexec_fn=before, timeout=300
    )


@pytest.mark.parametrize(
    ("line", "variables", "said"),
    [
        ("abstim gpus gtx480 | head -1", {}, ""),
        ("abstim suite --json | head -c 10", {}, ""),
        ("abstim characterize blend.ptx", {"ABSTIM_CACHE": "wide.toml"}, "cache: cannot write"),
        ("abstim characterize blend.ptx", {"HOME": "/dev/null", "ABSTIM_CACHE": None}, ""),
        ("abstim characterize blend.ptx", {"HOME": None, "ABSTIM_CACHE": None, "XDG_CACHE_HOME": "caches"}, ""),
        ("abstim suite", {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}, ""),
        ("abstim gpus", {"LC_ALL": "POSIX", "PYTHONIOENCODING": "ascii", "NO_COLOR": "1"}, ""),
        ("abstim gpus h100", {"PYTHONIOENCODING": "latin-1", "COLUMNS": "60", "TERM": "dumb"}, ""),
        ("abstim suite", {"COLUMNS": "1"}, ""),
        ("cp blend.ptx 'a ü 測.ptx'; abstim characterize 'a ü 測.ptx'", {"LC_ALL": "C"}, ""),
    ],
)
def test_surroundings_that_are_survived(folder, line, variables, said):
    done = shell(line, folder, **variables)
    err = done.stderr.decode()
    assert done.returncode == 0 and said in err and err.count("\n") <= 1 and "Traceback" not in err, (done, err)


@pytest.mark.parametrize(
    ("line", "before", "variables", "said"),
    [
        ("abstim --help > /dev/full", None, {}, "the output cannot be written: No space left on device"),
        ("abstim gpus --json > /dev/full", None, {}, "the output cannot be written: No space left on device"),
        ("abstim gpus >&-", None, {}, "standard output is closed"),
        ("abstim trace relu -o t.trace", small_files, {"PYTHONDONTWRITEBYTECODE": "1"}, "cannot be written: File too large"),
        ("(ulimit -v 400000; abstim run relu)", None, {}, "400,000 KiB of addresses here (ulimit -v)"),
        ("abstim suite", None, {"ABSTIM_SECONDS": "soon"}, "'soon' is not a number of seconds"),
        ("abstim trace relu -o t.trace", None, {"ABSTIM_ISOLATE": "perhaps"}, "'perhaps' is none of 0, 1, foreign"),
        ("abstim trace relu -o t.trace", None, {"ABSTIM_THREADS": "many"}, "ABSTIM_THREADS"),
    ],
)  # fmt: skip
def test_surroundings_that_end_it(folder, line, before, variables, said):
    if "/dev/full" in line and not os.path.exists("/dev/full"):
        pytest.skip("no /dev/full")
    done = shell(line, folder, before, **variables)
    err = done.stderr.decode()
    assert done.returncode == 2 and said in err and "Traceback" not in err, (done, err)
    assert err.strip().splitlines()[-1].startswith("abstim: ")
