"""GPU descriptions: `configs/*.toml` in, `Gpu` out. Every value keeps its source.

base = "gtx480"                  # optional: everything not said here comes from that GPU
title = "..."
known_error = "..."              # optional, of this GPU alone: what is known of the error of times on it
[sources]                        # what the first word of a source stands for
[spec] [params] [time] [latency_cycles] [initiation_cycles] [unit]
sm_count = { value = 15, source = "config n_clusters" }     # or just: sm_count = 15"""

import json
import tomllib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

import msgspec

from abstim.brief import Brief
from abstim.gpu.spec import ALL_CLASSES, FROM_TIME, SECTIONS, Domain, Params, Spec, WallTime, check, why_idle
from functional.errors import InputError, refuse
from functional.files import read_text, table_rows
from functional.hashed_once import HashedOnce
from precharacterize.table import Operation, PipelineParameters

REFERENCE = "GPGPU-Sim 4.2, which itself is off by 13 % (SASS) to 34 % (PTX) on a V100"
HARDWARE = "hardware"
NOTHING_KNOWN = "nothing is known of it: no time of this GPU was compared"
CODES = {"": "", "ptx": "PTX", "machine": "machine code", "hoisted": "PTX with loads hoisted"}
BY_MODEL = {"detailed": "", "occupancy": "by occupancy vector ", "analytic": "by the formula "}


@dataclass(frozen=True, slots=True)
class KnownError:
    """Mean and worst absolute error, in percent, of the times of some kernels. `what`: to be known about them."""

    gpu: str
    model: str
    against: str  # "reference" or "hardware"
    code: str  # that was timed: one of CODES; "": what the GPU asks for
    clock_mhz: int | None  # at which it was compared; None: that of the description
    what: str
    kernels: int | None  # None: not noted, as below
    mean_percent: float
    worst_percent: float | None
    source: str

    def __str__(self) -> str:
        count = f"{self.kernels} kernels" if self.kernels else ""
        clock = f"at {self.clock_mhz:,} MHz" if self.clock_mhz else ""
        about = ", ".join(part for part in (count, self.what, CODES[self.code], clock) if part)
        worst = "" if self.worst_percent is None else f", {self.worst_percent:g} % worst"
        return f"{self.mean_percent:g} % mean{worst} ({about})"


@cache
def known_errors() -> tuple[KnownError, ...]:
    """The table."""
    table, numbers = table_rows(config_dir() / "known_errors.csv"), ("clock_mhz", "kernels", "worst_percent")
    rows = [dict[str, str | None](row) | {name: row[name] or None for name in numbers} for _, row in table]
    return msgspec.convert(rows, tuple[KnownError, ...], strict=False)


def known_error(gpu: str, model: str = "detailed", timed_code: str = "ptx") -> str:
    """One sentence on a GPU of `configs/`, or on any other (nothing). `timed_code`: one of CODES."""
    found = [e for e in known_errors() if (e.gpu, e.model) == (gpu, model)]
    of_code = [e for e in found if e.code in ("", timed_code)]
    against = {name: [str(e) for e in of_code or found if e.against == name] for name in ("reference", HARDWARE)}
    reference, hardware = (", ".join(errors) for errors in against.values())
    by, said = BY_MODEL[model], []
    if reference:
        said.append(f"{by}{reference} against {REFERENCE}")
    if hardware:
        otherwise = "" if of_code else f"no time of {CODES[timed_code]} was compared; otherwise "
        said.append(f"{HARDWARE}: {otherwise}{by}{hardware}")
    elif reference:
        said.append(f"{HARDWARE}: not compared")
    elif timed_code != "ptx":
        said.append(f"{HARDWARE}: no time of a kernel was compared on this GPU {by}".rstrip())
        said += ["its latencies and bandwidths beside measured ones: abstim calibrate"] if model == "detailed" else []
    return "; ".join(said)


@dataclass(frozen=True, slots=True)
class Setting:
    """One value of a GPU and where it comes from."""

    value: Any
    source: str


TIMED_CODE = "--timed-code"  # how the source of a value begins that has to be kept to
MOST_NAMES = 24  # that an error lists where none is near
ALTERED = "with values changed, nothing; as described: "
Overrides = Sequence[str] | Mapping[str, Any]
Settings = dict[str, Setting]  # "sm_count" or "latency_cycles.int_add" -> Setting


@dataclass(frozen=True, repr=False)
class Gpu(HashedOnce, Brief):
    """A design point. Equal and hashed by its values, not by where they come from.

    `settings` has every value with its source, `labels` what the first word of a source stands for."""

    __hash__ = HashedOnce.__hash__

    spec: Spec
    params: Params
    pipeline: PipelineParameters
    title: str = field(default="", compare=False)
    settings: Settings = field(default_factory=dict, compare=False, repr=False)
    labels: dict[str, str] = field(default_factory=dict, compare=False, repr=False)
    known_error: str = field(default="", compare=False)  # what has been measured of times on it; "": nothing
    described: str = field(default="", compare=False)  # in `configs/`: its name there, whatever was changed since

    @property
    def name(self) -> str:
        """As given to `load_gpu`, with its overrides."""
        return self.spec.name

    @property
    def shown_settings(self) -> Settings:
        """`settings` as the engine takes them: those that [time] derives as they come out."""
        taken = {key: source for key, source in FROM_TIME.items() if self.settings[source].value}
        return self.settings | {
            key: Setting(getattr(self.params, key), f"from {source}") for key, source in taken.items()
        }

    def why_idle(self, key: str) -> str:
        """Why setting a key, by its full name, changes nothing here; "" if it may."""
        return self.why_derived(key) or why_idle(key, self.spec)

    def why_derived(self, key: str) -> str:
        """The same of a key that one of [time] stands in for."""
        source = FROM_TIME.get(key)
        return f"it follows from {source}; set that instead" if source and self.settings[source].value else ""

    @property
    def code_asked(self) -> str:
        """`--timed-code machine` if that was asked for, which PTX must not take the place of then; else ""."""
        setting = self.settings.get("timed_code")
        machine = setting is not None and setting.value == "machine" and setting.source.startswith(TIMED_CODE)
        return setting.source if setting is not None and machine else ""

    @property
    def memory_model(self) -> str:
        """What lies behind the first-level caches, as tables say it."""
        return self.spec.memory_model


def config_dir() -> Path:
    """Where the GPUs that come with abstim are described."""
    import configs

    return Path(next(iter(configs.__path__)))


def gpu_names() -> list[str]:
    """Names that `load_gpu` knows, sorted."""
    return sorted(p.stem for p in config_dir().glob("*.toml"))


def nearest(name: str, known: Iterable[str]) -> str:
    """`; did you mean X?`, or all names if none is near and they are few: the end of an error message."""
    known = sorted(known)
    close = get_close_matches(name, known, n=1, cutoff=0.5) or get_close_matches(name.lower(), known, n=1, cutoff=0.5)
    if close:
        return f"; did you mean {close[0]}?"
    return f"; known: {', '.join(known)}" if len(known) <= MOST_NAMES else ""


def load_gpu(name: str, overrides: Overrides = (), timed_code: str = "") -> Gpu:
    """A GPU by name or by the path of a TOML file, with overrides: texts `key=value`, or a dict of keys and values.

    `timed_code`: "ptx" or "machine", whatever the description says; machine code then has to be there, where PTX is
    timed in its place otherwise. Raises InputError for an unknown GPU or key (with the nearest name), a value out of
    range, a missing value, or a file that is not TOML."""
    refuse(not isinstance(name, str), f"a GPU is given by its name or file, not as {type(name).__name__}: {name!r:.60}")
    overrides = as_texts(overrides)
    path = _path_of(name)
    own = path.stem if path.parent == config_dir() else ""
    title, as_file, labels = _merged(*_chain(path))
    settings, known = dict(as_file), str(read_toml(path).get("known_error", ""))
    as_described = {key: setting.value for key, setting in settings.items()}
    given: dict[str, str] = {}
    for override in overrides:
        key, value = _parse_override(override)
        if key in given:
            raise InputError(f"--set {override}: {key} was set already, by {given[key]}")
        given[key], settings[key] = override, Setting(value, f"--set {override}")
    if timed_code:
        old, where = settings["timed_code"], f"{TIMED_CODE} {timed_code}"
        settings["timed_code"] = Setting(check("timed_code", domains()["timed_code"], timed_code, where), where)
        refuse(old.source.startswith(SET) and old.value != timed_code, f"{where}: {old.source} says otherwise")
        overrides = overrides if old.value == timed_code else [*overrides, f"timed_code={timed_code}"]
    if own:
        known = known_error(own, timed_code=settings["timed_code"].value)
    gpu = _build(" ".join([Path(name).stem, *overrides]), title, settings, labels)
    for key, override in given.items():
        if why := gpu.why_idle(key):
            raise InputError(f"--set {override}: {key} has no effect on {Path(name).stem}: {why}")
    compared = [1e6 * e.clock_mhz for e in known_errors() if e.gpu == own and e.clock_mhz]
    differ = {key for key in given if settings[key].value != as_described[key]}
    differ.discard("timed_code" if own else "")  # of which `known` knows
    if settings["core_clock_hz"].value in compared:
        differ.discard("core_clock_hz")
    return replace(gpu, described=own, known_error=_altered(known) if differ else known)


SET = "--set"  # how the source of a value begins that a user has set


def refuse_unread(model: str, unread: Collection[str], gpus: Iterable[Gpu]) -> None:
    """Raises InputError for the first key that a user has set on a GPU and a model does not look at."""
    for gpu in gpus:
        if ignored := sorted(k for k, own in gpu.settings.items() if k in unread and own.source.startswith(SET)):
            raise InputError(not_looked_at(f"{SET} {ignored[0]}", model))


def not_looked_at(what: str, model: str) -> str:
    """What is said of a key that changes nothing in a model. `what`: with the option that names it."""
    return f"{what}: the {model} model does not look at it; use --model detailed"


def known_error_of(gpu: Gpu, model: str, code: str = "") -> str:
    """What is known of the error of a model, for people. `code`: what was timed, if not what the GPU asks for."""
    if model == "detailed" and (not code or not gpu.described):
        return gpu.known_error or NOTHING_KNOWN
    found = known_error(gpu.described or gpu.name, model, code or gpu.spec.timed_code)
    return (_altered(found) if gpu.known_error.startswith(ALTERED) else found) or NOTHING_KNOWN


def refuse_machine_code(gpu: Gpu, what: str) -> None:
    """Raises InputError for a GPU that is timed from machine code, for whatever counts PTX instructions."""
    if gpu.spec.timed_code != "ptx":
        raise InputError(
            f"{gpu.name}: {what} PTX instructions, and this GPU is timed from machine code; time it from PTX "
            "(--timed-code ptx), or choose another GPU"
        )


def as_texts(overrides: Overrides) -> Sequence[str]:
    """Overrides as `--set` takes them. Raises InputError for anything but texts, or a dict."""
    if isinstance(overrides, Mapping):
        return [f"{key}={str(v).lower() if isinstance(v, bool) else v}" for key, v in overrides.items()]
    found = list(overrides)
    if isinstance(overrides, str) or not all(isinstance(text, str) for text in found):
        raise InputError(f"overrides are a list like ['sm_count=30'] or a dict, not {overrides!r:.60}")
    return found


def gpu_of(gpu: str | Gpu, overrides: Overrides = ()) -> Gpu:
    """A GPU by name, with overrides, or one as it is. Raises InputError as `load_gpu` does, and for overrides of the
    latter."""
    if not isinstance(gpu, Gpu):
        return load_gpu(gpu, overrides)
    refuse(overrides, "overrides need a GPU by name; use load_gpu(name, overrides)")
    return gpu


def gpus_of(gpus: str | Gpu | Sequence[str | Gpu]) -> list[Gpu]:
    """GPUs, or one, by name or as they are. Raises InputError as `load_gpu` does, and for none."""
    found = [gpu_of(gpu) for gpu in (gpus if isinstance(gpus, Iterable) and not isinstance(gpus, str) else [gpus])]
    refuse(not found, "no GPU is given")
    return found


@cache
def domains() -> Mapping[str, Domain]:
    """What every key of `--set` accepts: "sm_count", "latency_cycles.int_add", ..."""
    return {_full_key(s, k): domain for s, found in SECTIONS.items() for k, domain in found.items()}


def full_key(key: str) -> str:
    """The key as `domains` has it; `spec.sm_count` is `sm_count`. Raises InputError, with the nearest, if unknown."""
    section, _, name = key.rpartition(".")
    full = _full_key(section, name) if section in SECTIONS else key
    if full not in domains():
        raise InputError(f"unknown key {full!r}{nearest(full, domains())}")
    return full


def changed(gpu: Gpu, values: Mapping[str, Any], name: str, source: str = "varied") -> Gpu:
    """A GPU with some values replaced: keys and values as `domains` has them.

    Raises InputError for values that are each in range and contradict each other, and for a key that another one of
    [time] stands in for."""
    settings = gpu.settings | {key: Setting(value, source) for key, value in values.items()}
    made, known = _build(name, gpu.title, settings, gpu.labels), _altered(gpu.known_error)
    found = replace(made, known_error=known, described=gpu.described)
    for key in values:
        if why := found.why_derived(key):
            raise InputError(f"{name}: {key} has no effect: {why}")
    return found


def with_values(gpu: Gpu, values: Mapping[str, Any], source: str) -> Gpu:
    """The same GPU with some values changed, by key (`sm_count`, `latency_cycles.sfu`); all of them get `source`.

    Raises InputError for an unknown key or a value out of range, and as `changed`."""
    known = domains()
    checked = {full_key(key): check(key, known[full_key(key)], value, gpu.name) for key, value in values.items()}
    return changed(gpu, checked, gpu.name, source)


def _altered(known_error: str) -> str:
    """What is known of a GPU with values changed: that of the GPU as it is described."""
    return ALTERED + known_error.removeprefix(ALTERED) if known_error else ""


def _path_of(name: str, beside: Path | None = None) -> Path:
    if Path(name).name == name and (known := config_dir() / f"{name}.toml").is_file():
        return known
    path = (beside or Path()) / name
    if name.endswith(".toml"):
        refuse(not path.is_file(), f"{path}: no such GPU description")
        return path
    refuse(name and path.exists(), f"{name}: no GPU description; the name of one ends in .toml")
    raise InputError(f"unknown GPU {name!r}{nearest(name, gpu_names())}")


def _chain(path: Path, above: tuple[Path, ...] = ()) -> Iterator[tuple[Path, str]]:
    """A file and its bases, as they are now, each with its text."""
    refuse(path.resolve() in above, f"{path}: `base` leads back to this file")
    base = read_toml(path).get("base")
    yield path, read_text(path)
    if base:
        refuse(not isinstance(base, str), f"{path}: base = {base!r} is not the name of a GPU")
        yield from _chain(_path_of(base, path.parent), (*above, path.resolve()))


@lru_cache(maxsize=64)
def _merged(own: tuple[Path, str], *bases: tuple[Path, str]) -> tuple[str, Settings, dict[str, str]]:
    """Title, settings and source labels of a file, those of its bases included; nobody may change them."""
    path, document = own[0], _parsed(own[1])
    _, settings, labels = _merged(*bases) if bases else ("", Settings(), dict[str, str]())
    refuse(not isinstance(document.get("known_error", ""), str), f"{path}: known_error needs a text")
    sources = document.get("sources", {})
    if not isinstance(sources, dict) or not all(isinstance(text, str) for text in sources.values()):
        raise InputError(f"{path}: [sources] needs a text for each name, not {str(sources)[:40]!r}")
    settings, labels = dict(settings), dict(labels)
    _keep_apart(settings, labels, sources, Path(str(document.get("base"))).stem)
    return str(document.get("title", path.stem)), settings | _own_settings(path, document), labels | sources


def _own_settings(path: Path, document: Mapping[str, Any]) -> Settings:
    """What a file itself says, by sections: `key = value`, or `key = { value, source }`."""
    found: Settings = {}
    for section, values in document.items():
        if section in ("base", "title", "known_error", "sources"):
            continue
        if section not in SECTIONS or not isinstance(values, dict):
            raise InputError(f"{path}: unknown section or key {section!r}{nearest(section, SECTIONS)}")
        where, known = f"{path}: [{section}]", SECTIONS[section]
        for key, value in values.items():
            if key not in known:
                raise InputError(f"{where}: unknown key {key!r}{nearest(key, known)}")
            source = path.name
            if isinstance(value, dict):
                if set(value) != {"value", "source"} or not isinstance(value["source"], str):
                    raise InputError(f'{where}: {key} needs exactly {{ value = ..., source = "..." }}')
                value, source = value["value"], value["source"]
            found[_full_key(section, key)] = Setting(check(key, known[key], value, where), source)
    return found


def _keep_apart(settings: Settings, labels: dict[str, str], new: Mapping[str, str], base: str) -> None:
    """A label that a file gives another meaning: what the base said with it goes on meaning what it meant there."""
    for label, text in new.items():
        if labels.get(label, text) == text:
            continue
        apart = f"{label}-{base}"
        labels[apart] = labels.pop(label)
        for key, setting in settings.items():
            word, _, rest = setting.source.partition(" ")
            if word == label:
                settings[key] = Setting(setting.value, f"{apart} {rest}".rstrip())


def read_toml(path: Path) -> dict[str, Any]:
    """A TOML file, whose tables nobody may change. Raises InputError if it cannot be read or does not parse."""
    try:
        return dict(_parsed(read_text(path)))
    except ValueError as error:  # of TOML, of its encoding, of a number of thousands of digits
        raise InputError(f"{path}: not TOML: {error}") from None
    except RecursionError:
        raise InputError(f"{path}: not TOML: nested too deeply") from None
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}") from None


@lru_cache(maxsize=64)  # parsing is nine tenths of loading a GPU, and sweeps load the same ones again and again
def _parsed(text: str) -> dict[str, Any]:
    return tomllib.loads(text)


def description(base: str, title: str, sources: Mapping[str, str], settings: Settings) -> str:
    """A GPU as a file, in the order of the schema: what `settings` does not say comes from `base`."""

    def said(values: Mapping[str, Any]) -> list[str]:
        return [f"{name} = {json.dumps(value, ensure_ascii=False)}" for name, value in values.items()]

    lines = [*said({"base": base, "title": title}), "", "[sources]", *said(sources)]
    for section, names in SECTIONS.items():
        own = {name: settings[full] for name in names if (full := _full_key(section, name)) in settings}
        texts = {name: ", ".join(said({"value": s.value, "source": s.source})) for name, s in own.items()}
        lines += ["", f"[{section}]", *(f"{name} = {{ {text} }}" for name, text in texts.items())] if own else []
    return "\n".join(lines) + "\n"


def _full_key(section: str, key: str) -> str:
    return key if section in ("spec", "params", "time") else f"{section}.{key}"


def _parse_override(override: str) -> tuple[str, Any]:
    """`key=value` of `--set` as (full key, checked value)."""
    key, equals, text = (part.strip() for part in override.partition("="))
    refuse(not equals or not key or not text, f"--set {override}: write it as key=value")
    try:
        key = full_key(key)
    except InputError as error:
        raise InputError(f"--set {override}: {error}") from None
    return key, check(key, domains()[key], parse_value(text), f"--set {override}")


def parse_value(text: str) -> Any:
    """A TOML value; a bare word is a string."""
    try:
        return tomllib.loads(f"x = {text}")["x"]
    except (ValueError, RecursionError):
        return text


_FULL_KEYS = {section: {key: _full_key(section, key) for key in keys} for section, keys in SECTIONS.items()}


def _build(name: str, title: str, settings: Settings, labels: dict[str, str]) -> Gpu:
    def values(section: str) -> dict[str, Any]:
        keys = _FULL_KEYS[section]
        if missing := [full for full in keys.values() if full not in settings]:
            raise InputError(f"GPU {name}: no value for {', '.join(missing[:5])} in [{section}]; add it or a `base`")
        return {key: settings[full].value for key, full in keys.items()}

    spec = Spec(name=name, **values("spec"))
    own = Params(**values("params"))
    params = WallTime(**values("time")).params(own, spec)
    for key in FROM_TIME:
        if (value := getattr(params, key)) != getattr(own, key):  # what [time] says can be too much in cycles
            check(key, domains()[key], value, f"GPU {name}, from [time] at its core clock")
    spec.check(f"GPU {name}")
    # memory latencies here run from the start of an access on its unit
    latency, initiation, unit = (values(section) for section in ("latency_cycles", "initiation_cycles", "unit"))
    pipeline = PipelineParameters(
        operations=tuple((c, Operation(latency[c], initiation[c], unit[c])) for c in ALL_CLASSES),
        shared_cycles=params.shared_latency_cycles + 2,  # into the unit's pipeline, and out of it
        const_hit_cycles=params.const_latency_cycles,
        global_hit_cycles=params.l1d_latency_cycles + 1,  # into the delay before the tags
        shared_bytes_per_cycle=spec.shared_bytes_per_cycle,
        register_banks=spec.register_banks,
        instructions_per_fetch=spec.instructions_per_fetch,
        fetch_line_instructions=max(1, spec.l1i_line_bytes // spec.instruction_bytes),
        branch_cycles=params.branch_cycles,
        return_cycles=params.return_cycles,
    )
    return Gpu(spec, params, pipeline, title, settings, labels)
