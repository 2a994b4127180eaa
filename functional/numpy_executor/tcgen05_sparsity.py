"""Sparse products of `tcgen05`: which elements of A are stored, as metadata in tensor memory say.

A nibble says it of a group of A's columns: of 4 (2 of tf32, 8 of packed 4-bit elements). Of 16 and 32-bit elements a
word holds four groups of one row in its lower and of the row eight below in its upper half, the next four groups lie
eight lanes further; of narrower ones two words in neighbouring columns hold those of the row of their lane. Source: PTX
ISA, "Sparse Matrices"; `tmem_e_frg`, `tmem_e_frg_ws` and the traits of sparse products of CUTLASS.
"""

from __future__ import annotations

import numpy as np

from functional.numpy_executor.sparse_mma import positions
from functional.numpy_executor.tcgen05_descriptor import Product
from functional.numpy_executor.tensor_memory import LANES, View

_HALF, _NIBBLES = 8, np.arange(8)  # of a word
_MEANT = (0b0100, 0b1000, 0b1100, 0b1001, 0b1101, 0b0110, 0b1110)
_MEANT_OF_PAIRS = (0b0100, 0b1110)  # of two columns


def stored_columns(view: View, product: Product, address: int, stored: np.ndarray) -> np.ndarray:
    """Columns [row, stored element] of A that are stored, of the rows of a thread block; `stored`: the elements. Raises
    ValueError."""
    if address >> 16:
        raise ValueError(f"metadata do not begin in lane {address >> 16} of tensor memory")
    lanes, columns, number = _places(product, (address & 0xFFFF) + (product.selector or 0))
    copies = [view.read(lanes + LANES // product.folds * n, columns) for n in range(product.folds)]
    if any((copy != copies[0]).any() for copy in copies):
        raise ValueError("metadata are not the same in all lanes that need them")
    found, per = copies[0] >> (4 * number).astype(np.uint32) & np.uint32(15), product.depth // lanes.shape[1]
    _check(found, stored, _MEANT_OF_PAIRS if per == 2 else _MEANT)
    return positions(found[None].astype(np.int64), per)[0]


def _places(product: Product, column: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Lanes, columns and numbers in their words of the nibbles [row, group]."""
    row = np.arange(product.own_rows)[:, None]
    if product.element_bytes == 1:
        group = np.arange(2 * _HALF)[None]
        return tuple(np.broadcast_arrays(row, column + group // _HALF, group % _HALF))  # type: ignore[return-value]
    lanes = row // 16 * 16 + row % _HALF + _HALF * (_NIBBLES // 4)[None]
    number = row // _HALF % 2 * 4 + _NIBBLES[None] % 4
    return tuple(np.broadcast_arrays(lanes, np.int64(column), number))  # type: ignore[return-value]


def _check(nibbles: np.ndarray, stored: np.ndarray, meant: tuple[int, ...]) -> None:
    """Where a group has no element but zeros, its nibble says nothing: CUTLASS writes 0b0000 there."""
    wrong = ~np.isin(nibbles, meant) & stored.reshape(*nibbles.shape, -1).any(axis=2)
    if wrong.any():
        row = int(wrong.any(axis=1).argmax())
        raise ValueError(f"metadata {int(nibbles[row][wrong[row]][0]):#06b} of row {row} of A have no meaning")
