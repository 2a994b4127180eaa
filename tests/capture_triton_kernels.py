"""Kernels in Triton's language, which reads the source of functions: they need a file."""

import triton
import triton.language as tl


@triton.jit
def add(x, y, out, n, SIZE: tl.constexpr):
    at = tl.program_id(0) * SIZE + tl.arange(0, SIZE)
    mask = at < n
    tl.store(out + at, tl.load(x + at, mask=mask) + tl.load(y + at, mask=mask), mask=mask)


@triton.autotune([triton.Config({}, num_warps=warps) for warps in (1, 4)], key=[])
@triton.jit
def matmul(a, b, c, SIZE: tl.constexpr):
    rows, columns = tl.arange(0, SIZE)[:, None], tl.arange(0, SIZE)[None, :]
    product = tl.dot(tl.load(a + rows * SIZE + columns), tl.load(b + rows * SIZE + columns))
    tl.store(c + rows * SIZE + columns, product)


@triton.jit
def transposed(source, to, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    row, column = tl.program_id(0) * ROWS, tl.program_id(1) * COLUMNS
    to.store([column, row], source.load([row, column]).T)
