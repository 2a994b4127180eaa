"""The timeline against what the random schedule it was made from really did."""

from __future__ import annotations

import json
from collections import Counter
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import abstim
from abstim.cli import main
from abstim.gpu.config import load_gpu
from abstim.session import session
from abstim.session.issue_logs import STALLS, issue_logs
from abstim.session.session import open_session
from abstim.show.timeline import LaunchLog, slices, timeline, windows, write_timeline
from precharacterize.classify import Kind

BLOCK_START = np.array([0, 3, 4, 9])  # blocks of 3, 1, 5 and 2 instructions
LENGTHS = (3, 1, 5, 2)


@st.composite
def schedules(draw):
    """(LaunchLog, block visits of every warp): warps go through random blocks, one issue a cycle an SM."""
    sm_count = draw(st.integers(1, 3))
    paths = draw(st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=6), min_size=1, max_size=6))
    random = draw(st.randoms(use_true_random=False))
    left = {w: [BLOCK_START[b] + k for b in path for k in range(LENGTHS[b])] for w, path in enumerate(paths)}
    rows, clock = [], [0] * sm_count
    while any(left.values()):
        warp = random.choice([w for w in left if left[w]])
        sm = warp % sm_count
        clock[sm] += random.randint(1, 4)
        rows.append((sm, clock[sm], warp // sm_count, left[warp].pop(0), warp, 0))
    rows.sort(key=lambda row: row[:2])
    return log_of(rows, random), paths


def log_of(rows, random=None):
    """A log of (sm, cycle, slot, instruction, warp, scheduler): every wait has a reason, chosen at random."""
    columns = np.array(rows, np.int64).T
    last, stalls = {}, np.zeros((len(rows), len(STALLS)), np.int64)
    for k, (_, cycle, _, _, warp, _) in enumerate(rows):
        stalls[k, random.randrange(len(STALLS)) if random else 0] = cycle - last.get(warp, cycle - 1) - 1
        last[warp] = cycle
    order = np.lexsort((columns[1], columns[4]))
    named = [*columns[:5], np.arange(len(rows)), np.ones(len(rows), np.int64)]
    names = "sm,cycle,slot,instruction,warp,l2_accesses,dram_reads"
    log = np.rec.fromarrays([column[order] for column in named], names=names)
    return LaunchLog("k", log, stalls[order], BLOCK_START, np.array([10, 20, 30, 40]), int(log.cycle.max()) + 1, 2)


@given(schedules(), st.integers(1, 4))
@settings(max_examples=60)
def test_slices_are_the_visits_of_every_warp(schedule, merge):
    launch, paths = schedule
    log, found = launch.log, slices(launch, merge)
    assert Counter(found.warp.tolist()) == {w: -(-len(path) // merge) for w, path in enumerate(paths)}
    assert [int(b) for b in found.block] == [b for path in paths for b in path[::merge]]
    assert found.visits.sum() == sum(map(len, paths)) and found.instructions.sum() == len(log.sm)
    for warp in range(len(paths)):
        own, issued = found.warp == warp, log.cycle[log.warp == warp]
        assert found.start[own][0] == issued[0] and found.stop[own][-1] == issued[-1] + 1
        assert (found.start[own][1:] == found.stop[own][:-1]).all()  # no gap, no overlap
    assert (found.stalls >= 0).all() and found.stalls.sum() == launch.stalls.sum()
    # all of a slice is an issue, or a wait for something
    assert (found.stalls.sum(axis=1) + found.instructions == found.stop - found.start).all()


@given(schedules(), st.integers(1, 40))
@settings(max_examples=60)
def test_windows_hold_every_issue_and_every_resident_cycle(schedule, most):
    launch, paths = schedule
    log = launch.log
    cycles = int(log.cycle.max()) + 3
    found = windows(log, cycles, most)
    width = found["window_cycles"]
    assert len(found["warp_instructions"]) == len(found["resident_warp_cycles"]) == -(-cycles // width) <= most
    lifetimes = [log.cycle[log.warp == w] for w in range(len(paths))]
    for k, (issued, resident) in enumerate(zip(found["warp_instructions"], found["resident_warp_cycles"], strict=True)):
        here = range(k * width, min((k + 1) * width, cycles))
        assert issued == np.isin(log.cycle, here).sum()
        assert resident == sum(life[0] <= cycle <= life[-1] for life in lifetimes for cycle in here)


def a_log():
    rows = [
        (0, 0, 0, 0, 0, 0),
        (0, 2, 0, 1, 0, 0),
        (0, 3, 1, 0, 2, 1),
        (0, 5, 0, 2, 0, 0),
        (0, 9, 0, 3, 0, 0),
        (1, 4, 0, 3, 1, 0),
    ]
    return log_of(rows)


def test_file_is_what_perfetto_reads(tmp_path):
    path = tmp_path / "timeline.json"
    assert write_timeline(path, [a_log(), a_log()], core_clock_hz=1e6) == ""
    data = json.loads(path.read_text())
    assert data["displayTimeUnit"] == "ns"
    events = data["traceEvents"]
    names = {(e["pid"], e.get("tid")): e["args"]["name"] for e in events if e["ph"] == "M" and "name" in e["args"]}
    assert names == {
        (0, None): "SM 0",
        (1, None): "SM 1",
        (2, None): "memory",
        (0, 0): "warp slot 0",
        (0, 1): "warp slot 1",
        (1, 0): "warp slot 0",
    }
    drawn = [(e["pid"], e["tid"], e["name"], e["ts"], e["dur"]) for e in events if e["ph"] == "X"]
    first = [(0, 0, "BB 0", 0, 9), (0, 0, "BB 1", 9, 1), (1, 0, "BB 1", 4, 1), (0, 1, "BB 0", 3, 1)]
    assert drawn == first + [(sm, slot, name, ts + 10, dur) for sm, slot, name, ts, dur in first]
    issued = sum(e["args"]["value"] for e in events if e["ph"] == "C" and e["name"] == "warp instructions a cycle")
    assert issued == 2 * 6  # windows of one cycle: the sum of the rates is what was issued
    args = next(e["args"] for e in events if e["ph"] == "X" and e["dur"] == 9)
    assert args["PTX line"] == 10 and args["cycles waited"] == {"memory": 6} and args["waited for"] == "memory"
    check_trace_events(data)


NEEDED = {"M": {"name", "pid", "args"}, "X": {"name", "cat", "pid", "tid", "ts", "dur", "args"},
          "C": {"name", "pid", "ts", "args"}}  # fmt: skip


def check_trace_events(data):
    """The rules of the trace-event format (JSON object form) for what is used of it, and that no slices of a track
    overlap, which viewers would nest or drop."""
    assert set(data) == {"traceEvents", "displayTimeUnit"} and data["displayTimeUnit"] in ("ms", "ns")
    tracks, named, counters = {}, set(), {}
    for event in data["traceEvents"]:
        assert NEEDED[event["ph"]] <= set(event) and isinstance(event["pid"], int) and isinstance(event["name"], str)
        if event["ph"] == "M":
            named.add((event["pid"], event.get("tid")))
            continue
        assert isinstance(event["ts"], (int, float)) and 0 <= event["ts"] < 1e15
        if event["ph"] == "X":
            assert event["dur"] > 0
            tracks.setdefault((event["pid"], event["tid"]), []).append((event["ts"], event["ts"] + event["dur"]))
        else:
            assert all(isinstance(value, (int, float)) and value >= 0 for value in event["args"].values())
            counters.setdefault((event["pid"], event["name"]), []).append(event["ts"])
    for times in tracks.values():
        times.sort()
        assert all(a[1] <= b[0] + 2e-6 for a, b in pairwise(times))  # times are rounded to 1e-6 us
    assert all(times == sorted(set(times)) for times in counters.values())
    assert set(tracks) <= named and {(pid, None) for pid, _ in (*tracks, *counters)} <= named


@pytest.mark.parametrize("gpu", ["gtx480", "rtx3070"])
def test_timeline_of_a_run_says_what_the_run_says(gpu, tmp_path):
    """Instructions, waits, and traffic of all slices and windows are those of the launches; lines begin a block."""
    session = open_session("reduction", [load_gpu(gpu)])
    launches = list(issue_logs(session, load_gpu(gpu)))
    data = json.loads(timeline(launches, 1e9)[0])
    check_trace_events(data)
    found = abstim.run(session, gpu)
    drawn = [event for event in data["traceEvents"] if event["ph"] == "X" and event["cat"] != "launch"]
    assert sum(e["args"]["instructions"] for e in drawn) == found.totals["warp_instructions"]
    for event in drawn:
        waited = event["args"]["cycles waited"]
        assert sum(waited.values()) <= event["args"]["cycles"] and all(value > 0 for value in waited.values())
    text = Path(session.launch(0).program.path).read_text().splitlines()
    lines = {event["args"]["PTX line"] for event in drawn}
    assert all(text[line - 1].strip().endswith(";") for line in lines) and len(lines) > 1
    # reads, stores, atomics of data; several wait at once for one sector of what is read-only
    data_accesses = session.inputs(0, load_gpu(gpu)).table.kind[launches[0].log.instruction] >= Kind.GLOBAL_LOAD
    memory = found.launches[0].memory
    assert 0.9 < launches[0].log.l2_accesses[data_accesses].sum() * 32 / memory["l2_bytes"] <= 1
    assert 0.9 < launches[0].log.dram_reads[data_accesses].sum() * 32 / memory["dram_read_bytes"] <= 1
    l2 = [e["args"]["value"] for e in data["traceEvents"] if e["name"] == "L2 sectors a cycle"]
    assert len(l2) > 100 and max(l2) > 0


def test_too_many_slices_are_merged_and_said():
    data, said = timeline([a_log()], 1e6, most_slices=3)
    drawn = [e for e in json.loads(data)["traceEvents"] if e["ph"] == "X"]
    assert [e["name"] for e in drawn] == ["BB 0 and 1 more", "BB 1", "BB 0"]
    assert said == "4 visits of basic blocks, drawn in groups of 2 of a warp"
    data, said = timeline([a_log()], 1e6, most_slices=2)
    assert len([e for e in json.loads(data)["traceEvents"] if e["ph"] == "X"]) == 2
    assert said.endswith("the first 2 groups of a launch")


def test_the_command_opens_its_target_once(tmp_path, monkeypatch, capsys):
    opened, original = [], session.open_target
    monkeypatch.setattr(session, "open_target", lambda target: opened.append(target) or original(target))
    with pytest.raises(SystemExit) as end:
        main(["run", "nn_euclid", "--timeline", str(tmp_path / "timeline.json"), "--json"])
    assert end.value.code == 0 and len(opened) == 1
    cycles = json.loads(capsys.readouterr().out)["launches"][0]["cycles"]
    events = json.loads((tmp_path / "timeline.json").read_text())["traceEvents"]
    last_us = max(e["ts"] + e["dur"] for e in events if e["ph"] == "X")
    clock_mhz = load_gpu("gtx480_perfect").spec.core_clock_hz / 1e6
    assert 0 < round(last_us * clock_mhz) == cycles  # when the launch is over
