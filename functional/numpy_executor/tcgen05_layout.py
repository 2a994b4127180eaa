"""Where the matrices of a `tcgen05.mma` lie in the tensor memory of a thread block: a word of D holds one element, a
word of A as many as fit.

Row i lies in lane i. Of 64 rows 16 lie in each 32 lanes, unless the other lanes have other columns: of a pair's 128
rows, and of products with `.ws`. Source: PTX ISA, "Data Path Layout Organization"; `tmem_frg` and `tmem_frg_ws` of
CUTLASS.
"""

from __future__ import annotations

import numpy as np

from functional.numpy_executor.tcgen05_descriptor import Product
from functional.numpy_executor.tensor_memory import LANES

_GROUP, _PARTITION = 16, 32  # lanes
Places = tuple[np.ndarray, np.ndarray]  # lanes, columns: of the shape of the matrix


def places_of_d(product: Product, address: int) -> Places:
    """Of the rows of a thread block and of all columns. Raises ValueError."""
    row, column = np.arange(product.own_rows)[:, None], np.arange(product.columns)[None]
    per = product.columns // product.folds
    lanes = _lanes(product, address, row) + column // per * (LANES // product.folds)
    return tuple(np.broadcast_arrays(lanes, (address & 0xFFFF) + column % per))  # type: ignore[return-value]


def places_of_a(product: Product, address: int, words: int) -> list[Places]:
    """Of the rows of a thread block, each of so many words, once for each part of D's columns. Raises ValueError."""
    if product.stationary and product.folds > 1:
        raise ValueError(f"A of {product.rows} rows in tensor memory is not supported with .ws")
    lanes = _lanes(product, address, np.arange(product.own_rows)[:, None])
    columns = (address & 0xFFFF) + np.arange(words)[None]
    return [
        tuple(np.broadcast_arrays(lanes + part * (LANES // product.folds), columns))  # type: ignore[misc]
        for part in range(product.folds)
    ]


def _lanes(product: Product, address: int, row: np.ndarray) -> np.ndarray:
    """Of the first part of D's columns."""
    first, half = address >> 16, product.own_rows * product.folds < LANES
    if first not in ((0, _GROUP) if half else (0,)):
        raise ValueError(f"a matrix of {product.own_rows} rows does not begin in lane {first} of tensor memory")
    return first + (row // _GROUP * _PARTITION + row % _GROUP if half else row)
