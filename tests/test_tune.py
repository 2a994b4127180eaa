"""`abstim tune`: variants of a kernel beside what `abstim run` says of each, and what it refuses."""

from __future__ import annotations

import csv
import json
import re
import stat
import sys

import pytest
from call_command import call

from abstim.models import run
from abstim.study import tune as library
from abstim.study.tune import Space, tune
from functional.errors import InputError

# Written in PTX; what stands for nvcc below replaces the macro. Each thread goes round so many times.
SOURCE = """.version 8.0
.target sm_75
.address_size 64
.visible .entry rounds(.param .u64 out, .param .u32 n)
{
    .reg .pred %p<2>;
    .reg .b32 %r<7>;
    .reg .b64 %rd<4>;
    ld.param.u64 %rd1, [out];
    ld.param.u32 %r1, [n];
    mov.u32 %r2, %ctaid.x;
    mov.u32 %r3, %ntid.x;
    mov.u32 %r4, %tid.x;
    mad.lo.s32 %r4, %r2, %r3, %r4;
    mov.u32 %r5, 0;
LOOP:
    mad.lo.s32 %r4, %r4, %r4, %r1;
    add.s32 %r5, %r5, 1;
    setp.lt.s32 %p1, %r5, ROUNDS;
    @%p1 bra LOOP;
    mul.wide.u32 %rd2, %r2, 4;
    add.s64 %rd3, %rd1, %rd2;
    st.global.u32 [%rd3], %r4;
    ret;
}
"""
COMPILER = """#!{python}
import sys
arguments = sys.argv[1:]
source = open(next(a for a in arguments if a.endswith(".cu"))).read()
for name, value in (a[2:].split("=") for a in arguments if a.startswith("-D")):
    source = source.replace(name, value)
if "broken" in source:
    sys.exit("k.cu(1): error: it is broken")
open(arguments[arguments.index("-o") + 1], "w").write(source)
"""
SHAPE = {"grid": "ceil(4096 / block)", "block": "block", "arguments": ["buf:u32:{4096 / block}", "7"]}
LINE = ["--grid", SHAPE["grid"], "--block", "block", "--arg", SHAPE["arguments"][0], "--arg", "7"]


@pytest.fixture
def source(tmp_path, monkeypatch):
    compiler = tmp_path / "bin" / "nvcc"
    compiler.parent.mkdir()
    compiler.write_text(COMPILER.format(python=sys.executable))
    compiler.chmod(compiler.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", str(compiler.parent), prepend=":")
    path = tmp_path / "k.cu"
    path.write_text(SOURCE)
    return str(path)


VARIED = ["ROUNDS=8,2", "block=32:128:32"]


@pytest.mark.parametrize("model", ["detailed", "occupancy", "analytic"])
def test_each_variant_takes_as_long_as_it_does_by_itself(source, model):
    space = Space(source, VARIED, ["block != 96"], **SHAPE)
    found = tune(space, "gtx480", model=model)
    assert [tuple(one.values.values()) for one in found.variants] == [
        (rounds, block) for rounds in (8, 2) for block in (32, 64, 128)
    ]
    for one in found.variants:
        alone = run(space.case(one.values), "gtx480", model=model)
        assert (one.cycles, one.seconds) == (alone.totals["cycles"], alone.totals["seconds"]) and not one.reason
    assert found.best()[0].values["ROUNDS"] == 2 and found.best()[-1].values["ROUNDS"] == 8
    assert found.known_error == alone.known_error


def test_the_formula_chooses_what_is_timed_in_detail(source):
    space = Space(source, VARIED, **SHAPE)
    found = tune(space, strategy="multi-fidelity", count=2)
    formula = tune(space, model="analytic").best()[:2]
    assert [one.values for one in found.variants] == [one.values for one in formula]
    assert [one.screened_seconds for one in found.variants] == [one.seconds for one in formula]
    assert found.candidates == 8


def test_some_are_drawn_the_same_ones_with_the_same_seed(source):
    space = Space(source, VARIED, **SHAPE)
    first, again, other = (tune(space, strategy="random", count=3, seed=s, model="analytic") for s in (1, 1, 2))
    assert first == again and [x.values for x in first.variants] != [x.values for x in other.variants]


def test_what_cannot_run_has_a_reason_and_a_launch_alone_can_vary(source, tmp_path):
    kernel = tmp_path / "k.ptx"
    kernel.write_text(SOURCE.replace("ROUNDS", "4"))
    said = call("tune", kernel, "--vary", "block=64,2048", *LINE, "-o", tmp_path / "all.csv")
    assert said.code == 0 and "1 variant could not be timed" in said.err and "2048" in said.err
    assert all(len(line) <= 80 for line in said.out.splitlines())
    rows = list(csv.DictReader((tmp_path / "all.csv").open()))
    assert [row["block"] for row in rows] == ["64", "2048"] and int(rows[0]["cycles"]) > 0 and rows[1]["reason"]
    told = json.loads(call("tune", kernel, "--vary", "block=64", *LINE, "--error", "5%", "--json").out)
    assert told["variants"][0]["half_width"] <= 0.05 and told["kind"] == "tune"


def test_what_was_timed_before_an_interrupt_is_printed(source, monkeypatch):
    whole = library.run

    def once(case, gpu, **options):
        monkeypatch.setattr(library, "run", interrupted)
        return whole(case, gpu, **options)

    def interrupted(case, gpu, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr(library, "run", once)
    said = call("tune", source, "--vary", VARIED[0], "--vary", VARIED[1], *LINE)
    assert said.code == 130 and "1 variant timed" in said.out
    assert re.search(r"ROUNDS +block +cycles", said.out)  # of a single variant, too, which it is


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"vary": ["block=broken"]}, "it is broken"),
        ({"vary": ["ROUNDS=2"]}, "unknown name 'block'"),
        ({"grid": "4096 / block"}, "round it"),
        ({"grid": "1, 2, 3, 4"}, "one to three expressions"),
        ({"grid": "1 +"}, "one to three expressions"),
        ({"constraints": ["block < 0"]}, "none of 8 variants"),
        ({"vary": ["block"]}, "name=values"),
        ({"vary": ["block=1", "block=2"]}, "once"),
        ({"source": "k.so"}, ".cu file"),
        ({"source": "k.ptx"}, "--vary ROUNDS: neither the launch nor k.ptx names it"),
        ({"vary": [VARIED[0], "BLOK=1,2"]}, "--vary BLOK: neither the launch nor"),
        ({"arguments": ["buf:u32:{4096 *}", "7"]}, "--arg {4096 *}: not an expression"),
    ],
)
def test_one_clear_line(source, given, said):
    asked = {"source": source, "vary": VARIED, "constraints": []} | SHAPE | given
    if given.get("vary") == ["block=broken"]:
        asked |= {"vary": ["ROUNDS=broken"], "grid": "1", "block": "32", "arguments": ["buf:u32:1", "7"]}
    if "round it" in said:
        asked["vary"] = ["block=3000"]
    with pytest.raises(InputError, match=re.escape(said)):
        tune(Space(asked.pop("source"), asked.pop("vary"), asked.pop("constraints"), **asked))


def test_a_sample_is_of_the_detailed_model(source):
    line = ["tune", source, "--vary", VARIED[0], "--vary", VARIED[1], *LINE]
    said = call(*line, "--error", "5%", "--model", "analytic")
    assert said.code == 2 and "leave out --error" in said.err
    assert call(*line, "--points", "3").code == call(*line, "--seed", "3").code == 2
