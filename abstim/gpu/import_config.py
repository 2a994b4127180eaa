"""From an Accel-Sim configuration (gpgpusim.config, trace.config) to the description of a GPU.

`RULES` has one entry an option. A rule takes the option and all others (DRAM cycles need a clock, for instance) and
yields values by full key (`sm_count`, `latency_cycles.int_add`), in the unit of the key.

"""

from __future__ import annotations

import json
import re
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import ceil
from pathlib import Path
from typing import Any

from abstim.gpu.config import Setting, load_gpu
from abstim.gpu.gpgpusim_config import CacheString, Option, cache_of, read_options, timing_of
from abstim.gpu.spec import POLICIES, SECTIONS
from functional.errors import InputError

Options = dict[str, Option]
Values = dict[str, Any]
Rule = Callable[[Option, Options], Values]

CROSSBAR_CYCLES = 8  # measured on GPGPU-Sim 4.2: a request from L1D to its slice, besides the ROP latency;
PLAIN_CROSSBAR_CYCLES = 3  # with network_mode 2
DRAM_STATION_CYCLES = 4  # from queue to queue: slice to data, besides `-dram_latency` and CL
PLAIN_FLIT_BYTES = 256  # network_mode 2: more than any packet, which passes in one cycle
SECTOR_BYTES = 32
SCHEDULERS = {policy.gpgpusim: name for name, policy in POLICIES.items()}
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
    places = {"sp": 0, "sfu": 1, "mem": 2} if len(widths) == 7 else {"sp": 0, "dp": 1, "int": 2, "sfu": 3, "mem": 4}
    if len(widths) == 13:
        places["tensor"] = 11
    bus = {"result_bus_width": widths[6 if len(widths) == 7 else 10]}
    return bus | {f"{port}_port_width": widths[place] for port, place in places.items() if widths[place]}


def _generic_collectors(option: Option, options: Options) -> Values:
    """Collectors of any unit, shared."""
    specialised = options.get("enable_specialized_operand_collector")
    return {} if specialised is None or specialised.whole() else {"shared_collectors": option.whole()}


def _cache(name: str, **keys: str) -> Rule:
    """Sets and ways of `name`, and `keys`: ours -> attribute of the cache string."""

    def rule(option: Option, _: Options) -> Values:
        cache = cache_of(option)
        if cache is None:
            return {}
        values = {f"{name}_sets": cache.sets, f"{name}_ways": cache.ways}
        return values | {key: _cache_value(cache, what) for key, what in keys.items()}

    return rule


# Letters of a cache string that have a name here; others are taken as they are, and refused by the key's domain.
_LETTERS: dict[str, dict[str, Any]] = {
    "index": {"H": "hash", "L": "linear", "P": "ipoly"},
    "write": {"B": "back", "T": "through", "E": "evict", "L": "local_back"},
    "write_allocate": {"N": False, "W": True, "F": True, "L": True},
    "replacement": {"L": "lru", "F": "fifo"},
}


def _cache_value(cache: CacheString, what: str) -> Any:
    if what not in _LETTERS:
        return getattr(cache, what)
    return _LETTERS[what].get(cache.letters[what], cache.letters[what])


def _adaptive(option: Option, options: Options) -> Values:
    """L1D and shared memory in one: its size, the ways it has as L1D alone, and the partitions."""
    names = ("unified_l1d_size", "shmem_option", "cache:dl1")
    cache = cache_of(options[names[2]]) if names[2] in options else None
    if not option.whole() or cache is None or any(name not in options for name in names):
        return {}
    size_bytes = options[names[0]].whole() * 1024
    ways = size_bytes // (cache.sets * cache.line_bytes)
    return {"unified_l1d_bytes": size_bytes, "shared_options_kib": options[names[1]].value, "l1d_ways": ways}


def _mapping(option: Option, _: Options) -> Values:
    """Where the channel's number stands; rows (R) and the lowest bank bit (B) are those of a channel's addresses."""
    mark, _at, rest = option.value.partition("@")
    bit, _semicolon, letters = rest.partition(";")
    if mark != "dramid" or not re.fullmatch(r"\d{1,2}", bit):
        raise option.fail("a mapping such as dramid@8;0000RRRR...")
    bits = letters.replace(".", "")[::-1]
    places = {"dram_row_bytes": bits.find("R"), "slice_interleave_bytes": bits.find("B")}
    return {"channel_interleave_bytes": 1 << int(bit)} | {k: 1 << place for k, place in places.items() if place >= 0}


def _with(name: str, rule: Rule) -> Rule:
    """A part of what another option says: counts together with that."""
    return lambda _, options: rule(options[name], options) if name in options else {}


_DRAM_CYCLES = {
    "nbkgrp": "bank_groups", "CCD": "burst_cycles", "CCDL": "group_burst_cycles", "RRD": "row_to_row_cycles",
    "RAS": "row_active_cycles", "RC": "row_cycle_cycles", "CL": "read_cycles", "WL": "write_cycles",
    "CDLR": "write_to_read_cycles", "WR": "write_recovery_cycles", "RTPL": "read_to_precharge_cycles",
}  # fmt: skip


def _dram_latency(option: Option, options: Options) -> Values:
    """The queue in front of DRAM, its read latency, and the way from queue to queue."""
    timing = timing_of(options["dram_timing_opt"]) if "dram_timing_opt" in options else {}
    core_hz, dram_hz = _clocks_hz(options)
    read = round(timing.get("CL", 0) * core_hz / dram_hz)
    return {"dram_latency_cycles": option.whole() + read + DRAM_STATION_CYCLES}


def _is_plain(options: Options) -> bool:
    """Is the crossbar the plain one, not that of intersim2?"""
    return "network_mode" in options and options["network_mode"].whole() == 2


def _network(option: Option, _: Options) -> Values:
    """The plain crossbar: packets of one flit, straight into its queue, several of an input in a cycle."""
    if option.whole() != 2:
        return {"crossbar_repeats": False}
    return {"crossbar_repeats": True, "flit_bytes": PLAIN_FLIT_BYTES, "inject_queue_flits": 1}


def _dram_timing(option: Option, options: Options) -> Values:
    """Bank count, the time to close a row and open another, and the time a 32 B sector takes on the data bus."""
    timing = timing_of(option)
    core_hz, dram_hz = _clocks_hz(options)
    values: Values = {}
    if "nbk" in timing:
        values["dram_banks"] = int(timing["nbk"])
    if {"RP", "RCD"} <= set(timing):
        values["dram_activate_cycles"] = round((timing["RP"] + timing["RCD"]) * core_hz / dram_hz, 2)
    values |= {f"dram_{key}": int(timing[name]) for name, key in _DRAM_CYCLES.items() if name in timing}
    bus = {n: options[n].whole() for n in ("n_mem_per_ctrlr", "dram_buswidth", "dram_burst_length") if n in options}
    ratio = options["dram_data_command_freq_ratio"].whole() if "dram_data_command_freq_ratio" in options else 0
    if len(bus) == 3 and min(*bus.values(), ratio) > 0:
        atom_bytes = bus["n_mem_per_ctrlr"] * bus["dram_buswidth"] * bus["dram_burst_length"]
        dram_cycles = ceil(SECTOR_BYTES / atom_bytes) * max(timing.get("CCD", 0), bus["dram_burst_length"] / ratio)
        values["dram_sector_cycles"] = round(dram_cycles * core_hz / dram_hz, 3)
        values["dram_burst_bytes"] = atom_bytes
    return values


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


def _units(key: str, unit: str, otherwise: str, classes: tuple[str, ...]) -> Rule:
    """The number of units of a kind, and that some classes run on them, if there are any; divisions stay on the SFU.

    Such units take their operands from generic collectors here: where a GPU has none (Kepler, each unit with its own),
    these classes run on the units that others have instead.
    """

    def rule(option: Option, options: Options) -> Values:
        generic = options.get("operand_collector_num_units_gen")
        count = option.whole() if generic is not None and _generic_collectors(generic, options) else 0
        where = {f"unit.{name}": unit if count else otherwise for name in classes if not name.endswith("div")}
        return where | {key: count}

    return rule


def _flag(*keys: str) -> Rule:
    return lambda option, _: dict.fromkeys(keys, bool(option.whole()))


RULES: dict[str, Rule] = {
    "n_clusters": _sm_count,
    "n_cores_per_cluster": _sm_count,
    "clock_domains": lambda _, options: {"core_clock_hz": _clocks_hz(options)[0]},
    "perfect_mem": _flag("perfect_memory"),
    "shader_core_pipeline": _threads,
    "shader_cta": _same("max_blocks_per_sm"),
    "shader_registers": _same("registers_per_sm"),
    "shmem_size": _same("shared_bytes_per_sm"),
    "num_sched_per_core": _same("schedulers_per_sm"),
    "scheduler": _scheduler,
    "pipeline_widths": _pipeline_widths,
    "num_sp_units": _same("sp_units"),
    "num_sfu_units": _same("sfu_units"),
    "num_int_units": _units("int_units", "int", "sp", (*_INT, "other")),
    "num_dp_units": _units("dp_units", "dp", "sfu", _FLOAT["fp64"]),
    "num_tensor_core_units": _units("tensor_units", "tensor", "sfu", ("tensor",)),
    "sub_core_model": _flag("sub_cores"),
    "max_insn_issue_per_warp": _same("issues_per_turn"),
    "inst_fetch_throughput": _same("fetches_per_cycle"),
    "reg_file_port_throughput": _same("register_file_ports"),
    "perfect_inst_const_cache": _flag("perfect_instruction_cache", "perfect_constant_cache"),
    "operand_collector_num_units_gen": _generic_collectors,
    "operand_collector_num_units_sp": _same("sp_collectors"),
    "operand_collector_num_units_sfu": _same("sfu_collectors"),
    "operand_collector_num_units_mem": _same("mem_collectors"),
    "num_reg_banks": _same("register_banks"),
    "cache:il1": _cache("l1i", l1i_line_bytes="line_bytes", l1i_mshrs="mshrs"),
    "const_cache:l1": _cache("const", const_line_bytes="line_bytes", const_mshrs="mshrs"),
    "cache:dl1": _cache(
        "l1d", l1d_line_bytes="line_bytes", l1d_index="index", l1d_mshrs="mshrs", l1d_mshr_merges="merges",
        l1d_miss_queue="miss_queue",
        l1d_sectored="sectored", l1d_write="write", l1d_write_allocate="write_allocate",
        l1d_replacement="replacement",
    ),
    "l1_banks": _same("l1d_banks"),
    "gmem_skip_L1D": _flag("l1d_bypass"),
    "adaptive_cache_config": _adaptive,
    **dict.fromkeys(("unified_l1d_size", "shmem_option"), _with("adaptive_cache_config", _adaptive)),
    "tex_cache:l1": _cache("l1t"),
    "cache:dl2": _cache("l2", l2_index="index", l2_mshrs="mshrs", l2_mshr_merges="merges", l2_miss_queue="miss_queue"),
    "memory_partition_indexing": lambda option, _: {
        "l2_slice_index": {0: "linear", 4: "random"}.get(option.whole(), "ipoly")
    },
    # four queues of a slice, here of one length: the shortest
    "dram_partition_queues": lambda option, _: {"l2_queue": int(min(option.numbers(":", (4,))))},
    "frfcfs_dram_sched_queue_size": _same("dram_queue"),
    "dual_bus_interface": _flag("dram_two_commands"),
    "dram_dual_bus_interface": _flag("dram_two_commands"),
    "network_mode": _network,
    "icnt_in_buffer_limit": _same("crossbar_queue_flits"),
    "shmem_num_banks": _same("shared_banks"),
    "coalesce_arch": lambda option, _: {"coalescing": "sector" if option.whole() >= 40 else "fermi"},
    "icnt_flit_size": lambda option, options: {} if _is_plain(options) else {"flit_bytes": option.whole()},
    "n_mem": _same("dram_channels"),
    "n_sub_partition_per_mchannel": _same("l2_slices_per_channel"),
    "mem_addr_mapping": _mapping,
    "dram_timing_opt": _dram_timing,
    **dict.fromkeys(
        ("n_mem_per_ctrlr", "dram_buswidth", "dram_burst_length", "dram_data_command_freq_ratio"),
        _with("dram_timing_opt", _dram_timing),
    ),
    "smem_latency": _same("shared_latency_cycles"),
    "l1_latency": _same("l1d_latency_cycles"),
    "l2_rop_latency": lambda option, options: {
        "l2_request_cycles": option.whole() + (PLAIN_CROSSBAR_CYCLES if _is_plain(options) else CROSSBAR_CYCLES)
    },
    "dram_latency": _dram_latency,
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
    "trace_opcode_latency_initiation_int": lambda option, options: (
        _traced((*_INT, "other"))(option, options) | {"instruction_bytes": 16}  # which Accel-Sim assumes of every trace
    ),
    "trace_opcode_latency_initiation_sp": _traced(_FLOAT["fp32"]),
    "trace_opcode_latency_initiation_dp": _traced(_FLOAT["fp64"]),
    "trace_opcode_latency_initiation_sfu": _traced(("sfu",)),
    "trace_opcode_latency_initiation_tensor": _traced(("tensor",)),
}  # fmt: skip

# Options that a file may leave out, and what GPGPU-Sim takes then. Of others that it leaves out the base decides.
DEFAULTS = {"perfect_mem": "0"}

# What a rule leaves out of an option that it does use.
_CACHE_PARTS = "replacement, write and allocation policies"
_OWN_COLLECTORS = "units with collectors of their own, where there are no generic ones: others take their instructions"
PARTLY: dict[str, str] = {
    **dict.fromkeys(("num_int_units", "num_dp_units", "num_tensor_core_units"), _OWN_COLLECTORS),
    "clock_domains": "the clocks of interconnect and L2",
    "pipeline_widths": "OC_EX apart from ID_OC",
    "memory_partition_indexing": "any index but the linear one and, for all others, that by a polynomial",
    "tex_cache:l1": f"line size, {_CACHE_PARTS}, MSHRs, queues",
    "cache:il1": f"{_CACHE_PARTS}, merges, miss queue",
    "const_cache:l1": f"{_CACHE_PARTS}, merges, miss queue",
    "cache:dl1": "number of MSHRs, port; write allocation with a fetch counts as without, streaming as on fill",
    "cache:dl2": f"{_CACHE_PARTS}, number of MSHRs, miss queue, port",
    "mem_addr_mapping": "columns, and banks but for their lowest bit",
    "dram_timing_opt": "RRD, RAS, RC, CL, WL, CDLR, WR, bank groups",
}


@dataclass(frozen=True)
class Unused:
    """An option that says nothing about our GPU, or whose value is used in part only."""

    option: str
    value: str
    why: str


@dataclass(frozen=True)
class Imported:
    """`settings` by full key; `toml` is the file; `from_base` the keys that no option determines."""

    settings: dict[str, Setting]
    unused: tuple[Unused, ...]
    from_base: tuple[str, ...]
    toml: str


def import_config(paths: Sequence[Path], base: str = "gtx480") -> Imported:
    """Turn configuration files into a GPU description; an option of a later file replaces that of an earlier one.

    What no option determines comes from `base`. Raises InputError for a file that is no configuration, a value that is
    not what its option takes, and values that contradict each other.
    """
    options: Options = {}
    for path in paths:
        options |= read_options(path)
    settings, unused = _apply(options)
    if not settings:
        raise InputError(f"{paths[0]}: none of its {len(options)} options describes a GPU")
    settings |= _defaults(options)
    missing = tuple(key for key in load_gpu(base).settings if key not in settings)
    toml = _toml(settings, base, paths)
    _check(toml, paths[0])
    return Imported(settings, unused, missing, toml)


def _apply(options: Options) -> tuple[dict[str, Setting], tuple[Unused, ...]]:
    """Values with their sources, and the options that gave none. Rules go in the order of RULES: a later one wins."""
    settings: dict[str, Setting] = {}
    unused = [Unused(o.name, o.value, "unknown to this model") for n, o in options.items() if n not in RULES]
    for name, rule in RULES.items():
        if name not in options:
            continue
        option = options[name]
        values = rule(option, options)
        if not values:
            unused.append(Unused(name, option.value, "this value says nothing that the model has"))
        elif name in PARTLY:
            unused.append(Unused(name, option.value, f"used in part: not {PARTLY[name]}"))
        for key, value in values.items():
            section, short = _section(key)
            domain = SECTIONS[section][short]
            if isinstance(value, (int, float) if domain.type is float else domain.type) and domain.accepts(value):
                settings[key] = Setting(value, _source(settings.get(key), value, f"{name} {option.value}"))
            else:
                unused.append(Unused(name, option.value, f"{key} = {value}: this model takes {domain.text}"))
    return settings, tuple(unused)


def _defaults(options: Options) -> dict[str, Setting]:
    """Values of options that are not there, where GPGPU-Sim's default decides them and not the base."""
    found: dict[str, Setting] = {}
    for name, value in DEFAULTS.items():
        if name not in options:
            values = RULES[name](Option(name, value, "default"), options)
            found |= {k: Setting(v, f"not in the file: {name} {value}, GPGPU-Sim's default") for k, v in values.items()}
    return found


def _source(before: Setting | None, value: Any, option: str) -> str:
    """The option, and those before it that say the same."""
    return f"{before.source}, {option}" if before and before.value == value else f"config {option}"


def _section(key: str) -> tuple[str, str]:
    """Section and name of a full key."""
    section, _, name = key.rpartition(".")
    return section or next(s for s in ("spec", "params") if name in SECTIONS[s]), name


def _toml(settings: dict[str, Setting], base: str, paths: Sequence[Path]) -> str:
    """The description as a file: sections and keys in the order of the schema."""
    files = ", ".join(str(path) for path in paths)
    lines = [f"# Imported from {files}. What is not here comes from `base`.", f"base = {json.dumps(base)}"]
    lines += [f"title = {_text(f'imported from {files}')}", "", "[sources]", f"config = {_text(f'{files}, option')}"]
    for section, domains in SECTIONS.items():
        found = {name: settings[key] for key in settings for s, name in [_section(key)] if s == section}
        if found:
            lines += ["", f"[{section}]"]
        for name in domains:
            if name in found:
                value, source = found[name].value, found[name].source
                lines.append(f"{name} = {{ value = {_text(value)}, source = {_text(source)} }}")
    return "\n".join(lines) + "\n"


def _text(value: Any) -> str:
    """A value as TOML writes it: like JSON, for the booleans, numbers and strings there are."""
    return json.dumps(value, ensure_ascii=False)


def _check(toml: str, path: Path) -> None:
    """Raise InputError unless the description loads."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "imported.toml"
        file.write_text(toml, encoding="utf-8")
        try:
            load_gpu(str(file))
        except InputError as error:
            raise InputError(f"{path}: {str(error).removeprefix(f'GPU {file.stem}: ')}") from None
