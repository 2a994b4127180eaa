"""A kernel whose thread blocks take work from a queue: in turns they share it; where they ran one after another, the
first has taken all, which is said."""

from __future__ import annotations

import json

import pytest
from call_command import call

KERNEL = """.version 8.0
.target sm_80
.address_size 64
.visible .entry k(.param .u64 p)
{
    .reg .pred %p<2>;
    .reg .b32 %r<3>;
    .reg .b64 %rd<2>;
    ld.param.u64 %rd1, [p];
LOOP:
    @QUEUE
    setp.lt.u32 %p1, %r1, 2000;
    @%p1 bra LOOP;
    ret;
}
"""
TAKE = "atom.global.add.u32 %r1, [%rd1], 1;"


SHAPE = ("--grid", "30", "--block", "32", "--arg", "buf:u32:64")


def said(tmp_path, queue, *more):
    (tmp_path / "k.ptx").write_text(KERNEL.replace("@QUEUE", queue))
    return call("run", tmp_path / "k.ptx", *SHAPE, "--gpu", "gtx480_perfect", *more)


def test_thread_blocks_that_take_turns_share_a_queue(tmp_path):
    code, _, err = said(tmp_path, TAKE)
    assert code == 0 and "was emptied" not in err
    (launch,) = json.loads(said(tmp_path, TAKE, "--json").out)["launches"]
    assert not launch["notes"]


def test_the_atomic_of_an_emptied_queue_is_named(tmp_path):
    """Of a trace, whose thread blocks ran one after another."""
    (tmp_path / "k.ptx").write_text(KERNEL.replace("@QUEUE", TAKE))
    assert call("trace", tmp_path / "k.ptx", *SHAPE, "-o", tmp_path / "k.trace").code == 0
    code, _, err = call("run", tmp_path / "k.trace", "--gpu", "gtx480_perfect")
    assert code == 0 and "the queue at PTX line 11 (atom) was emptied by block 0 of 30" in err
    found = call("run", tmp_path / "k.trace", "--gpu", "gtx480_perfect", "--json").out
    (launch,) = json.loads(found)["launches"]
    assert len(launch["notes"]) == 1


@pytest.mark.parametrize("queue", ["mov.u32 %r1, 2000;", "atom.global.add.u32 %r2, [%rd1], 1; mov.u32 %r1, 2000;"])
def test_blocks_of_equal_work_have_no_note(tmp_path, queue):
    code, _, err = said(tmp_path, queue)
    assert code == 0 and "queue" not in err
