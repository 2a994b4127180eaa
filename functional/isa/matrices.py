"""Matrices in registers: element types, forms of `mma wmma ldmatrix`, and which lane holds which element where.

Of `mma`, with group g = lane / 4 and place t = lane % 4: register r of A holds row g + 8 (r % 2) (of 8-row shapes: g),
B columns g, C and D rows g and g + 8 with columns 2 t and 2 t + 1 (PTX ISA). Fragments of `wmma`, which PTX leaves
open: lane l holds elements l e to l e + e - 1 of the matrix in row-major order, e elements a lane; where lanes hold
more than the matrix has, every element is held several times, each copy the same.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from functional.isa.operation import Unsupported
from functional.ptx.ir import Address, Instruction, Operand

FLOAT_ELEMENTS = frozenset({"f16", "bf16", "tf32", "f32", "f64", "e4m3", "e5m2"})
_BITS = {"f16": 16, "bf16": 16, "tf32": 32, "f32": 32, "f64": 64, "s32": 32, "e4m3": 8, "e5m2": 8, "s8": 8, "u8": 8,
         "s4": 4, "u4": 4, "b1": 1}  # fmt: skip


@dataclass(frozen=True)
class Element:
    """A matrix element type: its bits, and how many lie in one register."""

    name: str

    @property
    def bits(self) -> int:
        """Bits of an element."""
        return _BITS[self.name]

    @property
    def per_register(self) -> int:
        """Elements of a 32-bit register, at least one."""
        return max(1, 32 // self.bits)

    @property
    def register(self) -> str:
        """PTX type of a register of such elements."""
        return {"f64": "f64", "f32": "f32"}.get(self.name, "b32")


def element(name: str) -> Element:
    """The element type of a PTX name. Raises Unsupported."""
    if name not in _BITS:
        raise Unsupported
    return Element(name)


_LANE = np.arange(32)
_GROUP, _PLACE = _LANE // 4, _LANE % 4
_FAMILY = {"u8": "s8", "u4": "s4", "e5m2": "e4m3"}


def family_of(name: str) -> str:
    """Element types of A and B may differ within a family."""
    return _FAMILY.get(name, name)


def results_of(a: str) -> tuple[str, ...]:
    """Accumulator types of a type of A."""
    if a in ("f16", "e4m3", "e5m2"):
        return ("f32", "f16")
    return {"bf16": ("f32",), "tf32": ("f32",), "f64": ("f64",)}.get(a, ("s32",))


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


_HALF, _BYTE, _NIBBLE = (
    ("m16n8k8", "m16n8k16"),
    ("m8n8k16", "m16n8k16", "m16n8k32"),
    ("m8n8k32", "m16n8k32", "m16n8k64"),
)
_MMA_SHAPES = {
    "f16": _HALF, "bf16": _HALF, "tf32": ("m16n8k4", "m16n8k8"), "e4m3": _BYTE[1:], "e5m2": _BYTE[1:],
    "f64": ("m8n8k4", "m16n8k4", "m16n8k8", "m16n8k16"), "s8": _BYTE, "u8": _BYTE, "s4": _NIBBLE, "u4": _NIBBLE,
    "b1": ("m8n8k128", "m16n8k128", "m16n8k256"),
}  # fmt: skip


class MmaForm(NamedTuple):
    """What an `mma` says: extents, element types, and options (satfinite, xor, and)."""

    m: int
    n: int
    k: int
    d: Element
    a: Element
    b: Element
    c: Element
    options: frozenset[str]


def mma_form(inst: Instruction) -> MmaForm:
    """The form of `mma.sync.aligned.SHAPE.row.col.D.A.B.C`. Raises Unsupported."""
    options = frozenset(inst.modifiers) & {"satfinite", "xor", "and", "popc"}
    plain = [m for m in inst.modifiers if m not in options]
    if len(plain) != 9 or plain[:2] != ["sync", "aligned"] or plain[3:5] != ["row", "col"] or inst.guard is not None:
        raise Unsupported
    shape, (d, a, b, c) = plain[2], plain[5:]
    if (
        shape not in _MMA_SHAPES.get(a, ())
        or family_of(a) != family_of(b)
        or d not in results_of(a)
        or c not in results_of(a)
    ):
        raise Unsupported
    allowed = {"b1": {"popc", "xor", "and"}, "s8": {"satfinite"}, "s4": {"satfinite"}}.get(family_of(a), set())
    if options - allowed or (a == "b1") != ("popc" in options) or len(inst.sources) != 3:
        raise Unsupported
    m, n, k = (int(x) for x in re.findall(r"\d+", shape))
    return MmaForm(m, n, k, element(d), element(a), element(b), element(c), options)


_BIG = ("m16n16k16", "m8n32k16", "m32n8k16")
_WMMA_SHAPES = {
    **dict.fromkeys(("f16", "bf16", "s8", "u8"), _BIG), "tf32": ("m16n16k8",), "f64": ("m8n8k4",),
    "s4": ("m8n8k32",), "u4": ("m8n8k32",), "b1": ("m8n8k128",),
}  # fmt: skip
_ACCUMULATORS = {"f16": _BIG, "f32": (*_BIG, "m16n16k8"), "s32": (*_BIG, "m8n8k32", "m8n8k128"), "f64": ("m8n8k4",)}


@dataclass(frozen=True)
class Fragment:
    """One of the matrices A, B, C, D of a shape: rows, columns, element type, registers a lane."""

    rows: int
    columns: int
    kind: Element
    registers: int

    @classmethod
    def of(cls, role: str, shape: str, type_: str) -> Fragment:
        """Raises Unsupported for a shape that the type does not have."""
        if shape not in (_WMMA_SHAPES if role in "ab" else _ACCUMULATORS).get(type_, ()):
            raise Unsupported
        m, n, k = (int(x) for x in re.findall(r"\d+", shape))
        rows, columns = {"a": (m, k), "b": (k, n)}.get(role, (m, n))
        kind = element(type_)
        per = 1 if type_ == "f32" else kind.per_register
        count = 8 if type_ == "f16" and role in "ab" else rows * columns // 32 // per
        return cls(rows, columns, kind, count)

    def matrix(self, values: np.ndarray) -> np.ndarray:
        """[row, lane, element] as [row, matrix row, matrix column]."""
        flat = values.reshape(len(values), -1)[:, : self.rows * self.columns]
        return flat.reshape(len(values), self.rows, self.columns)

    def lanes(self, matrix: np.ndarray) -> np.ndarray:
        """A matrix [row, ...] as [row, lane, element], repeated to fill all lanes."""
        per = 1 if self.kind.name == "f32" else self.kind.per_register
        each = self.registers * per
        flat = matrix.reshape(len(matrix), -1)
        return np.tile(flat, (1, 32 * each // flat.shape[1])).reshape(len(matrix), 32, each)

    def addresses(self, stride: np.ndarray, column_major: bool) -> np.ndarray:
        """Byte offsets [row, storage units] of the matrix with a leading dimension `stride` [row, 1] in elements."""
        unit = max(8, self.kind.bits)  # sub-byte elements are moved by bytes
        packed = unit // self.kind.bits
        outer, inner = (self.columns, self.rows) if column_major else (self.rows, self.columns)
        first = np.arange(outer)[None, :, None] * stride[:, :, None] + packed * np.arange(inner // packed)
        return (first * self.kind.bits // 8).reshape(len(stride), -1)


def fragments_of(inst: Instruction) -> tuple[tuple[Fragment, Fragment, Fragment, Fragment], frozenset[str]]:
    """((D, A, B, C), options among satfinite, xor, and, popc) of a `wmma.mma`. Raises Unsupported."""
    options = frozenset(inst.modifiers) & {"satfinite", "xor", "and", "popc"}
    plain = [m for m in inst.modifiers[1:] if m not in options and m not in ("sync", "aligned", "row", "col", "rn")]
    shape, types = plain[0], plain[1:]
    if len(types) == 2:  # half-precision: only the types of D and C are named
        types = [types[0], "f16", "f16", types[1]]
    if len(types) != 4 or types[1] != types[2] or len(inst.sources) != 3:
        raise Unsupported
    d, a, b, c = (Fragment.of(role, shape, t) for role, t in zip("dabc", types, strict=True))
    _check_types(types, options)
    return (d, a, b, c), options


def _check_types(types: list[str], options: frozenset[str]) -> None:
    """Raises Unsupported unless D, C and the options go with A."""
    allowed = {"b1": {"popc", "xor", "and"}, "f16": {"satfinite"}}.get(
        types[1], {"satfinite"} if types[1][1:] in "84" else set()
    )
    if types[0] not in results_of(types[1]) or types[3] not in results_of(types[1]) or options - allowed:
        raise Unsupported
    if (types[1] == "b1") != ("popc" in options) or (types[1] == "f16" and "satfinite" in options):
        raise Unsupported


def matrices_of(inst: Instruction) -> tuple[int, bool]:
    """(matrices, transposed). Raises Unsupported for a form that is not implemented."""
    flags = set(inst.modifiers) - {"sync", "aligned", "m8n8", "shared", "b16", "trans"}
    if len(flags) != 1 or not flags <= {"x1", "x2", "x4"} or inst.guard is not None:
        raise Unsupported
    if not {"m8n8", "b16"} <= set(inst.modifiers):
        raise Unsupported
    return int(next(iter(flags))[1:]), "trans" in inst.modifiers


class MatrixAccess(NamedTuple):
    """A `wmma.load` or `.store`: where the matrix begins, how far its lines are apart (None: they follow each other),
    whether these are columns."""

    where: Address
    stride: Operand | None
    by_column: bool
    fragment: Fragment


def access_form(inst: Instruction) -> MatrixAccess:
    """Of `wmma.load.a.sync.aligned.row.SHAPE.SPACE.TYPE d, [p], stride`, and of a store. Raises Unsupported."""
    rest = [m for m in inst.modifiers[2:] if m not in ("sync", "aligned", "global", "shared")]
    where, (stride, *_) = inst.sources[0], (*inst.sources[1 + (inst.modifiers[0] == "store") :], None)
    if len(rest) != 3 or rest[0] not in ("row", "col") or not isinstance(where, Address):
        raise Unsupported
    return MatrixAccess(where, stride, rest[0] == "col", Fragment.of(inst.modifiers[1], rest[1], rest[2]))
