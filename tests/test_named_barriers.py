"""Barriers with numbers and thread counts are timed as what they are: groups of warps do not wait for each other."""

from __future__ import annotations

import numpy as np
import pytest
from oracle.array_executor import ArrayExecutor
from ptx_kernels import entry, module

from abstim.engine import simulate_point
from abstim.engine.simulation import LaunchInputs
from abstim.gpu.config import load_gpu
from abstim.occupancy_vector.items import warps_of
from functional.errors import InputError
from functional.launches.launch import Pointer, make_launch
from functional.launches.memory import Memory
from functional.programs.link import link
from precharacterize.build import build_table
from precharacterize.classify import Kind
from precharacterize.machine_code.assemble import MachineInstruction
from precharacterize.machine_code.timing_classes import barrier_of
from precharacterize.synchronisation import barriers_of, code_of, settled, splits_blocks

WARP = "shr.u32 %r1, %r0, 5; setp.lt.u32 %p0, %r1, {first}; mov.u32 %r2, 1; mov.u32 %r3, 2; "
LONG = "div.u32 %r2, %r3, %r2; " * 40


GPU = load_gpu("gtx480", ["sm_count=1"])


def inputs_of(body: str, warps: int) -> LaunchInputs:
    parsed = module(entry(body))
    memory = Memory()
    memory.allocate("a", 256, np.zeros(64, np.uint32))
    program = link(parsed, "k")
    launch = make_launch(program, 1, 32 * warps, [Pointer("a")], memory)
    return LaunchInputs(build_table(program, GPU.pipeline), ArrayExecutor().run(launch, memory), 0)


def cycles(body: str, warps: int) -> int:
    return simulate_point(inputs_of(body, warps), GPU, 1).cycles


def test_two_groups():
    """The first two warps have much to do behind their barrier, the others before theirs."""
    text = (
        WARP.format(first=2)
        + "@%p0 bra F;"
        + LONG
        + "bar.sync {second}; bra E; F: bar.sync {first}; "
        + LONG
        + "E: ret;"
    )
    apart = cycles(text.replace("{first}", "1, 64").replace("{second}", "2, 64"), 4)
    together = cycles(text.replace("{first}", "0").replace("{second}", "0"), 4)
    computed = cycles("mov.u32 %r9, 64;" + text.replace("{first}", "1, 64").replace("{second}", "2, %r9"), 4)
    assert apart < 0.7 * together
    number = "mov.u32 %r9, 1; @%p0 mov.u32 %r9, 2;" + text.replace("{first}", "%r9, 64").replace("{second}", "%r9, 64")
    # what is in a register is met as at an `mbarrier`, whose accesses take their time
    assert all(apart < found < apart + 60 for found in (computed, cycles(number, 4)))


def test_arrivals():
    """A warp that waits for another one's arrival, which comes late, or early."""
    text = (
        WARP.format(first=1)
        + "@%p0 bra F; bar.sync 3, 64; "
        + LONG
        + "bra E; F: {before} bar.arrive 3, 64; {after} E: ret;"
    )
    late = cycles(text.format(before=LONG, after=""), 2)
    early = cycles(text.format(before="", after=LONG), 2)
    alone = cycles(text.format(before="", after=""), 2)
    assert alone <= early < 0.75 * late


def test_a_barrier_used_again_by_part_of_a_block():
    text = (
        WARP.format(first=2)
        + "@!%p0 bra E; "
        + "bar.sync 1, 64; add.u32 %r2, %r2, 1; " * 20
        + " E: "
        + LONG
        + "bar.sync 0;"
    )
    assert cycles(text, 4) > 0  # comes to its end


def test_the_column():
    text = "bar.sync 1, 64; bar.arrive 2, 96; bar.warp.sync -1; bar.sync 0; bar.red.popc.u32 %r1, 4, %p1;"
    program = link(module(entry(text)), "k")
    codes = dict(zip((i.name for i in program.instructions), barriers_of(program.instructions, [0] * 99), strict=False))
    assert codes["bar.sync"] == 0
    assert (codes["bar.arrive"], codes["bar.warp.sync"], codes["ret"]) == (code_of(2, 96), -1, -1)
    assert codes["bar.red.popc.u32"] == 4
    assert settled([3, None, -1], [Kind.BARRIER, Kind.BARRIER, Kind.ALU]) == [0, 0, -1]


def test_what_splits_blocks():
    barrier, other = Kind.BARRIER, Kind.ALU
    assert not splits_blocks([0, -1, code_of(3, 128)], [barrier, other, barrier], 4)
    assert splits_blocks([code_of(1, 64)], [barrier], 4)
    assert splits_blocks([code_of(1, 128)], [other], 4)  # bar.arrive
    assert not splits_blocks([], [], 4)


def test_the_occupancy_model_knows_barriers_of_whole_blocks_alone():
    for warps, body in ((4, "bar.sync 1, 128;"), (1, "bar.sync 2;")):
        own = inputs_of(body, warps)
        warps_of(own.table, own.trace, GPU)
    own = inputs_of(WARP.format(first=2) + "@%p0 bra F; bar.sync 1, 64; bra E; F: bar.sync 2, 64; E: ret;", 4)
    with pytest.raises(InputError, match="barriers for a part of a thread block"):
        warps_of(own.table, own.trace, GPU)


@pytest.mark.parametrize(
    "opcode,operands,code",
    [("BAR.SYNC.DEFER_BLOCKING", "0x1, 0x80", code_of(1, 128)), ("BAR.SYNC", "0x0", 0), ("BAR.SYNC", "R3, R4", None),
     ("BAR.ARV", "0x2, 0x40", code_of(2, 64)), ("BAR.RED.POPC.DEFER_BLOCKING", "0x0, P1", 0), ("IADD3", "R1", -1)],
)  # fmt: skip
def test_machine_code(opcode, operands, code):
    assert barrier_of(MachineInstruction(0, "", "", opcode, operands, 0, 1, 7, 7, 0)) == code
