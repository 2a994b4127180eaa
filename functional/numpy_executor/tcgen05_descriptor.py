"""What a `tcgen05.mma` says: its text a kind and operands, its instruction descriptor, a register, types and extents.

Source: PTX ISA, "Instruction Descriptor" and "Block Scaling"; `InstrDescriptor` and `InstrDescriptorBlockScaled` of
CUTLASS.
"""

from __future__ import annotations

from typing import NamedTuple

from functional.ir import Address, Immediate, Instruction, Operand, Vector
from functional.numpy_executor.fragments import Element
from functional.numpy_executor.operation import Unsupported
from functional.numpy_executor.sub_byte_floats import FORMATS
from functional.numpy_executor.tensor_memory import of_one_block

K_BYTES = 32
_MOST_SHIFT = 15
_SMALL = {0: "e4m3", 1: "e5m2", 3: "e2m3", 4: "e3m2", 5: "e2m1"}
_RESULTS = {0: "f16", 1: "f32"}
_KINDS: dict[str, tuple[dict[int, str], dict[int, str]]] = {  # types of A and B, of D, by number
    "kind::f16": ({0: "f16", 1: "bf16"}, _RESULTS),
    "kind::tf32": ({2: "tf32"}, {1: "f32"}),
    "kind::f8f6f4": (_SMALL, _RESULTS),
    "kind::i8": ({0: "u8", 1: "s8"}, {2: "s32"}),
}
_SCALABLE = frozenset({"kind::f16", "kind::tf32"})
_KEPT_A = frozenset({f"collector::a::{use}" for use in ("fill", "use", "lastuse", "discard")})  # a cache, no more
_BLOCK_SCALED = {"kind::mxf8f6f4": _SMALL, "kind::mxf4": {1: "e2m1"}, "kind::mxf4nvf4": {1: "e2m1"}}
_FACTORS: dict[tuple[str, str], int] = {  # of a row, by kind and what the text says of it
    ("kind::mxf8f6f4", ""): 1, ("kind::mxf8f6f4", "block32"): 1, ("kind::mxf8f6f4", "scale_vec::1X"): 1,
    ("kind::mxf4", ""): 2, ("kind::mxf4", "block32"): 2, ("kind::mxf4", "scale_vec::2X"): 2,
    ("kind::mxf4nvf4", "block32"): 2, ("kind::mxf4nvf4", "scale_vec::2X"): 2,
    ("kind::mxf4nvf4", "block16"): 4, ("kind::mxf4nvf4", "scale_vec::4X"): 4,
}  # fmt: skip


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
    scales: tuple[Address, ...] = ()  # where the scale factors of A and of B are in tensor memory
    factors: int = 0  # scale factors of a row of A


class Scaling(NamedTuple):
    """Scale factors of a block-scaled product."""

    kind: str  # ue8m0, ue4m3
    factors: int  # of a row of A, of a column of B
    bytes: tuple[int, int]  # of the words that hold them: the first of a row of A, of a column of B


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
    scaling: Scaling | None = None

    @property
    def packed(self) -> bool:
        """Whether 4-bit elements lie two in a byte, rather than in units with gaps."""
        return self.depth == 2 * K_BYTES


def form_of(inst: Instruction) -> Form:
    """The form of `tcgen05.mma.cta_group::1.KIND [d], a, b, descriptor[, {lanes}], added[, scale]`, or, block-scaled,
    `tcgen05.mma.cta_group::1.KIND.block_scale[.FACTORS] [d], a, b, descriptor, [scales], [scales], added`. Raises
    Unsupported."""
    plain = [m for m in of_one_block(inst, inst.modifiers[1:]) if m not in _KEPT_A]
    if not plain or not isinstance(inst.sources[0], Address):
        raise Unsupported
    return _scaled_form(inst, plain) if "block_scale" in plain else _plain_form(inst, plain)


def _plain_form(inst: Instruction, plain: list[str]) -> Form:
    d, a, b, described, *rest = inst.sources
    if len(plain) != 1 or plain[0] not in _KINDS:
        raise Unsupported
    lanes = rest.pop(0).elements if isinstance(rest[0], Vector) else ()  # type: ignore[union-attr]
    added, *scale = rest
    shift = int(scale[0].value) if scale and isinstance(scale[0], Immediate) else 0
    wrong = len(scale) > 1 or (scale and not isinstance(scale[0], Immediate))
    if wrong or (scale and plain[0] not in _SCALABLE) or not 0 <= shift <= _MOST_SHIFT or len(lanes) not in (0, 4):
        raise Unsupported
    return Form(plain[0], d, a, b, described, lanes, added, shift)  # type: ignore[arg-type]


def _scaled_form(inst: Instruction, plain: list[str]) -> Form:
    kind, _, *vector = plain
    factors = _FACTORS.get((kind, ".".join(vector)))
    if factors is None or plain[1] != "block_scale" or len(inst.sources) != 7:
        raise Unsupported
    d, a, b, described, *scales, added = inst.sources
    if not all(isinstance(s, Address) for s in scales):
        raise Unsupported
    return Form(kind, d, a, b, described, (), added, 0, tuple(scales), factors)  # type: ignore[arg-type]


def product_of(form: Form, word: int) -> Product:
    """The product of an instruction descriptor. Raises ValueError, with what is wrong, for one that is none."""
    product = _scaled_product(form, word) if form.factors else _plain_product(form.kind, word)
    sides = zip(product.transposed, (product.left.name, product.right.name), strict=True)
    if any(t and name in FORMATS for t, name in sides):
        raise ValueError(f"instruction descriptor {word:#x}: matrices of 4 and 6 bits have K innermost")
    return product


def _plain_product(kind: str, word: int) -> Product:
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
    signs, transposed = _signs_and_orders(word)
    saturates = word >> 3 & 1
    if any(signs) if kind == "kind::i8" else saturates:
        raise ValueError(f"instruction descriptor {word:#x} has bits that {kind} does not")
    if kind == "kind::f16" and (a != b or (a == "bf16" and results[d] == "f16")):
        raise ValueError(f"instruction descriptor {word:#x}: {results[d]} of {a} and {b} is none of {kind}")
    depth = K_BYTES // {"kind::f16": 2, "kind::tf32": 4}.get(kind, 1)
    kinds = (Element(results[d]), Element(a), Element(b))
    return Product(rows, columns, depth, *kinds, signs, transposed, frozenset(["satfinite"] * saturates))


def _scaled_product(form: Form, word: int) -> Product:
    sources, left, right = _BLOCK_SCALED[form.kind], word >> 7 & 7, word >> 10 & 7
    if left not in sources or right not in sources:
        raise ValueError(f"instruction descriptor {word:#x} names types that {form.kind} does not have")
    if word >> 2 & 1 or word & 3 or word >> 3 & 1 or word >> 6 & 1 or word >> 31:
        raise ValueError(f"instruction descriptor {word:#x} has bits that a dense product of K = 32 or 64 does not")
    rows, columns = (word >> 24 & 31) * 16, (word >> 17 & 63) * 8
    if rows != 128 or not 8 <= columns <= 256:
        raise ValueError(f"a product of {rows} x {columns} is none of {form.kind}")
    kinds = (Element("f32"), Element(sources[left]), Element(sources[right]))
    depth = K_BYTES if form.kind == "kind::mxf8f6f4" else 2 * K_BYTES
    return Product(rows, columns, depth, *kinds, *_signs_and_orders(word), frozenset(), _scaling(form, word))


def _scaling(form: Form, word: int) -> Scaling:
    kind, ids = "ue8m0" if word >> 23 & 1 else "ue4m3", (word >> 29 & 3, word >> 4 & 3)
    if kind == "ue4m3" and form.factors != 4:
        raise ValueError(f"instruction descriptor {word:#x}: {form.kind} with {form.factors} a row scales by ue8m0")
    if any(i % form.factors for i in ids):
        raise ValueError(
            f"instruction descriptor {word:#x}: {form.factors} scale factors do not begin in byte {max(ids)}"
        )
    return Scaling(kind, form.factors, ids)


def _signs_and_orders(word: int) -> tuple[tuple[int, int], tuple[bool, bool]]:
    """(negated A and B, A and B that have K outermost)."""
    return (word >> 13 & 1, word >> 14 & 1), (bool(word >> 15 & 1), bool(word >> 16 & 1))
