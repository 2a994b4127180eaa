"""Launch and design points as the engine's arrays, sizes rounded up: many launches share one compiled program."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from abstim.config import Gpu
from abstim.engine.array.policies import POLICIES
from abstim.engine.array.state import LIMIT_WARPS, NEVER, Access, Code, Launch, Row, State
from abstim.engine.compiled.layout import EMPTY
from abstim.engine.inputs import COUNTERS, LaunchInputs
from abstim.engine.machine import machine_of
from abstim.result import SLOT_REASONS
from functional.errors import InputError
from precharacterize import LatencyTable
from precharacterize.classify import Kind

INT32_MAX = (1 << 31) - 1
STREAM = 4096  # least length of a stream


def bucket(size: int, least: int = 1) -> int:
    """The power of two that holds `size`, at least `least`."""
    return max(least, 1 << max(0, int(size) - 1).bit_length())


@dataclass(frozen=True)
class Sizes:
    """Lengths of the state's axes."""

    lanes: int
    points: int
    slots: int
    blocks: int
    schedulers: int
    port_width: int
    collectors: int
    units: int
    banks: int
    registers: int
    ring: int
    l1i_lines: int
    data_lines: int


def prepare(inputs: LaunchInputs, points: Sequence[Gpu], blocks_per_sm: Sequence[int]) -> tuple[State, Launch]:
    """State at cycle 0, and everything that does not change. Raises InputError for a launch that int32 cannot hold."""
    trace, table = inputs.trace, inputs.table
    _check(inputs)
    machines = [
        machine_of(gpu, trace.warps_per_block, blocks, table) for gpu, blocks in zip(points, blocks_per_sm, strict=True)
    ]
    sm_counts = [int(m["sm_count"]) for m in machines]
    sizes = _sizes(machines, table, trace.warps_per_block)
    point = np.repeat(np.arange(len(points)), sm_counts)
    point = np.concatenate([point, np.full(sizes.lanes - len(point), sizes.points - 1)])
    sm = np.concatenate([*map(np.arange, sm_counts), np.zeros(sizes.lanes - sum(sm_counts))])
    machine = _machine(machines, point)
    launch = _launch(inputs, sizes, machine, point, sm, sm_counts)
    return _state(sizes, machine, len(SLOT_REASONS), points[0].spec.scheduler), launch


def _check(inputs: LaunchInputs) -> None:
    trace = inputs.trace
    if (inputs.table.kind == Kind.TEXTURE_LOAD).any():
        raise InputError("the array engine has no texture cache; use the compiled one (--backend compiled)")
    longest = max(len(trace.blocks), len(trace.records), len(trace.conflicts))
    warps = len(trace.thread_blocks) * trace.warps_per_block
    if longest > INT32_MAX or warps > LIMIT_WARPS:
        raise InputError(
            f"a launch of {warps} warps with streams of {longest} entries is too long for the array engine; "
            "use the compiled one (--backend compiled)"
        )


def _sizes(machines: list[np.void], table: LatencyTable, warps_per_block: int) -> Sizes:
    """The largest of every axis, rounded up."""

    def most(values) -> int:
        return max(int(np.max(v)) for v in values)

    return Sizes(
        lanes=bucket(sum(int(m["sm_count"]) for m in machines), 4),
        points=bucket(len(machines) + 1, 2),
        slots=-(-most(m["warp_slots"] for m in machines) // 16) * 16,
        blocks=bucket(most(m["blocks_per_sm"] for m in machines), 8),
        schedulers=bucket(most(m["schedulers"] for m in machines)),
        port_width=bucket(most(m["port_width"] for m in machines), 2),
        collectors=bucket(most(m["collectors"] for m in machines), 8),
        units=bucket(most(np.diff(m["first_unit"][:4]) for m in machines), 2),
        banks=bucket(most(m["banks"] for m in machines), 16),
        registers=bucket(table.register_count, 16),
        ring=bucket(most(m["ring"] for m in machines), 512),
        l1i_lines=bucket(most(m["l1i_sets"] * m["l1i_ways"] for m in machines), 16),
        data_lines=bucket(
            most(m["const_sets"] * m["const_ways"] + m["l1d_sets"] * m["l1d_ways"] for m in machines), 256
        ),
    )


def _machine(machines: list[np.void], point: np.ndarray) -> dict[str, np.ndarray]:
    """Numbers of the design points, a lane each; lanes without a design point repeat the last one's."""
    table = np.array(machines, machines[0].dtype)
    rows = table[np.minimum(point, len(machines) - 1)]
    names = set(table.dtype.names or ()) - {"first_unit", "policy", "heap_words"}
    found = {name: rows[name].T.astype(np.int32) for name in names if not name.endswith("_at")}
    return found | {"units": np.diff(rows["first_unit"][:, :4], axis=1).T.astype(np.int32)}


def _state(z: Sizes, machine: dict[str, np.ndarray], reasons: int, policy: str) -> State:
    lane, never = np.zeros(z.lanes, np.int32), NEVER

    def full(*shape: int, value: int = 0) -> np.ndarray:
        return np.full((*shape, z.lanes), value, np.int32)

    place, collectors = np.arange(z.blocks)[:, None], np.arange(z.collectors)[:, None]
    slots = np.arange(z.slots, dtype=np.int32)[:, None]
    return State(
        clock=lane, turn=lane.copy(), horizon=lane.copy(), live=lane.copy(), launched=lane.copy(),
        last_sp_start=lane.copy(), response_free=lane.copy(), stamp=lane.copy(), last_exit=lane.copy(),
        last_dispatch=lane - 1, last_fetched=lane - 1, issued=lane > 0,
        access=Access(*(lane.copy() for _ in Access._fields)),
        counters=full(len(COUNTERS)),
        next_block=np.zeros(z.points, np.int32), last_taker=np.full(z.points, -1, np.int32),
        ready=full(z.slots, value=never), look=full(z.slots), status=full(z.slots),
        age=POLICIES[policy].first_age(slots, machine["schedulers"]),
        drained=full(z.slots), not_before=full(z.slots), line_back=full(z.slots),
        warp=np.zeros((z.slots, z.lanes, len(Row)), np.int32),
        block_live=full(z.blocks), block_free=np.where(place < machine["blocks_per_sm"], 0, never).astype(np.int32),
        block_start=full(z.blocks), resident=full(z.blocks),
        last=full(z.schedulers, value=-1), idle_reason=full(z.schedulers, value=EMPTY),
        idle_since=full(z.schedulers), issue_slots=full(reasons, z.schedulers),
        port_position=full(3), port_alloc=full(3, z.port_width), port_start=full(3, z.port_width),
        collector=np.where(collectors < machine["collectors"][:, None], 0, never).astype(np.int32),
        unit_free=full(3, z.units), due=np.full((z.ring, z.lanes, 2), -1, np.int32),
        banks=full(z.banks * z.ring, value=-1), registers=full(z.slots, z.registers),
        l1i=np.full((z.l1i_lines, z.lanes, 3), -1, np.int32), data=np.full((z.data_lines, z.lanes, 3), -1, np.int32),
    )  # fmt: skip


def _launch(
    inputs: LaunchInputs,
    z: Sizes,
    machine: dict[str, np.ndarray],
    point: np.ndarray,
    sm: np.ndarray,
    sm_counts: list[int],
) -> Launch:
    trace, table, width = inputs.trace, inputs.table, inputs.trace.warps_per_block
    lanes_of_point = np.full((z.points, bucket(max(sm_counts))), z.lanes, np.int32)
    for p, n in enumerate(sm_counts):
        lanes_of_point[p, :n] = np.flatnonzero(point == p)[:n]
    slots = np.arange(z.slots)
    present = np.arange(z.points) < len(sm_counts)
    ways = max(int(machine["const_ways"].max()), int(machine["l1d_ways"].max()))
    return Launch(
        **_code(table),
        blocks=_padded(trace.blocks.astype(np.int32), STREAM),
        bounds=_padded(np.stack([table.block_start, table.block_stop], 1).astype(np.int32)),
        records=_padded(trace.records, STREAM),
        groups=_padded(record_groups(trace.records), STREAM),
        conflicts=_padded(trace.conflicts.astype(np.int32), STREAM),
        offsets=_padded(
            np.stack([trace.block_offsets, trace.record_offsets, trace.conflict_offsets], 1).astype(np.int32),
            STREAM,
        ),
        warps_per_block=np.int32(width),
        block_count=np.where(present, len(trace.thread_blocks), 0).astype(np.int32),
        sm_count=np.array(sm_counts + [1] * (z.points - len(sm_counts)), np.int32),
        lanes_of_point=lanes_of_point,
        point=point.astype(np.int32),
        sm=sm.astype(np.int32),
        scheduler_of=(slots[:, None] % machine["schedulers"]).astype(np.int32),
        block_of=(slots // width).astype(np.int32),
        data_way=np.arange(bucket(ways, 4), dtype=np.int32),
        l1i_way=np.arange(bucket(int(machine["l1i_ways"].max()), 4), dtype=np.int32),
        machine=machine,
    )


def _code(table: LatencyTable) -> dict[str, Any]:
    columns = {
        Code.UNIT: table.unit, Code.KIND: table.kind, Code.LATENCY: table.latency_cycles,
        Code.INITIATION: table.initiation_cycles, Code.ACCESS_BYTES: table.access_bytes, Code.PC: table.pcs,
    }  # fmt: skip
    code = np.stack([columns[c].astype(np.int32) for c in Code], 1)
    rows = {
        "waits": table.waits, "writes": table.writes, "write_banks": table.write_banks,
        "reads": table.read_banks, "long_waits": table.long_waits,
    }  # fmt: skip
    return {"code_length": np.int32(len(code)), "code": _padded(code)} | {
        name: _padded(_wide(values, 8 if name == "waits" else 4)) for name, values in rows.items()
    }


def _wide(rows: np.ndarray, least: int) -> np.ndarray:
    """Rows as int32 with at least `least` columns, -1 where there is nothing."""
    missing = bucket(rows.shape[1], least) - rows.shape[1]
    return np.pad(rows.astype(np.int32), ((0, 0), (0, missing)), constant_values=-1)


def _padded(values: np.ndarray, least: int = 64) -> np.ndarray:
    """Values with the first axis rounded up, by zeros that nothing refers to."""
    missing = bucket(len(values) + 1, least) - len(values)
    return np.pad(values, ((0, missing), *((0, 0) for _ in values.shape[1:])))


def record_groups(records: np.ndarray) -> np.ndarray:
    """Of the access that begins with a record: its last record, and transactions by record, 64 B half, 32 B sector."""
    if not len(records):
        return np.zeros((0, 4), np.int32)
    sectors = (records >> 1) & 15
    halves = ((sectors & 3) != 0).astype(np.int64) + ((sectors & 12) != 0)
    bits = sum(((sectors >> k) & 1).astype(np.int64) for k in range(4))
    ends = np.flatnonzero(records & 1 == 0)
    end = ends[np.minimum(np.searchsorted(ends, np.arange(len(records))), len(ends) - 1)]
    totals = [np.cumsum(count) for count in (np.ones(len(records), np.int64), halves, bits)]
    counts = [total[end] - total + count for total, count in zip(totals, (1, halves, bits), strict=True)]
    return np.stack([end, *counts], 1).astype(np.int32)
