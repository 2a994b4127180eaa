"""The memory side of rule 11 against its oracle, on random requests with the settings of every GPU."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from nightly import examples, of
from oracle.memory_side import ATOMIC, EVERY_WORD, READ, WRITE, MemorySide
from random_launches import straight_launch

from abstim.engine.design_point import known_of, machine_of
from abstim.engine.initial_state import Memory, sizes_of
from abstim.engine.state import State
from abstim.gpu.config import Gpu, gpu_names, load_gpu
from functional.jit.machine_code import Staged
from functional.jit.marked import Array
from precharacterize.classify import Kind

replay = Staged("memory_replay", "replay", (State, Array("request field"), Array("request sector")))
EXAMPLES = examples(2, 6)
# Small enough for queues, ways and miss registers to run out, and for lines to leave with what was written of them
SCARCE = (
    "l2_sets=4",
    "l2_ways=2",
    "l2_mshrs=6",
    "l2_miss_queue=3",
    "l2_queue=8",
    "dram_queue=4",
    "crossbar_queue_flits=6",
)


def random_requests(rng: np.random.Generator, gpu: Gpu, count: int) -> np.ndarray:
    """[request]: cycle, SM, line, sectors, kind, flits, words; some lines are asked for by many at once."""
    pace, lines = rng.choice([0.2, 1, 5]), rng.choice([8, 200, 1 << 20])
    asked = np.zeros((count, 7), np.int64)
    asked[:, 0] = np.sort(rng.exponential(count / pace / 8, count).astype(np.int64))
    asked[:, 1] = rng.integers(0, gpu.spec.sm_count, count)
    asked[:, 2] = (1 << 25) + rng.integers(0, lines, count) * rng.choice([1, 2, 96])
    asked[:, 3] = rng.integers(1, 16, count)
    asked[:, 4] = rng.choice([READ, WRITE, ATOMIC], count, p=[0.6, 0.3, 0.1])
    asked[:, 5] = np.where(asked[:, 4] == READ, 1, rng.integers(1, 5, count))
    asked[:, 6] = np.where(rng.random(count) < 0.5, EVERY_WORD, np.bitwise_or(*rng.integers(0, 1 << 32, (2, count))))
    return asked


def by_the_engine(gpu: Gpu, asked: np.ndarray) -> np.ndarray:
    table = straight_launch([Kind.ALU, Kind.EXIT], warps=1).table
    due = np.full((len(asked), 4), -1, np.int64)
    machine = machine_of(gpu, 1, 1, table)
    state, _ = Memory().take(machine, sizes_of(machine))
    replay(known_of(state.machine), state.contexts.ctypes.data, np.ascontiguousarray(asked), due)
    return due


def by_the_rules(gpu: Gpu, asked: np.ndarray) -> np.ndarray:
    side, due, position = MemorySide(gpu), np.full((len(asked), 4), -1, np.int64), 0
    waiting = sum(int(sectors).bit_count() for sectors in asked[:, 3])
    while sum(len(found) for found in side.replies.values()) < waiting:
        while position < len(asked) and asked[position, 0] == side.time:
            _, sm, line, bits, kind, flits, words = (int(v) for v in asked[position])
            sectors = tuple(j for j in range(4) if bits >> j & 1)
            side.ask(side.time, sm, line, sectors, kind, flits, words=words, direct=True)
            position += 1
        side.cycle()
    for number, found in side.replies.items():
        due[number, : len(found)] = found
    return due


@pytest.mark.parametrize("name", gpu_names()[:: of(2, 1)])
@EXAMPLES
@given(st.integers(0, 1 << 30), st.booleans())
def test_replies_come_when_the_rules_say(name: str, seed: int, scarce: bool) -> None:
    rng = np.random.default_rng(seed)
    few = ["perfect_memory=false", f"sm_count={rng.integers(1, 9)}"]
    scarcity = [*SCARCE, f"dram_write_batch={rng.integers(0, 4)}"] if scarce else []
    gpu = load_gpu(name, [*few, *scarcity])
    asked = random_requests(rng, gpu, int(rng.integers(1, 200)))
    np.testing.assert_array_equal(by_the_engine(gpu, asked), by_the_rules(gpu, asked))


def in_step(sms: int, lines: int) -> np.ndarray:
    """All SMs ask for the same whole lines in the same order, which the first of them has brought into L2."""
    asked = np.zeros((lines + sms * lines, 7), np.int64)
    asked[:lines, 0] = np.arange(lines)
    asked[lines:, 0] = 1 << 14
    asked[lines:, 1] = np.tile(np.arange(sms), lines)
    asked[:, 2] = (1 << 25) + np.concatenate([np.arange(lines), np.repeat(np.arange(lines), sms)])
    asked[:, 3], asked[:, 4], asked[:, 5] = 15, READ, 1
    return asked


def cycles_in_step(settings: list[str], sms: int = 32, lines: int = 64) -> int:
    gpu = load_gpu("v100", [f"sm_count={sms}", *settings])
    return int(by_the_engine(gpu, in_step(sms, lines))[lines:].max()) - (1 << 14)


def test_sms_that_read_one_buffer_in_step_do_not_wait_for_each_other() -> None:
    """The 64 lines lie in 32 slices; each of these reads 256 sectors, one a cycle, beside a latency of some 190."""
    assert cycles_in_step([]) < 2 * 256 + 190
    assert cycles_in_step(["crossbar_output_queues=false"]) > 2 * cycles_in_step([])


def test_reads_in_step_of_one_sector_are_one() -> None:
    """Each slice reads 8 sectors; an SM takes 256 of them, one a cycle, in the order in which slices have them."""
    assert cycles_in_step(["l2_coalesces=true"]) < 256 + 190 + 32 < cycles_in_step([])


def test_links_of_two_sectors_a_cycle_carry_twice_as_much() -> None:
    """Beside the latency."""
    wide = cycles_in_step(["l2_reply_sectors=2", "l2_sector_cycles=0.5"])
    assert wide - 190 < 0.7 * (cycles_in_step([]) - 190)
