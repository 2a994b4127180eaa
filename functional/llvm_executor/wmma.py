"""`wmma` as LLVM IR: whole matrices between memory and fragments, and their product.

The layout of fragments is the oracle's (numpy_executor.wmma). Double precision, elements of less than a byte, and
accesses that overlap or are not aligned to words are left to it.
"""

from __future__ import annotations

from functional.isa.emitter import Value, vector
from functional.isa.floats import join, narrow, up
from functional.isa.matrices import Fragment, fragments_of
from functional.isa.operation import Unsupported
from functional.llvm_executor import context_layout as at
from functional.llvm_executor.accesses import _call, address
from functional.llvm_executor.matrices import whole_warp
from functional.llvm_executor.unit import Unit
from functional.ptx.ir import Address, Instruction, Operand, Vector

_A, _B, _C = at.SCRATCH, at.SCRATCH + 8 * 512, at.SCRATCH + 8 * 1024
_KINDS = frozenset({"f16", "bf16", "tf32", "s8", "u8", "f32", "s32"})


def wmma(unit: Unit, inst: Instruction) -> None:
    """`wmma.load`, `wmma.store`, `wmma.mma`."""
    whole_warp(unit)
    if inst.modifiers[0] == "mma":
        _multiply(unit, inst)
    elif inst.modifiers[0] == "load":
        stride = inst.sources[1] if len(inst.sources) > 1 else None
        _load(unit, inst, _Matrix(unit, inst, inst.sources[0], stride))
    else:
        stride = inst.sources[2] if len(inst.sources) > 2 else None
        _store(unit, inst, _Matrix(unit, inst, inst.sources[0], stride))


def _elements(operand: Operand | None) -> tuple[Operand | None, ...]:
    return operand.elements if isinstance(operand, Vector) else (operand,)


def _first_lane(unit: Unit, value: Value) -> Value:
    return unit.e.let(f"extractelement {value}, i32 0", value.kind, False) if value.wide else value


class _Matrix:
    """A matrix in memory: checked, recorded, and the host addresses of its elements."""

    def __init__(self, unit: Unit, inst: Instruction, where: Operand, stride: Operand | None) -> None:
        rest = [m for m in inst.modifiers[2:] if m not in ("sync", "aligned", "global", "shared")]
        if len(rest) != 3 or inst.space not in ("global", "shared", "generic") or not isinstance(where, Address):
            raise Unsupported
        self.unit, self.by_column = unit, rest[0] == "col"
        self.fragment = fragment = Fragment.of(inst.modifiers[1], rest[1], rest[2])
        if fragment.kind.name not in _KINDS:
            raise Unsupported
        e, self.size = unit.e, fragment.kind.bits // 8
        lines, length = (fragment.columns, fragment.rows) if self.by_column else (fragment.rows, fragment.columns)
        leading = e.literal(length, "i64")
        if stride is not None:
            leading = e.resize(_first_lane(unit, unit.get(stride, "u32")), "i64", False)
        self.stride = e.op("mul", leading, self.size)
        base = _first_lane(unit, address(unit, where, inst.space))
        arguments = f"ptr %ctx, i64 {base.name}, i64 {self.stride.name}, i64 {lines}, i64 {length * self.size}"
        host = _call(unit, "i64", _helper(inst), arguments, "ptr, i64, i64, i64, i64")
        self.host = Value(host, "i64", False)
        self.stride = e.select(e.compare("ne", unit.context("fault"), 0), 0, self.stride)  # all at the scratch area

    def hosts(self, register: int, part: int) -> Value:
        """Host addresses, one a lane, of element `part` of a register."""
        e, fragment = self.unit.e, self.fragment
        per = 1 if fragment.kind.name == "f32" else fragment.kind.per_register
        total = fragment.rows * fragment.columns
        places = [((lane * fragment.registers + register) * per + part) % total for lane in range(32)]
        cells = [divmod(p, fragment.columns) for p in places]
        lines = [column if self.by_column else row for row, column in cells]
        bytes_ = [self.size * (row if self.by_column else column) for row, column in cells]
        offset = e.op("add", e.op("mul", _constants(lines), self.stride), _constants(bytes_))
        return e.op("add", offset, self.host)

    def pieces(self) -> tuple[int, int]:
        """(bits of what lies together in memory, how many of them make up a register)."""
        if self.by_column and self.size < 4:
            return 8 * self.size, 4 // self.size
        return 32, 1


def _helper(inst: Instruction) -> str:
    """The run time's function that checks and records a matrix."""
    of_global = "stored" if inst.modifiers[0] == "store" else "global"
    return {"global": f"matrix_{of_global}", "generic": f"matrix_generic_{of_global}"}.get(inst.space, "matrix_shared")


def _constants(numbers: list[int]) -> Value:
    return Value("<" + ", ".join(f"i64 {n}" for n in numbers) + ">", "i64", True, True)


def _load(unit: Unit, inst: Instruction, matrix: _Matrix) -> None:
    e, (bits, count) = unit.e, matrix.pieces()
    targets = _elements(inst.destinations[0])
    if len(targets) != matrix.fragment.registers:
        raise Unsupported
    for register, target in enumerate(targets):
        word: Value | None = None
        for part in range(count):
            arguments = f"{matrix.hosts(register, part)}, i32 -1"
            name = _call(unit, vector(f"i{bits}"), f"gather_{bits}", arguments, f"{vector('i64')}, i32")
            piece = e.resize(Value(name, f"i{bits}", True), "i32", False)
            piece = e.op("shl", piece, bits * part) if part else piece
            word = piece if word is None else e.op("or", word, piece)
        assert word is not None
        unit.set(target, word, "b32")


def _store(unit: Unit, inst: Instruction, matrix: _Matrix) -> None:
    e, (bits, count) = unit.e, matrix.pieces()
    given = _elements(inst.sources[1])
    if len(given) != matrix.fragment.registers:
        raise Unsupported
    for register, source in enumerate(given):
        word = e.widen(unit.get(source, "b32"))
        for part in range(count):
            piece = e.resize(e.op("lshr", word, bits * part) if part else word, f"i{bits}", False)
            arguments = f"{matrix.hosts(register, part)}, {piece}, i32 -1"
            _call(unit, "void", f"scatter_{bits}", arguments, f"{vector('i64')}, {piece.type}, i32")


def _multiply(unit: Unit, inst: Instruction) -> None:
    (d, a, b, c), options = fragments_of(inst)
    if options or {f.kind.name for f in (a, b, c, d)} - _KINDS:
        raise Unsupported
    e = unit.e
    for fragment, operand, offset in ((a, inst.sources[0], _A), (b, inst.sources[1], _B)):
        for register, parts in enumerate(_numbers(unit, fragment, operand)):
            for part, value in enumerate(parts):
                _spread(unit, fragment, register, part, offset, value)
    pointers = ", ".join(f"ptr {e.field('%frame', offset)}" for offset in (_A, _B, _C))
    extents = f"i64 {a.rows}, i64 {b.columns}, i64 {a.columns}"
    _call(unit, "void", "multiply_rows", f"{pointers}, {extents}", "ptr, ptr, ptr, i64, i64, i64")
    thirds = _numbers(unit, c, inst.sources[2])
    targets = _elements(inst.destinations[0])
    per = len(thirds[0])
    for number, target in enumerate(targets):
        results = []
        for part in range(2 if d.kind.name == "f16" else 1):
            place = number * (2 if d.kind.name == "f16" else 1) + part
            total = _gathered(unit, d.rows * d.columns, place)
            results.append(e.op("fadd", total, thirds[place // per][place % per]))
        unit.set(target, _rounded(unit, results, d.kind.name), "b32")


def _numbers(unit: Unit, fragment: Fragment, operand: Operand) -> list[list[Value]]:
    """The elements of every register as float64, [register][part]."""
    e, name, found = unit.e, fragment.kind.name, []
    if len(_elements(operand)) != fragment.registers:
        raise Unsupported
    for register in _elements(operand):
        word = e.widen(unit.get(register, "b32"))
        if name in ("f32", "tf32"):
            word = e.op("and", word, ~0x1FFF) if name == "tf32" else word
            found.append([e.cast("fpext", e.as_kind(word, "float"), "double")])
        elif name == "s32":
            found.append([e.cast("sitofp", word, "double")])
        else:
            bits = fragment.kind.bits
            parts = [
                e.cast("trunc", e.op("lshr", word, bits * i) if i else word, f"i{bits}") for i in range(32 // bits)
            ]
            if bits == 8:
                cast = "sitofp" if name == "s8" else "uitofp"
                found.append([e.cast(cast, p, "double") for p in parts])
            else:
                wide = [up(e, e.as_kind(p, "half") if name == "f16" else p) for p in parts]
                found.append([e.cast("fpext", w, "double") for w in wide])
    return found


def _spread(unit: Unit, fragment: Fragment, register: int, part: int, offset: int, value: Value) -> None:
    """Write an element of every lane to its place in a row-major float64 matrix; copies of an element once."""
    e, total = unit.e, fragment.rows * fragment.columns
    per = 1 if fragment.kind.name == "f32" else fragment.kind.per_register
    places = [(lane * fragment.registers + register) * per + part for lane in range(32)]
    lanes = sum(1 << lane for lane, place in enumerate(places) if place < total)
    base = e.let(f"ptrtoint ptr {e.field('%frame', offset)} to i64", "i64", False)
    hosts = e.op("add", _constants([8 * (p % total) for p in places]), base)
    mask = e.literal(lanes, "i32").name
    arguments = f"{hosts}, {e.raw_bits(value)}, i32 {mask}"
    _call(unit, "void", "scatter_64", arguments, f"{vector('i64')}, {vector('i64')}, i32")


def _gathered(unit: Unit, total: int, place: int) -> Value:
    """Element `place` of every lane of the product."""
    e, each = unit.e, total // 32
    base = e.let(f"ptrtoint ptr {e.field('%frame', _C)} to i64", "i64", False)
    hosts = e.op("add", _constants([8 * (lane * each + place) for lane in range(32)]), base)
    name = _call(unit, vector("i64"), "gather_64", f"{hosts}, i32 -1", f"{vector('i64')}, i32")
    return e.as_kind(Value(name, "i64", True), "double")


def _rounded(unit: Unit, results: list[Value], name: str) -> Value:
    """The register of an accumulator."""
    e = unit.e
    if name == "f16":
        return join(e, *(narrow(e, r, "half", "rn") for r in results))
    if name == "s32":  # below 2**53: exact
        return e.cast("trunc", e.cast("fptosi", results[0], "i64"), "i32")
    return e.raw_bits(e.cast("fptrunc", results[0], "float"))
