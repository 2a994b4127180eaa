"""How the suite's benchmarks are described: buffers with their initial and expected contents, and launches.

Every benchmark is one function that makes its inputs from a fixed seed, states the launch list (loops that a host
would decide, such as "until no node changed", are unrolled) and computes the expected outputs with numpy,
independently of the kernel.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Concatenate, ParamSpec

import numpy as np

from functional.errors import InputError
from functional.launches.launch import Pointer, Scalar

f16, f32, f64 = np.float16, np.float32, np.float64
u8, i32, u32 = np.uint8, np.int32, np.uint32
Sizes = ParamSpec("Sizes")
BENCHMARKS: dict[str, tuple[str, Callable[..., Recipe]]] = {}  # name -> (group, function)


def bench(
    group: str, independent: bool = False
) -> Callable[[Callable[Concatenate[Recipe, Sizes], None]], Callable[Sizes, Recipe]]:
    """Register what fills in a recipe under its own name; its other arguments have the suite's sizes as defaults."""

    def register(fill: Callable[Concatenate[Recipe, Sizes], None]) -> Callable[Sizes, Recipe]:
        def made(*sizes: Sizes.args, **more: Sizes.kwargs) -> Recipe:
            recipe = Recipe(independent)
            fill(recipe, *sizes, **more)
            return recipe

        BENCHMARKS[fill.__name__] = (group, made)
        return made

    return register


def rng(seed: int) -> np.random.Generator:
    return np.random.default_rng(seed)


def blocks(n: int, size: int) -> int:
    """Thread blocks of `size` that cover `n`."""
    return (n + size - 1) // size


def uniform(r: np.random.Generator, lo: float, hi: float, *shape: int) -> np.ndarray:
    return r.uniform(lo, hi, shape).astype(f32)


@dataclass
class Buffer:
    name: str
    bytes: int
    dtype: np.dtype
    init: np.ndarray | None = None  # None: zeros
    expect: np.ndarray | None = None  # None: not compared
    rtol: float = 0.0
    atol: float = 0.0


@dataclass(frozen=True)
class RecipeLaunch:
    kernel: str
    grid: tuple[int, ...]
    block: tuple[int, ...]
    args: tuple[Pointer | Scalar, ...]
    dynamic_shared_bytes: int
    label: str


@dataclass
class Recipe:
    """One benchmark. `independent`: launches share no written buffer, so that each can run on its own."""

    independent: bool = False
    buffers: dict[str, Buffer] = field(default_factory=dict)
    launches: list[RecipeLaunch] = field(default_factory=list)

    def input(self, name: str, array: np.ndarray) -> Pointer:
        """A buffer with given initial contents (call expect() too if it is also written)."""
        array = np.ascontiguousarray(array)
        return self._add(Buffer(name, array.nbytes, array.dtype, array))

    def inputs(self, **arrays: np.ndarray) -> list[Pointer]:
        """Such a buffer each."""
        return [self.input(name, array) for name, array in arrays.items()]

    def output(self, name: str, array: np.ndarray, rtol: float = 0.0, atol: float = 0.0) -> Pointer:
        """A zero-initialised buffer with these expected contents."""
        array = np.asarray(array)
        ref = self._add(Buffer(name, array.nbytes, array.dtype))
        self.expect(ref, array, rtol, atol)
        return ref

    def expect(self, ref: Pointer, array: np.ndarray, rtol: float = 0.0, atol: float = 0.0) -> None:
        """What a buffer holds after the last launch: |got - array| <= atol + rtol * |array|."""
        buffer = self.buffers[ref.buffer]
        buffer.expect, buffer.rtol, buffer.atol = np.ascontiguousarray(array, buffer.dtype), rtol, atol

    def launch(
        self, kernel: str, grid: int | tuple[int, ...], block: int | tuple[int, ...], *args: object,
        dynamic_smem: int = 0, label: str = "",
    ) -> None:  # fmt: skip
        """Append a launch; arguments are pointers and scalars in the order of the kernel's parameters."""
        arguments = tuple(a if isinstance(a, Pointer) else _scalar(a) for a in args)
        self.launches.append(RecipeLaunch(kernel, _extents(grid), _extents(block), arguments, dynamic_smem, label))

    def only(self, name: str, label: str) -> Recipe:
        """The recipe reduced to the launch with this label. Raises InputError if there is none."""
        if not self.independent:
            raise InputError(f"{name}: its launches depend on each other; run the whole benchmark")
        launches = [launch for launch in self.launches if launch.label == label]
        if not launches:
            raise InputError(f"{name}: no launch '{label}'; it has {', '.join(x.label for x in self.launches)}")
        used = {a.buffer for launch in launches for a in launch.args if isinstance(a, Pointer)}
        return Recipe(True, {n: b for n, b in self.buffers.items() if n in used}, launches)

    def _add(self, buffer: Buffer) -> Pointer:
        assert buffer.name not in self.buffers, buffer.name
        self.buffers[buffer.name] = buffer
        return Pointer(buffer.name)


def _scalar(value: object) -> Scalar:
    """A typed argument: numpy scalars keep their type, Python integers are i32, Python floats f32."""
    if isinstance(value, np.generic):
        return Scalar(f"{value.dtype.kind}{8 * value.dtype.itemsize}", value.item())
    if isinstance(value, int):
        return Scalar("i32", value)
    assert isinstance(value, float), value
    return Scalar("f32", float(f32(value)))


def _extents(value: int | tuple[int, ...]) -> tuple[int, ...]:
    return tuple(int(v) for v in value) if isinstance(value, tuple) else (int(value),)
