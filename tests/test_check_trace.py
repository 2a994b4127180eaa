"""Traces with whole checksums and wrong content are refused before native code sees them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from abstim.gpu.config import load_gpu
from abstim.session.session import open_session
from abstim.study.sample.sampler import opened
from abstim.targets.check_trace import check_traces
from abstim.targets.execution import execute
from abstim.targets.resolve import open_target
from functional.errors import InputError
from functional.traces.line_record import phase_record


def with_value(array, place, value):
    found = array.copy()
    found[place] = value
    return found


FORGERIES = {
    "block ids beyond the program": lambda t: {"blocks": np.full_like(t.blocks, 60000)},
    "one block id": lambda t: {"blocks": with_value(t.blocks, len(t.blocks) // 2, 500)},
    "another block of the program": lambda t: {"blocks": np.zeros_like(t.blocks)},
    "no records": lambda t: {"records": t.records[:0]},
    "records that never end": lambda t: {"records": t.records | np.uint32(1)},
    "half of the records": lambda t: {"records": t.records[: len(t.records) // 2]},
    "a record too many, as many in all": lambda t: {"record_offsets": with_value(t.record_offsets, 3, 0)},
    "a wait for nobody": lambda t: {"records": with_value(t.records, 0, phase_record(0, 0, 1) | int(t.records[0]) & 1)},
    "offsets that fall": lambda t: {"block_offsets": t.block_offsets[::-1].copy()},
    "an offset beyond": lambda t: {"block_offsets": with_value(t.block_offsets, -1, 1 << 40)},
    "an offset before": lambda t: {"record_offsets": with_value(t.record_offsets, 3, -(1 << 45))},
    "a warp without blocks": lambda t: {"block_offsets": with_value(t.block_offsets, 1, 0)},
    "too few offsets": lambda t: {"block_offsets": t.block_offsets[:5]},
    "conflicts of nothing": lambda t: {"conflict_offsets": with_value(t.conflict_offsets, 3, 1 << 45)},
    "one warp a thread block": lambda t: {"warps_per_block": 1},
    "no warps": lambda t: {"warps_per_block": 0},
    "other thread blocks": lambda t: {"thread_blocks": t.thread_blocks + (1 << 50)},
    "counts": lambda t: {"warp_instructions": t.warp_instructions - (1 << 60)},
    "lanes": lambda t: {"thread_instructions": t.thread_instructions + (1 << 40)},
    "words of no record": lambda t: {"partial_at": with_value(t.partial_at, -1, len(t.records))},
    "words of records in any order": lambda t: {"partial_at": t.partial_at[::-1].copy()},
    "masks of other events": lambda t: {"masks": t.masks[:-1]},
}


@pytest.mark.parametrize("name", ["hotspot", "nn_euclid"])
def test_traces_of_the_launches_pass(name):
    session = open_session(name)
    check_traces(session.case, list(session.traces.in_order()))


@pytest.mark.parametrize("forgery", FORGERIES)
def test_a_forged_trace_is_refused_in_one_line(forgery):
    session = open_session("hotspot")
    traces = list(session.traces.in_order())
    traces[1] = replace(traces[1], **FORGERIES[forgery](traces[1]))
    with pytest.raises(InputError, match="hotspot, launch 1: the trace is not one of") as error:
        check_traces(session.case, traces)
    assert "\n" not in str(error.value)


def test_a_trace_too_few_is_refused():
    session = open_session("hotspot")
    with pytest.raises(InputError, match="1 traces of 2 launches"):
        check_traces(session.case, list(session.traces.in_order())[:1])


def test_no_way_to_a_kept_execution_goes_past_the_check(monkeypatch, capsys):
    """`run` and `sample` read the same files."""
    case = open_target("hotspot")
    whole = execute(case)
    forged = replace(whole, traces=tuple(replace(t, records=t.records | np.uint32(1)) for t in whole.traces))
    monkeypatch.setattr("abstim.targets.execution.load", lambda key: forged)
    monkeypatch.setattr("abstim.targets.execution.save", lambda key, execution: None)
    assert execute(case).traces is not forged.traces and "executing again" in capsys.readouterr().err
    assert not opened(case, load_gpu("gtx480_perfect"), online=True).launches.given
