"""Atomics: lane after lane, each sees what the one before left."""

from __future__ import annotations

from typing import Any

from functional.jit.native import I32, I64, Lanes64, Pointer, Type, inlined, op, routine

_NAMES = ("add", "and", "or", "xor", "exch", "umin", "umax", "smin", "smax", "inc", "dec", "cas")


def _atomic(name: str, kind: str) -> None:
    One: Any = Type(kind)
    Word: Any = Type(kind, 32)
    chosen = getattr(op, name)

    @inlined(f"updated_{name}_{kind}")
    def updated(old: One, value: One, other: One) -> One:
        if name == "add":
            return old + value
        if name == "and":
            return old & value
        if name == "or":
            return old | value
        if name == "xor":
            return old ^ value
        if name == "exch":
            return value
        if name == "inc":
            return op.where(old >= value, One(0), old + 1)
        if name == "dec":
            return op.where((old == 0) | (old > value), value, old - 1)
        if name == "cas":
            return op.where(old == value, other, old)
        return chosen(value, old)

    @routine(f"atomic_{name}_{kind}")
    def atomic(host: Lanes64, value: Word, other: Word, mask: I32) -> Word:
        """What each lane of a mask found."""
        hosts, values, others, found = op.room(Lanes64), op.room(Word), op.room(Word), op.room(Word)
        hosts[Lanes64, 0], values[Word, 0], others[Word, 0], found[Word, 0] = host, value, other, Word(0)
        rest = mask
        while rest != 0:
            lane = op.cttz(rest)
            rest &= rest - 1
            at = Pointer(hosts[I64, lane])
            old = at[One, 0]
            at[One, 0] = updated(old, values[One, lane], others[One, lane])
            found[One, lane] = old
        return found[Word, 0]


for _kind in ("i32", "i64"):
    for _name in _NAMES:
        _atomic(_name, _kind)
for _kind in ("float", "double"):
    _atomic("add", _kind)
