"""What the array engine computes on. A *lane* is one SM of one design point; arrays of lanes have the lane axis last.

Times are int32 cycles below LIMIT_CYCLES. A *ring* is a stretch of cycle tags indexed by cycle modulo its length:
entry == cycle means taken, so nothing needs clearing when time jumps. What an issue reads and writes of one warp is one
row (`State.warp`), so that a step needs one gather and one scatter for it; what a scheduler looks at of all its warps
is apart, `[slot, lane]`.
"""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Bool, Int32

NEVER = 1 << 30
LIMIT_CYCLES = 1 << 29  # a lane stops here; everything it has booked stays far below NEVER
LIMIT_WARPS = 1 << 24  # that one lane launches: a priority and a slot share 31 bits

# Bits of `State.status`
RUN, HELD, FLUSH, WANT, MISS, EXITING, MEMORY = 1, 2, 4, 8, 16, 32, 64
PORT_SHIFT = 8  # the port of the next instruction


class Row(IntEnum):
    """Columns of `State.warp`."""

    PC = 0  # next instruction
    STOP = 1  # end of its basic block
    EVENT = 2  # cursors into the streams
    EVENT_END = 3
    RECORD = 4
    CONFLICT = 5
    BUFFERED = 6  # instructions left in the buffer
    FRONT_END = 7  # cycle in which they can be looked at
    OPERANDS = 8  # cycle in which the registers of the next instruction are free
    FROM_MEMORY = 9  # 1: the one that is free last is written by memory
    FETCH_PC = 10  # what it fetches next
    NEXT_PC = 11  # address of the next instruction, other than FETCH_PC on the wrong path
    LONG = 12  # until then the next instruction waits for a long operation
    WRONG_LONG = 13  # the same of the instruction that follows on the wrong path


class Access(NamedTuple):
    """A memory instruction whose lines are being processed, one a step."""

    left: Int32[Array, " lane"]  # transactions, 0: none
    record: Int32[Array, " lane"]  # of the next one
    part: Int32[Array, " lane"]  # transactions of this record already made
    hit: Int32[Array, " lane"]  # result of the next one if it hits
    done: Int32[Array, " lane"]  # latest result so far
    slot: Int32[Array, " lane"]


class State(NamedTuple):
    """Everything that changes. Axes: slot = warp slot, block = thread block slot, port x width and so on flattened."""

    # lanes
    clock: Int32[Array, " lane"]
    turn: Int32[Array, " lane"]  # schedulers that have had their turn in this cycle
    horizon: Int32[Array, " lane"]  # earliest cycle in which a thread block may come in, as far as known
    live: Int32[Array, " lane"]  # warps not noticed as gone
    launched: Int32[Array, " lane"]
    last_sp_start: Int32[Array, " lane"]
    response_free: Int32[Array, " lane"]
    stamp: Int32[Array, " lane"]
    last_exit: Int32[Array, " lane"]
    last_dispatch: Int32[Array, " lane"]
    last_fetched: Int32[Array, " lane"]
    issued: Bool[Array, " lane"]  # anything in this cycle
    access: Access
    counters: Int32[Array, "counter lane"]  # abstim.engine.inputs.COUNTERS
    # design points
    next_block: Int32[Array, " point"]
    last_taker: Int32[Array, " point"]
    # warp slots
    ready: Int32[Array, "slot lane"]
    look: Int32[
        Array, "slot lane"
    ]  # the next cycle spent on a warp that waits: at `ready`, or a round of the wheel before
    status: Int32[Array, "slot lane"]
    age: Int32[Array, "slot lane"]  # launch order; under two-level the place in the scheduler's queue
    drained: Int32[Array, "slot lane"]
    not_before: Int32[Array, "slot lane"]
    line_back: Int32[Array, "slot lane"]
    warp: Int32[Array, "slot lane field"]
    # thread block slots
    block_live: Int32[Array, "block lane"]
    block_free: Int32[Array, "block lane"]
    block_start: Int32[Array, "block lane"]
    resident: Int32[Array, "block lane"]  # warp cycles in the slot, of warps that have left
    # schedulers
    last: Int32[Array, "scheduler lane"]
    idle_reason: Int32[Array, "scheduler lane"]
    idle_since: Int32[Array, "scheduler lane"]
    issue_slots: Int32[Array, "reason scheduler lane"]
    # ports
    port_position: Int32[Array, "port lane"]
    port_alloc: Int32[Array, "port width lane"]
    port_start: Int32[Array, "port width lane"]
    collector: Int32[Array, "port collector lane"]
    unit_free: Int32[Array, "port unit lane"]
    due: Int32[Array, "ring lane two"]  # (cycle, results due on the buses in it), and the units they leave
    banks: Int32[Array, "bank_x_ring lane"]
    registers: Int32[Array, "slot register lane"]  # free cycle * 4 + flags
    # caches: (tag, last use, fill cycle) a line
    l1i: Int32[Array, "line lane three"]
    data: Int32[Array, "line lane three"]  # constant cache, then L1D


class Launch(NamedTuple):
    """What a launch brings: code, streams, and the numbers of the design points. Nothing of it changes."""

    code_length: Int32[Array, ""]
    code: Int32[Array, "instr column"]
    waits: Int32[Array, "instr wait"]
    writes: Int32[Array, "instr write"]
    write_banks: Int32[Array, "instr write"]
    reads: Int32[Array, "instr read"]
    long_waits: Int32[Array, "instr long"]
    blocks: Int32[Array, " event"]
    bounds: Int32[Array, "basic_block two"]
    records: Array  # uint32
    groups: Int32[Array, "record four"]
    conflicts: Int32[Array, " access"]
    offsets: Int32[Array, "warp_plus_1 three"]
    warps_per_block: Int32[Array, ""]
    block_count: Int32[Array, " point"]
    sm_count: Int32[Array, " point"]
    lanes_of_point: Int32[Array, "point sm"]  # number of lanes: none
    point: Int32[Array, " lane"]
    sm: Int32[Array, " lane"]
    scheduler_of: Int32[Array, "slot lane"]
    block_of: Int32[Array, " slot"]
    data_way: Int32[Array, " way"]  # 0, 1, ... to the most ways of a constant cache or L1D
    l1i_way: Int32[Array, " way"]
    machine: dict[str, Array]  # MACHINE fields of abstim.engine.compiled.layout, a lane each


class Code(IntEnum):
    """Columns of `Launch.code`."""

    UNIT = 0
    KIND = 1
    LATENCY = 2
    INITIATION = 3
    ACCESS_BYTES = 4
    PC = 5


def lanes_of(array: Array) -> Array:
    """0 .. lanes - 1, for an array whose last axis is the lanes."""
    return jnp.arange(array.shape[-1], dtype=jnp.int32)


def take(array: Array, index: Array) -> Array:
    """`array[index[..., lane], lane]`: of every lane its own entry, or entries."""
    lanes = jnp.arange(array.shape[1], dtype=jnp.int32)
    return array.at[index, lanes].get(mode="promise_in_bounds")


def put(array: Array, index: Array, values: Array, where: Bool[Array, ...], unique: bool = True) -> Array:
    """`array[index[..., lane], lane] = values` in the lanes, or entries, where `where` holds."""
    lanes = jnp.arange(array.shape[1], dtype=jnp.int32)
    target = jnp.where(where, index, array.shape[0])
    values = jnp.broadcast_to(values, target.shape + array.shape[2:])
    return array.at[target, jnp.broadcast_to(lanes, target.shape)].set(values, mode="drop", unique_indices=unique)


def flat(array: Array) -> Array:
    """`[a, b, lane]` as `[a x b, lane]`."""
    return array.reshape(-1, array.shape[-1])


def put_flat(array: Array, index: Array, values: Array, where: Array) -> Array:
    """`put` into the flattened leading axes."""
    return put(flat(array), index, values, where).reshape(array.shape)


def has(status: Array, bits: int) -> Array:
    """Is any of the bits set?"""
    return status & bits != 0
