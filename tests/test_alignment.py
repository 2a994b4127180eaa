"""Machine blocks and the PTX blocks that lead them, where the assembler moves code or changes what it is made of."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from test_machine_code import needs_tools

import abstim
from abstim.gpu.config import load_gpu

GPU = load_gpu("h100", ["sm_count=2"])


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


def in_a_loop(folder: Path, first: str, body: str, last: str) -> abstim.Kernel:
    """A kernel that does something as many times as its second parameter says."""
    text = f"ld.param.u64 %rd1, [p];\nld.param.u32 %r2, [rounds];\n{first}\nL:\n{body}\n"
    text += f"add.s32 %r2, %r2, -1;\nsetp.ne.s32 %p1, %r2, 0;\n@%p1 bra L;\n{last}\n"
    return abstim.load(written(folder, ".param .u64 p, .param .u32 rounds", text)).kernel()


@needs_tools
def test_code_that_slow_paths_alone_cut_is_one_block(tmp_path) -> None:
    """Each reciprocal ends a block with a branch past its slow path; neighbours share an instruction of the PTX, and
    were taken for copies of each other, of which one is executed."""
    chain = "\n".join(["rcp.rn.f32 %f1, %f1;"] * 24)
    kernel = in_a_loop(tmp_path, "ld.global.f32 %f1, [%rd1];", chain, "st.global.f32 [%rd1], %f1;")
    few, many = (
        abstim.run(kernel.launch(1, 32, [np.full(4, 1.5, np.float32), n]), GPU).launches[0].timed_instructions
        for n in (2, 10)
    )
    assert many - few >= 8 * 24 * 8


@needs_tools
def test_branches_back_take_their_time(tmp_path) -> None:
    body = "mad.lo.u32 %r1, %r1, %r2, %r1;\nbar.warp.sync -1;"
    kernel = in_a_loop(tmp_path, "mov.u32 %r1, %tid.x;", body, "st.global.u32 [%rd1], %r1;")

    def cycles(rounds: int, branch_cycles: int) -> int:
        gpu = load_gpu("h100", ["sm_count=2", f"branch_cycles={branch_cycles}"])
        return abstim.run(kernel.launch(1, 32, [np.zeros(4, np.uint32), rounds]), gpu).launches[0].cycles

    slow, quick = (cycles(64, b) - cycles(32, b) for b in (40, 20))
    assert slow > quick and (slow - quick) % 20 == 0


WHOLE = """ld.param.u64 %rd1, [p];
ld.global.u64 %rd2, [%rd1];
ld.global.u64 %rd3, [%rd1+8];
setp.eq.s64 %p2, %rd3, 0;
@%p2 bra END;
mov.u32 %r2, 0;
L:
{body}
add.s32 %r2, %r2, 1;
setp.lt.u32 %p1, %r2, 8;
@%p1 bra L;
END:
st.global.u64 [%rd1], %rd2;
"""


@needs_tools
def test_rounds_of_64_bit_instructions_alone_are_told(tmp_path) -> None:
    """The assembler unrolls the loop whole; its code was executed once for each of the eight rounds."""
    one = "mul.lo.u64 %rd2, %rd2, %rd3;\nadd.s64 %rd2, %rd2, %rd3;\nxor.b64 %rd2, %rd2, %rd1;"
    path = written(tmp_path, ".param .u64 p", WHOLE.format(body="\n".join([one] * 4)))
    launch = abstim.run(abstim.load(path).kernel().launch(1, 32, [np.full(4, 3, np.uint64)]), GPU).launches[0]
    assert 8 * 4 * 6 < launch.timed_instructions < 8 * 4 * 10  # seven or eight for each three of PTX


@needs_tools
def test_nobody_waits_for_atomics_whose_results_nobody_uses(tmp_path) -> None:
    """Of machine code; GPGPU-Sim's warps wait for each."""

    def cycles(count: int) -> int:
        adds = "\n".join(f"red.global.add.f32 [%rd1+{128 * k}], %f1;" for k in range(count))
        text = f"ld.param.u64 %rd1, [p];\nmov.f32 %f1, 0f3F800000;\n{adds}\n"
        launch = abstim.load(written(tmp_path, ".param .u64 p", text)).kernel()
        return abstim.run(launch.launch(1, 32, [np.zeros(1024, np.float32)]), GPU).launches[0].cycles

    assert cycles(17) - cycles(1) < 16 * GPU.params.l2_request_cycles  # there alone, not to speak of the way back
