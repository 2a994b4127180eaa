"""Sixty-one kernels that the suite does not have (fresh_, last_, later_ and held_kernels.cu): how far each model is
from GPGPU-Sim on them (data/fresh_kernels.csv). `python tests/fresh_kernels.py GTX480_d RTX3070` prints it, the
launch latency taken off of both."""

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
    "blurrow": 24, "blurcol": 53, "csrwarp": 29, "jaccard": 61, "cgdot": 12, "probe": 12, "gemvt": 52, "asian": 22,
    "gravity": 54, "edit": 21, "permute": 16, "fft64": 26, "trisolve": 24,
    "tpose3": 48, "conv1s": 49, "blockscan": 18, "digits": 12, "treewalk": 12, "box27": 52, "chol16": 25, "xorgen": 16,
    "softrow": 44, "kahan": 24, "lut": 13, "mergep": 13, "colsum": 42, "triad4": 16, "erode": 58, "tilemm": 68,
    "csrgraph": 48, "heat7": 42, "treesum": 14, "rowskip": 24, "votes": 12, "collatz": 10, "bigshared": 53, "chain": 17,
    "bitonic": 19, "median3": 28, "tnaive": 8, "mdforce": 30, "colfir": 30, "resample": 24, "kmstep": 60, "seidel": 12,
}  # fmt: skip


@cache
def _module(name: str) -> Module:
    return parse(Path(__file__).with_name(name))


class Draw:
    """Data of kernels, drawn one after the other."""

    def __init__(self, seed: int) -> None:
        self.generator = np.random.default_rng(seed)

    def real(self, count: int | tuple[int, ...]) -> np.ndarray:
        """Below 1."""
        return self.generator.random(count).astype(np.float32)

    def whole(self, count: int, stop: int = 1 << 32) -> np.ndarray:
        """Below `stop`."""
        return self.generator.integers(0, stop, count).astype(np.uint32)

    def small(self, count: int, stop: int = 2) -> np.ndarray:
        """The same in bytes."""
        return self.generator.integers(0, stop, count).astype(np.uint8)


def words(count: int) -> np.ndarray:
    """Zeros."""
    return np.zeros(count, np.uint32)


def floats(count: int) -> np.ndarray:
    """The same of reals."""
    return np.zeros(count, np.float32)


@cache
def cases() -> dict[str, Case]:
    """All of them; drawn in this order, since one generator makes their data."""
    draw = Draw(11)
    real, whole, bits = draw.real, draw.whole, draw.small
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
    found = {
        "fresh_kernels.ptx": given, "last_kernels.ptx": _looked_at_last(), "later_kernels.ptx": _looked_at_later(),
        "held_kernels.ptx": _held(),
    }  # fmt: skip
    return {name: _case(_module(file), name, *own) for file, kernels in found.items() for name, own in kernels.items()}


def _looked_at_last() -> dict[str, tuple]:
    """Those that nobody had seen when the models were last changed."""
    draw = Draw(77)
    real, whole, generator = draw.real, draw.whole, draw.generator
    lengths = np.minimum(1 + generator.geometric(0.03, 2400), 400)
    starts = np.concatenate([[0], np.cumsum(lengths)]).astype(np.uint32)
    table, keys = words(32768), np.unique(whole(20000) | 1)[:18000]
    generator.shuffle(keys)
    for key in keys.tolist():
        place = (key * 2654435761 & 0xFFFFFFFF) >> 16 & 32767
        while table[place]:
            place = (place + 1) & 32767
        table[place] = key
    asked = np.concatenate([keys[:12000], whole(6000) | 1])
    generator.shuffle(asked)
    entries = int(starts[-1])
    blurs = {
        "blurrow": ((12, 24), (32, 8), real(384 * 192), floats(384 * 192), 384, 192),
        "blurcol": ((12, 12), (32, 8), real(384 * 192), floats(384 * 192), 384, 192),
    }
    whole(72 * 512, 100)  # of a kernel that the reference does not run
    return blurs | {
        "csrwarp": (300, 256, starts, whole(entries, 2400), real(entries), real(2400), floats(2400), 2400),
        "jaccard": ((8, 8), (16, 16), whole(40 * 128), whole(40 * 128), floats(128 * 128), 40, 128),
        "cgdot": (48, 256, real(150000), real(150000), floats(1), 150000),
        "probe": (71, 256, asked, table, words(18000), 18000, 32767),
        "gemvt": (28, 96, real(2688 * 220), real(220), floats(2688), 220, 2688),
        "asian": (44, 192, whole(44 * 192) | 1, floats(44 * 192), 30),
        "gravity": (24, 96, real(2304), real(2304), real(2304), floats(2304), floats(2304), 576),
        "edit": (64, 128, draw.small(6400, 4), draw.small(6400, 4),
                 words(64), 100),
        "permute": (157, 256, generator.permutation(40000).astype(np.uint32), real(120000), floats(120000), 40000),
        "fft64": (600, 32, real(38400), real(38400), floats(38400), floats(38400)),
        "trisolve": (60, 160, real(160 * 160), real(60 * 160), floats(60 * 160), 160),
    }  # fmt: skip


def _looked_at_later() -> dict[str, tuple]:
    """Those that nobody had seen when the models were changed after that."""
    draw = Draw(4711)
    real, whole, small, generator = draw.real, draw.whole, draw.small, draw.generator
    keys, left, right = _search_tree(draw, 6000)
    matrices = np.zeros((96, 16, 16), np.float32)
    for matrix in matrices:  # positive definite
        matrix[:] = (drawn := real((16, 16))) @ drawn.T + 16 * np.eye(16, dtype=np.float32)
    return {
        "tpose3": ((6, 5, 8), (16, 8), real(80 * 8 * 96), words(80 * 8 * 96), 80, 8, 96),
        "conv1s": (120, 192, real(23040), real(33), words(23040), 23040),
        "blockscan": (96, 256, whole(96 * 256), words(96 * 256), words(96)),
        "digits": (56, 128, whole(80000), words(16 * 56), 80000, 12),
        "treewalk": (75, 160, keys, left, right, generator.choice(keys, 12000).astype(np.uint32), words(12000), 12000),
        "box27": ((4, 24), (32, 4), real(128 * 96 * 12), words(128 * 96 * 12), 128, 96, 12),
        "chol16": (96, (16, 16), matrices.reshape(-1)),
        "xorgen": (64, 224, whole(64 * 224) | 1, words(64 * 224), 40),
        "softrow": (64, 128, real(256 * 400), words(256 * 400), 400),
        "kahan": (42, 128, generator.random(60000), np.zeros(42 * 128), 60000),
        "lut": (48, 256, small(60000, 256), real(256), words(60000), 60000),
        "mergep": (40, 128, np.sort(whole(40960)), np.sort(whole(40960)), words(81920), 40960),
        "colsum": (36, 128, real(4608 * 48), words(4608), 4608, 48),
        "triad4": (90, 128, real(4 * 30000), real(4 * 30000), floats(4 * 30000), 1.5, 30000),
        "erode": ((5, 40), (64, 4), small(320 * 160, 256), np.zeros(320 * 160, np.uint8), 320, 160),
        "tilemm": ((5, 5), (32, 8), real(160 * 160), real(160 * 160), words(160 * 160), 160),
    }


def _held() -> dict[str, tuple]:
    """Those by which the detailed engine was judged after its collectors, banks and fetches had been changed."""
    draw = Draw(90210)
    real, whole, generator = draw.real, draw.whole, draw.generator
    starts = np.concatenate([[0], np.cumsum(np.minimum(1 + generator.geometric(0.12, 7000), 60))]).astype(np.uint32)
    near = np.clip(np.arange(9000)[None, :] + generator.integers(-150, 150, (24, 9000)), 0, 8999)
    return {
        "csrgraph": (55, 128, starts, whole(int(starts[-1]), 7000), real(7000), words(7000), 7000),
        "heat7": ((5, 20), (32, 8), real(160 * 160 * 14), words(160 * 160 * 14), 160, 160, 14),
        "treesum": (130, 256, real(130 * 512), words(130)),
        "rowskip": (40, 192, real(61440), words(40 * 192), 61440, 8, 14),
        "votes": (48, 256, whole(50000, 700) * whole(50000, 700) // 700, words(700), 50000),
        "collatz": (64, 192, whole(12000, 5000) + 1, words(12000), 12000),
        "bigshared": (34, 96, real(34 * 96 * 96) - np.float32(0.5), real(34 * 96), words(34 * 96), 10),
        "chain": (40, 64, real(40 * 64), words(40 * 64), 60),
        "bitonic": (75, 256, whole(75 * 256)),
        "median3": ((18, 14), (16, 16), real(288 * 224), words(288 * 224), 288, 224),
        "tnaive": ((10, 40), (32, 8), real(320 * 320), words(320 * 320), 320, 320),
        "mdforce": (71, 128, real(36000), near.astype(np.uint32).reshape(-1), words(36000), 9000, 24),
        "colfir": ((5, 100), (64, 2), real(320 * 200), words(320 * 200), 320, 200),
        "resample": ((10, 60), (32, 4), real(320 * 240), words(320 * 240), 320, 240, 0.94, 0.34),
        "kmstep": (47, 256, real(12000 * 6), real(48), words(12000), words(8), 12000, 8, 6),
        "seidel": (20, 128, real(20 * 1024), 1024, 6),
    }  # fmt: skip


def _search_tree(draw: Draw, size: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Keys, and each one's left and right child; -1: none."""
    keys = np.unique(draw.whole(2 * size))[:size]
    draw.generator.shuffle(keys)
    children = np.full((2, size), -1, np.int32).astype(np.uint32)
    none = children[0, 0]
    for new in range(1, size):
        at = 0
        while True:
            side = children[int(keys[new] >= keys[at])]
            if side[at] == none:
                side[at] = new
                break
            at = side[at]
    return keys, *children


def _case(
    module: Module, kernel: str, grid: int | tuple, block: int | tuple, *arguments: np.ndarray | int | float
) -> Case:
    memory, passed, dtypes = Memory(module.variables), [], {}
    for number, argument in enumerate(arguments):
        if isinstance(argument, np.ndarray):
            argument = argument.astype(argument.dtype.newbyteorder("="), copy=False)
            memory.allocate(f"b{number}", argument.nbytes, argument)
            dtypes[f"b{number}"] = argument.dtype
            argument = Pointer(f"b{number}")
        passed.append(argument)
    launch = make_launch(link(module, kernel), grid, block, passed, memory)
    return Case(kernel, module, memory, (launch,), {}, dtypes, "fresh", REGISTERS)


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
