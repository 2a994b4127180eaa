"""Memory instructions as calls of the run time's helpers; atomics lane after lane, each on what the last left."""

from functional.isa.emitter import BITS, FLOATING, Value
from functional.isa.memory import RANK_BYTES, access_of, atomic_name, elements_of, space_of
from functional.isa.operation import PACKED, Unsupported, as_address, kind_of, refuse_if
from functional.launches.memory import GLOBAL_BASE
from functional.llvm_executor import control
from functional.llvm_executor.unit import Unit
from functional.ptx.ir import Address, Instruction, Operand, Register, Symbol


def address(unit: Unit, operand: Operand, space: str) -> Value:
    """The address as i64; those of shared memory wrap at 32 bits."""
    operand = as_address(operand)
    e, base, offset = unit.e, operand.base, operand.offset
    if base is None:
        value = e.literal(offset, "i64")
    elif isinstance(base, Symbol):
        value = unit.get(Symbol(base.name, base.offset + offset), "u64")
        offset = 0
    elif isinstance(base, Register):
        value = unit.get(base, "u" + base.type[1:])
    else:
        raise Unsupported
    value = e.resize(value, "i32" if space == "shared" else "i64", False)
    value = value if base is None or not offset else e.op("add", value, offset)
    if space == "shared" and unit.in_clusters:
        value = _in_own_block(unit, value)
    return e.resize(value, "i64", False)


def _in_own_block(unit: Unit, value: Value) -> Value:
    """A shared address of a thread block of a cluster, from its own first one on; a fault if it is of another."""
    e = unit.e
    value = e.op("sub", value, unit.context("rank_base", "i32"))
    wrong = e.bits_of(e.compare("uge", value, RANK_BYTES))
    unit.fault_if(e.compare("ne", e.op("and", wrong, unit.lanes()), 0))
    return value


def _elsewhere(unit: Unit, where: Value, lanes: Value) -> Value:
    e = unit.e
    return e.compare("ne", e.op("and", e.bits_of(e.compare("ult", where, GLOBAL_BASE)), lanes), 0)


def _place(unit: Unit, inst: Instruction, operand: Operand) -> tuple[str, Value]:
    operand = as_address(operand)
    space = space_of(unit.slots, inst, operand)
    refuse_if(space == "call")
    where = address(unit, operand, space)
    if space == "generic":
        unit.fault_if(_elsewhere(unit, where, unit.lanes()))  # one that is not all in global memory
        space = "global"
    return space, where


def _branches(unit: Unit, where: Value) -> str:
    """Begin a generic access: two paths that both end at label NAME.join; yields NAME. The global one comes first."""
    e = unit.e
    wrong, name = _elsewhere(unit, where, unit.lanes()), e.name()[1:]
    e.raw(f"br {wrong}, label %{name}.else, label %{name}.global")
    e.label(f"{name}.global")
    return name


def _hosts_elsewhere(unit: Unit, name: str, where: Value, size: int) -> Value:
    """The second path: lanes in shared or local memory."""
    e = unit.e
    e.raw(f"br label %{name}.join")
    e.label(f"{name}.else")
    return e.call("check_elsewhere", where, unit.lanes(), size)


def _join(unit: Unit, name: str) -> None:
    unit.e.raw(f"br label %{name}.join")
    unit.e.label(f"{name}.join")


def _load_generic(unit: Unit, where: Value, kind: str, size: int, count: int) -> list[Value]:
    """Scalars if all lanes name one word that they share: not where threads have memory of their own."""
    e, name = unit.e, _branches(unit, where)
    wide = where.wide or bool(unit.slots.local)
    first = [e.widen(v) if wide else v for v in _load_values(unit, "global", where, kind, size, count)]
    second = _gathered(unit, _hosts_elsewhere(unit, name, where, size * count), size, count)
    if not wide:
        lane = e.intrinsic("cttz", unit.lanes(), extra="i1 true")
        second = [e.let(f"extractelement {v}, {lane}", kind, False) for v in second]
    _join(unit, name)
    pairs = zip(first, second, strict=True)
    return [
        e.let(f"phi {a.type} [ {a.name}, %{name}.global ], [ {b.name}, %{name}.else ]", kind, wide) for a, b in pairs
    ]


def _store_generic(unit: Unit, where: Value, values: list[Value], size: int) -> None:
    first, total, name = unit.context("records", "ptr"), size * len(values), _branches(unit, where)
    _store_values(unit, "global", where, values, size)
    host = _hosts_elsewhere(unit, name, where, total)
    unit.e.call("note_words_elsewhere", first, where, unit.lanes(), total)
    _scattered(unit, host, values, size)
    _join(unit, name)


def load(unit: Unit, inst: Instruction) -> None:
    """`ld ldu`."""
    size, count = access_of(inst)
    refuse_if(len(inst.sources) != 1 + ("L2::cache_hint" in inst.modifiers))
    targets = elements_of(inst.destinations[0], count)
    kind = f"i{8 * size}"
    operand = inst.sources[0]
    base = operand.base if isinstance(operand, Address) else None
    known = unit.slots.kernel_parameters.get(base.name) if isinstance(base, Symbol) else None
    if inst.space == "param" and known is not None and inst.guard is None:  # an offset known now, a constant record
        assert isinstance(operand, Address) and isinstance(base, Symbol)
        e, offset = unit.e, known + base.offset + operand.offset
        total = max((p.offset + p.bytes for p in unit.program.parameters), default=0)
        refuse_if(offset < 0 or offset + size * count > total or offset % (size * count))
        unit.log(control.parameter_record(unit, offset))
        parameters = unit.context("param", "ptr").name
        values = [e.load(parameters, offset + size * i, f"i{8 * size}", align=1) for i in range(count)]
    elif (own := _call_memory(unit, inst, operand, size * count)) is not None:
        values = _gathered(unit, own, size, count)
    elif inst.space == "generic":
        values = _load_generic(unit, address(unit, operand, "generic"), kind, size, count)
    else:
        space, where = _place(unit, inst, operand)
        values = _load_values(unit, space, where, kind, size, count)
    for target, value in zip(targets, values, strict=True):
        unit.set(target, value, inst.type)


def _load_values(unit: Unit, space: str, where: Value, kind: str, size: int, count: int) -> list[Value]:
    e = unit.e
    if not where.wide and space != "local":
        host = e.call(f"check_one_{space}", where, unit.lanes(), size * count)
        pointer = e.scalar(f"inttoptr {host} to ptr", "ptr")
        return [e.load(pointer, size * i, kind, align=1) for i in range(count)]
    if count == 1 and space in ("global", "shared"):
        return [e.call(f"ld_{space}_{8 * size}", where, unit.lanes())]
    return _gathered(unit, e.call(f"check_{space}", where, unit.lanes(), size * count), size, count)


def _gathered(unit: Unit, host: Value, size: int, count: int) -> list[Value]:
    """Words one behind the other at checked host addresses."""
    places = [unit.e.op("add", host, size * i) if i else host for i in range(count)]
    return [unit.e.call(f"gather_{8 * size}", place, unit.lanes()) for place in places]


def _call_memory(unit: Unit, inst: Instruction, operand: Operand, size: int) -> Value | None:
    """Host addresses of an access to a `.param` variable of a function or call, recorded; None if it is none."""
    if not isinstance(operand, Address) or space_of(unit.slots, inst, operand) != "call":
        return None
    if not isinstance(operand.base, Symbol) or unit.program.recursive:
        raise Unsupported
    offset = unit.slots.call_parameters[operand.base.name] + operand.base.offset + operand.offset
    refuse_if(offset < 0 or offset + size > unit.slots.call_bytes or offset % size)  # it would fault
    control.record(unit, offset)
    return control.host(unit, offset)


def store(unit: Unit, inst: Instruction) -> None:
    """`st`. Where lanes write the same address, the last lane wins."""
    size, count = access_of(inst)
    refuse_if(len(inst.sources) != 2 + ("L2::cache_hint" in inst.modifiers))
    e, (operand, value, *_) = unit.e, inst.sources
    elements = elements_of(value, count)
    refuse_if(None in elements)
    values = [e.widen(e.raw_bits(unit.get(v, inst.type))) for v in elements]
    if (own := _call_memory(unit, inst, operand, size * count)) is not None:
        return _scattered(unit, own, values, size)
    if inst.space == "generic":
        return _store_generic(unit, address(unit, operand, "generic"), values, size)
    space, where = _place(unit, inst, operand)
    refuse_if(space in ("const", "param"))
    return _store_values(unit, space, where, values, size)


def _note(unit: Unit) -> None:
    """Say where the line records of a store to global memory will be."""
    e, place = unit.e, unit.context("stores")
    e.store(e.scalar(f"inttoptr {place} to ptr", "ptr"), 0, unit.context("records"), align=8)
    unit.set_context("stores", e.op("add", place, unit.context("stores_step")))


def _store_values(unit: Unit, space: str, where: Value, values: list[Value], size: int) -> None:
    e, first, total = unit.e, unit.context("records", "ptr"), size * len(values)
    if space == "global":
        _note(unit)
    if len(values) == 1 and space in ("global", "shared"):
        e.call(f"st_{space}_{8 * size}", where, values[0], unit.lanes())
    else:
        host = e.call(f"check_{'stored' if space == 'global' else space}", where, unit.lanes(), total)
        _scattered(unit, host, values, size)
    if space == "global":
        e.call("note_words", first, where, unit.lanes(), size)
    elif space == "local":
        e.call("note_local_words", first, where, unit.lanes(), total)


def _scattered(unit: Unit, host: Value, values: list[Value], size: int) -> None:
    for i, v in enumerate(values):
        unit.e.call(f"scatter_{8 * size}", unit.e.op("add", host, size * i) if i else host, v, unit.lanes())


def atomic(unit: Unit, inst: Instruction) -> None:
    """`atom` (yields the value before) and `red` (yields none)."""
    name = atomic_name(inst)
    operands = inst.sources[1:]
    refuse_if(inst.space not in ("global", "shared", "generic") or len(operands) != (2 if name == "cas" else 1))
    kind = kind_of(inst.type)
    refuse_if(kind not in ("i32", "i64", "float", "double") or inst.type in PACKED)
    refuse_if(kind in FLOATING and name != "add")
    e, size = unit.e, BITS[kind] // 8
    values = [e.widen(unit.get(o, inst.type)) for o in operands]
    space, where = _place(unit, inst, inst.sources[0])
    where, lanes = e.widen(where), unit.lanes()
    e.call("conflict_atomic" if space == "shared" else "record_atomic", where, lanes, size)
    host = e.call(f"locate_some_{'stored' if space == 'global' else space}", where, lanes, size)
    if name in ("min", "max"):
        name = ("s" if inst.type[0] == "s" else "u") + name
    old = e.call(f"atomic_{name}_{kind}", host, values[0], values[-1], lanes)
    if inst.destinations and isinstance(inst.destinations[0], Register):
        unit.set(inst.destinations[0], old, inst.type)
