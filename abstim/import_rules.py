"""The mapping from GPGPU-Sim's options to ours: `RULES`, one entry an option.

A rule takes the option and all others (DRAM cycles need a clock, for instance) and yields values by full key
(`sm_count`, `latency_cycles.int_add`), in the unit of the key.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from math import ceil
from typing import Any

from abstim.gpgpusim_config import Option, cache_of, timing_of
from functional.errors import InputError

Options = dict[str, Option]
Values = dict[str, Any]
Rule = Callable[[Option, Options], Values]

CROSSBAR_CYCLES = 8  # measured on GPGPU-Sim 4.2: a request from L1D to its slice, besides the ROP latency
DRAM_EXTRA_CYCLES = 13  # measured on GPGPU-Sim 4.2: slice to data, besides `-dram_latency`
SECTOR_BYTES = 32
SCHEDULERS = {"gto": "gto", "lrr": "lrr", "old": "oldest", "two_level_active": "two_level"}
_INT = ("int_add", "int_max", "int_mul", "int_mad", "int_div", "int_shfl")
_FLOAT = {kind: tuple(f"{kind}_{op}" for op in ("add", "max", "mul", "mad", "div")) for kind in ("fp32", "fp64")}


def _same(key: str) -> Rule:
    """The option is this key, in the same unit."""
    return lambda option, _: {key: option.whole()}


def _sm_count(option: Option, options: Options) -> Values:
    other = "n_cores_per_cluster" if option.name == "n_clusters" else "n_clusters"
    return {"sm_count": option.whole() * (options[other].whole() if other in options else 1)}


def _threads(option: Option, _: Options) -> Values:
    threads, warp = (int(n) for n in option.numbers(":", (2,)))
    if warp <= 0 or threads % warp:
        raise option.fail("threads:warp size, the former a multiple of the latter")
    return {"max_threads_per_sm": threads, "warp_size": warp, "max_warps_per_sm": threads // warp}


def _clocks_hz(options: Options) -> tuple[float, float]:
    """Core and DRAM clock."""
    option = options.get("clock_domains")
    if option is None:
        raise InputError("no -gpgpu_clock_domains; DRAM timings cannot be turned into core cycles")
    core, _, _, dram = option.numbers(":", (4,))
    if min(core, dram) <= 0:
        raise option.fail("positive clocks in MHz")
    return core * 1e6, dram * 1e6


def _scheduler(option: Option, _: Options) -> Values:
    name, *arguments = option.value.split(":")
    if name not in SCHEDULERS:
        raise option.fail(f"one of {', '.join(SCHEDULERS)}")
    active = {"two_level_active_warps": int(arguments[0])} if arguments and arguments[0].isdigit() else {}
    return {"scheduler": SCHEDULERS[name], **active}


def _pipeline_widths(option: Option, _: Options) -> Values:
    """SP, SFU, MEM of ID_OC and OC_EX, then EX_WB; or SP, DP, INT, SFU, MEM of both, EX_WB, and the tensor unit."""
    widths = [int(n) for n in option.numbers(",", (7, 11, 13))]
    sp, sfu, mem, bus = (0, 1, 2, 6) if len(widths) == 7 else (0, 3, 4, 10)
    return {
        "sp_port_width": widths[sp],
        "sfu_port_width": widths[sfu],
        "mem_port_width": widths[mem],
        "result_bus_width": widths[bus],
    }


def _generic_collectors(option: Option, options: Options) -> Values:
    """Collectors of any unit, shared: each port may have them all."""
    specialised = options.get("enable_specialized_operand_collector")
    if specialised is None or specialised.whole():
        return {}
    return {f"{port}_collectors": option.whole() for port in ("sp", "sfu", "mem")}


def _cache(name: str, **keys: str) -> Rule:
    """Sets and ways of `name`, and `keys`: ours -> attribute of the cache string."""

    def rule(option: Option, _: Options) -> Values:
        cache = cache_of(option)
        if cache is None:
            return {}
        index = {"H": "hash", "L": "linear"}.get(cache.letters["index"], cache.letters["index"])
        values = {f"{name}_sets": cache.sets, f"{name}_ways": cache.ways}
        return values | {key: index if what == "index" else getattr(cache, what) for key, what in keys.items()}

    return rule


def _interleave(option: Option, _: Options) -> Values:
    mark, _at, rest = option.value.partition("@")
    bit = rest.partition(";")[0]
    if mark != "dramid" or not re.fullmatch(r"\d{1,2}", bit):
        raise option.fail("a mapping such as dramid@8;0000RRRR...")
    return {"channel_interleave_bytes": 1 << int(bit)}


def _dram_timing(option: Option, options: Options) -> Values:
    """Bank count, the time to close a row and open another, and the time a 32 B sector takes on the data bus."""
    timing = timing_of(option)
    core_hz, dram_hz = _clocks_hz(options)
    values: Values = {}
    if "nbk" in timing:
        values["dram_banks"] = int(timing["nbk"])
    if {"RP", "RCD"} <= set(timing):
        values["dram_activate_cycles"] = round((timing["RP"] + timing["RCD"]) * core_hz / dram_hz)
    bus = {n: options[n].whole() for n in ("n_mem_per_ctrlr", "dram_buswidth", "dram_burst_length") if n in options}
    ratio = options["dram_data_command_freq_ratio"].whole() if "dram_data_command_freq_ratio" in options else 0
    if len(bus) == 3 and min(*bus.values(), ratio) > 0:
        atom_bytes = bus["n_mem_per_ctrlr"] * bus["dram_buswidth"] * bus["dram_burst_length"]
        dram_cycles = ceil(SECTOR_BYTES / atom_bytes) * max(timing.get("CCD", 0), bus["dram_burst_length"] / ratio)
        values["dram_sector_cycles"] = round(dram_cycles * core_hz / dram_hz, 3)
    return values


def _with_timing(option: Option, options: Options) -> Values:
    """A part of the data bus: counts together with the timings."""
    return _dram_timing(options["dram_timing_opt"], options) if "dram_timing_opt" in options else {}


def _classes(section: str, names: tuple[str, ...]) -> Rule:
    """A list of numbers, one a class; the last ones may be missing."""

    def rule(option: Option, _: Options) -> Values:
        counts = tuple(range(min(len(names), 5), len(names) + 1))
        numbers = option.numbers(",", counts)
        return {f"{section}.{name}": int(n) for name, n in zip(names, numbers, strict=False)}

    return rule


def _traced(names: tuple[str, ...]) -> Rule:
    """`latency,initiation` of all classes of a kind of SASS instructions."""

    def rule(option: Option, _: Options) -> Values:
        latency, initiation = (int(n) for n in option.numbers(",", (2,)))
        return {f"latency_cycles.{n}": latency for n in names} | {f"initiation_cycles.{n}": initiation for n in names}

    return rule


def _traced_int(option: Option, options: Options) -> Values:
    """Integer and ALU operations; and that a SASS instruction takes 16 B, which Accel-Sim assumes for every trace."""
    return _traced((*_INT, "other"))(option, options) | {"instruction_bytes": 16}


def _fp64_unit(option: Option, _: Options) -> Values:
    return {} if option.whole() else {f"unit.{name}": "sfu" for name in _FLOAT["fp64"]}


def _plus(key: str, extra: int) -> Rule:
    return lambda option, _: {key: option.whole() + extra}


RULES: dict[str, Rule] = {
    "n_clusters": _sm_count,
    "n_cores_per_cluster": _sm_count,
    "clock_domains": lambda _, options: {"core_clock_hz": _clocks_hz(options)[0]},
    "perfect_mem": lambda option, _: {"perfect_memory": bool(option.whole())},
    "shader_core_pipeline": _threads,
    "shader_cta": _same("max_blocks_per_sm"),
    "shader_registers": _same("registers_per_sm"),
    "shmem_size": _same("shared_bytes_per_sm"),
    "num_sched_per_core": _same("schedulers_per_sm"),
    "scheduler": _scheduler,
    "pipeline_widths": _pipeline_widths,
    "num_sp_units": _same("sp_units"),
    "num_sfu_units": _same("sfu_units"),
    "num_dp_units": _fp64_unit,
    "operand_collector_num_units_gen": _generic_collectors,
    "operand_collector_num_units_sp": _same("sp_collectors"),
    "operand_collector_num_units_sfu": _same("sfu_collectors"),
    "operand_collector_num_units_mem": _same("mem_collectors"),
    "num_reg_banks": _same("register_banks"),
    "cache:il1": _cache("l1i", l1i_line_bytes="line_bytes", l1i_mshrs="mshrs"),
    "const_cache:l1": _cache("const", const_line_bytes="line_bytes", const_mshrs="mshrs"),
    "cache:dl1": _cache(
        "l1d", l1d_line_bytes="line_bytes", l1d_index="index", l1d_mshr_merges="merges", l1d_miss_queue="miss_queue"
    ),
    "cache:dl2": _cache("l2"),
    "shmem_num_banks": _same("shared_banks"),
    "coalesce_arch": lambda option, _: {"coalescing": "sector" if option.whole() >= 40 else "fermi"},
    "icnt_flit_size": _same("flit_bytes"),
    "n_mem": _same("dram_channels"),
    "n_sub_partition_per_mchannel": _same("l2_slices_per_channel"),
    "mem_addr_mapping": _interleave,
    "dram_timing_opt": _dram_timing,
    **dict.fromkeys(
        ("n_mem_per_ctrlr", "dram_buswidth", "dram_burst_length", "dram_data_command_freq_ratio"), _with_timing
    ),
    "smem_latency": _same("shared_latency_cycles"),
    "l1_latency": _same("l1d_latency_cycles"),
    "l2_rop_latency": _plus("l2_request_cycles", CROSSBAR_CYCLES),
    "dram_latency": _plus("dram_latency_cycles", DRAM_EXTRA_CYCLES),
    "kernel_launch_latency": _same("launch_latency_cycles"),
    **{
        f"ptx_opcode_{what}_{kind}": _classes(f"{section}_cycles", names)
        for what, section in (("latency", "latency"), ("initiation", "initiation"))
        for kind, names in (
            ("int", _INT), ("fp", _FLOAT["fp32"]), ("dp", _FLOAT["fp64"]), ("sfu", ("sfu",)), ("tensor", ("tensor",)),
            ("tesnor", ("tensor",)),  # as the tested configurations spell it
        )
    },
    # trace.config, for SASS traces; ALU operations count as integer ones there
    "trace_opcode_latency_initiation_int": _traced_int,
    "trace_opcode_latency_initiation_sp": _traced(_FLOAT["fp32"]),
    "trace_opcode_latency_initiation_dp": _traced(_FLOAT["fp64"]),
    "trace_opcode_latency_initiation_sfu": _traced(("sfu",)),
    "trace_opcode_latency_initiation_tensor": _traced(("tensor",)),
}  # fmt: skip

# What a rule leaves out of an option that it does use.
_CACHE_PARTS = "sectors, replacement, write and allocation policies"
PARTLY: dict[str, str] = {
    "clock_domains": "the clocks of interconnect and L2",
    "pipeline_widths": "DP, INT and tensor widths, nor OC_EX apart from ID_OC",
    "cache:il1": f"{_CACHE_PARTS}, merges, miss queue",
    "const_cache:l1": f"{_CACHE_PARTS}, merges, miss queue",
    "cache:dl1": f"{_CACHE_PARTS}, number of MSHRs, port",
    "cache:dl2": f"{_CACHE_PARTS}, index, MSHRs, miss queue, port",
    "mem_addr_mapping": "rows, columns and banks",
    "dram_timing_opt": "RRD, RAS, RC, CL, WL, CDLR, WR, bank groups",
}
