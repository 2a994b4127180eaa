"""`mma`, `wmma`, `ldmatrix` and `cp.async` as LLVM IR: whole-warp data movement and matrix products.

A fragment register of 32 lanes of `mma`, seen as one long vector of its elements, is a block of the matrix already: 8
rows (or columns, of B) of consecutive elements. So fragments are stored block by block, as float64, and the run time
multiplies. Double precision and elements of less than a byte are left to steps, and accesses of `wmma` that overlap or
are not aligned to words."""

import numpy as np

from functional.isa.emitter import Value, vector
from functional.isa.floats import join, narrow, up
from functional.isa.matrices import Element, access_form, fragments_of, matrices_of, mma_form
from functional.isa.memory import copy_of
from functional.isa.operation import refuse_if
from functional.llvm_executor import context_layout as at
from functional.llvm_executor.accesses import address
from functional.llvm_executor.emit import constants
from functional.llvm_executor.unit import Unit
from functional.ptx.ir import Instruction, Operand, parts_of

_LANE = np.arange(32)
_A, _B = at.SCRATCH, at.SCRATCH + 8 * 16 * 32
_C = _B + 8 * 32 * 8
_ELEMENTS = {"f16": 2, "bf16": 2, "tf32": 1, "s8": 4, "u8": 4}  # of a register


def mma(unit: Unit, inst: Instruction) -> None:
    """`mma.sync` on 16-row fragments of f16, bf16, tf32 and 8-bit integers."""
    form = mma_form(inst)
    refuse_if(form.m != 16 or not {form.a.name, form.b.name} <= _ELEMENTS.keys() or form.options or form.sparse)
    e = unit.e
    _store_blocks(unit, inst.sources[0], form.a.name, _A)
    _store_blocks(unit, inst.sources[1], form.b.name, _B)
    a, b, c = (e.field("%frame", offset) for offset in (_A, _B, _C))
    per = _ELEMENTS[form.a.name]
    e.call("multiply_blocks", a, b, c, 4 * per, form.k // (4 * per))
    _finish(unit, inst, [v for half in range(2) for v in _pairs(unit, half)], form.c, form.d)


def _finish(unit: Unit, inst: Instruction, total: list[Value], c: Element, d: Element) -> None:
    """The product plus C, rounded, in the registers of D."""
    thirds = [v for register in parts_of(inst.sources[2]) for v in _numbers(unit, c, register)]
    e = unit.e
    results = [e.op("fadd", t, third) for t, third in zip(total, thirds, strict=True)]
    targets, per = parts_of(inst.destinations[0]), d.per_register
    refuse_if(per * len(targets) != len(results))
    for i, target in enumerate(targets):
        own = results[per * i : per * (i + 1)]
        if d.name == "f16":
            value = join(e, *(narrow(e, r, "half", "rn") for r in own))
        elif d.name == "s32":  # below 2**53: exact
            value = e.cast("trunc", e.cast("fptosi", own[0], "i64"), "i32")
        else:
            value = e.raw_bits(e.cast("fptrunc", own[0], "float"))
        unit.set(target, value, "b32")


def _store_blocks(unit: Unit, operand: Operand, name: str, offset: int) -> None:
    """The registers of a fragment as float64 blocks, one behind the other."""
    e, count = unit.e, 32 * _ELEMENTS[name]
    for i, register in enumerate(parts_of(operand)):
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


def whole_warp(unit: Unit) -> None:
    """Refuse to run an aligned instruction with a part of the warp: its step decides what that means."""
    unit.fault_if(unit.e.compare("ne", unit.e.mask, -1))


def ldmatrix(unit: Unit, inst: Instruction) -> None:
    """`ldmatrix`: lane i names row i % 8 of matrix i / 8; lane l gets elements 2 (l % 4) and on of row l / 4."""
    matrices, transposed = matrices_of(inst)
    refuse_if(inst.space != "shared")
    e = unit.e
    whole_warp(unit)
    rows = e.call("check_shared", address(unit, inst.sources[0], "shared"), (1 << 8 * matrices) - 1, 16)
    for i, target in enumerate(parts_of(inst.destinations[0])):
        if transposed:
            halves = [_picked(unit, rows, 8 * i + 2 * (_LANE % 4) + odd, 2 * (_LANE // 4), 16) for odd in range(2)]
            unit.set(target, join(e, *halves), "b32")
        else:
            unit.set(target, _picked(unit, rows, 8 * i + _LANE // 4, 4 * (_LANE % 4), 32), "b32")


def _picked(unit: Unit, rows: Value, which: np.ndarray, offsets: np.ndarray, bits: int) -> Value:
    """Words at constant places [lane] of the rows that lanes named."""
    e = unit.e
    base = e.let(f"shufflevector {rows}, {vector('i64')} poison, {constants(which.tolist(), 'i32')}", "i64", True)
    return e.call(f"gather_{bits}", e.op("add", base, constants(offsets.tolist(), "i64")), -1)


def async_copy(unit: Unit, inst: Instruction) -> None:
    """`cp.async`, done at once. Lanes that read some but not all of their bytes are left to its step."""
    copy, e = copy_of(inst), unit.e
    lanes = reading = unit.lanes()
    if copy.ignore is not None:
        reading = e.op("and", lanes, e.invert(e.bits_of(unit.get(copy.ignore, "pred"))))
    elif copy.read is not None:
        count = unit.get(copy.read, "u32")
        whole, none = e.bits_of(e.compare("uge", count, copy.size)), e.bits_of(e.compare("eq", count, 0))
        unit.fault_if(e.compare("ne", e.op("and", e.invert(e.op("or", whole, none)), lanes), 0))
        reading = e.op("and", whole, lanes)
    hosts = e.call("check_global", address(unit, copy.source, "global"), reading, copy.size)
    to = e.widen(address(unit, copy.to, "shared"))
    places = e.call("locate_some_shared", to, lanes, copy.size)
    e.call("record_writes", to, lanes)
    bits = 32 if copy.size == 4 else 64
    for first in range(0, copy.size, bits // 8):
        from_, into = (e.op("add", v, first) if first else v for v in (hosts, places))
        e.call(f"scatter_{bits}", into, e.call(f"gather_{bits}", from_, reading), lanes)  # 0 in lanes that do not read


_WMMA_A, _WMMA_B, _WMMA_C = at.SCRATCH, at.SCRATCH + 8 * 512, at.SCRATCH + 8 * 1024
_KINDS = frozenset({"f16", "bf16", "tf32", "s8", "u8", "f32", "s32"})


def wmma(unit: Unit, inst: Instruction) -> None:
    """`wmma.load`, `wmma.store`, `wmma.mma`."""
    whole_warp(unit)
    (_multiply if inst.modifiers[0] == "mma" else _moved)(unit, inst)


def _first_lane(unit: Unit, value: Value) -> Value:
    return unit.e.let(f"extractelement {value}, i32 0", value.kind, False) if value.wide else value


def _moved(unit: Unit, inst: Instruction) -> None:
    """A matrix in memory: checked, recorded, and moved by what lies together there, a register or a part of it."""
    where, pitch, by_column, fragment = access_form(inst)
    e, loads, size = unit.e, inst.modifiers[0] == "load", fragment.kind.bits // 8
    registers = parts_of(inst.destinations[0] if loads else inst.sources[1])
    refuse_if(inst.space not in ("global", "shared", "generic") or fragment.kind.name not in _KINDS)
    refuse_if(len(registers) != fragment.registers)
    lines, length = (fragment.columns, fragment.rows) if by_column else (fragment.rows, fragment.columns)
    leading = e.literal(length, "i64")
    if pitch is not None:
        leading = e.resize(_first_lane(unit, unit.get(pitch, "u32")), "i64", False)
    stride, base = e.op("mul", leading, size), _first_lane(unit, address(unit, where, inst.space))
    check = f"matrix_{'generic_' if inst.space == 'generic' else ''}{'global' if loads else 'stored'}"
    host = e.call("matrix_shared" if inst.space == "shared" else check, base, stride, lines, length * size)
    stride = e.select(e.compare("ne", unit.context("fault"), 0), 0, stride)  # all at the scratch area
    bits, count = (8 * size, 4 // size) if by_column and size < 4 else (32, 1)
    for register, operand in enumerate(registers):
        word = e.literal(0, "i32") if loads else e.widen(unit.get(operand, "b32"))
        for part in range(count):
            cells = np.divmod(fragment.places[:, register * fragment.kind.per_register + part], fragment.columns)
            places, inside = cells[int(by_column)], size * cells[int(not by_column)]
            along = e.op("mul", constants(places.tolist(), "i64"), stride)
            hosts = e.op("add", e.op("add", along, constants(inside.tolist(), "i64")), host)
            if loads:
                piece = e.resize(e.call(f"gather_{bits}", hosts, -1), "i32", False)
                word = e.op("or", word, e.op("shl", piece, bits * part)) if part else piece
            else:
                piece = e.resize(e.op("lshr", word, bits * part) if part else word, f"i{bits}", False)
                e.call(f"scatter_{bits}", hosts, piece, -1)
        if loads:
            unit.set(operand, word, "b32")


def _multiply(unit: Unit, inst: Instruction) -> None:
    (d, a, b, c), options = fragments_of(inst)
    refuse_if(options or {f.kind.name for f in (a, b, c, d)} - _KINDS)
    e = unit.e
    for fragment, operand, offset in ((a, inst.sources[0], _WMMA_A), (b, inst.sources[1], _WMMA_B)):
        numbers = [v for register in parts_of(operand) for v in _numbers(unit, fragment.kind, register)]
        for i, (places, value) in enumerate(zip(fragment.places.T.tolist(), numbers, strict=True)):
            first = sum(1 << n for n in range(32) if n * len(numbers) + i < fragment.rows * fragment.columns)
            _spread(unit, places, offset, value, first)
    pointers = [e.field("%frame", offset) for offset in (_WMMA_A, _WMMA_B, _WMMA_C)]
    e.call("multiply_rows", *pointers, a.rows, b.columns, a.columns)
    _finish(unit, inst, [_gathered(unit, place) for place in d.places.T.tolist()], c.kind, d.kind)


def _numbers(unit: Unit, kind: Element, register: Operand | None) -> list[Value]:
    e, name, bits = unit.e, kind.name, kind.bits
    word = e.widen(unit.get(register, "b32"))
    if name in ("f32", "tf32"):
        word = e.op("and", word, ~0x1FFF) if name == "tf32" else word
        return [e.cast("fpext", e.as_kind(word, "float"), "double")]
    if name == "s32":
        return [e.cast("sitofp", word, "double")]
    parts = [e.cast("trunc", e.op("lshr", word, bits * i) if i else word, f"i{bits}") for i in range(32 // bits)]
    if bits == 8:
        return [e.cast("sitofp" if name == "s8" else "uitofp", part, "double") for part in parts]
    return [e.cast("fpext", up(e, e.as_kind(p, "half") if name == "f16" else p), "double") for p in parts]


def _spread(unit: Unit, places: list[int], offset: int, value: Value, lanes: int) -> None:
    """Write an element of lanes to its place in a row-major float64 matrix."""
    e = unit.e
    base = e.let(f"ptrtoint ptr {e.field('%frame', offset)} to i64", "i64", False)
    e.call("scatter_64", e.op("add", constants([8 * p for p in places], "i64"), base), e.raw_bits(value), lanes)


def _gathered(unit: Unit, places: list[int]) -> Value:
    e = unit.e
    base = e.let(f"ptrtoint ptr {e.field('%frame', _WMMA_C)} to i64", "i64", False)
    return e.as_kind(e.call("gather_64", e.op("add", constants([8 * p for p in places], "i64"), base), -1), "double")
