"""A result beside an earlier one of the same target: what `abstim run --against` prints."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from math import isfinite
from pathlib import Path
from typing import Any

from abstim.session.result import RunResult
from functional.errors import InputError
from functional.files import read_text


@dataclass(frozen=True)
class Row:
    """A launch, or all of them; `speed_up` is before / after, in time."""

    launch: str
    cycles_before: int
    cycles_after: int
    speed_up: float
    limit_before: str
    limit_after: str


@dataclass(frozen=True, kw_only=True)
class Baseline:
    """Launches side by side, the totals last; `changed`: what else is not as it was, key by key."""

    rows: list[Row]
    changed: list[str]

    def to_json(self) -> dict[str, Any]:
        """Everything, as what `json.dumps` takes."""
        return asdict(self)


def read_baseline(path: Path) -> dict[str, Any]:
    """What `abstim run --json` printed. Raises InputError for anything else."""
    found = read_result(path)
    parts = found if isinstance(found, dict) and found.get("kind") == "run" else {}
    launches, keys = parts.get("launches"), {"kernel", "limit"}
    whole = isinstance(launches, list) and all(isinstance(x, dict) and keys <= x.keys() for x in launches)
    if not whole or not all(map(_is_timed, [parts.get("totals"), *(launches or ())])):
        raise InputError(f"{path}: not a result of `abstim run --json` with one GPU")
    return parts


def _is_timed(found: Any) -> bool:
    keys = "cycles", "seconds"
    return isinstance(found, dict) and all(isinstance(found.get(k), int | float) and isfinite(found[k]) for k in keys)


def read_result(path: Path) -> Any:
    """What a JSON file holds. Raises InputError for what is no JSON."""
    try:
        return json.loads(read_text(path))
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path}: not JSON: {error}") from None


def compare(old: Mapping[str, Any], new: RunResult) -> Baseline:
    """Launch by launch, where both have the same kernels in the same order; else the totals alone. And settings that
    explain a difference: the target, the model, every value of the GPU, what is launched and flushed, what notes say
    (streams side by side or not, the order of thread blocks)."""
    now = json.loads(json.dumps(new.to_json()))
    before, after = old["launches"], now["launches"]
    alike = [launch["kernel"] for launch in before] == [launch["kernel"] for launch in after]
    pairs = [*enumerate(zip(before, after, strict=True))] if alike else []
    rows = [_row(f"{k} {new['kernel']}", old, new) for k, (old, new) in pairs]
    rows.append(_row("all", old["totals"] | {"limit": old.get("limit", "-")}, now["totals"] | {"limit": now["limit"]}))
    changed = [] if alike else ["launches: other kernels, or another number of them"]
    settings, values = ("target", "gpu", "model", "flush", "memory_model", "version", "note"), now["gpu_values"]
    changed += _changed(old, {key: now[key] for key in settings}) + _changed(old.get("gpu_values") or {}, values)
    first = next(((k, different) for k, own in pairs if (different := _changed(own[0], _launched(own[1])))), None)
    changed += [f"launch {first[0]}, {said}" for said in first[1]] if first else []
    return Baseline(rows=rows, changed=changed)


def _changed(old: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Of what both have, what differs."""
    differ = [k for k in now if k in old and k != "name" and old[k] != now[k]]
    return [f"{k}: {_shown(old[k])} before, {_shown(now[k])} now" for k in differ]


def _shown(value: Any) -> Any:
    return "none" if value == "" else value


def _launched(launch: Mapping[str, Any]) -> dict[str, Any]:
    """What a launch is, whatever times it."""
    keys = "grid", "block", "shared_bytes", "registers_per_thread", "thread_instructions", "timed_code"
    return {key: launch[key] for key in keys}


def _row(name: str, before: Mapping[str, Any], after: Mapping[str, Any]) -> Row:
    cycles, faster = (int(before["cycles"]), int(after["cycles"])), before["seconds"] / after["seconds"]
    return Row(name, *cycles, faster, before["limit"], after["limit"])
