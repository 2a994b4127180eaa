"""Matrices: products, whole matrices in memory (bounds and records), and searches across the lanes of a warp."""

from __future__ import annotations

from typing import Any

from functional.isa.matrices import NAN_BITS
from functional.isa.memory import WINDOWS
from functional.jit.native import I8, I16, I32, I64, LANES_OF, Double, Flags, Lanes32, Pointer, Type, op, routine
from functional.launches.memory import GLOBAL_BASE
from functional.llvm_executor.context_layout import Context
from functional.llvm_executor.runtime_memory import SPACES, fault, log_passes
from functional.llvm_executor.runtime_records import conflict
from functional.llvm_executor.undo import keep_range
from functional.traces.line_record import LINE_SHIFT, MORE, SECTOR_SHIFT

Eight: Any = Type("double", 8)
Floats: Any = Type("float", 32)
Doubles: Any = Type("double", 32)
_BLOCK_ROWS = 16


@routine
def multiply_blocks(a: Pointer, b: Pointer, c: Pointer, width: I64, groups: I64) -> None:
    """C = A B of float64, the sum over k in ascending order. `width`: elements of a block's row (k), `groups`: blocks
    along k. A: blocks {group, half}, 8 rows each; B: blocks {group} of 8 columns each; C: 16 rows of 8."""
    column = op.room(Eight)
    op.zero(c, 8 * 8 * _BLOCK_ROWS)
    for _ in range(groups):
        for k in range(width):
            for n in range(8):
                column[Double, n] = b[Double, n * width + k]
            right = column[Eight, 0]
            for m in range(_BLOCK_ROWS):
                c[Eight, m] = c[Eight, m] + Eight(a[Double, m * width + k]) * right
        a, b = a + width * 128, b + width * 64


@routine
def multiply_rows(a: Pointer, b: Pointer, c: Pointer, m: I64, n: I64, k: I64) -> None:
    """C = A B of row-major float64 matrices, the sum over k in ascending order; n is a multiple of 8."""
    for row in range(m):
        left, to = a + row * k * 8, c + row * n * 8
        for part in range(n // 8):
            total = Eight(0)
            for depth in range(k):
                total += Eight(left[Double, depth]) * (b + depth * n * 8)[Eight, part]
            to[Eight, part] = total


@routine
def multiply_fused(a: Pointer, b: Pointer, c: Pointer, count: I64, m: I64, n: I64, k: I64) -> I32:
    """C += A B of `count` row-major float64 matrices, each element a chain of fused multiply-adds."""
    for row in range(count * m):
        right = b + (row // m) * k * n * 8
        for column in range(n):
            total = c[Double, row * n + column]
            for depth in range(k):
                total = op.fma(a[Double, row * k + depth], right[Double, depth * n + column], total)
            c[Double, row * n + column] = total
    return 0


@routine
def accumulate(
    a: Pointer, b: Pointer, of: Pointer, room: Pointer, frames: Pointer, adds: Pointer, before: Pointer, after: Pointer,
    count: I64, n: I64, k: I64,
) -> I32:  # fmt: skip
    """D = A B + C, rounded to float32, of 16 rows for each of `count` warps: A and B float64, that one of B whose
    number is in `of`; C where `adds` is not 0. C and D lie in registers `before` and `after` bytes behind `frames`, of
    each warp (isa.matrices.c_layout). `room`: for a product, and for what a lane holds of it."""
    lanes = room + n * 128
    for number in range(count):
        multiply_rows(a + number * (k * 128), b + of[I64, number] * (k * n * 8), room, 16, n, k)
        for i in range(n // 2):
            source = room + ((i >> 1 & 1) * n * 8 + (i >> 2) * 8 + (i & 1)) * 8
            for g in range(8):
                for pair in range(4):
                    lanes[Double, g * 4 + pair] = source[Double, g * n + pair * 2]
            total, frame = lanes[Doubles, 0], frames[Pointer, number]
            if adds[I64, number] != 0:
                total += Doubles((frame + before[I64, i])[Floats, 0])
            else:
                total += 0
            bits = Lanes32(Floats(total))
            (frame + after[I64, i])[Lanes32, 0] = op.where(bits & 0x7FFFFFFF > 0x7F800000, NAN_BITS, bits)
    return 0


@routine
def log_matrix(ctx: Context, base: I64, stride: I64, lines: I64, length: I64) -> None:
    """Ascending sectors become records."""
    to, line, sectors = ctx.records, base >> 7, I64(0)
    for number in range(lines):
        start = base + number * stride
        sector, last = start >> 5, start + length - 1 >> 5
        while sector <= last:
            if sector >> 2 != line:
                to[I32, 0] = I32(line << LINE_SHIFT | sectors << SECTOR_SHIFT | MORE)
                to += 4
                line, sectors = sector >> 2, I64(0)
            sectors |= I64(1) << (sector & 3)
            sector += 1
    to[I32, 0] = I32(line << LINE_SHIFT | sectors << SECTOR_SHIFT)
    ctx.records = to + 4


Counts: Any = LANES_OF[16]  # of each bank


@routine
def count_matrix(ctx: Context, base: I64, stride: I64, lines: I64, length: I64) -> None:
    """Bank passes: the most words on one bank."""
    counts, most = op.room(Counts), I16(0)
    counts[Counts, 0] = 0
    for number in range(lines):
        first = base + number * stride >> 2
        for word in range(length >> 2):
            bank = first + word & 31
            counts[I16, bank] = counts[I16, bank] + 1
            most = op.umax(most, counts[I16, bank])
    conflict(ctx, I8(most))


def _matrix(space: str) -> Any:
    """Log `lines` lines of `length` bytes, `stride` apart; yields the host address of the first. Odd ones fault."""
    own, log = SPACES[space], count_matrix if space == "shared" else log_matrix
    host, within = own.base, own.within

    @routine(f"matrix_{space}")
    def matrix(ctx: Context, base: I64, stride: I64, lines: I64, length: I64) -> I64:
        if ((base | stride) & 3 != 0) | (stride < length):
            return fault(ctx)
        for number in range(lines):
            start = base + number * stride
            if not within(ctx, start, start + length):
                return fault(ctx)
            if space == "stored":
                keep_range(ctx, start, start + length)
        log(ctx, base, stride, lines, length)
        return ctx[host] + base

    return matrix


def _generic(space: str, matrix: Any, of_shared: Any) -> None:
    """A generic address: of global memory (`space`), or of shared memory, where every pass is a record."""
    window = WINDOWS["shared"][0]

    @routine(f"matrix_generic_{space}")
    def matrix_generic(ctx: Context, base: I64, stride: I64, lines: I64, length: I64) -> I64:
        if base >= GLOBAL_BASE:
            return matrix(ctx, base, stride, lines, length)
        at = ctx.conflicts
        near = of_shared(ctx, base - window, stride, lines, length)
        if ctx.fault == 0:
            ctx.conflicts = at
            log_passes(ctx, at[I8, 0])
        return near


_SHARED = _matrix("shared")
for _space in ("global", "stored"):
    _generic(_space, _matrix(_space), _SHARED)


def _match(bits: int) -> None:
    Word: Any = LANES_OF[bits]
    One = Type(f"i{bits}")

    @routine(f"match_{bits}")
    def match(value: Word, members: I32) -> Lanes32:
        """Of every lane in `members`, which members hold the same word."""
        array, found, rest = op.room(Word), Lanes32(0), members
        array[Word, 0] = value
        while rest != 0:
            here = I32(value == array[One, op.cttz(rest)]) & members
            found, rest = op.where(Flags(here), here, found), rest & ~here
        return found


def _redux(name: str) -> None:
    reduced = getattr(op, f"reduce_{name}")

    @routine(f"redux_{name}")
    def redux(value: Lanes32, members: Lanes32, active: I32, neutral: I32) -> Lanes32:
        """In every lane of `active`, the reduction over its own `members`: once for all lanes that have the same."""
        found, rest = Lanes32(0), active
        while rest != 0:
            own = members[op.cttz(rest)]
            total = reduced(op.where(Flags(own), value, neutral))
            same = members == own
            found, rest = op.where(same, total, found), rest & ~I32(same)
        return found


for _bits in (32, 64):
    _match(_bits)
for _name in ("add", "and", "or", "xor", "smin", "smax", "umin", "umax"):
    _redux(_name)


def _math(name: str) -> None:
    Doubles: Any = Type("double", 32)

    @routine(f"math_{name}")
    def function(x: Doubles) -> Doubles:
        """The C library's float64 function on every lane."""
        array = op.room(Doubles)
        array[Doubles, 0] = x
        for lane in range(32):
            array[Double, lane] = op.library(name, array[Double, lane])
        return array[Doubles, 0]


for _name in ("sin", "cos", "log2", "exp2", "tanh"):
    _math(_name)
