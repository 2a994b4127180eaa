"""`tcgen05.mma`: one thread makes a product of 64 or 128 rows, D in tensor memory, A there or in shared memory, B in
shared memory. Done when it is issued, which is a legal execution: `tcgen05.commit` says when others may rely on it.

Row i of D lies in lane i; of 64 rows 16 lie in each 32 lanes. A word of D holds one element, a word of A as many as
fit. Source: PTX ISA, "Data Path Layout Organization"; `tmem_frg` of CUTLASS.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from functional.ir import Address, Instruction
from functional.numpy_executor.fragments import Element, decode, decode_stored, multiply
from functional.numpy_executor.frame import Frame
from functional.numpy_executor.matrix_descriptor import addresses_of, of_blackwell
from functional.numpy_executor.memory_ops import address_getter
from functional.numpy_executor.operands import Getter, getter, guard_getter
from functional.numpy_executor.sub_byte_floats import FORMATS, unpack_pairs, unpack_units
from functional.numpy_executor.tcgen05_descriptor import K_BYTES, Form, Product, form_of, product_of
from functional.numpy_executor.tcgen05_scales import scale_factors
from functional.numpy_executor.tensor_memory import LANES, faults
from functional.numpy_executor.tensor_memory_moves import shared_bytes, threads_of

if TYPE_CHECKING:
    from functional.numpy_executor.slots import Slots

Step = Callable[[Frame], None]
_WORD_BYTES = 4


def product_step(slots: Slots, inst: Instruction) -> Step:
    """The step of a `tcgen05.mma`, of each thread that executes it."""
    form, guard = form_of(inst), guard_getter(slots, inst.guard)
    getters = _getters(slots, form)
    added = getter(slots, form.added, "pred", inst.sources.index(form.added) in inst.negated_sources)
    scales = [address_getter(slots, address, "shared") for address in form.scales]

    def step(frame: Frame) -> None:
        for place in threads_of(frame, None if guard is None else frame.set_guard(guard)):
            at = _Thread(frame, inst, place)
            d, a, b, described, *without = (at.value(get) for get in getters)
            with faults(frame, inst, place[0]):
                product = product_of(form, described)
                matrices = at.left(product, a, isinstance(form.a, Address)), at.stored(product.right, b, product, 1)
                matrices = at.scaled(product, matrices, [at.value(get) for get in scales])
                at.make(product, d, matrices, without, bool(at.value(added)), form.shift)

    return step


def _getters(slots: Slots, form: Form) -> list[Getter]:
    """Of D, A, B, the descriptor and the lanes left out."""
    in_tensor_memory = isinstance(form.a, Address)
    left = address_getter(slots, form.a, "shared") if in_tensor_memory else getter(slots, form.a, "b64")
    return [
        address_getter(slots, form.d, "shared"), left, getter(slots, form.b, "b64"),
        getter(slots, form.described, "b32"), *(getter(slots, word, "b32") for word in form.without),
    ]  # fmt: skip


class _Thread(NamedTuple):
    """A thread, (row, lane) of a frame, that makes a product. What cannot be had is a ValueError."""

    frame: Frame
    inst: Instruction
    place: tuple[int, int]

    def value(self, get: Getter) -> int:
        """What a register of the thread holds."""
        return int(self.frame.full(get(self.frame))[self.place])

    def stored(self, kind: Element, word: int, product: Product, side: int) -> np.ndarray:
        """A matrix of shared memory as numbers [extent, k]; `side`: 0 is A, 1 B."""
        depth, size = np.arange(min(product.depth, K_BYTES)), max(1, K_BYTES // product.depth)
        along = np.arange(product.columns if side else product.rows)
        at = addresses_of(of_blackwell(word), along, depth, size, product.transposed[side])[..., None] + np.arange(size)
        words = shared_bytes(self.frame, self.inst, self.place, at).view(f"u{size}")[..., 0]
        if product.packed:
            return unpack_pairs(words, kind.name)
        return unpack_units(words, kind.name) if kind.name in FORMATS else decode_stored(words, kind)

    def left(self, product: Product, where: int, in_tensor_memory: bool) -> np.ndarray:
        """A as numbers [row, k]."""
        if not in_tensor_memory:
            return self.stored(product.left, where, product, 0)
        if product.transposed[0] or product.left.name in FORMATS:
            raise ValueError("A of 4 or 6 bits in tensor memory, or with M innermost, is not supported")
        return decode(self.words(product, where, K_BYTES // _WORD_BYTES), product.left)

    def words(self, product: Product, address: int, columns: int) -> np.ndarray:
        """Words [row, column] of a matrix in tensor memory."""
        memory, strict = self.frame.machine.tensor_memory, self.frame.machine.watch is not None
        return memory.read(self.block, *_places(product, address, columns), strict)

    def scaled(
        self, product: Product, matrices: tuple[np.ndarray, np.ndarray], addresses: list[int]
    ) -> tuple[np.ndarray, np.ndarray]:
        """A and B, each row times its scale factors."""
        scaling, machine = product.scaling, self.frame.machine
        if scaling is None:
            return matrices
        found = [
            scale_factors(
                machine.tensor_memory, self.block, where, len(rows), scaling, side, machine.watch is not None
            ).repeat(product.depth // scaling.factors, axis=1)
            for side, (rows, where) in enumerate(zip(matrices, addresses, strict=True))
        ]
        return matrices[0] * found[0], matrices[1] * found[1]

    @property
    def block(self) -> int:
        """The thread block, by its place in the chunk."""
        return int(self.frame.machine.block_of_row[self.frame.index[self.place[0]]])

    def make(
        self, product: Product, address: int, matrices: tuple[np.ndarray, np.ndarray], without: list[int], added: bool,
        shift: int,
    ) -> None:  # fmt: skip
        """D = A B, with D added or not, in the lanes that are not left out."""
        left, right = matrices
        third = np.zeros((product.rows, product.columns), left.dtype)
        if added:
            third = _accumulators(self.words(product, address, product.columns), product.d) * 2.0**-shift
            third = third.astype(left.dtype)
        a = left * (-1 if product.signs[0] != product.signs[1] else 1)
        total = multiply(a[None], right.T[None], third[None], product.d, product.options)[0]
        lanes, columns = _places(product, address, product.columns)
        some = _enabled(without)[lanes[:, 0]]
        words = _encoded(total, product.d)[some]
        self.frame.machine.tensor_memory.write(self.block, lanes[some], columns, words)


def _places(product: Product, address: int, columns: int) -> tuple[np.ndarray, np.ndarray]:
    """(lanes [row, 1], columns [1, column]) of a matrix in tensor memory. Raises ValueError."""
    row, first = np.arange(product.rows)[:, None], address >> 16
    if first not in ((0, 16) if product.rows == 64 else (0,)):
        raise ValueError(f"a matrix of {product.rows} rows does not begin in lane {first} of tensor memory")
    lanes = row // 16 * 32 + row % 16 if product.rows == 64 else row
    return lanes + first, (address & 0xFFFF) + np.arange(columns)[None]


def _enabled(without: list[int]) -> np.ndarray:
    """Lanes [128] whose bits are not set."""
    bits = sum(word << 32 * i for i, word in enumerate(without))
    return np.array([not bits >> lane & 1 for lane in range(LANES)])


def _accumulators(words: np.ndarray, kind: Element) -> np.ndarray:
    """One element of each word."""
    return decode_stored(words.astype(np.uint16) if kind.bits == 16 else words, kind)


def _encoded(total: np.ndarray, kind: Element) -> np.ndarray:
    """Words of one element each; the upper half of one that holds 16 bits is 0."""
    if kind.name == "s32":
        return total.astype(np.int64).astype(np.uint32)
    narrow = total.astype(np.float16 if kind.bits == 16 else np.float32)
    return narrow.view(f"u{kind.bits // 8}").astype(np.uint32)
