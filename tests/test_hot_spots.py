"""Where in the source time goes: nothing is lost between lines, and what a kernel was made for shows at its line."""

from __future__ import annotations

import json

import numpy as np
import pytest
from call_command import call

import abstim
from abstim.gpu.config import load_gpu
from abstim.session.issue_logs import STALLS, attribute, by_source_line, hot_spots, issue_logs
from abstim.session.session import open_session
from abstim.targets.resolve import ptx_case
from functional.ptx.source import SourceLine, source_lines

GPU = load_gpu("gtx480")


@pytest.mark.parametrize("name", ["hotspot", "micro_atomics", "reduction"])
def test_every_cycle_of_every_warp_is_at_some_line(name):
    session = open_session(name)
    spots = hot_spots(session, GPU)
    lived = 0
    for launch in issue_logs(session, GPU):
        for warp in np.unique(launch.log.warp):
            own = launch.log.cycle[launch.log.warp == warp]
            lived += int(own.max() - own.min()) + 1
    assert sum(spot.cycles for spot in spots) == lived
    found = abstim.run(session, GPU)
    assert sum(spot.issues for spot in spots) == found.totals["warp_instructions"]
    assert sum(spot.l1d_misses for spot in spots) == sum(launch.caches["l1d_misses"] for launch in found.launches)
    assert all(value >= 0 for spot in spots for value in spot.stalls.values())


def test_machine_code_counts_where_it_was_made_of():
    """With an assembler and without one: all that is issued stands at lines of the PTX, and what is asked of memory at
    the access that asks."""
    gpu, session = load_gpu("rtx3080"), open_session("transpose")
    spots, found = hot_spots(session, gpu), abstim.run(session, gpu)
    assert sum(spot.issues for spot in spots) == sum(launch.timed_instructions for launch in found.launches)
    of_ptx = hot_spots(session, GPU)
    at = ("ld.global", "st.global")
    asked = [[(s.line, s.requests, s.sectors) for s in own if s.text.startswith(at)] for own in (spots, of_ptx)]
    assert asked[0] == asked[1] and all(requests for _, requests, _ in asked[0])
    assert all((".shared" in s.text) == (s.bank_passes > 0) for s in spots)


def stalls(rows, kinds, waits, writes):
    """`attribute` of (warp, cycle, instruction, result) rows."""
    columns = (np.array(column, np.int64) for column in zip(*rows, strict=True))
    found = np.zeros((len(kinds), len(STALLS)), np.int64)
    program = (np.array(a, np.int64) for a in (kinds, waits, writes))
    columns = tuple(columns)
    attribute(*columns, columns[2], *program, np.zeros(8, np.int64), np.zeros(8, np.int64), found)
    return [dict(zip(STALLS, row, strict=True)) for row in found.tolist()]


def test_a_wait_is_for_what_comes_last():
    load, add, use, barrier = 9, 0, 0, 1
    rows = [(0, 10, 0, 60), (0, 11, 1, 20), (0, 70, 2, 75), (0, 71, 3, 72), (0, 100, 1, 104)]
    found = stalls(rows, [load, add, use, barrier], [[-1, -1], [-1, -1], [1, 2], [-1, -1]], [[1], [2], [3], [-1]])
    assert found[2] == {"memory": 48, "arithmetic": 0, "barrier": 0, "turn_or_unit": 10}  # 12 to 59, then its turn
    assert found[1] == {"memory": 0, "arithmetic": 0, "barrier": 28, "turn_or_unit": 0}
    assert sum(found[0].values()) == sum(found[3].values()) == 0


def test_arithmetic_after_memory_and_a_new_warp_waits_for_nothing():
    rows = [(0, 0, 0, 10), (0, 1, 1, 30), (0, 40, 2, 44), (1, 90, 2, 94)]
    found = stalls(rows, [9, 0, 0], [[-1, -1], [-1, -1], [1, 2]], [[1], [2], [3]])
    assert found[2] == {"memory": 8, "arithmetic": 20, "barrier": 0, "turn_or_unit": 10}


def test_a_chase_waits_for_memory_at_the_load_that_needs_the_last_one():
    spots = [s for s in hot_spots(open_session("micro_pointer_chase"), GPU) if s.issues > 1000]
    total = sum(spot.cycles for spot in spots)
    assert sum(spot.stalls["memory"] for spot in spots) > 0.8 * total  # the rest computes addresses


def test_conflicts_and_uncoalesced_accesses_show():
    spots = hot_spots(open_session("micro_smem_conflict"), GPU)
    assert max(spot.passes_per_request or 0 for spot in spots) > 5  # launches of 1 to 32 ways
    spots = hot_spots(open_session("micro_global_stride"), GPU)
    assert max(spot.sectors_per_request or 0 for spot in spots if spot.requests) > 8
    spots = [s for s in hot_spots(open_session("nn_euclid"), GPU) if s.text.startswith(("ld.global", "st.global"))]
    assert sorted(round(spot.sectors_per_request) for spot in spots) == [4, 8]  # 4 B a lane, and pairs of them


PTX = """.version 9.0
.target sm_75
.address_size 64
.visible .entry twice(.param .u64 data)
{
    .reg .b32 %r<4>;
    .reg .b64 %rd<4>;
    .loc 1 3 5
    ld.param.u64 %rd1, [data];
    mov.u32 %r1, %tid.x;
    .loc 2 40 1, function_name $L__info_string0, inlined_at 1 4 9
    mul.wide.u32 %rd2, %r1, 4;
    .loc 1 5 2
    add.s64 %rd3, %rd1, %rd2;
    ld.global.u32 %r2, [%rd3];
    add.u32 %r3, %r2, %r2;
    st.global.u32 [%rd3], %r3;
    ret;
}
    .file 1 "FOLDER/twice.cu"
    .file 2 "/usr/include/other.h"
"""
CUDA = "\n__global__ void twice(int* data)\n{\n    int i = index();\n    data[i] *= 2;\n}\n"


def test_lines_of_the_source():
    found = source_lines(PTX)
    assert found[9] == found[10] == SourceLine("FOLDER/twice.cu", 3)
    assert found[12] == SourceLine("FOLDER/twice.cu", 4)  # inlined: where it was called
    assert found[17] == SourceLine("FOLDER/twice.cu", 5) and 6 not in found and 20 not in found


@pytest.fixture
def twice(tmp_path):
    (tmp_path / "twice.cu").write_text(CUDA)
    path = tmp_path / "twice.ptx"
    path.write_text(PTX.replace("FOLDER", str(tmp_path)))
    return path


def test_by_line_of_the_source(twice):
    case = ptx_case(str(twice), "", [8], [128], ["buf:u32:1024"])
    spots = hot_spots(open_session(case), GPU)
    lines = by_source_line(spots)
    assert [line.line for line in lines] == [3, 4, 5] and lines[2].text == "    data[i] *= 2;"
    assert lines[2].cycles == max(line.cycles for line in lines)
    assert sum(line.cycles for line in lines) == sum(spot.cycles for spot in spots)


def test_the_command_and_the_report_show_it(twice):
    words = ("run", str(twice), "--grid", "8", "--block", "128", "--arg", "buf:u32:1024", "--hot")
    code, out, _ = call(*words)
    assert code == 0 and "twice.cu:5" in out and "data[i] *= 2;" in out and "PTX 16" in out
    assert max(map(len, out.splitlines())) <= 100
    code, out, _ = call(*words, "--json")
    hot = json.loads(out)["hot"]
    assert {spot["source"]["line"] for spot in hot if spot["source"]} == {3, 4, 5}
    result = twice.with_name("hot.json")
    result.write_text(out)
    assert call("report", str(result), "-o", str(twice.with_name("hot.html")))[0] == 0
    page = twice.with_name("hot.html").read_text()
    assert "    data[i] *= 2;" in page and 'class="bar"' in page and "PTX of twice" in page
