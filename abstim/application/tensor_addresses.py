"""Addresses that lie in a tensor, which kernels follow to other tensors: products of groups are written so.

They are the host's. Who launches finds the tensors that they lead to, and puts device addresses in their place.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from jaxtyping import Int64, UInt64

_LOWEST = 1 << 32  # numbers below are no addresses of the host


def tensors_behind(words: Iterable[UInt64[np.ndarray, " word"]]) -> list[Any]:
    """Tensors of torch, on the CPU, that begin at one of the numbers or hold it."""
    named = [w[w >= _LOWEST] for w in words]
    wanted = np.unique(np.concatenate([np.zeros(0, np.uint64), *named]))
    torch = sys.modules.get("torch")
    if torch is None or not wanted.size:
        return []
    return [tensor for tensor in gc.get_objects() if issubclass(type(tensor), torch.Tensor) and _holds(tensor, wanted)]


def _holds(tensor: Any, wanted: UInt64[np.ndarray, " word"]) -> bool:
    if tensor.device.type != "cpu" or tensor.layout is not sys.modules["torch"].strided:
        return False
    storage = tensor.untyped_storage()
    first = np.searchsorted(wanted, storage.data_ptr())
    return bool(first < len(wanted) and wanted[first] < storage.data_ptr() + storage.nbytes())


@dataclass(frozen=True)
class Translated:
    """Words on the device of which some, at `places`, were `host` addresses and are addresses there."""

    words: UInt64[np.ndarray, " word"]
    places: Int64[np.ndarray, " place"]
    host: UInt64[np.ndarray, " place"]
    device: UInt64[np.ndarray, " place"]

    def undo(self) -> None:
        """Those that the kernel has not changed are what they were."""
        same = self.words[self.places] == self.device
        self.words[self.places[same]] = self.host[same]


def translate(words: UInt64[np.ndarray, " word"], start: int, size_bytes: int, device: int) -> Translated:
    """Numbers that lie in `size_bytes` from host address `start` become addresses from `device` on."""
    places = np.flatnonzero((words >= start) & (words < start + size_bytes))
    host = words[places].copy()
    words[places] = host - np.uint64(start) + np.uint64(device)
    return Translated(words, places, host, words[places].copy())
