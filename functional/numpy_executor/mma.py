"""`mma.sync`: fragment layouts of the PTX ISA, and the product.

With group g = lane / 4 and place t = lane % 4: register r of A holds row g + 8 (r % 2) (of 8-row shapes: g), B columns
g, C and D rows g and g + 8 with columns 2 t and 2 t + 1.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from functional.ir import Instruction, Vector
from functional.numpy_executor.fragments import Element, element, multiply, read, registers_of, setters_of, write
from functional.numpy_executor.frame import Frame
from functional.numpy_executor.operation import Unsupported
from functional.numpy_executor.slots import Slots
from functional.numpy_executor.volta_mma import is_volta, volta_step

Step = Callable[[Frame], None]
_LANE = np.arange(32)
_GROUP, _PLACE = _LANE // 4, _LANE % 4
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
_FAMILY = {"u8": "s8", "u4": "s4", "e5m2": "e4m3"}  # A and B may differ within one


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
        or _FAMILY.get(a, a) != _FAMILY.get(b, b)
        or d not in results_of(a)
        or c not in results_of(a)
    ):
        raise Unsupported
    allowed = {"b1": {"popc", "xor", "and"}, "s8": {"satfinite"}, "s4": {"satfinite"}}.get(_FAMILY.get(a, a), set())
    if options - allowed or (a == "b1") != ("popc" in options) or len(inst.sources) != 3:
        raise Unsupported
    m, n, k = (int(x) for x in re.findall(r"\d+", shape))
    return Form(m, n, k, element(d), element(a), element(b), element(c), options)


def results_of(a: str) -> tuple[str, ...]:
    """Accumulator types of a type of A."""
    if a in ("f16", "e4m3", "e5m2"):
        return ("f32", "f16")
    return {"bf16": ("f32",), "tf32": ("f32",), "f64": ("f64",)}.get(a, ("s32",))


def mma_step(slots: Slots, inst: Instruction) -> Step:
    """`mma.sync`."""
    if is_volta(inst):
        return volta_step(slots, inst)
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


def a_layout(m: int, depth: int, kind: Element) -> tuple[np.ndarray, np.ndarray]:
    """(rows, columns) of the elements of A, [lane, element]."""
    per = kind.per_register
    index = np.arange(m * depth // 32)
    register, part = index // per, index % per
    if m == 8:
        return np.broadcast_to(_GROUP[:, None], (32, len(index))), _PLACE[:, None] * per + part + 4 * per * register
    rows = _GROUP[:, None] + 8 * (register % 2)
    return rows, _PLACE[:, None] * per + part + 4 * per * (register // 2)


def b_layout(depth: int, kind: Element) -> tuple[np.ndarray, np.ndarray]:
    """(rows, columns) of the elements of B, [lane, element]."""
    per = kind.per_register
    index = np.arange(depth * 8 // 32)
    rows = _PLACE[:, None] * per + index % per + 4 * per * (index // per)
    return rows, np.broadcast_to(_GROUP[:, None], rows.shape)


def c_layout(m: int) -> tuple[np.ndarray, np.ndarray]:
    """(rows, columns) of the elements of C and D, [lane, element]."""
    index = np.arange(m * 8 // 32)
    return _GROUP[:, None] + 8 * (index // 2), 2 * _PLACE[:, None] + index % 2
