"""What is fitted: measured cycles, and the kernels that predict them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from abstim.gpu.config import Gpu, config_dir, load_gpu, read_toml
from abstim.gradient.timed_kernel import TimedKernel, kernel_of
from abstim.progress import Progress, in_parallel, silent
from abstim.session.session import Session, open_session
from abstim.study.validate import Measured
from functional.errors import InputError

if TYPE_CHECKING:
    from jaxtyping import Float64, Int64


@dataclass(frozen=True)
class Observations:
    """Kernels, a benchmark on a variant each, and the cycles measured of each launch of theirs, one after the other.

    `entry`: which kernel a launch is of. A launch weighs 1 / sqrt(launches of its kernel), so that kernels weigh alike.
    """

    kernels: list[TimedKernel]
    measured: list[Measured]
    cycles: Float64[np.ndarray, " launch"]
    entry: Int64[np.ndarray, " launch"]

    @property
    def weights(self) -> Float64[np.ndarray, " launch"]:
        """Of each launch's error in log cycles."""
        return 1 / np.sqrt(np.bincount(self.entry)[self.entry])

    def engine_cycles(self, points: Sequence[np.ndarray]) -> Float64[np.ndarray, "point launch"]:
        """The engine's cycles at some parameter vectors."""
        count = len(self.kernels)

        def one(n: int) -> np.ndarray:
            return self.kernels[n % count].engine_cycles(points[n // count])

        found = in_parallel(one, count * len(points), os.cpu_count() or 1)
        return np.concatenate(found).reshape(len(points), -1)

    def with_gradients(
        self, values: np.ndarray, progress: Progress = silent, what: str = ""
    ) -> tuple[Float64[np.ndarray, " launch"], Float64[np.ndarray, "launch name"]]:
        """Cycles and their gradients at real parameter values."""

        def one(n: int) -> tuple[np.ndarray, np.ndarray]:
            return self.kernels[n].by_launch(values)

        threads = os.cpu_count() or 1
        found = in_parallel(one, len(self.kernels), threads, lambda done, total: progress(what, done, total))
        return np.concatenate([c for c, _ in found]), np.concatenate([g for _, g in found])

    def errors(self, cycles: Float64[np.ndarray, " launch"]) -> Float64[np.ndarray, " kernel"]:
        """Signed error of each kernel's cycles, summed over its launches, as a fraction of the measured ones."""
        return np.bincount(self.entry, cycles) / np.bincount(self.entry, self.cycles) - 1

    def part(self, entries: Sequence[int]) -> Observations:
        """Some of the kernels."""
        own = [int(e) for e in entries]
        return observations([self.kernels[e] for e in own], [self.measured[e] for e in own])


def observations(kernels: Sequence[TimedKernel], measured: Sequence[Measured]) -> Observations:
    """Kernels with what was measured of them; a kernel's launches are those measured, in the same order."""
    cycles = np.array([c for entry in measured for c in entry.cycles.values()], float)
    entry = np.repeat(np.arange(len(measured)), [len(entry.cycles) for entry in measured])
    return Observations(list(kernels), list(measured), cycles, entry)


def gpus_of(table: Sequence[Measured], gpu: str | None, overrides: Sequence[str]) -> tuple[str, dict[str, Gpu]]:
    """(name of the GPU that is fitted, GPU by variant): the variant's own, or `gpu` with the variant's overrides, if it
    is a known variant, and then `overrides`. Raises InputError if the variants are of several GPUs."""
    known = read_toml(config_dir() / "validation" / "variants.toml")
    variants = list(dict.fromkeys(entry.variant for entry in table))
    for variant in variants:
        if variant not in known and gpu is None:
            raise InputError(f"variant {variant!r} is not known; say which GPU it is with --gpu")
    names = {gpu or known[variant]["gpu"] for variant in variants}
    if len(names) != 1:
        raise InputError(f"the table's variants are of several GPUs ({', '.join(sorted(names))}); choose by --variant")
    name = names.pop()
    return name, {v: load_gpu(name, [*known.get(v, {"set": []})["set"], *overrides]) for v in variants}


def kernels_of(
    table: Sequence[Measured], names: Sequence[str], gpus: dict[str, Gpu], model: str, progress: Progress
) -> Observations:
    """Execute every benchmark of a table once, and make its kernels. Raises InputError for one that cannot run, or a
    model that has no derivatives."""
    make = kernel_of(model)
    sessions: dict[str, Session] = {}
    kernels: list[TimedKernel] = []
    for number, entry in enumerate(table):
        progress("execute", number, len(table))
        if entry.benchmark not in sessions:
            sessions[entry.benchmark] = open_session(entry.benchmark)
        kernels.append(make(sessions[entry.benchmark], names, gpus[entry.variant], list(entry.cycles)))
    return observations(kernels, table)


def split(table: Sequence[Measured], fraction: float, seed: int) -> tuple[list[int], list[int]]:
    """Positions to fit and positions held out; all variants of a benchmark are on the same side.

    Raises InputError for a fraction that leaves nothing to fit.
    """
    if not 0 < fraction <= 1:
        raise InputError(f"split {fraction:g}: the part to fit is above 0 and at most 1")
    benchmarks = sorted({entry.benchmark for entry in table})
    order = np.random.default_rng(seed).permutation(len(benchmarks))
    fitted = {benchmarks[k] for k in order[: max(1, round(fraction * len(benchmarks)))]}
    inside = [k for k, entry in enumerate(table) if entry.benchmark in fitted]
    return inside, [k for k in range(len(table)) if k not in set(inside)]
