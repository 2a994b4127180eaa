"""What the text of a `tcgen05.mma` says: kind, thread blocks, operands.

Source: PTX ISA, "tcgen05.mma", "tcgen05.mma.sp", "tcgen05.mma.ws", "tcgen05.mma.ws.sp", "Block Scaling".
"""

from __future__ import annotations

from typing import NamedTuple

from functional.isa.operation import Unsupported
from functional.numpy_executor.tensor_memory import group_of
from functional.ptx.ir import Address, Immediate, Instruction, Operand, Vector

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
    blocks, given = group_of(inst, inst.modifiers[1:])
    stationary, sparse = "ws" in given, "sp" in given
    kept = _KEPT_B if stationary else _KEPT_A
    plain = [m for m in given if m not in kept and m not in ("ws", "sp")]
    d, a, b, *rest = inst.sources
    metadata = rest.pop(0) if sparse and rest else None
    if not plain or not isinstance(d, Address) or isinstance(metadata, Address) != sparse or len(rest) < 2:
        raise Unsupported
    if stationary and blocks > 1:
        raise Unsupported
    form = Form(plain[0], blocks, stationary, d, a, b, metadata, rest[0], rest[-1])  # type: ignore[arg-type]
    if "block_scale" in plain:
        return _scaled_form(form, plain, rest[1:])
    if len(plain) != 1 or plain[0] not in _PLAIN:
        raise Unsupported
    return _stationary_form(form, rest[1:]) if stationary else _plain_form(form, rest[1:])


def _plain_form(form: Form, rest: list[Operand]) -> Form:
    lanes = rest.pop(0).elements if isinstance(rest[0], Vector) else ()  # type: ignore[union-attr]
    if not rest:
        raise Unsupported
    added, *scale = rest
    shift = int(scale[0].value) if scale and isinstance(scale[0], Immediate) else 0
    wrong = len(scale) > 1 or (scale and not isinstance(scale[0], Immediate))
    if wrong or (scale and form.kind not in _SCALABLE) or not 0 <= shift <= _MOST_SHIFT:
        raise Unsupported
    if len(lanes) not in (0, _LANE_WORDS * form.blocks):
        raise Unsupported
    return form._replace(added=added, without=lanes, shift=shift)  # type: ignore[arg-type]


def _stationary_form(form: Form, rest: list[Operand]) -> Form:
    added, *zeros = rest
    if len(zeros) > 1 or isinstance(added, Vector):
        raise Unsupported
    return form._replace(added=added, zeros=zeros[0] if zeros else None)


def _scaled_form(form: Form, plain: list[str], rest: list[Operand]) -> Form:
    kind, _, *vector = plain
    factors = _FACTORS.get((kind, ".".join(vector)))
    if factors is None or plain[1] != "block_scale" or len(rest) != 3 or form.stationary:
        raise Unsupported
    *scales, added = rest
    if not all(isinstance(s, Address) for s in scales):
        raise Unsupported
    return form._replace(added=added, scales=tuple(scales), factors=factors)  # type: ignore[arg-type]
