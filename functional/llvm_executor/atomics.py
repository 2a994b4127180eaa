"""`atom` and `red`: lane after lane, each seeing what the one before left."""

from __future__ import annotations

from functional.isa.emitter import vector
from functional.isa.memory import atomic_name
from functional.isa.operation import PACKED, Unsupported, kind_of
from functional.llvm_executor.accesses import _call, _place
from functional.llvm_executor.unit import Unit
from functional.ptx.ir import Instruction, Register

_UPDATES = {
    "add": "  %new = add {t} %old, %v\n", "and": "  %new = and {t} %old, %v\n", "or": "  %new = or {t} %old, %v\n",
    "xor": "  %new = xor {t} %old, %v\n", "exch": "  %new = add {t} %v, 0\n",
    "min": "  %c = icmp {s}lt {t} %v, %old\n  %new = select i1 %c, {t} %v, {t} %old\n",
    "max": "  %c = icmp {s}gt {t} %v, %old\n  %new = select i1 %c, {t} %v, {t} %old\n",
    "inc": "  %c = icmp uge {t} %old, %v\n  %i = add {t} %old, 1\n  %new = select i1 %c, {t} 0, {t} %i\n",
    "dec": "  %z = icmp eq {t} %old, 0\n  %g = icmp ugt {t} %old, %v\n  %c = or i1 %z, %g\n  %i = sub {t} %old, 1\n"
           "  %new = select i1 %c, {t} %v, {t} %i\n",
    "cas": "  %c = icmp eq {t} %old, %v\n  %new = select i1 %c, {t} %w, {t} %old\n",
}  # fmt: skip


def atomic(unit: Unit, inst: Instruction) -> None:
    """`atom` (yields the value before) and `red` (yields none)."""
    name = atomic_name(inst)
    operands = inst.sources[1:]
    if inst.space not in ("global", "shared", "generic") or len(operands) != (2 if name == "cas" else 1):
        raise Unsupported
    kind = kind_of(inst.type)
    if kind not in ("i32", "i64", "float", "double") or inst.type in PACKED:
        raise Unsupported
    e, bits = unit.e, 64 if kind in ("i64", "double") else 32
    values = [e.widen(unit.get(o, inst.type)) for o in operands]
    space, where = _place(unit, inst, inst.sources[0])
    where, lanes, size = e.widen(where), unit.lanes(), bits // 8
    record = "conflict_atomic" if space == "shared" else "record_atomic"
    _call(unit, "void", record, f"ptr %ctx, {where}, i32 {lanes}, i64 {size}", f"ptr, {vector('i64')}, i32, i64")
    locate = f"locate_some_{'stored' if space == 'global' else space}"
    host = _call(unit, vector("i64"), locate, f"ptr %ctx, {where}, i32 {lanes}, i64 {size}",
                 f"ptr, {vector('i64')}, i32, i64")  # fmt: skip
    function = f"atomic_{name}_{inst.type}"
    unit.e.functions[function] = _function(function, name, kind, inst.type)
    arguments = f"{vector('i64')} {host}, {values[0]}, {values[-1]}, i32 {lanes}"
    old = e.let(f"call {vector(kind)} @{function}({arguments})", kind, True)
    if inst.destinations and isinstance(inst.destinations[0], Register):
        unit.set(inst.destinations[0], old, inst.type)


def _function(function: str, name: str, kind: str, type_: str) -> str:
    """A loop over the lanes of a mask."""
    t = vector(kind)
    update = _UPDATES[name].format(t=kind, s=type_[0] if type_[0] == "s" else "u")
    if kind in ("float", "double"):
        if name != "add":
            raise Unsupported
        update = f"  %new = fadd {kind} %old, %v\n"
    return f"""define internal {t} @{function}(<32 x i64> %host, {t} %a, {t} %b, i32 %mask) noinline #0 {{
entry:
  %hosts = alloca <32 x i64>, align 64
  %as = alloca {t}, align 64
  %bs = alloca {t}, align 64
  %olds = alloca {t}, align 64
  store <32 x i64> %host, ptr %hosts, align 64
  store {t} %a, ptr %as, align 64
  store {t} %b, ptr %bs, align 64
  store {t} zeroinitializer, ptr %olds, align 64
  %none = icmp eq i32 %mask, 0
  br i1 %none, label %out, label %lane
lane:
  %rest = phi i32 [ %mask, %entry ], [ %left, %lane ]
  %n = call i32 @llvm.cttz.i32(i32 %rest, i1 true)
  %below = sub i32 %rest, 1
  %left = and i32 %rest, %below
  %hp = getelementptr i64, ptr %hosts, i32 %n
  %h = load i64, ptr %hp, align 8
  %p = inttoptr i64 %h to ptr
  %vp = getelementptr {kind}, ptr %as, i32 %n
  %v = load {kind}, ptr %vp, align 4
  %wp = getelementptr {kind}, ptr %bs, i32 %n
  %w = load {kind}, ptr %wp, align 4
  %old = load {kind}, ptr %p, align 4
{update}  store {kind} %new, ptr %p, align 4
  %op = getelementptr {kind}, ptr %olds, i32 %n
  store {kind} %old, ptr %op, align 4
  %done = icmp eq i32 %left, 0
  br i1 %done, label %out, label %lane
out:
  %result = load {t}, ptr %olds, align 64
  ret {t} %result
}}"""
