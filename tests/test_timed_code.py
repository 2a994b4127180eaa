"""What is timed: `--timed-code`, what stands beside a number where machine code lacks, and what the assembler lost."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from nightly import of

from abstim import run
from abstim.cli import main
from abstim.cli.run_tables import print_results
from abstim.gpu.config import load_gpu
from abstim.session.session import open_session
from abstim.show.report.page import write_report
from functional.errors import InputError
from precharacterize.build_timed import assembly_of
from precharacterize.machine_code import assemble

needs_tools = pytest.mark.skipif(not assemble.toolkits(), reason="needs ptxas and nvdisasm")
LACKS = "not timed from machine code"
# Both arms load the same words: the assembler keeps the loads of one, which bear that one's lines
ARMS = """.version 7.0
.target sm_80
.address_size 64
.visible .entry arms(.param .u64 in, .param .u64 out, .param .u32 n)
{
  .reg .pred %p<2>; .reg .f32 %f<8>; .reg .b32 %r<6>; .reg .b64 %rd<8>;
  ld.param.u64 %rd1, [in];
  ld.param.u64 %rd2, [out];
  ld.param.u32 %r1, [n];
  mov.u32 %r2, %ctaid.x;
  mov.u32 %r3, %ntid.x;
  mov.u32 %r4, %tid.x;
  mad.lo.s32 %r5, %r2, %r3, %r4;
  mul.wide.s32 %rd3, %r5, 4;
  cvta.to.global.u64 %rd4, %rd1;
  cvta.to.global.u64 %rd5, %rd2;
  add.s64 %rd6, %rd4, %rd3;
  add.s64 %rd7, %rd5, %rd3;
  setp.lt.s32 %p1, %r5, %r1;
  @%p1 bra LEFT;
  ld.global.f32 %f1, [%rd6];
  ld.global.f32 %f2, [%rd6+4];
  fma.rn.f32 %f3, %f1, %f2, %f1;
  bra.uni DONE;
LEFT:
  ld.global.f32 %f1, [%rd6];
  ld.global.f32 %f2, [%rd6+4];
  fma.rn.f32 %f3, %f1, %f2, %f2;
DONE:
  st.global.f32 [%rd7], %f3;
  ret;
}
"""


def outcome(capsys, line: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as end:
        main(line.split())
    said = capsys.readouterr()
    return int(end.value.code or 0), said.out, said.err


@pytest.fixture
def no_assembler(monkeypatch):
    monkeypatch.setattr(assemble, "tool", lambda name: None)
    monkeypatch.setattr(assemble, "toolkits", lambda: ())


def test_all_gpus_of_a_comparison_are_timed_from_ptx(capsys):
    code, out, _ = outcome(capsys, "run nn_euclid --gpu a100 --gpu rtx3070 --timed-code ptx --json")
    runs = json.loads(out)["runs"]
    assert code == 0 and [x["timed_code"] for x in runs] == ["PTX", "PTX"]
    session = open_session("nn_euclid")
    wanted = [run(session, "a100", ["timed_code=ptx"]), run(session, "rtx3070")]
    assert [x["totals"]["cycles"] for x in runs] == [x.totals["cycles"] for x in wanted]
    assert [x["gpu"] for x in runs] == ["a100 timed_code=ptx", "rtx3070"]  # what is not as described is named


@pytest.mark.parametrize(
    "line",
    ["run relu", "sample relu", "explore relu --vary sm_count=8,16", "advise relu", "bench relu", "coldstart relu"],
)
def test_machine_code_is_refused_where_there_is_none(line, capsys, no_assembler):
    code, _, err = outcome(capsys, f"{line} --gpu gtx480 --timed-code machine")
    assert code == 2 and "needs an architecture" in err
    code, out, err = outcome(capsys, f"{line} --gpu a100 --timed-code machine")
    assert code == 2 and not out and "--timed-code machine: no machine code: no ptxas" in err
    assert outcome(capsys, f"{line} --gpu a100 --timed-code sass")[0] == 2
    code, _, err = outcome(capsys, f"{line} --set timed_code=ptx --gpu a100 --timed-code machine")
    assert code == 2 and "says otherwise" in err


@pytest.mark.parametrize("line", ["run relu", "sample relu", "explore relu --vary sm_count=8,16"])
def test_the_formula_times_ptx_and_says_so(line, capsys):
    code, _, err = outcome(capsys, f"{line} --gpu a100 --model analytic --timed-code machine")
    assert code == 2 and "analytic model times PTX" in err
    code, out, _ = outcome(capsys, f"{line} --gpu a100 --model analytic")
    assert code == 0 and "the formula times PTX, not the machine code" in " ".join(out.split())
    assert "formula times PTX" not in outcome(capsys, f"{line} --gpu rtx3070 --model analytic")[1]


LINES = [
    "sample relu",
    "sample relu --compare --method pks",
    "explore relu --vary sm_count=8,16",
    "explore relu --vary sm_count=8,16 --sample auto",
    "advise relu",
    "coldstart relu",
    "run micro_sfu:sfu_sin_dep_1warp --limits",
]


@pytest.mark.parametrize("line", of(LINES[::2], LINES))
def test_every_command_says_that_machine_code_lacks(line, capsys, no_assembler, tmp_path):
    code, out, _ = outcome(capsys, f"{line} --gpu a100")
    assert code == 0 and LACKS in " ".join(out.split()) and "no ptxas and no nvdisasm" in " ".join(out.split())
    code, out, _ = outcome(capsys, f"{line} --gpu a100 --json")
    assert code == 0 and LACKS in out
    result = tmp_path / "result.json"
    result.write_text(out)
    write_report([result], tmp_path / "page.html")
    assert LACKS in (tmp_path / "page.html").read_text()
    assert LACKS not in outcome(capsys, f"{line} --gpu rtx3070 --json")[1]


@needs_tools
def test_what_the_assembler_merged_is_counted(tmp_path, capsys):
    """A load that stands for those of two arms bears one arm's line: 100 % of the accesses were said to be timed."""
    path: Path = tmp_path / "arms.ptx"
    path.write_text(ARMS)
    launch = f"{path} --grid 64 --block 256 --arg buf:f32:20000 --arg buf:f32:20000 --arg 8192 --gpu a100"
    code, out, _ = outcome(capsys, f"run {launch} --json")
    (found,) = json.loads(out)["launches"]
    share = found["timed_shares"]["global and local accesses"]
    assert code == 0 and share == pytest.approx(2 / 3, abs=0.01)  # half of the loads, all stores
    assert found["matched_access_share"] == share and found["timed_shares"]["fp32 operations"] == 1
    for command in ("run", "sample", "sample"):  # the second sample finds what the first one kept
        said = " ".join(outcome(capsys, f"{command} {launch}")[1].split())
        assert f"of the global and local accesses that 'arms' executes {share:.0%} are timed" in said
    assert "of the global" not in " ".join(outcome(capsys, f"run {launch} --timed-code ptx")[1].split())


@needs_tools
@pytest.mark.parametrize("target", ["gemm_mma", "nbody", "matmul_tiled"])
def test_what_is_timed_is_all_that_was_executed(target):
    for launch in run(target, "a100").launches:
        assert launch.timed_shares and min(launch.timed_shares.values()) > 0.99


def test_of_all_launches_the_least_is_said(capsys):
    found = run("reduction", "a100")
    if not found.launches[0].machine_code_share:
        pytest.skip("no assembler")
    least = min(x.timed_shares["fp32 operations"] for x in found.launches)
    print_results([found])
    assert f"{least:.1%} of the fp32 operations" in " ".join(capsys.readouterr().out.split())


def test_known_errors_go_with_what_is_timed():
    as_described, other = load_gpu("rtx3080"), load_gpu("rtx3080", (), "ptx")
    assert load_gpu("rtx3080", (), "machine") == as_described and "machine code" in as_described.known_error
    assert "no time of PTX was compared" in other.known_error
    with pytest.raises(InputError, match="is not one of ptx, machine"):
        load_gpu("a100", (), "sass")


@needs_tools
def test_what_one_assembler_refuses_the_next_may_know(monkeypatch, tmp_path):
    monkeypatch.setenv("ABSTIM_CACHE", str(tmp_path))
    known = assemble.toolkits()[0]
    old = replace(known, ptxas="/bin/false", version="V1.2.3")
    program = open_session("nn_euclid").launch(0).program
    monkeypatch.setattr(assemble, "toolkits", lambda: (old, known))
    assert known.version in assembly_of(program, "sm_86").made_by
    monkeypatch.setattr(assemble, "toolkits", lambda: (old,))
    assert assembly_of(program, "sm_86").made_by == "ptxas V1.2.3 for sm_86 refused the PTX"
