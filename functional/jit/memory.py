"""The layer of functional.jit.staged that knows memory: fields of records, elements and parts of arrays."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from typing import Any

import numpy as np

from functional.jit.arithmetic import Arithmetic
from functional.jit.marked import layout
from functional.jit.values import INT, REAL, SET, At, Row, Rows, Tuple, Word

_REALS = {np.dtype(np.float64): "double", np.dtype(np.float32): "float"}


class Memory(Arithmetic):
    """What lies in memory."""

    def known(self, value: Any) -> Any:
        """A value of Python's; unsigned ones are none, because Python has no operations for them."""
        if isinstance(value, np.uint64):
            return Word(str(int(value)), SET)
        return int(value) if isinstance(value, (np.integer, int)) and not isinstance(value, bool) else value

    def attribute(self, of: Any, name: str) -> Any:
        """A record's field, an array's shape or column, a tuple's array, or what Python finds."""
        match of:
            case Row():
                return self.seen(self.field(of, name))
            case Rows(_, _, sizes, _) if name == "shape":
                return tuple(self.size(s) for s in sizes)
            case Rows():
                column = self.field(Row(of.name, of.dtype), name)
                return column._replace(sizes=of.sizes, stride=of.dtype.itemsize)
            case Tuple(at, kind):
                field = layout(kind)[name]
                place = self.new(f"getelementptr inbounds i64, ptr {at}, i64 {field.word}") if field.word else at
                if field.kind == INT:
                    return Word(self.new(f"load i64, ptr {place}, align 8, !invariant.load !1"), INT)
                if field.kind is not None:
                    return Tuple(place, field.kind)
                address = self.new(f"load ptr, ptr {place}, align 8, !invariant.load !1")
                if not field.dimensions:
                    return Row(address, field.dtype)
                sizes = tuple(At(f"{at}, i64 {field.first_size + k}") for k in range(field.dimensions))
                return Rows(address, field.dtype, sizes, field.tag)
        return self.known(getattr(of, name))

    def parts(self, value: Any) -> Any:
        """Of a tuple, named or not."""
        return tuple(self.attribute(value, n) for n in layout(value.kind)) if isinstance(value, Tuple) else value

    def size(self, size: Any) -> Any:
        """Of a dimension."""
        if not isinstance(size, At):
            return size
        place = self.new(f"getelementptr inbounds i64, ptr {size.name}")
        return Word(self.new(f"load i64, ptr {place}, align 8, !invariant.load !1"), INT)

    def field(self, row: Row, name: str) -> Any:
        """Of a record: what is known of it, or where it lies."""
        if name in self.unit.known.fields.get(row.dtype, {}):
            return self.unit.known.fields[row.dtype][name]
        assert row.dtype.fields is not None
        dtype, offset = row.dtype.fields[name][:2]
        place = self.new(f"getelementptr inbounds i8, ptr {row.name}, i64 {offset}") if offset else row.name
        return Rows(place, dtype.base, dtype.shape, (row.dtype, name))

    def element(self, array: Rows, at: Sequence[Any]) -> Any:
        """An element, as a record or an array without dimensions; with fewer indices than dimensions, an array."""
        sizes = [self.size(s) for s in array.sizes[1:]]
        place: Any = 0
        for k, index in enumerate((*at, *[0] * (len(array.sizes) - len(at)))):
            if self.unit.known.checked and k < len(at):
                self.check(index, self.size(array.sizes[k]))
            place = self.binary(ast.Add(), self.binary(ast.Mult(), place, sizes[k - 1]) if k else 0, index)
        found = self.moved(array, place)
        if len(at) < len(array.sizes):
            return array._replace(name=found, sizes=array.sizes[len(at) :])
        return Row(found, array.dtype) if array.dtype.names else array._replace(name=found, sizes=())

    def moved(self, array: Rows, place: Any) -> str:
        """The address of an element, by its number among all."""
        size = array.stride or array.dtype.itemsize
        return self.new(f"getelementptr inbounds [{size} x i8], ptr {array.name}, i64 {self.number(place)}")

    def part(self, array: Rows, at: slice) -> Rows:
        """Rows of an array from one on, up to another."""
        first, stop = at.start or 0, self.size(array.sizes[0]) if at.stop is None else at.stop
        place = first
        for size in array.sizes[1:]:
            place = self.binary(ast.Mult(), place, self.size(size))
        sizes = (self.binary(ast.Sub(), stop, first), *array.sizes[1:])
        return array._replace(name=self.moved(array, place), sizes=sizes)

    def fill(self, what: Row | Rows, value: int) -> None:
        """All of it becomes 0 or -1."""
        if value not in (0, -1):
            raise TypeError(f"{self.name}: arrays are filled with 0 or -1, not with {value}")
        count: Any = what.dtype.itemsize
        for size in what.sizes if isinstance(what, Rows) else ():
            count = self.binary(ast.Mult(), count, self.size(size))
        self.unit.declarations.add("declare void @llvm.memset.p0.i64(ptr, i8, i64, i1)")
        self.do(f"call void @llvm.memset.p0.i64(ptr {what.name}, i8 {value}, i64 {self.number(count)}, i1 false)")

    def check(self, index: Any, size: Any) -> None:
        """Stop the process (SIGILL) where an index is out of range."""
        self.unit.declarations.add("declare void @llvm.trap()")
        stop, on = self.labels("stop", "on")
        test = self.new(f"icmp ult i64 {self.number(index)}, {self.number(size)}")
        self.end(f"br i1 {test}, label %{on}, label %{stop}", on, stop)
        self.label(stop)
        self.do("call void @llvm.trap()")
        self.jump(on)
        self.label(on)

    def seen(self, place: Any) -> Any:
        """What lies somewhere: a number, else the place."""
        return self.load(place) if isinstance(place, Rows) and not place.sizes else place

    def load(self, place: Rows) -> Word:
        """The number at a place."""
        if not isinstance(place, Rows):  # known
            return place
        bits = 8 * place.dtype.itemsize
        constant = not self.unit.known.constant.isdisjoint((place.tag, place.tag[0]))
        more = ", !invariant.load !1" if constant else self.unit.tag(place.tag)
        type_ = _REALS.get(place.dtype) or f"i{bits}"
        found = self.new(f"load {type_}, ptr {place.name}, align {place.dtype.itemsize}{more}")
        if place.dtype in _REALS:
            return Word(self.new(f"fpext float {found} to double") if bits < 64 else found, REAL)
        if bits < 64:
            found = self.new(f"{'sext' if place.dtype.kind == 'i' else 'zext'} i{bits} {found} to i64")
        return Word(found, SET if place.dtype == np.uint64 else INT)

    def store(self, place: Rows, value: Any) -> None:
        """Write a number to a place."""
        bits, type_ = 8 * place.dtype.itemsize, _REALS.get(place.dtype, "")
        if type_:
            found = self.converted(value, Word("", REAL)).name
            found = self.new(f"fptrunc double {found} to float") if bits < 64 else found
        else:
            found, type_ = self.number(value), f"i{bits}"
            found = self.new(f"trunc i64 {found} to {type_}") if bits < 64 else found
        more = f"align {place.dtype.itemsize}{self.unit.tag(place.tag)}"
        self.do(f"store {type_} {found}, ptr {place.name}, {more}")
