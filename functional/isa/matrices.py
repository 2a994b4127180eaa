"""Matrices in registers: element types, forms of `mma wmma ldmatrix`, and which lane holds which element where.

Of `mma`, with group g = lane / 4 and place t = lane % 4: register r of A holds row g + 8 (r % 2) (of 8-row shapes: g),
B columns g, C and D rows g and g + 8 with columns 2 t and 2 t + 1 (PTX ISA). Fragments of `wmma`, which PTX leaves
open: lane l holds elements l e to l e + e - 1 of the matrix in row-major order, e elements a lane; where lanes hold
more than the matrix has, every element is held several times, each copy the same."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

import numpy as np

from functional.isa.operation import Unsupported, as_address, refuse_if
from functional.ptx.ir import Address, Instruction, Operand

NAN_BITS = 0x7FFFFFFF  # of a float32 product of warpgroups
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
    refuse_if(name not in _BITS)
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
    return _GROUP[:, None] + 8 * (register % 2), _PLACE[:, None] * per + part + 4 * per * (register // 2)


def b_layout(depth: int, kind: Element) -> tuple[np.ndarray, np.ndarray]:
    """(rows, columns) of the elements of B, [lane, element]."""
    per = kind.per_register
    index = np.arange(depth * 8 // 32)
    rows = _PLACE[:, None] * per + index % per + 4 * per * (index // per)
    return rows, np.broadcast_to(_GROUP[:, None], rows.shape)


def c_layout(m: int, n: int = 8) -> tuple[np.ndarray, np.ndarray]:
    """(rows, columns) of the elements of C and D, [lane, element]."""
    index, halves = np.arange(m * n // 32), m // 8
    return _GROUP[:, None] + 8 * (index // 2 % halves), 2 * _PLACE[:, None] + index % 2 + 8 * (index // (2 * halves))


_HALF, _BYTE = ("m16n8k8", "m16n8k16"), ("m8n8k16", "m16n8k16", "m16n8k32")
_NIBBLE = ("m8n8k32", "m16n8k32", "m16n8k64")
_MMA_SHAPES = {
    "f16": _HALF, "bf16": _HALF, "tf32": ("m16n8k4", "m16n8k8"), "e4m3": _BYTE[1:], "e5m2": _BYTE[1:],
    "f64": ("m8n8k4", "m16n8k4", "m16n8k8", "m16n8k16"), "s8": _BYTE, "u8": _BYTE, "s4": _NIBBLE, "u4": _NIBBLE,
    "b1": ("m8n8k128", "m16n8k128", "m16n8k256"),
}  # fmt: skip
_SPARSE = frozenset({"sp", "sp::ordered_metadata"})
_SPARSE_DEPTHS = {
    "f16": (16, 32), "bf16": (16, 32), "tf32": (8, 16), "s8": (32, 64), "u8": (32, 64), "s4": (64, 128),
    "u4": (64, 128), "e4m3": (64,), "e5m2": (64,),
}  # fmt: skip
_OPTIONS = frozenset({"satfinite", "xor", "and", "popc"})


class MmaForm(NamedTuple):
    """What an `mma` says: extents, how A and B are stored ("row", "col"), element types, and options (satfinite, xor,
    and). `volta`: four products of eight threads each; `sparse`: half of A is stored."""

    m: int
    n: int
    k: int
    majors: tuple[str, str]
    d: Element
    a: Element
    b: Element
    c: Element
    options: frozenset[str]
    sparse: bool

    @property
    def volta(self) -> bool:
        """Is it `m8n8k4` of f16?"""
        return self.k == 4 and self.a.name == "f16"


def is_sparse(inst: Instruction) -> bool:
    """`mma.sp`, `wgmma.mma_async.sp`."""
    return not _SPARSE.isdisjoint(inst.modifiers)


def without_options(inst: Instruction) -> tuple[list[str], frozenset[str]]:
    """(the modifiers of a product but for its options and sparsity, the options)."""
    options = _OPTIONS.intersection(inst.modifiers)
    return [m for m in inst.modifiers if m not in options | _SPARSE], options


def mma_form(inst: Instruction) -> MmaForm:
    """The form of `mma[.sp].sync.aligned.SHAPE.row.col.D.A.B.C`. Raises Unsupported."""
    (plain, options), sparse = without_options(inst), is_sparse(inst)
    refuse_if(len(plain) != 9 or plain[:2] != ["sync", "aligned"] or inst.guard is not None)
    shape, left, right, d, a, b, c = plain[2:]
    m, n, k = (int(x) for x in re.findall(r"\d+", shape))
    form = MmaForm(m, n, k, (left, right), element(d), element(a), element(b), element(c), options, sparse)
    known = (m, n) == (16, 8) and k in _SPARSE_DEPTHS.get(a, ()) if sparse else shape in _MMA_SHAPES.get(a, ())
    if form.volta:
        known = shape == "m8n8k4" and b == "f16" and {left, right} <= {"row", "col"} and (d, c) != ("f32", "f16")
    elif (left, right) != ("row", "col") or family_of(a) != family_of(b):
        raise Unsupported
    refuse_if(not known or len(inst.sources) != (5 if sparse else 3))
    _check_types(d, a, c, options)
    return form


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
        refuse_if(shape not in (_WMMA_SHAPES if role in "ab" else _ACCUMULATORS).get(type_, ()))
        m, n, k = (int(x) for x in re.findall(r"\d+", shape))
        rows, columns = {"a": (m, k), "b": (k, n)}.get(role, (m, n))
        kind = element(type_)
        count = 8 if type_ == "f16" and role in "ab" else rows * columns // 32 // kind.per_register
        return cls(rows, columns, kind, count)

    @property
    def places(self) -> np.ndarray:
        """Numbers of the elements in the matrix, [lane, element]."""
        each = self.registers * self.kind.per_register
        return np.arange(32 * each).reshape(32, each) % (self.rows * self.columns)

    def addresses(self, stride: np.ndarray, column_major: bool) -> np.ndarray:
        """Byte offsets [row, storage units] of the matrix with a leading dimension `stride` [row, 1] in elements."""
        unit = max(8, self.kind.bits)  # sub-byte elements are moved by bytes
        packed = unit // self.kind.bits
        outer, inner = (self.columns, self.rows) if column_major else (self.rows, self.columns)
        first = np.arange(outer)[None, :, None] * stride[:, :, None] + packed * np.arange(inner // packed)
        return (first * self.kind.bits // 8).reshape(len(stride), -1)


def fragments_of(inst: Instruction) -> tuple[tuple[Fragment, Fragment, Fragment, Fragment], frozenset[str]]:
    """((D, A, B, C), options among satfinite, xor, and, popc) of a `wmma.mma`. Raises Unsupported."""
    given, options = without_options(inst)
    shape, *types = (m for m in given[1:] if m not in ("sync", "aligned", "row", "col", "rn"))
    if len(types) == 2:  # half-precision: only the types of D and C are named
        types = [types[0], "f16", "f16", types[1]]
    refuse_if(len(types) != 4 or types[1] != types[2] or len(inst.sources) != 3)
    d, a, b, c = (Fragment.of(role, shape, t) for role, t in zip("dabc", types, strict=True))
    _check_types(types[0], types[1], types[3], options)
    return (d, a, b, c), options


def _check_types(d: str, a: str, c: str, options: frozenset[str]) -> None:
    """Raises Unsupported unless D, C and the options go with A."""
    allowed = {"popc", "xor", "and"} if a == "b1" else {"satfinite"} if a in ("s8", "u8", "s4", "u4") else set()
    refuse_if(not {d, c} <= set(results_of(a)) or options - allowed or (a == "b1") != ("popc" in options))


def matrices_of(inst: Instruction) -> tuple[int, bool]:
    """(matrices, transposed). Raises Unsupported for a form that is not implemented."""
    flags = set(inst.modifiers) - {"sync", "aligned", "m8n8", "shared", "b16", "trans"}
    refuse_if(len(flags) != 1 or not flags <= {"x1", "x2", "x4"} or inst.guard is not None)
    refuse_if(not {"m8n8", "b16"} <= set(inst.modifiers))
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
    where = as_address(where)
    refuse_if(len(rest) != 3 or rest[0] not in ("row", "col"))
    return MatrixAccess(where, stride, rest[0] == "col", Fragment.of(inst.modifiers[1], rest[1], rest[2]))


# exponent bits, mantissa bits, bias
SUB_BYTE = {"e2m1": (2, 1, 1), "e2m3": (2, 3, 1), "e3m2": (3, 2, 3)}
_FORMATS = {**SUB_BYTE, "e4m3": (4, 3, 7), "e5m2": (5, 2, 15)}
_SPECIAL = {"e4m3": [np.nan], "e5m2": [np.inf, np.nan, np.nan, np.nan]}  # of the last positive codes
_UNIT = 16  # elements, and bytes


@cache
def values(name: str) -> np.ndarray:
    """float64 value of every code of a format, the negative ones in the second half."""
    exponent_bits, mantissa_bits, bias = _FORMATS[name]
    code = np.arange(1 << (exponent_bits + mantissa_bits))
    exponent, mantissa = code >> mantissa_bits, code & ((1 << mantissa_bits) - 1)
    fraction = np.where(exponent > 0, 1.0, 0.0) + mantissa / (1 << mantissa_bits)
    positive = np.ldexp(fraction, np.maximum(exponent, 1) - bias)
    special = _SPECIAL.get(name, [])
    positive[len(code) - len(special) :] = special
    return np.concatenate([positive, -positive])


def from_bf16(x: np.ndarray) -> np.ndarray:
    """bf16 bits (uint16) as float32."""
    return (x.astype(np.uint32) << np.uint32(16)).view(np.float32)


def unpack_units(stored: np.ndarray, name: str) -> np.ndarray:
    """Bytes [..., 16 n] of units as the numbers [..., 16 n] that they hold."""
    bits = 1 + sum(SUB_BYTE[name][:2])
    units = stored.reshape(*stored.shape[:-1], -1, _UNIT)[..., : bits * _UNIT // 8]
    each = np.unpackbits(np.ascontiguousarray(units), axis=-1, bitorder="little")
    codes = np.packbits(each.reshape(*units.shape[:-1], _UNIT, bits), axis=-1, bitorder="little")[..., 0]
    return values(name)[codes].reshape(stored.shape)


def unpack_pairs(stored: np.ndarray, name: str) -> np.ndarray:
    """Bytes [..., n] that hold two codes of 4 bits each, the lower first, as numbers [..., 2 n]."""
    codes = np.stack([stored & np.uint8(15), stored >> np.uint8(4)], axis=-1)
    return values(name)[codes].reshape(*stored.shape[:-1], -1)
