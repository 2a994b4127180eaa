"""From an Accel-Sim configuration (gpgpusim.config, trace.config) to the description of a GPU."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from abstim.gpu.config import Setting, load_gpu
from abstim.gpu.gpgpusim_config import Option, read_options
from abstim.gpu.import_rules import DEFAULTS, PARTLY, RULES, Options
from abstim.gpu.spec import SECTIONS, Domain
from functional.errors import InputError


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
            domain = _domain(key)
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


def _domain(key: str) -> Domain:
    section, name = _section(key)
    return SECTIONS[section][name]


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
