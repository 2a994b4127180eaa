"""`tcgen05.mma`: one thread makes a product of 64 or 128 rows, D in tensor memory, A there or in shared memory, B in
shared memory. Done when it is issued, which is a legal execution: `tcgen05.commit` says when others may rely on it.

An instruction descriptor, a register, says which types and extents. Row i of D lies in lane i; of 64 rows 16 lie in
each 32 lanes. A word of D holds one element, a word of A as many as fit. Source: PTX ISA, "Instruction Descriptor" and
"Data Path Layout Organization"; `InstrDescriptor` and `tmem_frg` of CUTLASS.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from functional.ir import Address, Immediate, Instruction, Operand, Vector
from functional.numpy_executor.fragments import Element, decode, decode_stored, multiply
from functional.numpy_executor.frame import Frame
from functional.numpy_executor.matrix_descriptor import addresses_of, of_blackwell
from functional.numpy_executor.memory_ops import address_getter
from functional.numpy_executor.operands import Getter, getter, guard_getter
from functional.numpy_executor.operation import Unsupported
from functional.numpy_executor.sub_byte_floats import FORMATS, unpack_units
from functional.numpy_executor.tensor_memory import LANES, faults, of_one_block
from functional.numpy_executor.tensor_memory_moves import shared_bytes, threads_of

if TYPE_CHECKING:
    from functional.numpy_executor.slots import Slots

Step = Callable[[Frame], None]
_K_BYTES, _WORD_BYTES, _MOST_SHIFT = 32, 4, 15
_SMALL = {0: "e4m3", 1: "e5m2", 3: "e2m3", 4: "e3m2", 5: "e2m1"}
_KINDS: dict[str, tuple[dict[int, str], dict[int, str]]] = {  # types of A and B, of D, by number
    "kind::f16": ({0: "f16", 1: "bf16"}, {0: "f16", 1: "f32"}),
    "kind::tf32": ({2: "tf32"}, {1: "f32"}),
    "kind::f8f6f4": (_SMALL, {0: "f16", 1: "f32"}),
    "kind::i8": ({0: "u8", 1: "s8"}, {2: "s32"}),
}
_SCALABLE = frozenset({"kind::f16", "kind::tf32"})
_KEPT_A = frozenset({f"collector::a::{use}" for use in ("fill", "use", "lastuse", "discard")})  # a cache, no more


class Form(NamedTuple):
    """What a `tcgen05.mma` says. `a`: a descriptor, or an address of tensor memory; `added`: is D?"""

    kind: str
    d: Address
    a: Operand
    b: Operand
    described: Operand
    without: tuple[Operand, ...]  # four words: lanes of D that stay as they are
    added: Operand
    shift: int  # D is scaled by 2 ** -shift before it is added


class Product(NamedTuple):
    """What its instruction descriptor says."""

    rows: int
    columns: int
    depth: int
    d: Element
    left: Element
    right: Element
    signs: tuple[int, int]
    transposed: tuple[bool, bool]
    options: frozenset[str]


def form_of(inst: Instruction) -> Form:
    """The form of `tcgen05.mma.cta_group::1.KIND [d], a, b, descriptor[, {lanes}], added[, scale]`. Raises
    Unsupported."""
    plain = [m for m in of_one_block(inst, inst.modifiers[1:]) if m not in _KEPT_A]
    d, a, b, described, *rest = inst.sources
    if len(plain) != 1 or plain[0] not in _KINDS or not isinstance(d, Address):
        raise Unsupported
    lanes = rest.pop(0).elements if isinstance(rest[0], Vector) else ()  # type: ignore[union-attr]
    added, *scale = rest
    shift = int(scale[0].value) if scale and isinstance(scale[0], Immediate) else 0
    wrong = len(scale) > 1 or (scale and not isinstance(scale[0], Immediate))
    if wrong or (scale and plain[0] not in _SCALABLE) or not 0 <= shift <= _MOST_SHIFT or len(lanes) not in (0, 4):
        raise Unsupported
    return Form(plain[0], d, a, b, described, lanes, added, shift)  # type: ignore[arg-type]


def product_of(kind: str, word: int) -> Product:
    """The product of an instruction descriptor. Raises ValueError, with what is wrong, for one that is none."""
    sources, results = _KINDS[kind]
    d, left, right = word >> 4 & 3, word >> 7 & 7, word >> 10 & 7
    if d not in results or left not in sources or right not in sources:
        raise ValueError(f"instruction descriptor {word:#x} names types that {kind} does not have")
    if word >> 2 & 1 or word & 3 or word >> 6 & 1 or word >> 23 & 1 or word >> 29:
        raise ValueError(f"instruction descriptor {word:#x} has bits that a dense product does not")
    a, b, columns, rows = sources[left], sources[right], (word >> 17 & 63) * 8, (word >> 24 & 31) * 16
    eights = columns in (8, 24) if kind == "kind::i8" else rows == 64
    if rows not in (64, 128) or not 8 <= columns <= 256 or columns % (8 if eights else 16):
        raise ValueError(f"a product of {rows} x {columns} is none of {kind}")
    signs, transposed = (word >> 13 & 1, word >> 14 & 1), (bool(word >> 15 & 1), bool(word >> 16 & 1))
    saturates = word >> 3 & 1
    if any(signs) if kind == "kind::i8" else saturates:
        raise ValueError(f"instruction descriptor {word:#x} has bits that {kind} does not")
    if kind == "kind::f16" and (a != b or (a == "bf16" and results[d] == "f16")):
        raise ValueError(f"instruction descriptor {word:#x}: {results[d]} of {a} and {b} is none of {kind}")
    if any(t and name in FORMATS for t, name in zip(transposed, (a, b), strict=True)):
        raise ValueError(f"instruction descriptor {word:#x}: matrices of 4 and 6 bits have K innermost")
    depth = _K_BYTES // {"kind::f16": 2, "kind::tf32": 4}.get(kind, 1)
    kinds = (Element(results[d]), Element(a), Element(b))
    return Product(rows, columns, depth, *kinds, signs, transposed, frozenset(["satfinite"] * saturates))


def product_step(slots: Slots, inst: Instruction) -> Step:
    """The step of a `tcgen05.mma`, of each thread that executes it."""
    form, guard = form_of(inst), guard_getter(slots, inst.guard)
    in_tensor_memory = isinstance(form.a, Address)
    left = address_getter(slots, form.a, "shared") if in_tensor_memory else getter(slots, form.a, "b64")
    getters = [
        address_getter(slots, form.d, "shared"), left, getter(slots, form.b, "b64"),
        getter(slots, form.described, "b32"), *(getter(slots, word, "b32") for word in form.without),
    ]  # fmt: skip
    added = getter(slots, form.added, "pred", inst.sources.index(form.added) in inst.negated_sources)

    def step(frame: Frame) -> None:
        for place in threads_of(frame, None if guard is None else frame.set_guard(guard)):
            at = _Thread(frame, inst, place)
            d, a, b, described, *without = (at.value(get) for get in getters)
            with faults(frame, inst, place[0]):
                product = product_of(form.kind, described)
                matrices = at.left(product, a, in_tensor_memory), at.stored(product.right, b, product, 1)
                at.make(product, d, matrices, without, bool(at.value(added)), form.shift)

    return step


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
        found, depth = of_blackwell(word), np.arange(product.depth)
        along, size = np.arange(product.columns if side else product.rows), _K_BYTES // product.depth
        at = addresses_of(found, along, depth, size, product.transposed[side])[..., None] + np.arange(size)
        words = shared_bytes(self.frame, self.inst, self.place, at).view(f"u{size}")[..., 0]
        return unpack_units(words, kind.name) if kind.name in FORMATS else decode_stored(words, kind)

    def left(self, product: Product, where: int, in_tensor_memory: bool) -> np.ndarray:
        """A as numbers [row, k]."""
        if not in_tensor_memory:
            return self.stored(product.left, where, product, 0)
        if product.transposed[0] or product.left.name in FORMATS:
            raise ValueError("A of 4 or 6 bits in tensor memory, or with M innermost, is not supported")
        return decode(self.words(product, where, _K_BYTES // _WORD_BYTES), product.left)

    def words(self, product: Product, address: int, columns: int) -> np.ndarray:
        """Words [row, column] of a matrix in tensor memory."""
        memory, strict = self.frame.machine.tensor_memory, self.frame.machine.watch is not None
        return memory.read(self.block, *_places(product, address, columns), strict)

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
