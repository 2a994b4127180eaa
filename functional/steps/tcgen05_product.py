"""`tcgen05.mma`: one thread makes a product, D in tensor memory, A there or in shared memory, B in shared memory. Done
when it is issued, which is a legal execution: `tcgen05.commit` says when others may rely on it.

Of a pair of thread blocks the one of even rank has the upper half of the rows of A and D and the left half of the
columns of B, each where the same address says in its own memory. Source: PTX ISA, "tcgen05.mma"; `MMA_Traits` of
CUTLASS.

A word of D in tensor memory holds one element, a word of A as many as fit. Row i lies in lane i. Of 64 rows 16 lie in
each 32 lanes, unless the other lanes have other columns: of a pair's 128 rows, and of products with `.ws`. Scale
factors are a byte each, 32 rows of a matrix in a column: factor k of row r lies in lane r % 32, column r / 32, in the
k-th byte from the one that the instruction descriptor says; each of the four quarters of the lanes holds the same. A
nibble of the metadata of a sparse A says which elements are stored of a group of its columns: of 4 (2 of tf32, 8 of
packed 4-bit elements). Of 16 and 32-bit elements a word holds four groups of one row in its lower and of the row eight
below in its upper half, the next four groups lie eight lanes further; of narrower ones two words in neighbouring
columns hold those of the row of their lane. Sources: PTX ISA, "Data Path Layout Organization", "Block Scaling for
tcgen05.mma", "Scale Factor A ID", "Sparse Matrices"; `tmem_frg`, `tmem_sf_frg`, `tmem_e_frg` and their `_ws` kinds of
CUTLASS."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from functional.errors import refuse
from functional.isa.matrices import SUB_BYTE, Element, unpack_pairs, unpack_units, values
from functional.isa.slots import Slots
from functional.isa.tcgen05_form import TENSOR_LANES, Form, Product, Scaling, form_of, product_of
from functional.ptx.ir import Address, Instruction
from functional.steps import tcgen05
from functional.steps.machine import Frame, Getter, Step, getter
from functional.steps.memory_ops import address_getter
from functional.steps.mma import decode, multiply, multiply_sparse, positions
from functional.steps.wgmma import addresses_of, of_blackwell

_GROUP, _PARTITION = 16, 32  # lanes
Places = tuple[np.ndarray, np.ndarray]  # lanes, columns: of the shape of the matrix


def places_of_d(product: Product, address: int) -> Places:
    """Of the rows of a thread block and of all columns. Raises ValueError."""
    row, column = np.arange(product.own_rows)[:, None], np.arange(product.columns)[None]
    per = product.columns // product.folds
    lanes = _lanes(product, address, row) + column // per * (TENSOR_LANES // product.folds)
    return tuple(np.broadcast_arrays(lanes, (address & 0xFFFF) + column % per))  # type: ignore[return-value]


def places_of_a(product: Product, address: int, words: int) -> list[Places]:
    """Of the rows of a thread block, each of so many words, once for each part of D's columns. Raises ValueError."""
    if product.stationary and product.folds > 1:
        raise ValueError(f"A of {product.rows} rows in tensor memory is not supported with .ws")
    lanes = _lanes(product, address, np.arange(product.own_rows)[:, None])
    columns = (address & 0xFFFF) + np.arange(words)[None]
    return [
        tuple(np.broadcast_arrays(lanes + part * (TENSOR_LANES // product.folds), columns))  # type: ignore[misc]
        for part in range(product.folds)
    ]


def _lanes(product: Product, address: int, row: np.ndarray) -> np.ndarray:
    """Of the first part of D's columns."""
    first, half = address >> 16, product.own_rows * product.folds < TENSOR_LANES
    if first not in ((0, _GROUP) if half else (0,)):
        raise ValueError(f"a matrix of {product.own_rows} rows does not begin in lane {first} of tensor memory")
    return first + (row // _GROUP * _PARTITION + row % _GROUP if half else row)


_QUARTER = 32  # lanes
_ID_SHIFT = 30  # of an address: two bits that may repeat the byte that the descriptor says
_BIAS, _NAN, _SIGN = 127, 0xFF, 0x80


def scale_factors(view: tcgen05.View, address: int, extent: int, scaling: Scaling, side: int) -> np.ndarray:
    """Factors [extent, factor] of A (`side` 0) or B (1). Raises ValueError for what cannot be had."""
    first = scaling.bytes[side]
    if address >> _ID_SHIFT not in (0, first):
        raise ValueError(f"an address of scale factors says byte {address >> _ID_SHIFT}, its descriptor byte {first}")
    address &= (1 << _ID_SHIFT) - 1
    refuse(address >> 16, f"scale factors do not begin in lane {address >> 16} of tensor memory", ValueError)
    row = np.arange(extent)
    lanes = row % _QUARTER + np.arange(0, TENSOR_LANES, _QUARTER)[:, None]
    words = view.read(lanes, address + row // _QUARTER + np.zeros_like(lanes))
    codes = np.stack([words >> np.uint32(8 * (first + k)) & np.uint32(0xFF) for k in range(scaling.factors)], axis=2)
    if (codes != codes[0]).any():
        raise ValueError("scale factors are not the same in all four quarters of the lanes of tensor memory")
    return decoded_scales(codes[0].astype(np.uint8), scaling.kind)


def decoded_scales(codes: np.ndarray, kind: str) -> np.ndarray:
    """Bytes as float64 of the same shape: powers of two (`ue8m0`), or `e4m3` without a sign. ValueError for one."""
    if kind == "ue8m0":
        return np.where(codes == _NAN, np.nan, np.ldexp(1.0, codes.astype(np.int32) - _BIAS))
    refuse((codes & _SIGN).any(), "a scale factor of type ue4m3 has its highest bit set", ValueError)
    return values("e4m3")[codes]


_HALF, _NIBBLES = 8, np.arange(8)  # of a word
_MEANT = (0b0100, 0b1000, 0b1100, 0b1001, 0b1101, 0b0110, 0b1110)
_MEANT_OF_PAIRS = (0b0100, 0b1110)  # of two columns


def stored_columns(view: tcgen05.View, product: Product, address: int, stored: np.ndarray) -> np.ndarray:
    """Columns [row, stored element] of A, of a block's rows, that the elements `stored` stand in. Raises ValueError."""
    refuse(address >> 16, f"metadata do not begin in lane {address >> 16} of tensor memory", ValueError)
    lanes, columns, number = _places(product, (address & 0xFFFF) + (product.selector or 0))
    copies = [view.read(lanes + TENSOR_LANES // product.folds * n, columns) for n in range(product.folds)]
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


_WORD_BYTES, _ROW_BYTES = 4, 32
_MASKS = 1 << 39  # a mask of zero columns does nothing without it
_COLUMN_SHIFT = 56


class Operands(NamedTuple):
    """What the operands of a product hold."""

    d: int
    a: int
    b: int
    described: int
    added: int
    without: list[int]
    scales: list[int]
    metadata: int | None
    zeros: int | None


def product_step(slots: Slots, inst: Instruction) -> Step:
    """The step of a `tcgen05.mma`, of each thread that executes it."""
    form = form_of(inst)
    read = _reader(slots, inst, form)

    def step(frame: Frame) -> None:
        for row, lane in np.argwhere(frame.lanes()).tolist():
            given = read(frame, (row, lane))
            with tcgen05.faults(frame, inst, row):
                _make(frame, inst, (row, lane), form, given)

    return step


def _reader(slots: Slots, inst: Instruction, form: Form) -> Callable[[Frame, tuple[int, int]], Operands]:
    def at(address: Address) -> Getter:
        return address_getter(slots, address, "shared")

    negated = inst.sources.index(form.added) in inst.negated_sources
    single = [
        at(form.d), at(form.a) if isinstance(form.a, Address) else getter(slots, form.a, "b64"),
        getter(slots, form.b, "b64"), getter(slots, form.described, "b32"), getter(slots, form.added, "pred", negated),
    ]  # fmt: skip
    without, scales = [getter(slots, word, "b32") for word in form.without], [at(a) for a in form.scales]
    metadata = None if form.metadata is None else at(form.metadata)
    zeros = None if form.zeros is None else getter(slots, form.zeros, "b64")

    def read(frame: Frame, place: tuple[int, int]) -> Operands:
        def value(get: Getter) -> int:
            return int(frame.full(get(frame))[place])

        optional = [None if get is None else value(get) for get in (metadata, zeros)]
        return Operands(*map(value, single), [*map(value, without)], [*map(value, scales)], *optional)  # type: ignore[call-arg, arg-type]

    return read


def _make(frame: Frame, inst: Instruction, place: tuple[int, int], form: Form, given: Operands) -> None:
    """The product of a thread, in its thread block or its pair. Raises ValueError for what cannot be had."""
    product = product_of(form, given.described)
    if (given.zeros or 0) & _MASKS or (given.zeros or 0) >> _COLUMN_SHIFT:
        raise ValueError("masks of zero columns are not supported: PTX's table and its examples contradict each other")
    blocks = tcgen05.blocks_together(frame, place[0], product.blocks)
    sides = [_Side(frame, inst, place, tcgen05.view_of(frame, place[0], block), product, given) for block in blocks]
    right = np.concatenate([side.stored(product.right, given.b, 1) for side in sides])
    words = np.array(given.without or [0] * len(blocks) * (TENSOR_LANES // 32), "<u4")  # lanes that stay as they are
    kept = np.unpackbits(words.view(np.uint8), bitorder="little").astype(bool).reshape(len(blocks), TENSOR_LANES)
    differs = sides[0].view.user != blocks[0] and (kept != kept[0]).any()
    asked = "where the block of odd rank of a pair asks for it"
    refuse(differs, f"lanes that stay as they are, {asked}, are the same in both", ValueError)
    for side, lanes in zip(sides, kept, strict=True):
        left = side.stored(product.left, given.a, 0) if not isinstance(form.a, Address) else side.in_tensor_memory()
        side.write(side.total(left, right, form.shift), lanes)


class _Side(NamedTuple):
    """What a thread (row, lane) of a frame makes in one thread block."""

    frame: Frame
    inst: Instruction
    place: tuple[int, int]
    view: tcgen05.View
    product: Product
    given: Operands

    def stored(self, kind: Element, word: int, side: int) -> np.ndarray:
        """A matrix of shared memory as numbers [extent, k]; `side`: 0 is A, 1 B. Raises ValueError."""
        product, size, transposed = self.product, self.product.element_bytes, self.product.transposed[side]
        descriptor, depth = of_blackwell(word), product.depth if side else product.stored_depth
        along = np.arange(product.own_columns if side else product.own_rows)
        units = np.arange(depth // (1 + product.packed))
        row_bytes = len(units) * size
        if transposed and descriptor.wide != (size == _WORD_BYTES):
            raise ValueError("swizzles of 32-byte units are of tf32 with M or N innermost, which has no others")
        if not transposed and 0 < descriptor.width < row_bytes:
            raise ValueError(f"rows of {row_bytes} bytes in a swizzle of {descriptor.width} are not supported")
        at = addresses_of(descriptor, along, units, size, transposed)[..., None] + np.arange(size)
        words = tcgen05.shared_bytes(self.frame, self.inst, self.place, at, self.view.block).view(f"u{size}")[..., 0]
        if product.packed:
            return unpack_pairs(words, kind.name)
        return unpack_units(words, kind.name) if kind.name in SUB_BYTE else decode(words, kind)

    def in_tensor_memory(self) -> np.ndarray:
        product = self.product
        if product.transposed[0] or product.left.name in SUB_BYTE:
            raise ValueError("A of 4 or 6 bits in tensor memory, or with M innermost, is not supported")
        copies = [self.view.read(*places) for places in places_of_a(product, self.given.a, _ROW_BYTES // _WORD_BYTES)]
        if any((copy != copies[0]).any() for copy in copies):
            raise ValueError("A is not the same in both halves of the lanes of tensor memory")
        return decode(copies[0], product.left)

    def total(self, left: np.ndarray, right: np.ndarray, shift: int) -> np.ndarray:
        """A B, with D added or not: [row, column] of A [row, stored k] and B [column, k]."""
        product, given = self.product, self.given
        stored = None if given.metadata is None else stored_columns(self.view, product, given.metadata, left)
        left, right = self._scaled(left, right, stored)
        a = left * (-1 if product.signs[0] != product.signs[1] else 1)
        third = np.zeros((len(left), len(right)), left.dtype)
        if given.added:
            words = self.view.read(*places_of_d(product, given.d))
            before = decode(words.astype(np.uint16) if product.d.bits == 16 else words, product.d)
            third = (before * 2.0**-shift).astype(left.dtype)
        if stored is None:
            return multiply(a[None], right.T[None], third[None], product.d, product.options)[0]
        return multiply_sparse(a[None], stored[None], right.T[None], third[None], product.d, product.options)[0]

    def _scaled(
        self, left: np.ndarray, right: np.ndarray, stored: np.ndarray | None
    ) -> tuple[np.ndarray, np.ndarray]:  # fmt: skip
        """A and B, each row times its scale factors; `stored`: the columns of A that it has."""
        if (scaling := self.product.scaling) is None:
            return left, right
        size = self.product.depth // scaling.factors
        a, b = (
            scale_factors(self.view, where, len(rows), scaling, side).repeat(size, axis=1)
            for side, (rows, where) in enumerate(zip((left, right), self.given.scales, strict=True))
        )
        return left * (a if stored is None else np.take_along_axis(a, stored, axis=1)), right * b

    def write(self, total: np.ndarray, kept: np.ndarray) -> None:
        """Set D, but for lanes that stay as they are."""
        lanes, columns = places_of_d(self.product, self.given.d)
        some = ~kept[lanes]
        if not some.any():
            return
        kind = self.product.d  # a word holds one element; of 16 bits its upper half is 0
        if kind.name == "s32":
            words = total.astype(np.int64)
        else:
            words = total.astype(np.float16 if kind.bits == 16 else np.float32).view(f"u{kind.bits // 8}")
        self.view.write(lanes[some], columns[some], words.astype(np.uint32)[some])


STEPS: dict[str, Callable[[Slots, Instruction], Step]] = {  # by what follows the opcode
    "alloc": tcgen05.columns_step, "dealloc": tcgen05.columns_step, "ld": tcgen05.move_step, "mma": product_step,
    "relinquish_alloc_permit": tcgen05.permit_step, "st": tcgen05.move_step, "commit": tcgen05.commit_step,
    "cp": tcgen05.tensor_copy_in_step,
}  # fmt: skip
