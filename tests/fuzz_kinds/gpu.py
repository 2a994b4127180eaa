"""Descriptions of GPUs: keys set, most of them to values that are allowed."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from random import Random

from abstim.gpu.config import load_gpu
from abstim.gpu.spec import SECTIONS
from abstim.models import run
from fuzz_kinds.small_launch import NUMBERS, small_launch


def make_gpu(rng: Random) -> bytes:
    """A TOML file with some keys set, most of them to values that are allowed."""
    lines = [f'base = "{rng.choice(["gtx480", "gtx480", "rtx3070", "h100", "titanx", "x"])}"']
    sections: dict[str, dict[str, str]] = {}
    for _ in range(rng.choice([1, 2, 4, 8])):
        section = rng.choice(list(SECTIONS))
        key = rng.choice(list(SECTIONS[section]))
        sections.setdefault(section, {})[key] = _toml(SECTIONS[section][key], rng)
    if rng.random() < 0.05:
        lines.append(rng.choice(["sources = 5", "title = 5", "[x]", "x = 1", "[[spec]]", "spec = 3", "a" * 300]))
    for section, values in sections.items():
        lines += [f"[{section}]", *(f"{key} = {value}" for key, value in values.items())]
    return "\n".join(lines).encode()


def _toml(domain: object, rng: Random) -> str:
    small = [0, 1, 2, 4, 8, 16, 32, 48, 64, 128, 256, 1024, True, False, 0.5, "gto", "lrr", "oldest", "two_level",
             "hash", "sp", "sfu", "int", "ipoly", "linear", "evict", "through", "sector", ""]  # fmt: skip
    if rng.random() < 0.1:
        return rng.choice([*NUMBERS, '"x"', "[1]", "{}", "9" * 5000, "true", '"\\u001b"'])
    right = [v for v in small if isinstance(v, domain.type) and (domain.type is bool or not isinstance(v, bool))]  # type: ignore[attr-defined]
    return json.dumps(rng.choice([v for v in right if domain.accepts(v)] or [1]))  # type: ignore[attr-defined]


def judge_gpu(data: bytes, folder: Path) -> str:
    """Loaded, and a small launch timed on it, twice alike."""
    (folder / "g.toml").write_bytes(data)
    gpu = load_gpu(str(folder / "g.toml"))
    case, _, trace = small_launch()
    case = replace(case, traces=(trace,), resources={"k": 16})
    cycles = {run(case, gpu).totals["cycles"] for _ in range(2)}
    assert len(cycles) == 1, cycles
    return "runs"
