"""The form of a `tcgen05.mma`: its text (kind, thread blocks, operands) and its 32-bit instruction descriptor.

Source: PTX ISA, "tcgen05.mma", "tcgen05.mma.sp", "tcgen05.mma.ws", "tcgen05.mma.ws.sp", "Block Scaling", "Instruction
descriptor".

Of the descriptor: "Instruction Descriptor", "Matrix Shape", "Data Path Layout Organization"; `InstrDescriptor` and
`InstrDescriptorBlockScaled` of CUTLASS."""

from typing import NamedTuple

from functional.errors import refuse
from functional.isa.matrices import SUB_BYTE, Element
from functional.isa.operation import Unsupported, as_address, as_number, refuse_if
from functional.ptx.ir import Address, Instruction, Operand, Vector

TENSOR_LANES, COLUMNS = 128, 512  # of tensor memory
_PLAIN = frozenset({"kind::f16", "kind::tf32", "kind::f8f6f4", "kind::i8"})
_SCALABLE = frozenset({"kind::f16", "kind::tf32"})
_MOST_SHIFT = 15
_LANE_WORDS = 4  # of a thread block: a bit a lane
_USES = ("fill", "use", "lastuse", "discard")
# Collectors are a cache of A, with `.ws` of B, and no more
_KEPT_A = frozenset(f"collector::a::{use}" for use in _USES)
_KEPT_B = frozenset(f"collector::b{n}::{use}" for n in range(4) for use in _USES)
_FACTORS: dict[tuple[str, str], int] = {  # of a row, by kind and what the text says of it
    ("kind::mxf8f6f4", ""): 1, ("kind::mxf8f6f4", "block32"): 1, ("kind::mxf8f6f4", "scale_vec::1X"): 1,
    ("kind::mxf4", ""): 2, ("kind::mxf4", "block32"): 2, ("kind::mxf4", "scale_vec::2X"): 2,
    ("kind::mxf4nvf4", "block32"): 2, ("kind::mxf4nvf4", "scale_vec::2X"): 2,
    ("kind::mxf4nvf4", "block16"): 4, ("kind::mxf4nvf4", "scale_vec::4X"): 4,
}  # fmt: skip
_GROUPS = {"cta_group::1": 1, "cta_group::2": 2}


def group_of(inst: Instruction) -> tuple[int, tuple[str, ...]]:
    """(how many thread blocks an instruction is of, one or a pair; its other modifiers). Raises Unsupported."""
    groups = [m for m in inst.modifiers[1:] if m in _GROUPS]
    refuse_if(len(groups) != 1)
    return _GROUPS[groups[0]], tuple(m for m in inst.modifiers[1:] if m not in _GROUPS)


class Form(NamedTuple):
    """What a `tcgen05.mma` says. `a`: a descriptor, or an address of tensor memory; `added`: is D?"""

    kind: str
    blocks: int  # thread blocks that make it together
    stationary: bool  # `.ws`
    d: Address
    a: Operand
    b: Operand
    metadata: Address | None  # of a sparse A, in tensor memory
    described: Operand
    added: Operand
    without: tuple[Operand, ...] = ()  # words: lanes of D that stay as they are
    shift: int = 0  # D is scaled by 2 ** -shift before it is added
    zeros: Operand | None = None  # which columns of B count as zeros
    scales: tuple[Address, ...] = ()  # where the scale factors of A and of B are in tensor memory
    factors: int = 0  # scale factors of a row of A


def form_of(inst: Instruction) -> Form:
    """The form of `tcgen05.mma[.ws][.sp].cta_group::N.KIND [d], a, b[, [metadata]], descriptor` and then
    `[, {lanes}], added[, scale]`; with `.ws` `, added[, zero columns]`; block-scaled, `.block_scale[.FACTORS]`,
    `, [scales], [scales], added`. Raises Unsupported."""
    blocks, given = group_of(inst)
    stationary, sparse = "ws" in given, "sp" in given
    kept = _KEPT_B if stationary else _KEPT_A
    plain = [m for m in given if m not in kept and m not in ("ws", "sp")]
    d, a, b, *rest = inst.sources
    metadata = rest.pop(0) if sparse and rest else None
    if not plain or not isinstance(d, Address) or isinstance(metadata, Address) != sparse or len(rest) < 2:
        raise Unsupported
    refuse_if(stationary and blocks > 1)
    form = Form(plain[0], blocks, stationary, d, a, b, metadata, rest[0], rest[-1])  # type: ignore[arg-type]
    rest = rest[1:]
    if "block_scale" in plain:
        factors = _FACTORS.get((plain[0], ".".join(plain[2:])))
        if factors is None or plain[1] != "block_scale" or len(rest) != 3 or stationary:
            raise Unsupported
        return form._replace(scales=tuple(map(as_address, rest[:2])), factors=factors)
    refuse_if(len(plain) != 1 or plain[0] not in _PLAIN)
    if stationary:
        refuse_if(len(rest) > 2 or isinstance(rest[0], Vector))
        return form._replace(added=rest[0], zeros=rest[1] if len(rest) > 1 else None)
    lanes = rest.pop(0).elements if isinstance(rest[0], Vector) else ()  # type: ignore[union-attr]
    refuse_if(len(rest) not in ((1, 2) if form.kind in _SCALABLE else (1,)))
    shift = as_number(rest[1]) if len(rest) > 1 else 0
    refuse_if(not 0 <= shift <= _MOST_SHIFT or len(lanes) not in (0, _LANE_WORDS * blocks))
    return form._replace(added=rest[0], without=lanes, shift=shift)  # type: ignore[arg-type]


_K_BYTES = 32  # of a row of A
_SMALL = {0: "e4m3", 1: "e5m2", 3: "e2m3", 4: "e3m2", 5: "e2m1"}
_RESULTS = {0: "f16", 1: "f32"}
_KINDS: dict[str, tuple[dict[int, str], dict[int, str]]] = {  # types of A and B, of D, by number
    "kind::f16": ({0: "f16", 1: "bf16"}, _RESULTS),
    "kind::tf32": ({2: "tf32"}, {1: "f32"}),
    "kind::f8f6f4": (_SMALL, _RESULTS),
    "kind::i8": ({0: "u8", 1: "s8"}, {2: "s32"}),
}
_ELEMENT_BYTES = {"kind::f16": 2, "kind::tf32": 4}
_BLOCK_SCALED = {"kind::mxf8f6f4": _SMALL, "kind::mxf4": {1: "e2m1"}, "kind::mxf4nvf4": {1: "e2m1"}}
_MOST_SELECTOR = {"kind::f16": 1, "kind::tf32": 1}  # of metadata: no public source shows where 2 and 3 lead


class Scaling(NamedTuple):
    """Scale factors of a block-scaled product."""

    kind: str  # ue8m0, ue4m3
    factors: int  # of a row of A, of a column of B
    bytes: tuple[int, int]  # of the words that hold them: the first of a row of A, of a column of B


class Product(NamedTuple):
    """A product: of a pair of thread blocks, the rows and columns of both."""

    rows: int
    columns: int
    d: Element
    left: Element
    right: Element
    signs: tuple[int, int]
    transposed: tuple[bool, bool]
    element_bytes: int
    packed: bool  # 4-bit elements lie two in a byte, rather than in units with gaps
    blocks: int
    stationary: bool
    selector: int | None  # of metadata; None: A is dense
    saturates: bool = False
    scaling: Scaling | None = None

    @property
    def stored_depth(self) -> int:
        """Elements of A that are stored in a row."""
        return _K_BYTES // self.element_bytes * (1 + self.packed)

    @property
    def depth(self) -> int:
        """K."""
        return self.stored_depth * (1 if self.selector is None else 2)

    @property
    def options(self) -> frozenset[str]:
        """For `fragments.multiply`."""
        return frozenset(["satfinite"] * self.saturates)

    @property
    def own_rows(self) -> int:
        """Rows of A and D that one of its thread blocks has."""
        return self.rows // self.blocks

    @property
    def own_columns(self) -> int:
        """Columns of B that one of its thread blocks has in shared memory."""
        return self.columns // self.blocks

    @property
    def folds(self) -> int:
        """Parts of D's columns that lie in one column of tensor memory, each in lanes of its own."""
        if self.stationary:
            return TENSOR_LANES // self.rows
        return 2 if self.blocks == 2 and self.rows == TENSOR_LANES and self.selector is None else 1


def product_of(form: Form, word: int) -> Product:
    """The product of an instruction descriptor. Raises ValueError, with what is wrong, for one that is none."""
    product = _scaled_product(form, word) if form.factors else _plain_product(form, word)
    kinds = (product.left.name, product.right.name)
    outermost = any(t and name in SUB_BYTE for t, name in zip(product.transposed, kinds, strict=True))
    _refuse(word, outermost, ": matrices of 4 and 6 bits have K innermost")
    _refuse(word, bool(word >> 2 & 1) != (form.metadata is not None), " says of sparsity other than the instruction")
    if (product.selector or 0) > _MOST_SELECTOR.get(form.kind, 0):
        raise ValueError(f"sparsity selector {product.selector} of {form.kind} is not supported")
    _check_extents(form, product)
    return product


def _refuse(word: int, wrong: object, why: str) -> None:
    refuse(wrong, f"instruction descriptor {word:#x}{why}", ValueError)


def _plain_product(form: Form, word: int) -> Product:
    sources, results = _KINDS[form.kind]
    d, left, right = word >> 4 & 3, word >> 7 & 7, word >> 10 & 7
    unknown = d not in results or left not in sources or right not in sources
    _refuse(word, unknown, f" names types that {form.kind} does not have")
    used_for_reuse = 0 if form.stationary else word >> 30  # how far B may be shifted that is kept: nothing to a result
    strange = word >> 6 & 1 or word >> 23 & 1 or word >> 29 & 1 or used_for_reuse
    _refuse(word, strange or (word & 3 and form.metadata is None), f" has bits that a product of {form.kind} does not")
    a, b = sources[left], sources[right]
    signs, transposed = _signs_and_orders(word)
    saturates = bool(word >> 3 & 1)
    _refuse(word, any(signs) if form.kind == "kind::i8" else saturates, f" has bits that {form.kind} does not")
    mixed = form.kind == "kind::f16" and (a != b or (a == "bf16" and results[d] == "f16"))
    _refuse(word, mixed, f": {results[d]} of {a} and {b} is none of {form.kind}")
    kinds = (Element(results[d]), Element(a), Element(b))
    selector = None if form.metadata is None else word & 3
    return Product(
        (word >> 24 & 31) * 16, (word >> 17 & 63) * 8, *kinds, signs, transposed, _ELEMENT_BYTES.get(form.kind, 1),
        False, form.blocks, form.stationary, selector, saturates,
    )  # fmt: skip


def _scaled_product(form: Form, word: int) -> Product:
    sources, left, right = _BLOCK_SCALED[form.kind], word >> 7 & 7, word >> 10 & 7
    _refuse(word, not {left, right} <= sources.keys(), f" names types that {form.kind} does not have")
    strange = word & 3 or word >> 3 & 1 or word >> 6 & 1 or word >> 31
    _refuse(word, strange, " has bits that a product of 32 bytes of K does not")
    kinds = (Element("f32"), Element(sources[left]), Element(sources[right]))
    selector = None if form.metadata is None else 0
    kind, ids = "ue8m0" if word >> 23 & 1 else "ue4m3", (word >> 29 & 3, word >> 4 & 3)
    _refuse(word, kind == "ue4m3" and form.factors != 4, f": {form.kind} with {form.factors} a row scales by ue8m0")
    misplaced = any(i % form.factors for i in ids)
    _refuse(word, misplaced, f": {form.factors} scale factors do not begin in byte {max(ids)}")
    return Product(
        (word >> 24 & 31) * 16, (word >> 17 & 63) * 8, *kinds, *_signs_and_orders(word), 1,
        form.kind != "kind::mxf8f6f4", form.blocks, False, selector, False, Scaling(kind, form.factors, ids),
    )  # fmt: skip


def _check_extents(form: Form, product: Product) -> None:
    rows, columns, blocks = product.rows, product.columns, form.blocks
    known = (TENSOR_LANES * blocks,) if form.factors else (64 * blocks, 128 * blocks)
    wrong: object = rows not in ((32, 64, 128) if form.stationary else known)
    wrong = wrong or not 8 <= columns <= 256 or columns % _step_of(form, product)
    if wrong or (form.stationary and columns not in ((64, 128) if form.metadata else (64, 128, 256))):
        raise ValueError(f"a product of {rows} x {columns} is none of {form.kind}{_named(form)}")
    if form.metadata is not None and not form.stationary and rows != TENSOR_LANES * blocks:
        raise ValueError(f"sparse products of {rows} rows{_named(form)} are not supported")


def _step_of(form: Form, product: Product) -> int:
    """What the number of columns is a multiple of."""
    if product.element_bytes == 1 and product.transposed[1]:
        return 16 * form.blocks
    if form.kind == "kind::i8":
        return 32 if form.blocks == 2 else 8 if product.columns in (8, 24) else 16
    return 16 if form.blocks == 2 or (product.rows == TENSOR_LANES and not form.factors) else 8


def _named(form: Form) -> str:
    return " of a pair of thread blocks" if form.blocks == 2 else " with .ws" if form.stationary else ""


def _signs_and_orders(word: int) -> tuple[tuple[int, int], tuple[bool, bool]]:
    """(negated A and B, A and B that have K outermost)."""
    return (word >> 13 & 1, word >> 14 & 1), (bool(word >> 15 & 1), bool(word >> 16 & 1))
