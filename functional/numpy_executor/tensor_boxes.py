"""Which elements of a tensor a tensor copy takes, by mode: a box; pixels under the taps of a filter; four rows.

Source: PTX ISA, "Tiled mode", "im2col mode", "tile::gather4 and tile::scatter4 modes"; CUDA driver API,
`cuTensorMapEncodeIm2col`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from functional.errors import InputError
from functional.launches.views import TensorMap

if TYPE_CHECKING:
    from jaxtyping import Bool, Int64

ROWS = 4  # of a gather


class Elements(NamedTuple):
    """Bytes of each element behind the tensor's first, in the order in which they lie in shared memory, and whether it
    is inside the tensor."""

    at: Int64[np.ndarray, " element"]
    inside: Bool[np.ndarray, " element"]


def tile(tensor: TensorMap, first: Sequence[int], offsets: Sequence[int]) -> Elements:
    """A box that begins at the element `first`."""
    _check(tensor, first, len(tensor.size), tiled=True)
    along = [c + np.arange(n) * s for c, n, s in zip(first, tensor.counts, tensor.taken, strict=True)]
    return _product(tensor, along)


def four_rows(tensor: TensorMap, first: Sequence[int], offsets: Sequence[int]) -> Elements:
    """The same columns, from the first coordinate on, of the rows that the other four name."""
    if len(tensor.size) != 2 or tensor.counts[1] != 1:
        raise InputError(f"four rows are of a tensor of two axes and boxes of one row, not of boxes of {tensor.box}")
    _check(tensor, first, 1 + ROWS, tiled=True)
    return _product(tensor, [first[0] + np.arange(tensor.counts[0]), np.array(first[1:])])


def im2col(tensor: TensorMap, first: Sequence[int], offsets: Sequence[int]) -> Elements:
    """Channels, from the first coordinate on, of as many pixels as the map says. They begin at the other coordinates
    and go, by the map's steps, through its window of an image and on into the next image; `offsets` lead from each to
    the pixel that is taken."""
    _check(tensor, first, len(tensor.size), tiled=False)
    if len(offsets) not in (0, len(tensor.size) - 2):
        raise InputError(f"{len(offsets)} offsets for a tensor of {len(tensor.size)} axes")
    pixels = _pixels(tensor, first[1:])
    pixels[:, : len(offsets)] += np.array(offsets, np.int64)
    channels = first[0] + np.arange(tensor.box[0], dtype=np.int64)
    within = (pixels >= 0) & (pixels < np.array(tensor.size[1:]))
    inside: np.ndarray = np.logical_and.reduce(within, axis=1)
    at = pixels @ np.array(tensor.strides_bytes, np.int64)
    return Elements(
        (at[:, None] + channels * tensor.element_bytes).reshape(-1),
        (inside[:, None] & (channels >= 0) & (channels < tensor.size[0])).reshape(-1),
    )


MODES: dict[str, Callable[[TensorMap, Sequence[int], Sequence[int]], Elements]] = {
    "tile": tile, "im2col": im2col, "im2col_no_offs": im2col, "tile::gather4": four_rows, "tile::scatter4": four_rows,
}  # fmt: skip


def _check(tensor: TensorMap, first: Sequence[int], wanted: int, tiled: bool) -> None:
    if len(first) != wanted:
        raise InputError(f"{len(first)} coordinates for a tensor of {len(tensor.size)} axes")
    if tiled != (not tensor.pixels):
        raise InputError(f"the tensor map is for {'tiles' if not tensor.pixels else 'im2col'}, the copy is not")


def _product(tensor: TensorMap, along: Sequence[np.ndarray]) -> Elements:
    """All combinations of indices along the axes, the innermost first and fastest."""
    at, inside = np.zeros(1, np.int64), np.ones(1, bool)
    strides = (tensor.element_bytes, *tensor.strides_bytes)
    for axis in reversed(range(len(along))):
        there = (along[axis] >= 0) & (along[axis] < tensor.size[axis])
        at = (at[:, None] + along[axis].astype(np.int64) * strides[axis]).reshape(-1)
        inside = (inside[:, None] & there).reshape(-1)
    return Elements(at, inside)


def _pixels(tensor: TensorMap, first: Sequence[int]) -> Int64[np.ndarray, "pixel axis"]:
    """Places in the window, one behind the other: along the innermost axis, then the next; the last counts images."""
    spaces = range(len(tensor.lower))
    ends = [tensor.size[1 + axis] - 1 + tensor.upper[axis] for axis in spaces]
    place, found = list(first), []
    for _ in range(tensor.pixels):
        found.append(list(place))
        for axis in spaces:
            place[axis] += tensor.taken[1 + axis]
            if place[axis] <= ends[axis]:
                break
            place[axis] = tensor.lower[axis]
        else:
            place[-1] += 1
    return np.array(found, np.int64)
