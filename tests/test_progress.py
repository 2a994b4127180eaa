"""How far long work is, told while it goes on."""

from __future__ import annotations

from dataclasses import fields
from time import sleep
from types import SimpleNamespace

import numpy as np
import pytest

from abstim.cli.watch import interrupted
from abstim.gpu.config import load_gpu
from abstim.models import run
from abstim.progress import pipelined
from abstim.session.detailed import RetiredBlocks
from abstim.session.session import open_session
from abstim.show import tables
from abstim.targets import execution
from abstim.targets.resolve import open_target
from functional.execution.default_executor import default_executor
from functional.traces.trace import Trace

GPUS = [load_gpu("gtx480"), load_gpu("rtx3070")]


def test_a_launch_under_way_counts_by_its_thread_blocks():
    told, session = [], open_session("reduction")
    counts = [launch.thread_blocks for launch in session.case.launches]
    blocks = RetiredBlocks(session, GPUS, "time", lambda *words: told.append(words))
    first, second = (np.full(counts[0], -1, [("retire_cycle", np.int64)]) for _ in GPUS)
    for array in (first, second):
        blocks.watch(SimpleNamespace(blocks=array))
    blocks.tell()
    first["retire_cycle"][:3] = 7
    blocks.tell()
    first["retire_cycle"] = 9
    second["retire_cycle"][0] = 0
    blocks.tell()
    total = 2 * sum(counts)
    assert told == [("time", done, total) for done in (0, 3, counts[0] + 1)]


@pytest.mark.parametrize(("name", "flush"), [("reduction", "all"), ("reduction", "none"), ("srad", "all")])
def test_a_run_ends_where_all_blocks_have_retired(name, flush):
    told, session = [], open_session(name)
    run(session, "gtx480", flush=flush, progress=lambda *words: told.append(words))
    done, totals = zip(*[words[1:] for words in told if words[0].startswith("time")], strict=True)
    assert list(done) == sorted(done)
    assert set(totals) == {sum(launch.thread_blocks for launch in session.case.launches)} == {done[-1]}


def test_of_a_large_launch_thread_blocks_that_have_run_are_told(monkeypatch):
    told, case = [], open_target("hotspot")
    total = sum(launch.thread_blocks for launch in case.launches)
    whole = execution.execute_case(case, default_executor(), progress=lambda *words: told.append(words))
    assert [done for _, done, _ in told] == [0, total // 2, total]
    monkeypatch.setattr(execution, "LARGE_THREADS", 1 << 14)
    monkeypatch.setattr(execution, "LARGE_CHUNK_BYTES", 1 << 15)
    told.clear()
    parts = execution.execute_case(case, default_executor(), progress=lambda *words: told.append(words))
    assert parts.outputs == whole.outputs
    assert all(map(equal_traces, parts.traces, whole.traces))
    numbers = [done for _, done, _ in told]
    assert len(numbers) > 6 and numbers == sorted(numbers) and {words[2] for words in told} == {numbers[-1]} == {total}


def equal_traces(one: Trace, other: Trace) -> bool:
    return all(np.array_equal(getattr(one, f.name), getattr(other, f.name)) for f in fields(one))


def test_who_waits_for_a_job_is_not_idle():
    """Jobs that only end when somebody who waits for them has done something."""
    from threading import Event

    moved = Event()
    assert list(pipelined([lambda: moved.wait(60)], 1, moved.set)) == [True]


def test_what_is_no_terminal_gets_lines_and_how_long_work_is_made_shorter(monkeypatch, capsys):
    monkeypatch.delenv("ABSTIM_PROGRESS_SECONDS")
    monkeypatch.setattr(tables, "LINE_SECONDS", 0.02)
    with tables.progress(shorter="a part of it") as report:
        report("time x", 0, 10_000)
        sleep(0.05)
        report("time x", 1, 10_000)
        sleep(0.05)
        report("launches timed", 7, None)
        sleep(0.05)
    lines = capsys.readouterr().err.splitlines()
    assert lines[0].startswith("abstim: time x: 0 of 10,000 after") and "left" not in lines[0]
    assert any(line.startswith("abstim: time x: 1 of 10,000 after") and "min left" not in line for line in lines)
    assert [line for line in lines if "shorter" in line] == [line for line in lines if "more; shorter: a part" in line]
    assert sum("shorter: a part of it" in line for line in lines) == 1
    assert lines[-1].startswith("abstim: launches timed: 7 after") and "left" not in lines[-1]


def test_one_json_object_has_no_lines_beside_it(monkeypatch, capsys):
    monkeypatch.delenv("ABSTIM_PROGRESS_SECONDS")
    monkeypatch.setattr(tables, "LINE_SECONDS", 0.01)
    with tables.progress(quiet=True) as report:
        report("time x", 1, 2)
        sleep(0.05)
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["explore", "relu"], "resumes: points that were timed"),
        (["--isolate", "run", "relu"], "times from the first launch on"),
        (["gpus"], "what was finished before is kept"),
        ([], "what was finished before is kept"),
    ],
)
def test_after_an_interrupt_it_is_said_what_a_rerun_finds(words, said):
    assert said in interrupted(words)
