"""From an Accel-Sim configuration (gpgpusim.config, trace.config) to the description of a GPU.

An option is `-name value`; `#` begins a comment; a value in quotation marks may go over several lines. Names are kept
without the leading `-` and `gpgpu_`: `-gpgpu_n_mem 16` is option `n_mem`. import_options.toml has one entry an option.
Its rule takes the option and all others (DRAM cycles need a clock, for instance) and yields values by full key
(`sm_count`, `latency_cycles.int_add`), in the unit of the key."""

import re
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import ceil, isfinite
from pathlib import Path
from typing import Any

from abstim.gpu.config import Setting, description, domains, load_gpu
from abstim.gpu.spec import INSTRUCTION_CLASSES, POLICIES
from functional.errors import InputError, refuse
from functional.files import read_text, toml_beside

_TOKEN = re.compile(r'"(?P<quoted>[^"]*)"|#[^\n]*|(?P<open>")|(?P<word>[^\s"#]+)')
_OPTION = re.compile(r"-[A-Za-z_]")
# Fields of `-gpgpu_dram_timing_opt` in the order in which they may be written without names.
TIMING_FIELDS = ("nbk", "CCD", "RRD", "RCD", "RAS", "RP", "RC", "CL", "WL", "CDLR", "WR", "nbkgrp", "CCDL", "RTPL")
_CACHE = re.compile(
    r"(?:(?P<type>[NS]):)?(?P<sets>\d+):(?P<line_bytes>\d+):(?P<ways>\d+),"
    r"(?P<replacement>\w):(?P<write>\w):(?P<allocate>\w):(?P<write_allocate>\w)(?::(?P<index>\w))?,"
    r"(?P<mshr_type>\w):(?P<mshrs>\d+):(?P<merges>\d+),(?P<miss_queue>\d+)(?::(?P<fifo>\d+))?(?:,(?P<port_bytes>\d+))?"
)


@dataclass(frozen=True)
class Option:
    """One option as written: `where` is `file:line`."""

    name: str
    value: str
    where: str

    def fail(self, expected: str) -> InputError:
        """The error of a value that is not what the option takes."""
        return InputError(f"{self.where}: {self.name} {self.value}: expected {expected}")

    def number(self) -> float:
        """The value as a number. Raises InputError."""
        return self.numbers(",", (1,))[0]

    def whole(self) -> int:
        """The value as a whole number. Raises InputError."""
        number = self.number()
        if number != int(number):
            raise self.fail("a whole number")
        return int(number)

    def numbers(self, separator: str, counts: tuple[int, ...]) -> list[float]:
        """The value as a list of one of these lengths. Raises InputError."""
        parts = self.value.split(separator)
        try:
            found = [float(part) for part in parts]
        except ValueError:
            found = []
        if len(found) not in counts or not all(map(isfinite, found)):
            wanted = " or ".join(map(str, counts))
            raise self.fail(f"{wanted} number{'s' if counts != (1,) else ''}, separated by {separator!r}")
        return found


def read_options(path: Path) -> dict[str, Option]:
    """Every option of a file; the last one of a name counts. Raises InputError for a file that is no configuration."""
    try:
        text = read_text(path)
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not a text file"
        raise InputError(f"{path}: {reason}") from None
    said: list[tuple[str, str, list[str]]] = []  # name, where, words behind it
    for line, word, quoted in _words(path, text):
        if _OPTION.match(word) and not quoted:
            said.append((word[1:].removeprefix("gpgpu_"), f"{path}:{line}", []))
        elif said:
            said[-1][2].append(word)
        else:
            raise InputError(f"{path}:{line}: expected an option such as -gpgpu_n_clusters, found {word[:40]!r}")
    for name, where, words in said:
        if len(words) != 1:
            count = f"{len(words)} values: {' '.join(words)[:60]}" if words else "no value"
            raise InputError(f"{where}: option {name} has {count}")
    refuse(not said, f"{path}: no options in this file")
    return {name: Option(name, words[0], where) for name, where, words in said}


def _words(path: Path, text: str) -> Iterator[tuple[int, str, bool]]:
    """(line, word, in quotation marks?) of everything but comments."""
    line, at = 1, 0
    for match in _TOKEN.finditer(text):
        line += text.count("\n", at, match.start())
        at = match.start()
        refuse(match["open"], f"{path}:{line}: a quotation mark that is never closed")
        if match["quoted"] is not None:
            yield line, "".join(match["quoted"].split()), True
        elif match["word"]:
            yield line, match["word"], False


_NUMBERS = ("sets", "line_bytes", "ways", "mshrs", "merges", "miss_queue")


def cache_of(option: Option) -> dict[str, Any] | None:
    """Parts of the cache an option describes, by name: _NUMBERS, `sectored`, `lazy`, its letters; None for `none`.

    Version 3 of GPGPU-Sim has neither type nor port, and its oldest strings no index. Raises InputError for anything
    else."""
    if option.value == "none":
        return None
    match = _CACHE.fullmatch(option.value)
    if match is None:
        raise option.fail("a cache such as S:64:128:16,L:B:m:L:P,A:192:4,32:0,32, or none")
    parts = {name: int(text) if name in _NUMBERS else text or "L" for name, text in match.groupdict().items()}
    return parts | {"sectored": match["type"] == "S", "lazy": match["write_allocate"] == "L"}


def timing_of(option: Option) -> dict[str, float]:
    """DRAM timings by name, in DRAM cycles; written by name or by position. Raises InputError."""
    parts = [part for part in option.value.split(":") if part]
    if "=" not in option.value:
        parts = [f"{name}={value}" for name, value in zip(TIMING_FIELDS, parts, strict=False)]
    try:
        timing = {name: float(value) for name, value in (part.split("=") for part in parts)}
    except ValueError:
        timing = {}
    if not timing or not all(map(isfinite, timing.values())):
        raise option.fail("DRAM timings such as nbk=16:CCD=2:RRD=6, or the same without names")
    return timing


Options = dict[str, Option]
Values = dict[str, Any]
Rule = Callable[[Option, Options], Values]

CROSSBAR_CYCLES = 8  # measured on GPGPU-Sim 4.2: a request from L1D to its slice, besides the ROP latency;
PLAIN_CROSSBAR_CYCLES = 3  # with network_mode 2
DRAM_STATION_CYCLES = 4  # from queue to queue: slice to data, besides `-dram_latency` and CL
PLAIN_FLIT_BYTES = 256  # network_mode 2: more than any packet, which passes in one cycle
SECTOR_BYTES = 32
SCHEDULERS = {policy.gpgpusim: name for name, policy in POLICIES.items()}


def _sm_count(option: Option, options: Options) -> Values:
    other = "n_cores_per_cluster" if option.name == "n_clusters" else "n_clusters"
    return {"sm_count": option.whole() * (options[other].whole() if other in options else 1)}


def _threads(option: Option, _: Options) -> Values:
    threads, warp = (int(n) for n in option.numbers(":", (2,)))
    if warp <= 0 or threads % warp:
        raise option.fail("threads:warp size, the former a multiple of the latter")
    return {"max_threads_per_sm": threads, "warp_size": warp, "max_warps_per_sm": threads // warp}


def _clocks_hz(options: Options) -> tuple[float, float]:
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
    specialised = options.get("enable_specialized_operand_collector")
    return {} if specialised is None or specialised.whole() else {"shared_collectors": option.whole()}


def _cache(name: str, keys: Mapping[str, str], option: Option, _: Options) -> Values:
    """Sets and ways of `name`, and `keys`: ours -> part of the cache string."""
    cache = cache_of(option)
    if cache is None:
        return {}
    values = {f"{name}_sets": cache["sets"], f"{name}_ways": cache["ways"]}
    return values | {key: _LETTERS.get(what, {}).get(cache[what], cache[what]) for key, what in keys.items()}


# Letters of a cache string that have a name here; others are taken as they are, and refused by the key's domain.
_LETTERS: dict[str, dict[str, Any]] = {
    "index": {"H": "hash", "L": "linear", "P": "ipoly"},
    "write": {"B": "back", "T": "through", "E": "evict", "L": "local_back"},
    "write_allocate": {"N": False, "W": True, "F": True, "L": True},
    "replacement": {"L": "lru", "F": "fifo"},
}


def _adaptive(option: Option, options: Options) -> Values:
    """L1D and shared memory in one: its size, the ways it has as L1D alone, and the partitions."""
    names = ("unified_l1d_size", "shmem_option", "cache:dl1")
    cache = cache_of(options[names[2]]) if names[2] in options else None
    if not option.whole() or cache is None or any(name not in options for name in names):
        return {}
    size_bytes = options[names[0]].whole() * 1024
    ways = size_bytes // (cache["sets"] * cache["line_bytes"])
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


def _classes(names: str) -> list[str]:
    """Of instructions: `INT other`, with all classes of a kind under one name."""
    kinds = {k.upper(): [c for c in INSTRUCTION_CLASSES if c.startswith(f"{k}_")] for k in ("int", "fp32", "fp64")}
    return [name for own in names.split() for name in kinds.get(own, [own])]


def _listed(section: str, names: list[str], option: Option, _: Options) -> Values:
    """A list of numbers, one a class; the last ones may be missing."""
    numbers = option.numbers(",", tuple(range(min(len(names), 5), len(names) + 1)))
    return {f"{section}.{name}": int(n) for name, n in zip(names, numbers, strict=False)}


def _traced(names: list[str], also: Values, option: Option, _: Options) -> Values:
    """`latency,initiation` of all classes of a kind of SASS instructions."""
    latency, initiation = (int(n) for n in option.numbers(",", (2,)))
    both = {"latency_cycles": latency, "initiation_cycles": initiation}
    return {f"{section}.{name}": cycles for section, cycles in both.items() for name in names} | also


def _units(key: str, unit: str, otherwise: str, classes: list[str], option: Option, options: Options) -> Values:
    """The number of units of a kind, and that some classes run on them, if there are any; divisions stay on the SFU.

    Such units take their operands from generic collectors here: where a GPU has none (Kepler, each unit with its own),
    these classes run on the units that others have instead."""
    generic = options.get("operand_collector_num_units_gen")
    count = option.whole() if generic is not None and _generic_collectors(generic, options) else 0
    where = {f"unit.{name}": unit if count else otherwise for name in classes if not name.endswith("div")}
    return where | {key: count}


# Rules that the table of options names: functions by their own names, and those of one expression as such
_FUNCTIONS: tuple[Callable[[Option, Options], Values], ...] = (
    *(_sm_count, _threads, _scheduler, _pipeline_widths, _generic_collectors, _adaptive, _network, _mapping),
    *(_dram_timing, _dram_latency),
)
NAMED: dict[str, Rule] = {rule.__name__.removeprefix("_"): rule for rule in _FUNCTIONS} | {
    "core_clock": lambda _, options: {"core_clock_hz": _clocks_hz(options)[0]},
    "slice_index": lambda option, _: {"l2_slice_index": {0: "linear", 4: "random"}.get(option.whole(), "ipoly")},
    "slice_queue": lambda option, _: {"l2_queue": int(min(option.numbers(":", (4,))))},
    "coalescing": lambda option, _: {"coalescing": "sector" if option.whole() >= 40 else "fermi"},
    "flit_bytes": lambda option, options: {} if _is_plain(options) else {"flit_bytes": option.whole()},
    "l2_request": lambda option, options: {
        "l2_request_cycles": option.whole() + (PLAIN_CROSSBAR_CYCLES if _is_plain(options) else CROSSBAR_CYCLES)
    },
}


def _rule_of(said: Mapping[str, Any]) -> Rule:
    match said:
        case {"same": key}:
            return lambda option, _: {key: option.whole()}
        case {"flag": keys}:
            return lambda option, _: dict.fromkeys(keys, bool(option.whole()))
        case {"cache": name, "keys": keys}:
            return partial(_cache, name, keys)
        case {"units": key, "unit": unit, "otherwise": otherwise, "classes": classes}:
            return partial(_units, key, unit, otherwise, _classes(classes))
        case {"list": section, "classes": classes}:
            return partial(_listed, section, _classes(classes))
        case {"traced": classes}:
            return partial(_traced, _classes(classes), said.get("also", {}))
        case {"part_of": whole}:  # a part of what another option says, which counts together with that
            return lambda _, options: RULES[whole](options[whole], options) if whole in options else {}
    return NAMED[said["rule"]]


TABLE = toml_beside(__file__, "import_options.toml")
RULES = {name: _rule_of(said) for name, said in TABLE.items()}
# Options that a file may leave out, and what GPGPU-Sim takes then. Of others that it leaves out the base decides.
DEFAULTS = {"perfect_mem": "0"}


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
    not what its option takes, and values that contradict each other."""
    options: Options = {}
    for path in paths:
        options |= read_options(path)
    settings, unused = _apply(options)
    if not settings:
        raise InputError(f"{paths[0]}: none of its {len(options)} options describes a GPU")
    for name in DEFAULTS.keys() - options:
        source = f"not in the file: {name} {DEFAULTS[name]}, GPGPU-Sim's default"
        values = RULES[name](Option(name, DEFAULTS[name], "default"), options)
        settings |= {key: Setting(value, source) for key, value in values.items()}
    missing = tuple(key for key in load_gpu(base).settings if key not in settings)
    files = ", ".join(str(path) for path in paths)
    toml = f"# Imported from {files}. What is not here comes from `base`.\n"
    toml += description(base, f"imported from {files}", {"config": f"{files}, option"}, settings)
    with tempfile.TemporaryDirectory() as folder:  # does it load?
        file = Path(folder) / "imported.toml"
        file.write_text(toml, encoding="utf-8")
        try:
            load_gpu(str(file))
        except InputError as error:
            raise InputError(f"{paths[0]}: {str(error).removeprefix(f'GPU {file.stem}: ')}") from None
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
        elif left_out := TABLE[name].get("but"):
            unused.append(Unused(name, option.value, f"used in part: not {left_out}"))
        for key, value in values.items():
            domain = domains()[key]
            if isinstance(value, (int, float) if domain.type is float else domain.type) and domain.accepts(value):
                before, said = settings.get(key), f"{name} {option.value}"
                alike = before is not None and before.value == value
                settings[key] = Setting(value, f"{before.source}, {said}" if before and alike else f"config {said}")
            else:
                unused.append(Unused(name, option.value, f"{key} = {value}: this model takes {domain.text}"))
    return settings, tuple(unused)
