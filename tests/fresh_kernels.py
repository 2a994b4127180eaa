"""Sixteen kernels that the suite does not have and nothing was adjusted with (fresh_kernels.cu): how far each model is
from GPGPU-Sim on them (data/fresh_kernels.csv). `python tests/fresh_kernels.py GTX480_d RTX3070` prints it, the launch
latency taken off of both."""

from __future__ import annotations

import csv
import sys
from functools import cache
from pathlib import Path

import numpy as np

from abstim.gpu.config import load_gpu
from abstim.models import MODELS, run_many
from functional.launches.case import Case
from functional.launches.launch import Pointer, make_launch
from functional.launches.memory import Memory
from functional.programs.link import link
from functional.ptx.ir import Module
from functional.ptx.parser import parse

GPUS = {"GTX480_d": "gtx480", "RTX3070": "rtx3070", "TITANX": "titanx", "QV100": "qv100"}
# Registers a thread, from `ptxas -v` 13.0 for sm_75
REGISTERS = {
    "mcpi": 19, "rhist": 12, "floyd": 14, "sobel": 22, "ell": 62, "pcr": 20, "knn": 40, "lbm": 41, "rowdot": 51,
    "bilat": 52, "life": 22, "oddeven": 10, "match": 10, "gram": 50, "horner": 16, "gather": 14,
}  # fmt: skip


@cache
def _module() -> Module:
    return parse(Path(__file__).with_name("fresh_kernels.ptx"))


@cache
def cases() -> dict[str, Case]:
    """All of them; drawn in this order, since one generator makes their data."""
    draw = np.random.default_rng(11)

    def real(count: int) -> np.ndarray:
        return draw.random(count).astype(np.float32)

    def whole(count: int, stop: int = 1 << 32) -> np.ndarray:
        return draw.integers(0, stop, count).astype(np.uint32)

    def bits(count: int) -> np.ndarray:
        return draw.integers(0, 2, count).astype(np.uint8)

    def words(count: int) -> np.ndarray:
        return np.zeros(count, np.uint32)

    def floats(count: int) -> np.ndarray:
        return np.zeros(count, np.float32)

    given = {
        "mcpi": (60, 256, whole(60 * 256) | 1, words(60), 24),
        "rhist": (45, 128, whole(200000), words(64 * 45), 200000),
        "floyd": ((12, 12), (16, 16), real(192 * 192), 192, 5),
        "sobel": ((16, 32), (32, 8), real(512 * 256), floats(512 * 256), 512, 256),
        "ell": (64, 192, real(12000 * 14), whole(12000 * 14, 12000), real(12000), floats(12000), 12000, 14),
        "pcr": (70, 128, real(8960) * 0.3, real(8960) + 2, real(8960) * 0.3, real(8960), floats(8960)),
        "knn": (48, 64, real(3 * 3072), real(3 * 512), floats(3072), 3072, 512),
        "lbm": ((4, 96), 64, real(9 * 256 * 96) + 0.5, floats(9 * 256 * 96), 256, 96),
        "rowdot": (90, 128, real(90 * 1500), real(1500), floats(90), 1500),
        "bilat": ((14, 9), (16, 16), real(224 * 144), floats(224 * 144), 224, 144),
        "life": ((4, 256), 256, bits(1024 * 256), np.zeros(1024 * 256, np.uint8), 1024, 256),
        "oddeven": (40, 256, whole(40 * 512)),
        "match": (160, 160, bits(25700), bits(40), words(25700), 25600, 40),
        "gram": ((12, 3), (32, 8), real(96 * 160), floats(96 * 96), 96, 160),
        "horner": (52, 320, real(52 * 320), floats(52 * 320), 60),
        "gather": (40, 256, whole(60000, 65536), real(65536), floats(60000), 60000),
    }
    return {name: _case(name, *own) for name, own in given.items()}


def _case(kernel: str, grid: int | tuple, block: int | tuple, *arguments: np.ndarray | int) -> Case:
    memory, passed, dtypes = Memory(_module().variables), [], {}
    for number, argument in enumerate(arguments):
        if isinstance(argument, np.ndarray):
            argument = argument.astype(argument.dtype.newbyteorder("="), copy=False)
            memory.allocate(f"b{number}", argument.nbytes, argument)
            dtypes[f"b{number}"] = argument.dtype
            argument = Pointer(f"b{number}")
        passed.append(argument)
    launch = make_launch(link(_module(), kernel), grid, block, passed, memory)
    return Case(kernel, _module(), memory, (launch,), {}, dtypes, "fresh", REGISTERS)


def reference(variant: str) -> dict[str, int]:
    """Cycles of GPGPU-Sim 4.2 by kernel."""
    with (Path(__file__).parent / "data/fresh_kernels.csv").open(newline="", encoding="utf-8") as file:
        return {row["kernel"]: int(row["cycles"]) for row in csv.DictReader(file) if row["variant"] == variant}


def errors(variant: str, model: str) -> dict[str, float]:
    """By kernel, the launch latency, which hides errors, taken off."""
    gpu, found = load_gpu(GPUS[variant]), {}
    latency = gpu.params.launch_latency_cycles
    for kernel, cycles in reference(variant).items():
        (result,) = run_many(lambda kernel=kernel: cases()[kernel], [gpu], model=model)
        found[kernel] = (result.totals["cycles"] - latency) / (cycles - latency) - 1
    return found


if __name__ == "__main__":
    for variant in sys.argv[1:] or GPUS:
        for model in MODELS:
            found = errors(variant, model)
            mean = sum(map(abs, found.values())) / len(found)
            worst = max(found, key=lambda kernel: abs(found[kernel]))
            print(
                f"{variant} {model}: mean {mean:.2%} of {len(found)}, worst {found[worst]:+.1%} ({worst})", flush=True
            )
