"""What stands around loops of machine code."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import abstim
from abstim.gpu.config import load_gpu
from abstim.session.session import open_session
from functional.programs.program import Dominators
from precharacterize.machine_code.alignment import Placed, innermost_loops, leaders
from precharacterize.machine_code.assemble import toolkits

GPU = load_gpu("rtx3080")
needs_tools = pytest.mark.skipif(not toolkits(), reason="needs ptxas and nvdisasm: pip install 'abstim[sass]'")

LOOPED = """.version 8.0
.target sm_80
.address_size 64
.visible .entry k(.param .u64 p, .param .u32 n) { .reg .b32 %r<9>; .reg .b64 %rd<4>; .reg .f32 %f<9>; .reg .pred %p<3>;
ld.param.u64 %rd1, [p];
ld.param.u32 %r1, [n];
mov.u32 %r2, %tid.x;
mul.wide.u32 %rd2, %r2, 4;
add.u64 %rd3, %rd1, %rd2;
mov.f32 %f1, 0f00000000;
mov.f32 %f2, 0f3f800000;
setp.lt.s32 %p0, %r1, 1;
@%p0 bra AFTER;
LOOP:
ld.global.f32 %f5, [%rd3];
fma.rn.f32 %f1, %f1, %f5, %f2;
fma.rn.f32 %f2, %f2, %f5, %f1;
bar.sync 0;
sub.u32 %r1, %r1, 1;
setp.ne.u32 %p1, %r1, 0;
@%p1 bra LOOP;
AFTER:
bar.sync 0;
add.f32 %f1, %f1, %f2;
st.global.f32 [%rd3], %f1;
ret; }
"""


@needs_tools
def test_what_stands_around_an_unrolled_loop_is_timed_once(tmp_path) -> None:
    """The PTX's loop is two basic blocks, of which the assembler's guards and remainders bear the second one's lines;
    eight rounds more are two more of the unrolled loop, and nothing else."""
    path = tmp_path / "k.ptx"
    path.write_text(LOOPED)
    kernel = abstim.load(path).kernel()
    found = []
    for rounds in (8, 16, 24):
        session = open_session(kernel.launch(1, 32, [np.ones(32, np.float32), rounds]))
        code = session.timed_code(0, GPU)
        counts = np.bincount(session.projected(session.traces.trace(0), code).trace.blocks, minlength=len(code.numbers))
        found.append(counts)
    (loop,) = np.flatnonzero(found[1] != found[0])
    assert code.numbers[loop, 1] == 4 and [int(counts[loop]) for counts in found] == [2, 4, 6]
    assert found[2].max() == found[2][loop]


def test_loops_of_blocks_and_what_stands_behind_them() -> None:
    edges = [[1], [2], [1, 3], [4], []]  # 1 and 2 are a loop
    back = [[], [0, 2], [1], [2], [3], [4]]
    dominators, behind = Dominators(edges, 0), Dominators([*back[:5], [4]], 5)
    loop = frozenset({1, 2})
    assert innermost_loops(edges, dominators) == {1: loop, 2: loop}
    inside, after = Placed(1, [0, 1], True, False), Placed(2, [2], False, False)
    for block, leader in ((after, 3), (replace(after, acts=True), 2), (replace(after, has_rivals=True), 3)):
        found = leaders([inside, block, Placed(4, [], True, False)], edges, dominators, behind, {0, 1, 2, 3, 4})
        assert found == [1, leader, 4]
    alone = [Placed(1, [1], True, False), after, Placed(4, [], True, False)]  # the loop is gone: it was unrolled
    assert leaders(alone, edges, dominators, behind, {0, 1, 2, 3, 4}) == [1, 2, 4]
