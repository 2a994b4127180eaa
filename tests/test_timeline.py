"""The timeline against what the random schedule it was made from really did."""

from __future__ import annotations

import json
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from abstim.cli import main
from abstim.gpu.config import load_gpu
from abstim.session import session
from abstim.show.timeline import IssueLog, LaunchLog, slices, timeline, windows, write_timeline

BLOCK_START = np.array([0, 3, 4, 9])  # blocks of 3, 1, 5 and 2 instructions
LENGTHS = (3, 1, 5, 2)


@st.composite
def schedules(draw):
    """(IssueLog, block visits of every warp): warps go through random blocks, one issue a cycle an SM."""
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
    return IssueLog(*np.array(rows, np.int64).T), paths


@given(schedules(), st.integers(1, 4))
@settings(max_examples=60, deadline=None, derandomize=True)
def test_slices_are_the_visits_of_every_warp(schedule, merge):
    log, paths = schedule
    found = slices(log, BLOCK_START, merge)
    assert Counter(found.warp.tolist()) == {w: -(-len(path) // merge) for w, path in enumerate(paths)}
    assert [int(b) for b in found.block] == [b for path in paths for b in path[::merge]]
    assert found.visits.sum() == sum(map(len, paths)) and found.instructions.sum() == len(log.sm)
    for warp in range(len(paths)):
        own, issued = found.warp == warp, log.cycle[log.warp == warp]
        assert found.start[own][0] == issued[0] and found.stop[own][-1] == issued[-1] + 1
        assert (found.start[own][1:] == found.stop[own][:-1]).all()  # no gap, no overlap


@given(schedules(), st.integers(1, 40))
@settings(max_examples=60, deadline=None, derandomize=True)
def test_windows_hold_every_issue_and_every_resident_cycle(schedule, most):
    log, paths = schedule
    cycles = int(log.cycle.max()) + 3
    found = windows(log, cycles, most)
    width = found["window_cycles"]
    assert len(found["warp_instructions"]) == len(found["resident_warp_cycles"]) == -(-cycles // width) <= most
    lifetimes = [log.cycle[log.warp == w] for w in range(len(paths))]
    for k, (issued, resident) in enumerate(zip(found["warp_instructions"], found["resident_warp_cycles"], strict=True)):
        here = range(k * width, min((k + 1) * width, cycles))
        assert issued == np.isin(log.cycle, here).sum()
        assert resident == sum(life[0] <= cycle <= life[-1] for life in lifetimes for cycle in here)


def launch(log):
    return LaunchLog("k", log, BLOCK_START, int(log.cycle.max()) + 1, 2)


def a_log():
    rows = [
        (0, 0, 0, 0, 0, 0),
        (0, 2, 0, 1, 0, 0),
        (0, 3, 1, 0, 2, 1),
        (0, 5, 0, 2, 0, 0),
        (0, 9, 0, 3, 0, 0),
        (1, 4, 0, 3, 1, 0),
    ]
    return IssueLog(*np.array(rows, np.int64).T)


def test_file_is_what_perfetto_reads(tmp_path):
    path = tmp_path / "timeline.json"
    assert write_timeline(path, [launch(a_log()), launch(a_log())], core_clock_hz=1e6) == ""
    data = json.loads(path.read_text())
    assert data["displayTimeUnit"] == "ns"
    events = data["traceEvents"]
    names = {(e["pid"], e.get("tid")): e["args"]["name"] for e in events if e["ph"] == "M" and "name" in e["args"]}
    assert names == {
        (0, None): "SM 0",
        (1, None): "SM 1",
        (0, 0): "warp slot 0",
        (0, 1): "warp slot 1",
        (1, 0): "warp slot 0",
    }
    drawn = [(e["pid"], e["tid"], e["name"], e["ts"], e["dur"]) for e in events if e["ph"] == "X"]
    first = [(0, 0, "BB 0", 0, 9), (0, 0, "BB 1", 9, 1), (1, 0, "BB 1", 4, 1), (0, 1, "BB 0", 3, 1)]
    assert drawn == first + [(sm, slot, name, ts + 10, dur) for sm, slot, name, ts, dur in first]
    issued = sum(e["args"]["value"] for e in events if e["ph"] == "C" and e["name"] == "warp instructions a cycle")
    assert issued == 2 * 6  # windows of one cycle: the sum of the rates is what was issued


def test_too_many_slices_are_merged_and_said():
    data, said = timeline([launch(a_log())], 1e6, most_slices=3)
    drawn = [e for e in json.loads(data)["traceEvents"] if e["ph"] == "X"]
    assert [e["name"] for e in drawn] == ["BB 0 and 1 more", "BB 1", "BB 0"]
    assert said == "4 visits of basic blocks, drawn in groups of 2 of a warp"
    data, said = timeline([launch(a_log())], 1e6, most_slices=2)
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
    assert 0 < last_us * clock_mhz <= cycles
