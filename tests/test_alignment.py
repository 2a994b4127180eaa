"""Machine blocks and the PTX blocks that lead them, where the assembler moves code or changes what it is made of."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from test_machine_code import needs_tools

import abstim
from abstim.gpu.config import load_gpu


def written(folder: Path, parameters: str, body: str) -> Path:
    """A file with a kernel."""
    path = folder / "k.ptx"
    registers = ".reg .pred %p<4>; .reg .b32 %r<9>; .reg .f32 %f<9>; .reg .b64 %rd<9>;"
    head = f".version 8.0\n.target sm_80\n.address_size 64\n.visible .entry k({parameters})\n{{\n{registers}\n"
    path.write_text(f"{head}{body}ret;\n}}\n")
    return path


REMAINDERS = """ld.param.u64 %rd1, [p];
ld.param.u32 %r1, [n];
ld.param.u32 %r2, [rounds];
mov.u32 %r3, %tid.x;
mov.f32 %f1, 0f3F800000;
L:
rem.s32 %r4, %r3, %r1;
mul.wide.s32 %rd2, %r4, 4;
add.s64 %rd3, %rd1, %rd2;
ld.global.f32 %f2, [%rd3];
fma.rn.f32 %f1, %f1, %f2, %f2;
add.s32 %r5, %r3, 977;
rem.s32 %r6, %r5, %r1;
mul.wide.s32 %rd4, %r6, 4;
add.s64 %rd5, %rd1, %rd4;
ld.global.f32 %f3, [%rd5];
fma.rn.f32 %f1, %f1, %f3, %f3;
add.s32 %r3, %r5, 977;
add.s32 %r2, %r2, -1;
setp.ne.s32 %p1, %r2, 0;
@%p1 bra L;
st.global.f32 [%rd1], %f1;
"""


@needs_tools
@pytest.mark.parametrize("name", ["rtx3080", "h100"])
def test_parameters_that_a_loop_divides_by_are_no_accesses_of_its_rounds(name, tmp_path) -> None:
    """They are fetched in front of the loop, once for each division: that was taken for two rounds of it."""
    path = written(tmp_path, ".param .u64 p, .param .u32 n, .param .u32 rounds", REMAINDERS)
    launch = abstim.load(path).kernel().launch(2, 64, [np.ones(4096, np.float32), 4096, 7])
    (found,) = abstim.run(launch, load_gpu(name, ["sm_count=4"])).launches
    assert set(found.timed_shares.values()) == {1.0} and found.operations["fp32"] == 2 * 64 * 7 * 2 * 2


ONE_BEGINS = """.shared .align 8 .b8 bar[8];
ld.param.u64 %rd1, [o];
ld.param.u32 %r3, [n];
mov.u32 %r1, %tid.x;
setp.ne.s32 %p1, %r1, 0;
@%p1 bra BEGUN;
mov.u32 %r2, bar;
mbarrier.init.shared.b64 [%r2], %r3;
BEGUN:
barrier.sync 0;
mov.u32 %r4, bar;
mbarrier.arrive.shared.b64 %rd2, [%r4];
WAIT:
mbarrier.test_wait.shared.b64 %p2, [%r4], %rd2;
@!%p2 bra WAIT;
mul.wide.u32 %rd3, %r1, 4;
add.s64 %rd1, %rd1, %rd3;
st.global.u32 [%rd1], %r1;
"""


@needs_tools
def test_a_vote_for_a_uniform_guard_chooses_no_lane(tmp_path) -> None:
    """One thread begins an `mbarrier`, under a guard that its warp votes for: all others come to the barrier behind it,
    too, which is in the same machine block."""
    path = written(tmp_path, ".param .u64 o, .param .u32 n", ONE_BEGINS)
    launch = abstim.load(path).kernel().launch(1, 128, [np.zeros(128, np.int32), 128])
    (timed,) = abstim.run(launch, gpu="h100").launches
    assert timed.timed_instructions % 4 == 0 and timed.timed_instructions >= 4 * 20
