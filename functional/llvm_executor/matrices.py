"""`mma`, `ldmatrix` and `cp.async` as LLVM IR: whole-warp data movement and matrix products.

A fragment register of 32 lanes, seen as one long vector of its elements, is a block of the matrix already: 8 rows (or
columns, of B) of consecutive elements. So fragments are stored block by block, as float64, and the run time multiplies.
"""

from __future__ import annotations

from functional.isa.emitter import Value, vector
from functional.isa.floats import join, narrow
from functional.isa.matrices import matrices_of, mma_form
from functional.isa.memory import copy_of
from functional.isa.operation import Unsupported
from functional.llvm_executor import context_layout as at
from functional.llvm_executor.accesses import _call, address
from functional.llvm_executor.unit import Unit
from functional.ptx.ir import Instruction, Operand, Vector

_A, _B = at.SCRATCH, at.SCRATCH + 8 * 16 * 32
_C = _B + 8 * 32 * 8
_ELEMENTS = {"f16": 2, "bf16": 2, "tf32": 1, "s8": 4, "u8": 4}  # of a register


def mma(unit: Unit, inst: Instruction) -> None:
    """`mma.sync` on 16-row fragments of f16, bf16, tf32 and 8-bit integers."""
    form = mma_form(inst)
    if form.m != 16 or form.a.name not in _ELEMENTS or form.b.name not in _ELEMENTS or "satfinite" in form.options:
        raise Unsupported
    e = unit.e
    _store_blocks(unit, inst.sources[0], form.a.name, _A)
    _store_blocks(unit, inst.sources[1], form.b.name, _B)
    a, b, c = (e.field("%frame", offset) for offset in (_A, _B, _C))
    per = _ELEMENTS[form.a.name]
    arguments = f"ptr {a}, ptr {b}, ptr {c}, i64 {4 * per}, i64 {form.k // (4 * per)}"
    _call(unit, "void", "multiply_blocks", arguments, "ptr, ptr, ptr, i64, i64")
    total = [v for half in range(2) for v in _pairs(unit, half)]
    results = _results(unit, inst.sources[2], total, form.c.name)
    elements = _registers(inst.destinations[0])
    if form.d.name == "f16":
        halves = [narrow(e, r, "half", "rn") for r in results]
        packed = [join(e, halves[i], halves[i + 1]) for i in (0, 2)]
        for target, value in zip(elements, packed, strict=True):
            unit.set(target, value, "b32")
        return
    for target, value in zip(elements, results, strict=True):
        narrowed = e.cast("fptrunc", value, "float") if value.kind == "double" else e.cast("trunc", value, "i32")
        unit.set(target, narrowed, "f32" if narrowed.kind == "float" else "b32")


def _registers(operand: Operand | None) -> tuple[Operand | None, ...]:
    return operand.elements if isinstance(operand, Vector) else (operand,)


def _store_blocks(unit: Unit, operand: Operand, name: str, offset: int) -> None:
    """The registers of a fragment as float64 blocks, one behind the other."""
    e, count = unit.e, 32 * _ELEMENTS[name]
    for i, register in enumerate(_registers(operand)):
        word = e.widen(unit.get(register, "b32"))
        if name == "tf32":
            word = e.op("and", word, ~0x1FFF)
            text = e.scalar(f"bitcast {word} to <32 x float>", "float")
        elif name == "f16":
            text = e.scalar(f"bitcast {word} to <64 x half>", "float")
            text = e.scalar(f"fpext <64 x half> {text} to <64 x float>", "float")
        elif name == "bf16":
            text = e.scalar(f"bitcast {word} to <64 x i16>", "float")
            text = e.scalar(f"zext <64 x i16> {text} to <64 x i32>", "float")
            text = e.scalar(f"shl <64 x i32> {text}, splat (i32 16)", "float")
            text = e.scalar(f"bitcast <64 x i32> {text} to <64 x float>", "float")
        else:
            text = e.scalar(f"bitcast {word} to <128 x i8>", "float")
            text = e.scalar(f"{'sext' if name == 's8' else 'zext'} <128 x i8> {text} to <128 x i32>", "float")
            text = e.scalar(f"sitofp <128 x i32> {text} to <128 x float>", "float")
        wide = e.scalar(f"fpext <{count} x float> {text} to <{count} x double>", "double")
        e.raw(f"store <{count} x double> {wide}, ptr {e.field('%frame', offset + 8 * count * i)}, align 8")


def _pairs(unit: Unit, half: int) -> list[Value]:
    """The two columns a lane holds of rows 8 `half` and on of the product, as float64."""
    e = unit.e
    row = e.scalar(f"load <64 x double>, ptr {e.field('%frame', _C + 512 * half)}, align 8", "double")
    found = []
    for odd in range(2):
        lanes = ", ".join(f"i32 {2 * i + odd}" for i in range(32))
        text = f"shufflevector <64 x double> {row}, <64 x double> poison, <32 x i32> <{lanes}>"
        found.append(e.let(text, "double", True))
    return found


def _results(unit: Unit, operand: Operand, total: list[Value], name: str) -> list[Value]:
    """The product plus C: float64 values, or i64 ones of integers."""
    e = unit.e
    registers = _registers(operand)
    if name == "s32":
        thirds = [e.cast("sext", e.widen(unit.get(r, "b32")), "i64") for r in registers]
        return [e.op("add", e.cast("fptosi", t, "i64"), c) for t, c in zip(total, thirds, strict=True)]
    if name == "f32":
        thirds = [e.cast("fpext", e.widen(unit.get(r, "f32")), "double") for r in registers]
    else:
        thirds = []
        for register in registers:
            word = e.widen(unit.get(register, "b32"))
            for shift in (0, 16):
                part = e.cast("trunc", e.op("lshr", word, shift) if shift else word, "i16")
                thirds.append(e.cast("fpext", e.cast("fpext", e.as_kind(part, "half"), "float"), "double"))
    return [e.op("fadd", t, c) for t, c in zip(total, thirds, strict=True)]


def whole_warp(unit: Unit) -> None:
    """Refuse to run an aligned instruction with a part of the warp: the oracle decides what that means."""
    e = unit.e
    wrong = e.cast("zext", e.compare("ne", Value(unit.mask, "i32", False), -1), "i64")
    e.store("%ctx", at.SLOT["fault"], e.op("or", unit.context("fault"), wrong), align=8)


def ldmatrix(unit: Unit, inst: Instruction) -> None:
    """`ldmatrix`: lane i names row i % 8 of matrix i / 8; lane l gets elements 2 (l % 4) and on of row l / 4."""
    matrices, transposed = matrices_of(inst)
    if inst.space != "shared":
        raise Unsupported
    e = unit.e
    whole_warp(unit)
    where = e.widen(address(unit, inst.sources[0], "shared"))
    named = (1 << 8 * matrices) - 1
    lanes = e.literal(named, "i32").name
    arguments = f"ptr %ctx, {where}, i32 {lanes}, i64 16"
    rows = _call(unit, vector("i64"), "check_shared", arguments, f"ptr, {vector('i64')}, i32, i64")
    for i, target in enumerate(_registers(inst.destinations[0])):
        if transposed:
            low, high = (
                _picked(
                    unit, rows, [8 * i + 2 * (n % 4) + odd for n in range(32)], [2 * (n // 4) for n in range(32)], 16
                )
                for odd in range(2)
            )
            unit.set(target, join(e, low, high), "b32")
        else:
            unit.set(
                target,
                _picked(unit, rows, [8 * i + n // 4 for n in range(32)], [4 * (n % 4) for n in range(32)], 32),
                "b32",
            )


def _picked(unit: Unit, rows: str, which: list[int], offsets: list[int], bits: int) -> Value:
    """Words at constant places of the rows that lanes named."""
    e = unit.e
    chosen = ", ".join(f"i32 {w}" for w in which)
    wide = vector("i64")
    base = e.let(f"shufflevector {wide} {rows}, {wide} poison, <32 x i32> <{chosen}>", "i64", True)
    own = Value("<" + ", ".join(f"i64 {o}" for o in offsets) + ">", "i64", True, True)
    hosts = e.op("add", base, own)
    return Value(
        _call(unit, vector(f"i{bits}"), f"gather_{bits}", f"{hosts}, i32 -1", f"{wide}, i32"), f"i{bits}", True
    )


def async_copy(unit: Unit, inst: Instruction) -> None:
    """`cp.async`, done at once. Lanes that read some but not all of their bytes are left to the oracle."""
    copy, e = copy_of(inst), unit.e
    lanes = reading = unit.lanes()
    if copy.ignore is not None:
        skipped = e.bits_of(unit.get(copy.ignore, "pred"))
        reading = e.scalar(f"and i32 {lanes}, {e.scalar(f'xor i32 {skipped}, -1', 'i32')}", "i32")
    elif copy.read is not None:
        reading = _reading(unit, unit.get(copy.read, "u32"), copy.size, lanes)
    source = e.widen(address(unit, copy.source, "global"))
    types = f"ptr, {vector('i64')}, i32, i64"
    arguments = f"ptr %ctx, {source}, i32 {reading}, i64 {copy.size}"
    hosts = Value(_call(unit, vector("i64"), "check_global", arguments, types), "i64", True)
    to = e.widen(address(unit, copy.to, "shared"))
    arguments = f"ptr %ctx, {to}, i32 {lanes}, i64 {copy.size}"
    places = Value(_call(unit, vector("i64"), "locate_some_shared", arguments, types), "i64", True)
    _call(unit, "void", "record_writes", f"ptr %ctx, {to}, i32 {lanes}", f"ptr, {vector('i64')}, i32")
    bits, kind = (32, "i32") if copy.size == 4 else (64, "i64")
    for first in range(0, copy.size, bits // 8):
        from_, into = (e.op("add", v, first) if first else v for v in (hosts, places))
        data = _call(unit, vector(kind), f"gather_{bits}", f"{from_}, i32 {reading}", f"{vector('i64')}, i32")
        value = e.select(e.lanes_of(reading), Value(data, kind, True), 0)
        _call(unit, "void", f"scatter_{bits}", f"{into}, {value}, i32 {lanes}", f"{vector('i64')}, {vector(kind)}, i32")


def _reading(unit: Unit, count: Value, size: int, lanes: str) -> str:
    """Lanes that read all their bytes; a fault if one reads a part."""
    e = unit.e
    whole, none = e.bits_of(e.compare("uge", count, size)), e.bits_of(e.compare("eq", count, 0))
    neither = e.scalar(f"xor i32 {e.scalar(f'or i32 {whole}, {none}', 'i32')}, -1", "i32")
    wrong = e.compare("ne", Value(e.scalar(f"and i32 {neither}, {lanes}", "i32"), "i32", False), 0)
    e.store("%ctx", at.SLOT["fault"], e.op("or", unit.context("fault"), e.cast("zext", wrong, "i64")), align=8)
    return e.scalar(f"and i32 {whole}, {lanes}", "i32")


TABLE = {"mma": mma, "ldmatrix": ldmatrix, "cp": async_copy}
