"""A GPU as data: `Spec` (structure, compiled into the engine) and `Params` (latencies). Values come from `configs/`.

Each field states what it accepts, so the loader can check a file or a `--set` without knowing any key by name."""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, fields, replace
from typing import Any, NamedTuple

from functional.errors import InputError
from functional.hashed_once import HashedOnce
from functional.traces.trace import LINE_BYTES, SECTOR_BYTES
from precharacterize.table import PAIR


class Domain(NamedTuple):
    """What a field accepts: `text` says it in an error message."""

    type: type
    text: str
    accepts: Callable[[Any], bool]


def _accepting(type_: type, text: str, accepts: Callable[[Any], bool]) -> Any:
    return field(metadata={"domain": Domain(type_, text, accepts)})


def _whole(low: int, high: int, text: str = "") -> Any:
    return _accepting(int, text or f"a whole number from {low} to {high}", lambda v: low <= v <= high)


def _power_of_two(high: int, low: int = 1) -> Any:
    return _accepting(int, f"a power of two from {low} to {high}", lambda v: low <= v <= high and v & (v - 1) == 0)


def _choice(*names: str) -> Any:
    return _accepting(str, "one of " + ", ".join(names), lambda v: v in names)


def _number(low: float, high: float) -> Any:
    return _accepting(float, f"a number from {low:g} to {high:g}", lambda v: low <= v <= high)


def _sizes() -> Any:
    """Sizes in KiB, ascending, separated by commas; empty: none."""

    def accepts(text: str) -> bool:
        parts = text.split(",") if text else []
        return all(p.isdecimal() for p in parts) and [int(p) for p in parts] == sorted({int(p) for p in parts})

    return _accepting(str, "sizes in KiB like 0,8,16, ascending, or empty", accepts)


def _flag() -> Any:
    return _accepting(bool, "true or false", lambda v: True)


class Policy(NamedTuple):
    """A scheduling policy (docs/timing-rules.md, rule 2), as other models than the engine take it."""

    gpgpusim: str  # its name there
    in_turn: bool  # each warp issues an instruction, then another one does; else one goes on as long as it can
    by_slot: bool  # the cache walk goes by slots in turn, not by launch order


POLICIES = {
    "gto": Policy("gto", in_turn=False, by_slot=False),
    "lrr": Policy("lrr", in_turn=True, by_slot=True),
    "oldest": Policy("old", in_turn=False, by_slot=False),
    "two_level": Policy("two_level_active", in_turn=True, by_slot=False),
}
NUMBER_OF_POLICY = {name: number for number, name in enumerate(POLICIES)}

# Classes of arithmetic instructions, those of GPGPU-Sim's `ptx_opcode_latency_*` options. `sfu` is sin, cos, ex2, lg2,
# rcp, rsqrt, sqrt and tanh; `tensor` is mma, `wgmma` that of warpgroups and tcgen05; `other` all else (mov, setp,
# selp, cvt, logic, shifts, bra, ret).
INSTRUCTION_CLASSES = (
    *(f"int_{op}" for op in ("add", "max", "mul", "mad", "div", "shfl")),
    *(f"{kind}_{op}" for kind in ("fp32", "fp64") for op in ("add", "max", "mul", "mad", "div")),
    *("sfu", "tensor", "wgmma", "other"),
)
# What timed_code = machine tells apart besides: arithmetic on pairs of fp16; conversions not of integers alone (and
# popc, special registers, warp reductions); those from and to 64-bit types; branches and the uniform datapath.
HARDWARE_CLASSES = ("fp16", "convert", "convert_64bit", "control")
ALL_CLASSES = (*INSTRUCTION_CLASSES, *HARDWARE_CLASSES)
CYCLES = Domain(int, "a whole number of cycles from 1 to 4096", lambda v: 1 <= v <= 4096)
# Of the pieces that a warpgroup's product is made of, which together take whole cycles
PIECE_CYCLES = Domain(float, "a number of cycles from 1 to 4096", lambda v: 1 <= v <= 4096)
_MOST_HASHED = 4096  # places that a polynomial names; of sets a power of two
ALUS = ("sp", "sfu", "int", "dp", "tensor")
PERFECT, REAL = "perfect", "L2 and DRAM"  # memory models
UNIT = Domain(str, "one of " + ", ".join(ALUS), lambda v: v in ALUS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Spec(HashedOnce):
    """Counts, sizes and policies. Frozen and hashable: two GPUs with equal Specs share one compiled engine."""

    __hash__ = HashedOnce.__hash__

    name: str = field(compare=False)
    sm_count: int = _whole(1, 4096)
    gpcs: int = _whole(1, 64)  # groups of SMs, one of which holds all thread blocks of a cluster
    core_clock_hz: float = _number(1e6, 1e11)
    perfect_memory: bool = _flag()

    warp_size: int = _whole(32, 32, "32: PTX knows no other warp size")
    max_threads_per_sm: int = _whole(32, 65536)
    max_warps_per_sm: int = _whole(1, 64)
    max_blocks_per_sm: int = _whole(1, 64)
    registers_per_sm: int = _whole(32, 1 << 24)
    register_allocation_granularity: int = _whole(1, 512)
    shared_bytes_per_sm: int = _whole(0, 1 << 24)
    shared_bytes_kept_per_block: int = _whole(0, 1 << 16)  # beside its own

    timed_code: str = _choice("ptx", "machine")
    architecture: str = _accepting(  # as ptxas names it
        str, "an architecture like sm_86, or none", lambda v: bool(re.fullmatch(r"sm_\d{2,3}|none", v))
    )

    schedulers_per_sm: int = _whole(1, 4)
    scheduler: str = _choice(*POLICIES)
    two_level_active_warps: int = _whole(1, 64)
    sub_cores: bool = _flag()
    issues_per_turn: int = _whole(1, 2)
    fetches_per_cycle: int = _whole(1, 16)
    instructions_per_fetch: int = _whole(1, 8)
    instruction_bytes: int = _power_of_two(16)

    sp_units: int = _whole(1, 16)
    sfu_units: int = _whole(1, 16)
    int_units: int = _whole(0, 16)
    dp_units: int = _whole(0, 16)
    tensor_units: int = _whole(0, 16)
    lsu_units: int = _whole(1, 1, "1: an SM has one load/store unit in this model")
    sp_port_width: int = _whole(1, 16)
    sfu_port_width: int = _whole(1, 16)
    mem_port_width: int = _whole(1, 16)
    int_port_width: int = _whole(1, 16)
    dp_port_width: int = _whole(1, 16)
    tensor_port_width: int = _whole(1, 16)
    sp_collectors: int = _whole(1, 64)
    sfu_collectors: int = _whole(1, 64)
    mem_collectors: int = _whole(1, 64)
    shared_collectors: int = _whole(0, 64)
    result_bus_width: int = _whole(1, 16)
    register_banks: int = _power_of_two(64)
    register_file_ports: int = _power_of_two(4)

    perfect_instruction_cache: bool = _flag()
    perfect_constant_cache: bool = _flag()
    l1i_sets: int = _power_of_two(4096)
    l1i_ways: int = _whole(1, 4096)
    l1i_line_bytes: int = _power_of_two(4096)
    l1i_prefetch_lines: int = _whole(0, 8)  # behind the one that a fetch finds, asked for with it
    const_sets: int = _power_of_two(4096)
    const_ways: int = _whole(1, 4096)
    const_line_bytes: int = _power_of_two(128, 64)  # a trace holds 128 B lines of 32 B sectors
    l1d_sets: int = _power_of_two(4096)
    l1d_ways: int = _whole(1, 4096)
    l1d_line_bytes: int = _whole(128, 128, "128: the trace holds 128 B lines")
    l1d_index: str = _choice("linear", "hash", "ipoly")
    l1d_sectored: bool = _flag()
    l1d_banks: int = _power_of_two(4)
    l1d_dense_banks: int = _whole(0, 4)  # of accesses that need more than half of their sectors' bytes; 0: all
    l1d_bypass: bool = _flag()
    l1d_write: str = _choice("local_back", "evict", "through", "back")
    l1d_write_allocate: bool = _flag()
    l1d_replacement: str = _choice("lru", "fifo")
    posted_stores: bool = _flag()  # with real memory nothing but a fence waits for a store that has left the SM
    partial_sectors: bool = _flag()  # with real memory a read of a sector that stores have written in part fetches it
    unified_l1d_bytes: int = _whole(0, 1 << 24)
    shared_options_kib: str = _sizes()
    l1t_sets: int = _power_of_two(4096)
    l1t_ways: int = _whole(1, 4096)
    shared_banks: int = _whole(32, 32, "32: the trace holds conflicts on 32 banks")
    shared_bytes_per_cycle: int = _power_of_two(128, low=32)  # of an SM; a bank pass has 128 B
    load_store_lanes: int = _power_of_two(32, low=8)
    l1i_mshrs: int = _whole(1, 8)
    const_mshrs: int = _whole(1, 8)
    l1d_mshrs: int = _whole(1, 4096)
    l1d_mshr_merges: int = _whole(1, 4096)
    l1d_miss_queue: int = _whole(1, 4096)

    flit_bytes: int = _whole(1, 4096)
    packet_header_bytes: int = _whole(0, 4096)
    inject_queue_flits: int = _whole(1, 4096)
    crossbar_queue_flits: int = _whole(1, 4096)
    crossbar_repeats: bool = _flag()
    crossbar_output_queues: bool = _flag()  # packets wait at their output, not behind those for others
    l2_reply_sectors: int = _whole(1, 4)  # a cycle: what a slice gives at most, and what an SM takes
    l2_coalesces: bool = _flag()  # a read of a sector that another one is on its way for asks nothing of the slice
    l2_slices_per_channel: int = _whole(1, 64)
    l2_sets: int = _whole(1, 1 << 16)
    l2_ways: int = _whole(1, 4096)
    l2_dirty_ways: int = _whole(0, 4096)  # lines of a set that may wait to be written back; 0: all
    l2_mshrs: int = _whole(1, 1 << 16)
    l2_mshr_merges: int = _whole(1, 4096)
    l2_miss_queue: int = _whole(1, 4096)
    l2_fetch_bytes: int = _power_of_two(64, low=32)  # that a read which misses brings from DRAM
    l2_queue: int = _whole(4, 4096)
    l2_index: str = _choice("linear", "ipoly")
    l2_slice_index: str = _choice("linear", "ipoly", "random", "spread")
    l2_partitions: int = _whole(1, 2)
    slice_interleave_bytes: int = _power_of_two(1 << 20, low=128)
    channel_interleave_bytes: int = _power_of_two(1 << 20, low=128)
    dram_channels: int = _whole(1, 1024)
    dram_banks: int = _whole(1, 1024)
    dram_row_bytes: int = _power_of_two(1 << 20, low=1024)
    dram_bank_groups: int = _power_of_two(64)
    dram_queue: int = _whole(1, 4096)
    dram_requests: int = _whole(0, 1 << 16)  # a channel holds; 0: any number
    dram_write_batch: int = _whole(0, 4096)  # writes that are served together, before reads; 0: as they come
    dram_two_commands: bool = _flag()
    # in cycles of DRAM's own clock: of the length that makes a sector take dram_sector_cycles core cycles
    dram_burst_bytes: int = _power_of_two(128, low=32)
    dram_burst_cycles: int = _whole(1, 4096)
    dram_group_burst_cycles: int = _whole(1, 4096)
    dram_row_to_row_cycles: int = _whole(0, 4096)
    dram_row_active_cycles: int = _whole(0, 4096)
    dram_row_cycle_cycles: int = _whole(0, 4096)
    dram_read_cycles: int = _whole(1, 4096)
    dram_write_cycles: int = _whole(0, 4096)
    dram_write_to_read_cycles: int = _whole(0, 4096)
    dram_write_recovery_cycles: int = _whole(0, 4096)
    dram_read_to_precharge_cycles: int = _whole(0, 4096)

    coalescing: str = _choice("fermi", "sector", "line")

    @property
    def memory_model(self) -> str:
        """What lies behind the first-level caches, as tables say it."""
        return PERFECT if self.perfect_memory else REAL

    @property
    def l2_lines(self) -> int:
        """Those that L2 has room for."""
        return self.dram_channels * self.l2_slices_per_channel * self.l2_sets * self.l2_ways

    def check(self, where: str) -> None:
        """Raises InputError for values that are each in range and contradict each other."""
        for problem in _contradictions(self):
            raise InputError(f"{where}: {problem}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Params:
    """Latencies outside the arithmetic pipelines, in core cycles."""

    shared_latency_cycles: int = _whole(1, 4096)
    l1d_latency_cycles: int = _whole(1, 4096)
    retry_cycles: int = _whole(0, 4096)  # a round of a loop of compare-and-swap, for each warp of the SM that retries
    const_latency_cycles: int = _whole(1, 4096)
    l1_miss_extra_cycles: int = _whole(0, 4096)
    atomic_latency_cycles: int = _whole(0, 4096)
    l1i_miss_extra_cycles: int = _whole(0, 4096)
    l2_request_cycles: int = _whole(1, 4096)
    l2_reply_cycles: int = _whole(0, 4096)
    l2_partition_cycles: int = _whole(0, 4096)
    l2_sector_cycles: float = _number(0, 64)
    l2_write_cycles: float = _number(0, 64)  # of a sector; 0: l2_sector_cycles, and none if the sector is not there
    l2_atomic_cycles: float = _number(0, 64)
    l2_fp64_atomic_cycles: float = _number(0, 64)  # of each lane that adds; a sector takes l2_atomic_cycles at least
    dram_latency_cycles: int = _whole(1, 4096)
    dram_reply_cycles: int = _whole(0, 4096)
    dram_activate_cycles: float = _number(0, 4096)
    dram_sector_cycles: float = _number(0, 64)
    block_launch_cycles: int = _whole(0, 4096)
    barrier_cycles: int = _whole(0, 4096)  # from the last arrival until its warps may go on
    barrier_warp_cycles: int = _whole(0, 64)  # which the SM's barriers take for each warp that arrives, one by one
    fence_cycles: int = _whole(0, 4096)  # of the GPU or beyond, at least, with posted stores
    branch_cycles: int = _whole(0, 64)  # machine code: from a branch back, a jump or a call to its target's issue
    return_cycles: int = _whole(0, 64)  # and from a return, or a branch to an address in a register
    const_access_cycles: int = _whole(1, 64)  # in which a line of constants keeps the load/store unit
    const_address_cycles: int = _whole(0, 64)  # in which each address of constants does, lines or not
    cluster_cycles: int = _whole(0, 4096)  # an arrival's way to another SM of its cluster
    dispatch_interval_cycles: float = _number(0, 64)  # of the GPU, from one thread block to the next
    launch_latency_cycles: int = _whole(0, 1_000_000)


@dataclass(frozen=True, slots=True, kw_only=True)
class WallTime:
    """What passes in time, whatever the core clock is: it takes the place of the Params it names, unless it is 0."""

    launch_latency_ns: float = _number(0, 1e6)
    dram_latency_ns: float = _number(0, 1e5)
    dram_activate_ns: float = _number(0, 1e4)
    dram_bytes_per_second: float = _number(0, 1e15)

    def params(self, params: Params, spec: Spec) -> Params:
        """`params` with these in core cycles of `spec`."""
        said = {key: getattr(self, source) for key, source in FROM_TIME.items()}
        clock, channels = spec.core_clock_hz, spec.dram_channels
        return replace(params, **{key: in_cycles(key, value, clock, channels) for key, value in said.items() if value})


# Key in cycles -> the key of [time] that takes its place, unless it is 0
FROM_TIME = {f"{name}_cycles": f"{name}_ns" for name in ("launch_latency", "dram_latency", "dram_activate")}
FROM_TIME["dram_sector_cycles"] = "dram_bytes_per_second"


def in_cycles(key: str, value: Any, core_clock_hz: Any, dram_channels: Any) -> Any:
    """What a value of [time] makes of a key in cycles: of numbers, or of arrays of them."""
    if key == "dram_sector_cycles":
        return SECTOR_BYTES * core_clock_hz / (value / dram_channels)
    cycles = value * (core_clock_hz * 1e-9)
    return cycles.round() if hasattr(cycles, "round") else round(cycles)


def check(name: str, domain: Domain, value: Any, where: str) -> Any:
    """`value`, unchanged. Raises InputError, starting with `where`, if it is not in the domain."""
    types = (int, float) if domain.type is float else domain.type
    right_type = isinstance(value, types) and (domain.type is bool or not isinstance(value, bool))
    if not right_type or not domain.accepts(value):
        raise InputError(f"{where}: {name} = {value!r} is not {domain.text}")
    return value


def _shared_out(spec: Spec) -> Iterator[str]:
    """Keys of what sub-cores have a part of each."""
    yield from (*(f"{alu}_units" for alu in ALUS), "shared_collectors", "register_banks", "mem_port_width")
    yield from (f"{alu}_port_width" for alu in ALUS if getattr(spec, f"{alu}_units"))
    yield from () if spec.shared_collectors else (f"{port}_collectors" for port in ("sp", "sfu", "mem"))


def _contradictions(spec: Spec) -> Iterator[str]:
    for port in ("sp", "sfu", "mem"):
        collectors, width = getattr(spec, f"{port}_collectors"), getattr(spec, f"{port}_port_width")
        if collectors < width and not spec.shared_collectors:
            yield f"{port}_collectors = {collectors} is below {port}_port_width = {width}"
    share = f"evenly among schedulers_per_sm = {spec.schedulers_per_sm}; choose a multiple"
    for key in _shared_out(spec) if spec.sub_cores else ():
        if (count := getattr(spec, key)) % spec.schedulers_per_sm:
            yield f"sub_cores share out {key} = {count} {share}"
    if spec.timed_code == "machine" and spec.architecture == "none":
        yield "timed_code = machine needs an architecture to assemble for, like sm_86"
    if spec.shared_options_kib and spec.unified_l1d_bytes <= 0:
        yield "shared_options_kib needs unified_l1d_bytes, the size of both together"
    if spec.l1d_banks > 1 and not spec.l1d_sectored:
        yield f"l1d_banks = {spec.l1d_banks} needs l1d_sectored = true: a bank serves one sector"
    if spec.l1d_dense_banks == 3 or spec.l1d_dense_banks > spec.l1d_banks:
        yield f"l1d_dense_banks = {spec.l1d_dense_banks} is no power of two up to l1d_banks = {spec.l1d_banks}, nor 0"
    slices, sets = spec.dram_channels * spec.l2_slices_per_channel, spec.l2_sets
    if spec.l2_index == "ipoly" and (sets & (sets - 1) or sets > _MOST_HASHED):
        kib, below = slices * spec.l2_ways * LINE_BYTES // 1024, min(_MOST_HASHED, 1 << sets.bit_length() - 1)
        near = " or ".join(f"{near} (l2_kib={near * kib})" for near in (below, 2 * below) if near <= _MOST_HASHED)
        yield f"l2_index = ipoly needs l2_sets to be a power of two up to {_MOST_HASHED}, not {sets}; take {near}"
    if slices % spec.l2_partitions:
        yield f"l2_partitions = {spec.l2_partitions} share out {slices} slices evenly"
    if spec.l2_slice_index == "ipoly" and slices > _MOST_HASHED:
        yield f"l2_slice_index = ipoly knows up to {_MOST_HASHED} slices, not {slices}; use linear"


def _domains(cls: type) -> dict[str, Domain]:
    return {f.name: f.metadata["domain"] for f in fields(cls) if "domain" in f.metadata}


class Condition(NamedTuple):
    """Keys (a pattern of their full names) that count only where `holds`; `text` says when."""

    keys: str
    text: str
    holds: Callable[[Spec], bool]


_BEHIND_L1 = (
    r"flit_bytes|packet_header_bytes|(inject|crossbar|l2|slice|channel|dram)_.*|posted_stores|partial_sectors"
    r"|(l1i|const|l1d)_mshrs|l1i_prefetch_lines|l1d_mshr_merges|l1d_miss_queue"
)
_OF_CODE_CACHE, _OF_CONSTANTS = r"l1i_(sets|ways|mshrs|prefetch_lines|miss_.*)", r"const_(sets|ways|line_bytes|mshrs)"
_OF_MACHINE_CODE = rf"(retry|branch|return)_cycles|\w+\.({'|'.join(HARDWARE_CLASSES)})"
# Results that machine code waits for by counting cycles, and instructions that it has not
_IN_STALL_COUNTS = r"latency_cycles\.(int_(add|mul|mad|max)|fp32_(add|mul|mad)|fp16)"
_OF_PTX = r"\w+\.(int_div|fp32_(max|div)|fp64_div)"


def _times_ptx(spec: Spec) -> bool:
    return spec.timed_code == "ptx"


CONDITIONS = (
    Condition("two_level_active_warps", "scheduler = two_level", lambda s: s.scheduler == "two_level"),
    Condition(r"(sp|sfu|mem)_collectors", "shared_collectors = 0", lambda s: not s.shared_collectors),
    Condition("int_port_width", "int_units above 0", lambda s: s.int_units > 0),
    Condition("dp_port_width", "dp_units above 0", lambda s: s.dp_units > 0),
    Condition("tensor_port_width", "tensor_units above 0", lambda s: s.tensor_units > 0),
    Condition(_BEHIND_L1, "perfect_memory = false", lambda s: not s.perfect_memory),
    Condition(r"l1i?_miss_extra_cycles|atomic_latency_cycles", "perfect_memory = true", lambda s: s.perfect_memory),
    Condition(_OF_CODE_CACHE, "perfect_instruction_cache = false", lambda s: not s.perfect_instruction_cache),
    Condition(
        "l1i_line_bytes|instruction_bytes",
        "perfect_instruction_cache = false, or instructions_per_fetch above 2",
        lambda s: not s.perfect_instruction_cache or s.instructions_per_fetch > PAIR,
    ),
    Condition(_OF_CONSTANTS, "perfect_constant_cache = false", lambda s: not s.perfect_constant_cache),
    Condition("l1d_write_allocate", "l1d_write = through or back", lambda s: s.l1d_write in ("through", "back")),
    Condition("unified_l1d_bytes", "shared_options_kib of some size", lambda s: bool(s.shared_options_kib)),
    Condition("crossbar_repeats", "crossbar_output_queues = false", lambda s: not s.crossbar_output_queues),
    Condition("l2_coalesces", "crossbar_output_queues = true", lambda s: s.crossbar_output_queues),
    Condition("l2_fetch_bytes", "coalescing other than fermi", lambda s: s.coalescing != "fermi"),
    Condition("channel_interleave_bytes", "l2_slice_index other than spread", lambda s: s.l2_slice_index != "spread"),
    Condition("fence_cycles", "posted_stores = true", lambda s: s.posted_stores),
    Condition("l2_partition_cycles", "l2_partitions = 2", lambda s: s.l2_partitions > 1),
    Condition(_OF_MACHINE_CODE, "timed_code = machine", lambda s: s.timed_code == "machine"),
    Condition(_IN_STALL_COUNTS, "timed_code = ptx: machine code has it in its stall counts", _times_ptx),
    Condition(_OF_PTX, "timed_code = ptx: machine code has no such instruction", _times_ptx),
    Condition("register_banks", "timed_code = ptx: machine code does not wait for them", _times_ptx),
    Condition(
        r"latency_cycles\.fp64_(add|mul|mad)",
        "timed_code = ptx: code for sm_90 and later has it in its stall counts",
        lambda s: _times_ptx(s) or int(s.architecture.removeprefix("sm_")) < 90,
    ),
)


def why_idle(key: str, spec: Spec) -> str:
    """Why a key, by its full name, changes nothing on a GPU; "" if it may."""
    idle = (c for c in CONDITIONS if re.fullmatch(c.keys, key) and not c.holds(spec))
    return next((f"it counts only with {c.text}" for c in idle), "")


# Every section of a GPU's description and what each of its keys accepts.
SECTIONS: dict[str, dict[str, Domain]] = {
    "spec": _domains(Spec),
    "params": _domains(Params),
    "time": _domains(WallTime),
    "latency_cycles": dict.fromkeys(ALL_CLASSES, CYCLES),
    "initiation_cycles": dict.fromkeys(ALL_CLASSES, CYCLES) | {"wgmma": PIECE_CYCLES},
    "unit": dict.fromkeys(ALL_CLASSES, UNIT),
}
