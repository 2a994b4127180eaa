"""What `cp.reduce.async.bulk` does with each element that it copies: add, min, max, inc, dec, and, or, xor."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from functional.isa.operation import DTYPES, Unsupported
from functional.numpy_executor.atomics import Update, in_turn, update_of
from functional.numpy_executor.small_floats import from_bf16

if TYPE_CHECKING:
    from functional.numpy_executor.chunk_state import Bytes

OPERATIONS = frozenset({"add", "min", "max", "inc", "dec", "and", "or", "xor"})
_HALVES = ("f16", "bf16")


@dataclass(frozen=True)
class Reduction:
    """An operation on elements of a PTX type."""

    type: str
    update: Update

    def apply(self, into: Bytes, offsets: np.ndarray, data: np.ndarray) -> None:
        """Join bytes [copy, byte] with what lies at the offsets [copy] of a storage, one after the other."""
        dtype = DTYPES[self.type]
        values = data.view(dtype)
        at = (offsets // dtype.itemsize)[:, None] + np.arange(values.shape[1])
        in_turn(into.words[dtype.itemsize].view(dtype), at.reshape(-1), [values.reshape(-1)], self.update)


def reduction_of(modifiers: Sequence[str]) -> Reduction:
    """`add.noftz.f16`, `min.u64`, `or.b32`, ... Raises Unsupported."""
    name, *rest = modifiers
    type_ = rest[-1] if rest else ""
    if rest[:-1] != (["noftz"] if name == "add" and type_ in _HALVES else []):
        raise Unsupported
    return reduction(name, type_)


def reduction(name: str, type_: str) -> Reduction:
    """Raises Unsupported if elements of the type have no such operation."""
    if name in ("min", "max") and type_ in _HALVES:
        return Reduction(type_, _least if name == "min" else _most)
    if name not in OPERATIONS or type_ not in DTYPES:
        raise Unsupported
    return Reduction(type_, update_of(name, type_))


def _least(old: np.ndarray, value: np.ndarray) -> np.ndarray:
    return _chosen(old, value, np.fmin)


def _most(old: np.ndarray, value: np.ndarray) -> np.ndarray:
    return _chosen(old, value, np.fmax)


def _chosen(old: np.ndarray, value: np.ndarray, choose: np.ufunc) -> np.ndarray:
    """Of halves; those of bfloat16 come as bits."""
    if old.dtype.kind == "f":
        return choose(old, value)
    first, second = from_bf16(old), from_bf16(value)
    return np.where(choose(first, second) == first, old, value)
