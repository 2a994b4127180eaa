"""A launches.json with other values, keys or characters."""

from __future__ import annotations

import json
from copy import deepcopy
from pathlib import Path
from random import Random

from ptx_kernels import HEADER, REGISTERS

from functional.launches.launches_json import load_case
from fuzz_kinds.small_launch import BUDGET, LLVM

WEIRD = (
    None, True, False, 0, 1, -1, 1 << 31, 1 << 32, 1 << 63, 1 << 64, 10**30, 1.5, -0.0, 1e308, float("nan"), "", "x",
    "../x", "/etc/passwd", "/dev/zero", "a" * 400, "\x00", "\x1b[31m", "k.ptx", "d.bin", ".", "..", [], [1], [1, 2, 3],
    [[1]], {}, {"buf": "a"}, {"a": 1}, [0, 0, 0], [-1], [1 << 31, 1, 1], [1] * 10, "u32", "f64",
)  # fmt: skip
KEYS = [
    "ptx", "buffers", "launches", "kernel", "grid", "block", "args", "bytes", "init", "expect", "dtype", "rtol",
    "atol", "dynamic_smem", "label", "buf", "u32",
]  # fmt: skip
LAUNCHES = {
    "ptx": "k.ptx", "buffers": {"a": {"bytes": 256, "init": "d.bin", "expect": "d.bin", "dtype": "u32", "rtol": 0.1}},
    "launches": [
        {"kernel": "k", "grid": [1, 1], "block": 32, "args": [{"buf": "a"}], "dynamic_smem": 16, "label": "x"},
    ],
}  # fmt: skip
PTX = HEADER + f".entry k(.param .u64 a) {{ {REGISTERS} ld.param.u64 %rd0, [a]; st.global.u32 [%rd0], 1; ret; }}\n"


def _places(value: object, path: tuple = ()) -> list[tuple]:
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(place for key, one in inner for place in _places(one, (*path, key)))]


def make_launches(rng: Random) -> bytes:
    """A launches.json with other values, keys, or characters."""
    document = json.loads(json.dumps(LAUNCHES))
    for _ in range(rng.choice([1, 1, 2, 4])):
        *path, last = rng.choice([place for place in _places(document) if place] or [("ptx",)])
        holder = document
        for key in path:
            holder = holder[key]
        if rng.random() < 0.2:
            del holder[last]
        elif rng.random() < 0.3 and isinstance(holder, dict):
            holder[rng.choice(KEYS)] = deepcopy(rng.choice(WEIRD))
        else:
            holder[last] = deepcopy(rng.choice(WEIRD))
    text = json.dumps(document)
    if rng.random() < 0.1:
        at = rng.randrange(len(text))
        text = text[:at] + rng.choice(["", "[" * 3000, "9" * 5000, "\x00", '"']) + text[at + 1 :]
    return text.encode()


def judge_launches(data: bytes, folder: Path) -> str:
    """Read beside its PTX and data, and every launch run."""
    (folder / "k.ptx").write_text(PTX)
    (folder / "d.bin").write_bytes(bytes(256))
    (folder / "launches.json").write_bytes(data)
    case = load_case(folder / "launches.json")
    for launch in case.launches[:3]:
        if launch.thread_blocks < 1 << 10:
            LLVM.run(launch, case.memory, instruction_budget=BUDGET)
    return "runs"
