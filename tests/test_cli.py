"""The command: what it prints, where, and how it ends."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from call_command import call

from abstim.cli import main
from abstim.gpu.config import gpu_names

VECTOR_ADD = """
.version 9.0
.target sm_75
.address_size 64
.visible .entry add_one(.param .u64 add_one_param_0, .param .u32 add_one_param_1)
{
	.reg .pred 	%p<2>;
	.reg .b32 	%r<8>;
	.reg .b64 	%rd<5>;
	ld.param.u64 	%rd1, [add_one_param_0];
	ld.param.u32 	%r2, [add_one_param_1];
	mov.u32 	%r3, %ctaid.x;
	mov.u32 	%r4, %ntid.x;
	mov.u32 	%r5, %tid.x;
	mad.lo.s32 	%r1, %r3, %r4, %r5;
	setp.ge.s32 	%p1, %r1, %r2;
	@%p1 bra 	$L__BB0_2;
	cvta.to.global.u64 	%rd2, %rd1;
	mul.wide.s32 	%rd3, %r1, 4;
	add.s64 	%rd4, %rd2, %rd3;
	ld.global.u32 	%r6, [%rd4];
	add.s32 	%r7, %r6, 1;
	st.global.u32 	[%rd4], %r7;
$L__BB0_2:
	ret;
}
"""


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    import abstim.engine.simulation  # noqa: F401  its machine code stays in the cache of all tests

    monkeypatch.setenv("ABSTIM_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def ptx(tmp_path):
    path = tmp_path / "add_one.ptx"
    path.write_text(VECTOR_ADD)
    return str(path)


def run_ptx(ptx, *more):
    shape = ("--grid", "4"), ("--block", "64")
    words = (word for option in shape if option[0] not in more for word in option)
    return call("run", ptx, *words, "--arg", "buf:i32:256", "--arg", "256", *more)


@pytest.mark.parametrize(
    "command", [(), ("run",), ("characterize",), ("gpus",), ("suite",), ("validate",), ("bench",), ("report",)]
)
def test_help_is_narrow_and_has_an_example(command):
    code, out, _ = call(*command, "--help")
    assert code == 0 and "Usage" in out
    assert max(map(len, out.splitlines())) <= 100
    assert not command or "Example" in out


def test_help_imports_nothing_slow():
    slow = "('numpy', 'jax', 'numba', 'pandas', 'bokeh')"
    code = f"import sys, abstim.cli.app; abstim.cli.app.app_for([]); print([m for m in {slow} if m in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


def test_a_run_imports_nothing_that_only_annotations_need():
    used = "abstim.cli.run, abstim.models, abstim.targets.execution, abstim.engine.simulation, functional.llvm_executor"
    needless = "('jaxtyping', 'asyncio', 'jax', 'numba', 'pandas')"
    code = f"import sys, {used}; print([m for m in {needless} if m in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


def test_what_is_missing_names_the_help():
    assert call("run").err == "abstim: Missing argument 'TARGET'; see `abstim run --help`\n"


def test_a_check_that_holds_is_said():
    code, out, err = call("run", "relu", "--check", "--json")
    assert code == 0 and err == "abstim: 1 output is as expected\n" and json.loads(out)


@pytest.mark.parametrize(
    "arguments, message",
    [
        (("run", "hotspit"), "hotspot"),
        (("explore", "micro_barrier", "--vary", "sm_count=1,2", "--backend", "array"), "No such option: --backend"),
        (("run", "hotspot", "--gpu", "gtx48"), "unknown GPU 'gtx48'; did you mean gtx480?"),
        (("run", "hotspot", "--set", "sm_cuont=3"), "did you mean sm_count?"),
        (("run", "hotspot", "--set", "sm_count=0"), "not a whole number from 1 to 4096"),
        (("run", "hotspot", "--grid", "4"), "--grid: only for a .ptx or .cu target"),
        (("run", "missing.json"), "missing.json"),
        (("run", "missing.ptx", "--grid", "1", "--block", "1"), "missing.ptx"),
        (("run", "missing.ptx"), "missing.ptx: no such file"),
        (("run", "hotspot", "--nonsense"), "--nonsense"),
        (("run",), "TARGET"),
        (("gpus", "titan"), "unknown GPU 'titan'"),
        (("suite", "--group", "nothing"), "nothing"),
        (("bench", "hotspot", "--stage", "sleep"), "no stage 'sleep'"),
        (("bench", "hotspot", "--points", "0"), "points = 0"),
        (("validate", "--reference", "missing.csv"), "missing.csv: No such file"),
        (("report", "missing.json"), "missing.json: No such file"),
        (("report",), "RESULT"),
        (("bench", "hotspot", "--compare", "missing.json"), "missing.json: No such file"),
        (("bench", "hotspot", "--reference", "missing.csv"), "missing.csv: No such file"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(arguments, message):
    code, out, err = call(*arguments)
    assert (code, out) == (2, "")
    assert message in err and err.count("\n") == 1 and "Traceback" not in err


@pytest.mark.parametrize(
    "changed, message",
    [
        (("--grid", "0"), "grid"),
        (("--grid", "-4"), "grid"),
        (("--grid", "4y4"), "--grid 4y4"),
        (("--block", "2048"), "limit"),
        (("--kernel", "add_two"), "add_one"),
        (("--arg", "7"), "2 arguments, 3 were given"),
        (("--dynamic-shared", "50000"), "more than shared_bytes_per_sm = 49,152"),
    ],
)
def test_bad_launch_is_one_line(ptx, changed, message):
    code, out, err = run_ptx(ptx, *changed)
    assert (code, out) == (2, "") and message in err and err.count("\n") == 1


def test_gpus_says_every_value_with_its_source():
    code, out, _ = call("gpus", "gtx480", "--set", "sm_count=30", "--json")
    values = next(iter(json.loads(out).values()))["values"]
    assert code == 0 and values["sm_count"] == {"value": 30, "source": "--set sm_count=30"}
    code, out, _ = call("gpus", "gtx480")
    assert "registers_per_sm" in out and "32768" in out and max(map(len, out.splitlines())) <= 100


def test_the_list_of_gpus_takes_two_lines_a_gpu_at_most():
    lines = [line for line in call("gpus").out.splitlines() if line.strip()]
    assert max(map(len, lines)) <= 80 and len(lines) <= 2 + 2 * len(gpu_names())


def test_suite_lists_every_benchmark():
    code, out, _ = call("suite", "--json")
    assert code == 0 and len(json.loads(out)["benchmarks"]) == 58


def test_characterize_keeps_the_table(ptx, tmp_path):
    code, out, _ = call("characterize", ptx, "--json")
    kernel = json.loads(out)["kernels"][0]
    assert code == 0 and kernel["kernel"] == "add_one" and len(kernel["instructions"]) == 15
    assert len(list((tmp_path / "cache" / "tables").iterdir())) == 1
    assert "add_one" in call("characterize", ptx, "--listing")[1]
    assert "these tables are of the PTX" in call("characterize", ptx, "--gpu", "a100")[2]


def test_run_json_is_the_contract(ptx):
    code, out, err = run_ptx(ptx, "--json")
    result = json.loads(out)
    assert (code, err, out.count("\n")) == (0, "", 1)
    assert result["kind"] == "run" and result["gpu_values"]["sm_count"] == 15
    assert set(result["wall_seconds"]) == {"parse", "characterize", "execute", "time"}
    (launch,) = result["launches"]
    assert (launch["kernel"], launch["launch"], launch["blocks_per_sm"]) == ("add_one", 0, 1)
    assert launch["thread_instructions"] == 256 * 15 - 0 - 256  # the guarded branch is not taken
    assert launch["warp_instructions"] == 8 * 15
    assert launch["seconds"] == pytest.approx(launch["cycles"] / 700e6)
    assert launch["ipc"] == pytest.approx(launch["thread_instructions"] / launch["cycles"])
    assert 0 < launch["occupancy"] < 1
    slots = launch["issue_slots"]
    assert slots["issued"] == launch["warp_instructions"]
    assert sum(slots.values()) == launch["cycles"] * 15 * 2
    assert all(sum(per_sm) == slots[reason] for reason, per_sm in launch["issue_slots_per_sm"].items())


def test_run_prints_a_table_and_a_comparison(ptx):
    code, out, _ = run_ptx(ptx)
    assert code == 0 and "add_one" in out and "Issue slots" in out and max(map(len, out.splitlines())) <= 100
    code, out, _ = run_ptx(ptx, "--gpu", "gtx480_1sched", "--gpu", "gtx480")
    assert code == 0 and "gtx480_1sched" in out and "1.00x" in out
    code, out, _ = run_ptx(ptx, "--gpu", "gtx480_1sched", "--gpu", "gtx480", "--json")
    assert [run["gpu"] for run in json.loads(out)["runs"]] == ["gtx480_1sched", "gtx480"]
    assert json.loads(out)["kind"] == "runs"


def test_the_memory_model_stands_everywhere_and_mixed_ones_are_marked(ptx):
    _, alone, _ = run_ptx(ptx)
    _, perfect, _ = run_ptx(ptx, "--gpu", "gtx480_1sched", "--gpu", "gtx480_perfect")
    _, mixed, _ = run_ptx(ptx, "--gpu", "gtx480_perfect", "--gpu", "gtx480")
    assert "(memory: L2 and DRAM)" in alone
    assert perfect.count(" perfect ") >= 2 and "L2 and DRAM" not in perfect and "Not alike" not in perfect
    assert "Not alike: with perfect memory" in mixed and "L2 and DRAM" in mixed
    assert all("Error on gtx480" in out for out in (perfect, mixed))
    found = json.loads(run_ptx(ptx, "--gpu", "gtx480_perfect", "--gpu", "gtx480", "--json")[1])
    assert found["mixed_memory_models"] and [r["memory_model"] for r in found["runs"]] == ["perfect", "L2 and DRAM"]


def test_registers_that_have_something_else_on_a_gpu_are_named(tmp_path):
    """Where a program measures by the clock, or shares work by SM, its numbers are no GPU's."""
    (path := tmp_path / "add_one.ptx").write_text(VECTOR_ADD.replace("%ctaid.x", "%smid").replace("%tid.x", "%clock"))
    code, _, said = run_ptx(str(path))
    assert code == 0 and "0 add_one: %clock counts the instructions of its warp here (PTX line " in said
    assert "0 add_one: %smid is 0 here (PTX line " in said


@pytest.mark.parametrize("grid", ["4,1", "4 1", "4, 1, 1", " 4X1 "])
def test_extents_have_a_comma_a_space_or_an_x_between_them(ptx, grid):
    code, out, _ = run_ptx(ptx, "--json", "--grid", grid, "--block", "64,1")
    assert code == 0 and json.loads(out)["launches"][0]["grid"] == [4, 1, 1]


def test_a_gpu_that_a_block_does_not_fit_on_costs_its_own_row(tmp_path):
    narrow = tmp_path / "narrow.toml"
    values = '[sources]\nchoice = "a test"\n[spec]\nregisters_per_sm = { value = 1024, source = "choice" }\n'
    narrow.write_text(f'base = "gtx480_perfect"\ntitle = "few registers"\n{values}')
    words = ("run", "relu", "--gpu", narrow, "--gpu", "gtx480_perfect")
    code, out, err = call(*words)
    assert code == 2 and err.count("\n") == 1 and "does not fit narrow: a thread block needs 3,072 registers" in err
    rows = [line.split()[0] for line in out.splitlines() if line.startswith((" gtx480", " narrow"))]
    assert rows[1] == "narrow" and rows[0].startswith("gtx480") and "does not fit" in out
    code, out, err = call(*words, "--json")
    found = json.loads(out)
    assert code == 2 and [run["gpu"] for run in found["runs"]] == ["gtx480_perfect"]
    assert [(one["gpu"], one["reason"] in err) for one in found["refused"]] == [("narrow", True)]
    code, out, err = call("run", "relu", "--gpu", narrow)
    assert (code, out) == (2, "") and "does not fit" in err


def test_second_run_is_from_the_cache_and_a_damaged_one_is_made_again(ptx, tmp_path):
    first = json.loads(run_ptx(ptx, "--json")[1])
    (trace,) = (tmp_path / "cache" / "traces").iterdir()
    assert json.loads(run_ptx(ptx, "--json")[1])["launches"] == first["launches"]
    (table,) = (tmp_path / "cache" / "tables").iterdir()
    for path in (trace, table):
        path.write_bytes(path.read_bytes()[:-20] + b"x" * 20)
    code, out, err = run_ptx(ptx, "--json")
    assert code == 0 and json.loads(out)["launches"] == first["launches"]
    assert err.count("damaged") == 2


def test_out_of_bounds_access_ends_without_a_result(ptx):
    code, out, err = call("run", ptx, "--grid", "4", "--block", "64", "--arg", "buf:i32:200", "--arg", "256")
    assert (code, out) == (2, "") and "add_one" in err and err.count("\n") == 1


def test_interrupt_is_clean(monkeypatch):
    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("abstim.gpu.config.gpu_names", interrupted)
    code, out, err = call("gpus")
    assert (code, out, err) == (130, "", "abstim: interrupted; what was finished before is kept\n")


@pytest.mark.parametrize(("error", "code", "said"), [
    (MemoryError("12 TiB"), 2, "not enough memory: 12 TiB"),
    (OSError(12, "Cannot allocate memory"), 2, "not enough memory"),
    (OverflowError("int too large"), 2, "too large"),
    (PermissionError(13, "Permission denied", "k.ptx"), 2, "k.ptx: Permission denied"),
    (KeyError("%ctaid.x"), 70, "a fault of abstim"),
])  # fmt: skip
def test_whatever_goes_wrong_is_one_line(error, code, said, monkeypatch, capsys):
    def wrong(*_, **__):
        raise error

    monkeypatch.setattr("abstim.gpu.config.load_gpu", wrong)
    with pytest.raises(SystemExit) as end:
        main(["run", "nn_euclid"])
    lines = capsys.readouterr().err.splitlines()
    assert end.value.code == code and len(lines) == 1 and said in lines[0]


def test_what_a_stranger_wrote_does_not_reach_the_terminal_as_it_is(capsys):
    from abstim.show.tables import print_printf, print_table
    from functional.errors import note

    print_printf("\x1b[2Jhello\tthere\n")
    print_table("\x1b[31mtitle", ("name",), [["[bold]\x07kernel[/nonsense]"]])
    note("\x1b]0;pwned\x07")
    out, err = capsys.readouterr()
    assert not {"\x1b", "\x07"} & set(out + err)
    assert "hello\tthere" in out and "[bold]\\x07kernel[/nonsense]" in out and "pwned" in err
