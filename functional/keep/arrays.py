"""Named arrays as bytes and back: of many small ones what costs is the way to each, not their elements."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
import numpy as np

_Coded = dict[str, tuple[str, tuple[int, ...], bytes]]


def encode_arrays(arrays: Mapping[str, np.ndarray]) -> bytes:
    """Their types, shapes and elements. No array holds objects."""
    return msgspec.msgpack.encode({name: (a.dtype.str, a.shape, a.tobytes()) for name, a in arrays.items()})


def decode_arrays(content: bytes) -> dict[str, np.ndarray]:
    """What `encode_arrays` gave. Raises ValueError for anything else."""
    try:
        coded = msgspec.msgpack.decode(content, type=_Coded)
        return {name: np.ndarray(shape, _plain(kind), data).copy() for name, (kind, shape, data) in coded.items()}
    except (msgspec.MsgspecError, TypeError) as error:
        raise ValueError(f"no arrays: {error}") from error


def _plain(kind: str) -> np.dtype:
    found = np.dtype(kind)
    if found.hasobject:
        raise ValueError("an array of objects")
    return found
