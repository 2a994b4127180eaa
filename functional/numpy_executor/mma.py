"""`mma.sync`: fragments to matrices, the product, and back."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from functional.isa.operation import Unsupported
from functional.numpy_executor.fragments import Element, element, multiply, read, registers_of, setters_of, write
from functional.numpy_executor.frame import Frame
from functional.numpy_executor.layouts import a_layout, b_layout, c_layout, family_of, results_of
from functional.numpy_executor.slots import Slots
from functional.numpy_executor.sparse_mma import is_sparse, sparse_step
from functional.numpy_executor.volta_mma import is_volta, volta_step
from functional.ptx.ir import Instruction, Vector

Step = Callable[[Frame], None]
_HALF, _BYTE, _NIBBLE = (
    ("m16n8k8", "m16n8k16"),
    ("m8n8k16", "m16n8k16", "m16n8k32"),
    ("m8n8k32", "m16n8k32", "m16n8k64"),
)
_SHAPES = {
    "f16": _HALF, "bf16": _HALF, "tf32": ("m16n8k4", "m16n8k8"), "e4m3": _BYTE[1:], "e5m2": _BYTE[1:],
    "f64": ("m8n8k4", "m16n8k4", "m16n8k8", "m16n8k16"), "s8": _BYTE, "u8": _BYTE, "s4": _NIBBLE, "u4": _NIBBLE,
    "b1": ("m8n8k128", "m16n8k128", "m16n8k256"),
}  # fmt: skip


class Form(NamedTuple):
    """What an `mma` says: extents, element types, and options (satfinite, xor, and)."""

    m: int
    n: int
    k: int
    d: Element
    a: Element
    b: Element
    c: Element
    options: frozenset[str]


def mma_form(inst: Instruction) -> Form:
    """The form of `mma.sync.aligned.SHAPE.row.col.D.A.B.C`. Raises Unsupported."""
    options = frozenset(inst.modifiers) & {"satfinite", "xor", "and", "popc"}
    plain = [m for m in inst.modifiers if m not in options]
    if len(plain) != 9 or plain[:2] != ["sync", "aligned"] or plain[3:5] != ["row", "col"] or inst.guard is not None:
        raise Unsupported
    shape, (d, a, b, c) = plain[2], plain[5:]
    if (
        shape not in _SHAPES.get(a, ())
        or family_of(a) != family_of(b)
        or d not in results_of(a)
        or c not in results_of(a)
    ):
        raise Unsupported
    allowed = {"b1": {"popc", "xor", "and"}, "s8": {"satfinite"}, "s4": {"satfinite"}}.get(family_of(a), set())
    if options - allowed or (a == "b1") != ("popc" in options) or len(inst.sources) != 3:
        raise Unsupported
    m, n, k = (int(x) for x in re.findall(r"\d+", shape))
    return Form(m, n, k, element(d), element(a), element(b), element(c), options)


def mma_step(slots: Slots, inst: Instruction) -> Step:
    """`mma.sync`, `mma.sp`."""
    if is_volta(inst):
        return volta_step(slots, inst)
    if is_sparse(inst):
        return sparse_step(slots, inst)
    form = mma_form(inst)
    places = (a_layout(form.m, form.k, form.a), b_layout(form.k, form.b), c_layout(form.m))
    kinds = (form.a, form.b, form.c)
    sources = [registers_of(slots, o, kind) for o, kind in zip(inst.sources, kinds, strict=True)]
    setters = setters_of(slots, inst.destinations[0], form.d)
    elements = [rows.shape[1] for rows, _ in (*places, places[2])]
    given = [*map(len, sources), len(setters)]
    per = [kind.per_register if kind.name != "f32" else 1 for kind in (*kinds, form.d)]
    if any(n * p != e for n, p, e in zip(given, per, elements, strict=True)):
        raise Unsupported
    if not isinstance(inst.destinations[0], Vector) and len(setters) > 1:
        raise Unsupported
    extents = ((form.m, form.k), (form.k, form.n), (form.m, form.n))

    def step(frame: Frame) -> None:
        matrices = []
        for get, kind, (rows, columns), extent in zip(sources, kinds, places, extents, strict=True):
            values = read(frame, get, kind)
            matrix = np.zeros((frame.count, *extent), values.dtype)
            matrix[:, rows, columns] = values
            matrices.append(matrix)
        left, right, third = matrices
        total = multiply(left, right, third, form.a, form.options)
        write(frame, setters, total[:, places[2][0], places[2][1]], form.d)

    return step
