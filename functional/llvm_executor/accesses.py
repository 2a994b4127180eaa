"""Memory instructions as calls of the run time's helpers."""

from __future__ import annotations

from functional.ir import Address, Instruction, Operand, Register, Symbol
from functional.llvm_executor.emit import Value, vector
from functional.llvm_executor.unit import NotGenerated, Unit
from functional.memory import GLOBAL_BASE
from functional.numpy_executor.memory_ops import _access as access_of
from functional.numpy_executor.memory_ops import _elements as elements_of
from functional.numpy_executor.memory_ops import space_of
from functional.trace import LINE_BYTES, PARAM_WINDOW_LINE


def address(unit: Unit, operand: Operand, space: str) -> Value:
    """The address as i64; those of shared memory wrap at 32 bits."""
    if not isinstance(operand, Address):
        raise NotGenerated
    e, base, offset = unit.e, operand.base, operand.offset
    if base is None:
        value = e.literal(offset, "i64")
    elif isinstance(base, Symbol):
        value = unit.get(Symbol(base.name, base.offset + offset), "u64")
        offset = 0
    elif isinstance(base, Register):
        value = unit.get(base, "u" + base.type[1:])
    else:
        raise NotGenerated
    if space == "shared":
        value = e.resize(value, "i32", False)
        value = value if base is None or not offset else e.op("add", value, offset)
    else:
        value = e.resize(value, "i64", False)
        value = value if base is None or not offset else e.op("add", value, offset)
    return e.resize(value, "i64", False)


def _generic(unit: Unit, where: Value, mask: str) -> None:
    """A generic access that is not all in global memory is left to the oracle."""
    e = unit.e
    low = e.compare("ult", where, GLOBAL_BASE)
    inside = e.scalar(f"and i32 {e.bits_of(low)}, {mask}", "i32")
    wrong = e.scalar(f"icmp ne i32 {inside}, 0", "i1")
    old = unit.context("fault")
    e.store("%ctx", _slot("fault"), e.op("or", old, e.cast("zext", Value(wrong, "i1", False), "i64")), align=8)


def _slot(name: str) -> int:
    from functional.llvm_executor.layout import SLOT

    return SLOT[name]


def _place(unit: Unit, inst: Instruction, operand: Operand) -> tuple[str, Value]:
    """(space, address) of a load, store or atomic."""
    if not isinstance(operand, Address):
        raise NotGenerated
    space = space_of(unit.slots, inst, operand)
    if space == "call":
        raise NotGenerated
    where = address(unit, operand, space)
    if space == "generic":
        _generic(unit, where, unit.lanes())
        space = "global"
    return space, where


def _call(unit: Unit, result: str, name: str, arguments: str, types: str) -> str:
    unit.e.declarations[f"@{name}"] = f"declare {result} @{name}({types}) #0"
    text = f"call {result} @{name}({arguments})"
    if result == "void":
        unit.e.raw(text)
        return ""
    return unit.e.scalar(text, result)


def host_one(unit: Unit, space: str, where: Value, size: int) -> str:
    """Checked host address (ptr name) of an address equal in all lanes; recorded."""
    arguments = f"ptr %ctx, i64 {where.name}, i32 {unit.lanes()}, i64 {size}"
    host = _call(unit, "i64", f"check_one_{space}", arguments, "ptr, i64, i32, i64")
    return unit.e.scalar(f"inttoptr i64 {host} to ptr", "ptr")


def host_lanes(unit: Unit, space: str, where: Value, size: int) -> str:
    """Checked host addresses (<32 x i64> name) of the lanes; recorded."""
    where = unit.e.widen(where)
    arguments = f"ptr %ctx, {where}, i32 {unit.lanes()}, i64 {size}"
    return _call(unit, vector("i64"), f"check_{space}", arguments, f"ptr, {vector('i64')}, i32, i64")


def load(unit: Unit, inst: Instruction) -> None:
    """`ld ldu`."""
    size, count = access_of(inst)
    targets = elements_of(inst.destinations[0], count)
    kind = f"i{8 * size}"
    operand = inst.sources[0]
    if inst.space == "param" and _is_constant_parameter(unit, operand) and inst.guard is None:
        values = _load_parameter(unit, operand, size, count)
    else:
        space, where = _place(unit, inst, operand)
        values = _load_values(unit, space, where, kind, size, count)
    for target, value in zip(targets, values, strict=True):
        unit.set(target, value, inst.type)


def _load_values(unit: Unit, space: str, where: Value, kind: str, size: int, count: int) -> list[Value]:
    e = unit.e
    if not where.wide and space != "local":
        pointer = host_one(unit, space, where, size * count)
        return [e.load(pointer, size * i, kind, align=1) for i in range(count)]
    where = e.widen(where)
    lanes = unit.lanes()
    if count == 1 and space in ("global", "shared"):
        name = _call(unit, vector(kind), f"ld_{space}_{8 * size}", f"ptr %ctx, {where}, i32 {lanes}",
                     f"ptr, {vector('i64')}, i32")  # fmt: skip
        return [Value(name, kind, True)]
    host = Value(host_lanes(unit, space, where, size * count), "i64", True)
    found = []
    for i in range(count):
        at = e.op("add", host, size * i) if i else host
        name = _call(unit, vector(kind), f"gather_{8 * size}", f"{at}, i32 {lanes}", f"{vector('i64')}, i32")
        found.append(Value(name, kind, True))
    return found


def _is_constant_parameter(unit: Unit, operand: Operand) -> bool:
    base = operand.base if isinstance(operand, Address) else None
    return isinstance(base, Symbol) and base.name in unit.slots.kernel_parameters


def _load_parameter(unit: Unit, operand: Operand, size: int, count: int) -> list[Value]:
    """A kernel parameter at an offset known now: no check but this one, and a record that is a constant."""
    e = unit.e
    assert isinstance(operand, Address) and isinstance(operand.base, Symbol)
    offset = unit.slots.kernel_parameters[operand.base.name] + operand.base.offset + operand.offset
    total = max((p.offset + p.bytes for p in unit.program.parameters), default=0)
    if offset < 0 or offset + size * count > total or offset % (size * count):
        raise NotGenerated
    byte = PARAM_WINDOW_LINE * LINE_BYTES + offset
    record = byte // 128 << 5 | 2 << (byte // 32 % 4)
    at = unit.context("records", "ptr").name
    e.store(at, 0, e.literal(record, "i32"))
    e.raw(f"store ptr {e.field(at, 4)}, ptr {e.field('%ctx', _slot('records'))}, align 8")
    base = unit.context("param", "ptr").name
    return [e.load(base, offset + size * i, f"i{8 * size}", align=1) for i in range(count)]


def store(unit: Unit, inst: Instruction) -> None:
    """`st`. Where lanes write the same address, the last lane wins."""
    size, count = access_of(inst)
    operand, value = inst.sources
    kind, e = f"i{8 * size}", unit.e
    values = [None if v is None else e.widen(e.raw_bits(unit.get(v, inst.type))) for v in elements_of(value, count)]
    if None in values:
        raise NotGenerated
    space, where = _place(unit, inst, operand)
    if space in ("const", "param"):
        raise NotGenerated
    where, lanes = e.widen(where), unit.lanes()
    if count == 1 and space in ("global", "shared"):
        _call(unit, "void", f"st_{space}_{8 * size}", f"ptr %ctx, {where}, {values[0]}, i32 {lanes}",
              f"ptr, {vector('i64')}, {vector(kind)}, i32")  # fmt: skip
        return
    host = Value(host_lanes(unit, space, where, size * count), "i64", True)
    for i, v in enumerate(values):
        at = e.op("add", host, size * i) if i else host
        _call(unit, "void", f"scatter_{8 * size}", f"{at}, {v}, i32 {lanes}", f"{vector('i64')}, {vector(kind)}, i32")
