"""LLVM IR of routines that are written as functional.jit.native says."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable
from typing import Any

from functional.jit.native import I1, I8, I32, I64, Pointer, Routine, Type, Value, routines

_BINARY: dict[type, tuple[str, Callable]] = {
    ast.Add: ("add", operator.add), ast.Sub: ("sub", operator.sub), ast.Mult: ("mul", operator.mul),
    ast.FloorDiv: ("udiv", operator.floordiv), ast.Mod: ("urem", operator.mod), ast.LShift: ("shl", operator.lshift),
    ast.RShift: ("lshr", operator.rshift), ast.BitAnd: ("and", operator.and_), ast.BitOr: ("or", operator.or_),
    ast.BitXor: ("xor", operator.xor),
}  # fmt: skip
_COMPARED: dict[type, tuple[str, Callable]] = {
    ast.Eq: ("eq", operator.eq), ast.NotEq: ("ne", operator.ne), ast.Lt: ("ult", operator.lt),
    ast.LtE: ("ule", operator.le), ast.Gt: ("ugt", operator.gt), ast.GtE: ("uge", operator.ge),
    ast.NotIn: ("", lambda a, b: a not in b),
}  # fmt: skip
_SIGNED = ("slt", "sle", "sgt", "sge")


class _Body:
    """The IR of one routine while it is written. Expressions are `Value`s, or what Python knows already."""

    def __init__(self, one: Routine) -> None:
        self.one, self.lines, self.rooms = one, list[str](), list[str]()
        self.declarations: set[str] = set()
        self.variables: dict[str, Value] = {}  # where each lies, as a value of its type
        self.loops: list[tuple[str, str]] = []  # labels of `continue` and `break`
        self.count, self.open = 0, True
        for parameter in one.parameters:
            self.set(parameter.name[1:], parameter)
        self.statements(one.node.body)
        if self.open:
            self.end("ret void" if one.result.kind == "void" else "unreachable")

    def text(self) -> str:
        """The definition."""
        given = f"{self.one.result} @{self.one.name}({', '.join(map(str, self.one.parameters))})"
        head = f"define internal {given} alwaysinline #0 {{" if self.one.inline else f"define {given} #0 {{"
        return "\n".join([head, "entry:", *self.rooms, *self.lines, "}"])

    def new(self) -> str:
        self.count += 1
        return f"v{self.count}"

    def emit(self, text: str, type_: Type) -> Value:
        name = f"%{self.new()}"
        self.lines.append(f"  {name} = {text}")
        return Value(name, type_)

    def do(self, text: str) -> None:
        self.lines.append(f"  {text}")

    def end(self, text: str) -> None:
        """The last line of a basic block."""
        if self.open:
            self.do(text)
        self.open = False

    def label(self, name: str) -> None:
        self.end(f"br label %{name}")
        self.lines.append(f"{name}:")
        self.open = True

    def set(self, name: str, value: Any) -> None:
        """Assign to a variable, which has the type that it had first."""
        if not isinstance(value, Value) and name not in self.variables:
            raise TypeError(f"{self.one.name}: '{name}' begins as {value!r}, of no type")
        if name not in self.variables:
            self.variables[name] = Value(f"%{name}.{self.new()}", value.type)
            self.rooms.append(f"  {self.variables[name].name} = alloca {value.type}")
        place = self.variables[name]
        self.do(f"store {self.convert(place.type, value)}, ptr {place.name}")

    # Statements

    def statements(self, nodes: list[ast.stmt]) -> None:
        for node in nodes:
            if self.open:
                self.statement(node)

    def statement(self, node: ast.stmt) -> None:
        match node:
            case ast.Expr(ast.Constant()):
                pass
            case ast.Expr(value):
                self.value(value)
            case ast.Assign([ast.Tuple(targets)], ast.Tuple(values)):
                for target, value in list(zip(targets, [self.value(v) for v in values], strict=True)):
                    self.assign(target, value)
            case ast.Assign([target], value):
                self.assign(target, self.value(value))
            case ast.AugAssign(ast.Name(name), kind, value):
                self.set(name, self.binary(kind, self.variable(name), self.value(value)))
            case ast.Return(None):
                self.end("ret void")
            case ast.Return(ast.expr() as value):
                self.end(f"ret {self.convert(self.one.result, self.value(value))}")
            case ast.If():
                self.choice(node)
            case ast.While(test, body):
                head, inside, after = self.labels("while", "body", "after")
                self.label(head)
                self.branch(test, inside, after)
                self.loop(inside, body, head, after)
                self.end(f"br label %{head}")
                self.label(after)
            case ast.For():
                self.count_up(node)
            case ast.Break() | ast.Continue():
                self.end(f"br label %{self.loops[-1][isinstance(node, ast.Break)]}")
            case _:
                raise TypeError(f"{self.one.name}: {ast.unparse(node)}")

    def assign(self, target: ast.expr, value: Any) -> None:
        if isinstance(target, ast.Name):
            return self.set(target.id, value)
        assert isinstance(target, ast.Attribute | ast.Subscript)
        place, type_ = self.place(target, self.value(target.value))
        return self.do(f"store {self.convert(type_, value)}, ptr {place}, align 1")

    def labels(self, *kinds: str) -> list[str]:
        return [f"{kind}.{self.new()}" for kind in kinds]

    def choice(self, node: ast.If) -> None:
        known = self.value(node.test) if not isinstance(node.test, ast.BoolOp) else None
        if known is not None and not isinstance(known, Value):
            self.statements(node.body if known else node.orelse)
            return
        yes, no, after = self.labels("then", "else", "after")
        self.branch(node.test if known is None else known, yes, no)
        for name, nodes in ((yes, node.body), (no, node.orelse)):
            self.label(name)
            self.statements(nodes)
            self.end(f"br label %{after}")
        self.label(after)

    def branch(self, test: ast.expr | Value, yes: str, no: str) -> None:
        """Go to one of two labels; `and` and `or` look at what follows only where that decides."""
        if isinstance(test, ast.BoolOp):
            every = isinstance(test.op, ast.And)
            for operand in test.values[:-1]:
                (more,) = self.labels("more")
                self.branch(operand, more if every else yes, no if every else more)
                self.label(more)
            test = test.values[-1]
        value = test if isinstance(test, Value) else self.value(test)
        self.end(f"br {self.convert(I1, value)}, label %{yes}, label %{no}")

    def loop(self, name: str, nodes: list[ast.stmt], again: str, after: str) -> None:
        self.label(name)
        self.loops.append((again, after))
        self.statements(nodes)
        self.loops.pop()

    def count_up(self, node: ast.For) -> None:
        """Over `range`: of 64 bits, unless the last number has a type."""
        assert isinstance(node.target, ast.Name) and isinstance(node.iter, ast.Call)
        name, bounds = node.target.id, [self.value(a) for a in node.iter.args]
        stop = bounds[-1] if isinstance(bounds[-1], Value) else self.convert(I64, bounds[-1])
        self.set(name, self.convert(stop.type, bounds[0] if len(bounds) > 1 else 0))
        head, body, step, after = self.labels("for", "body", "step", "after")
        self.label(head)
        test = self.emit(f"icmp ult {self.variable(name)}, {stop.name}", I1)
        self.branch(test, body, after)
        self.loop(body, node.body, step, after)
        self.label(step)
        self.set(name, self.binary(ast.Add(), self.variable(name), 1))
        self.end(f"br label %{head}")
        self.label(after)

    # Expressions

    def value(self, node: ast.expr) -> Any:
        match node:
            case ast.Constant(value):
                return value
            case ast.Name(name):
                return self.variable(name) if name in self.variables else self.one.names[name]
            case ast.Tuple(elements):
                return tuple(self.value(v) for v in elements)
            case ast.IfExp(test, yes, no):  # of what is known
                return self.value(yes if self.value(test) else no)
            case ast.BinOp(left, kind, right):
                return self.binary(kind, self.value(left), self.value(right))
            case ast.UnaryOp(kind, operand):
                value = self.value(operand)
                if isinstance(value, Value):
                    return self.binary(ast.BitXor(), value, -1)  # `~`, and `not` of one bit
                return -value if isinstance(kind, ast.USub) else not value
            case ast.Compare(left, [kind], [right]):
                predicate, python = _COMPARED[type(kind)]
                a, b = self.value(left), self.value(right)
                known = not isinstance(a, Value) and not isinstance(b, Value)
                return python(a, b) if known else self.compare(predicate, a, b)
            case ast.Attribute(of, name):
                found = self.value(of)
                return self.load(node, found) if isinstance(found, Value) else getattr(found, name)
            case ast.Subscript(of, index):
                found = self.value(of)
                if not isinstance(found, Value):
                    return found[self.value(index)]
                if found.type.kind == "ptr":
                    return self.load(node, found)
                at = self.convert(I32, self.value(index))
                return self.emit(f"extractelement {found}, {at}", Type(found.type.kind))
            case ast.Call(function, arguments):
                return self.called(self.value(function), [self.value(a) for a in arguments])
        raise TypeError(f"{self.one.name}: {ast.unparse(node)}")

    def variable(self, name: str) -> Value:
        place = self.variables[name]
        return self.emit(f"load {place.type}, ptr {place.name}", place.type)

    def called(self, function: Any, given: list[Any]) -> Any:
        if isinstance(function, Type):
            return self.convert(function, given[0])
        if isinstance(function, Routine):
            return self.call(f"@{function.name}", function.result, [p.type for p in function.parameters], given)
        if function.name in _SIGNED:
            return self.compare(function.name, *given)
        own = getattr(self, f"op_{function.name}", None)
        return own(*given) if own else self.intrinsic(function.name, *given)

    def load(self, node: ast.Attribute | ast.Subscript, of: Value) -> Value:
        place, type_ = self.place(node, of)
        return self.emit(f"load {type_}, ptr {place}, align 1", type_)

    def place(self, node: ast.Attribute | ast.Subscript, pointer: Value) -> tuple[str, Type]:
        """Where a field or an element lies, and its type."""
        index = node.attr if isinstance(node, ast.Attribute) else self.value(node.slice)
        if isinstance(index, str):
            offset, type_ = pointer.type.fields[index]
            return self.emit(f"getelementptr i8, ptr {pointer.name}, i64 {offset}", Pointer).name, type_
        type_, number = index
        at = self.convert(I64, number)
        return self.emit(f"getelementptr {type_}, ptr {pointer.name}, {at}", Pointer).name, type_

    def binary(self, kind: ast.operator, a: Any, b: Any) -> Any:
        name, python = _BINARY[type(kind)]
        if not isinstance(a, Value) and not isinstance(b, Value):
            return python(a, b)
        if isinstance(a, Value) and a.type.kind == "ptr":
            return self.moved(a, b, name)
        a, b = self.level(a, b)
        floating = "f" if a.type.kind in ("float", "double") else ""
        return self.emit(f"{floating}{name} {a}, {b.name}", a.type)

    def moved(self, pointer: Value, by: Any, name: str) -> Value:
        """A pointer so many bytes further; the distance of two pointers."""
        if isinstance(by, Value) and by.type.kind == "ptr":
            return self.binary(ast.Sub(), self.convert(I64, pointer), self.convert(I64, by))
        by = by if isinstance(by, Value) else self.convert(I64, -by if name == "sub" else by)
        return self.emit(f"getelementptr i8, {pointer}, {by}", Type("ptr", by.type.lanes))

    def compare(self, predicate: str, a: Any, b: Any) -> Value:
        a, b = self.level(a, b)
        return self.emit(f"icmp {predicate} {a}, {b.name}", Type("i1", a.type.lanes))

    def level(self, a: Any, b: Any) -> tuple[Value, Value]:
        """Two operands as values of one type, that of the wider one."""
        known = [v.type for v in (a, b) if isinstance(v, Value)]
        known += [Type(known[0].kind, len(v)) for v in (a, b) if isinstance(v, tuple)]
        wide = max(known, key=lambda type_: type_.lanes)
        if len({type_.kind for type_ in known}) > 1:
            raise TypeError(f"{self.one.name}: {a} and {b}")
        return self.convert(wide, a), self.convert(wide, b)

    def literal(self, type_: Type, number: Any) -> Value:
        if type_.kind in ("float", "double"):
            if number != 0:
                raise TypeError(f"{self.one.name}: {number} as a {type_}; of these there is 0 alone")
            return Value("zeroinitializer", type_)
        if type_.kind == "i1" and type_.lanes > 1:  # a number is the flags' bits, not the same for all
            number = tuple(number >> lane & 1 for lane in range(type_.lanes))
        bits = Type(type_.kind).bits
        each = [n & (1 << bits) - 1 for n in (number if isinstance(number, tuple) else (int(number),))]
        texts = [f"{type_.kind} {n - (n >> bits - 1 << bits) if bits > 1 else n}" for n in each]
        if isinstance(number, tuple):
            return Value(f"<{', '.join(texts)}>", type_)
        return Value(f"splat ({texts[0]})" if type_.lanes > 1 else texts[0].partition(" ")[2], type_)

    def convert(self, type_: Type, value: Any) -> Value:
        """As a value of a type."""
        if not isinstance(value, Value):
            return self.literal(type_, value)
        own = value.type
        if (own.kind, own.lanes) == (type_.kind, type_.lanes):
            return Value(value.name, type_)
        if own.lanes == 1 and type_.lanes > 1 and own.bits != type_.bits:
            one = self.convert(Type(type_.kind), value)
            first = self.emit(f"insertelement {type_} poison, {one}, i32 0", type_)
            same = f"<{type_.lanes} x i32> zeroinitializer"
            return self.emit(f"shufflevector {first}, {type_} poison, {same}", type_)
        if "ptr" in (own.kind, type_.kind):
            cast = "ptrtoint" if own.kind == "ptr" else "inttoptr"
        else:
            cast = "bitcast" if own.bits == type_.bits else "trunc" if own.bits > type_.bits else "zext"
        return self.emit(f"{cast} {value} to {type_}", type_)

    def call(self, name: str, result: Type, types: list[Type], given: list[Any], more: str = "") -> Value | None:
        """`more`: words behind the type of an argument that is a pointer."""
        values = [self.convert(t, v) for t, v in zip(types, given, strict=True)]
        arguments = ", ".join(f"{v.type}{more if v.type.kind == 'ptr' else ''} {v.name}" for v in values)
        text = f"call {result} {name}({arguments})"
        if result.kind != "void":
            return self.emit(text, result)
        self.do(text)
        return None

    def foreign(self, name: str, result: Type, arguments: list[Value], more: str = "") -> Value | None:
        """Call what is declared and not a routine."""
        types = [a.type for a in arguments]
        self.declarations.add(f"declare {result} @{name}({', '.join(map(str, types))})")
        return self.call(f"@{name}", result, types, arguments, more)

    # op.NAME

    def intrinsic(self, name: str, first: Value, *more: Any) -> Value | None:
        """LLVM's, of operands of one type. `reduce_` and a name: of all lanes."""
        operands = [first, *(self.convert(first.type, v) for v in more)]
        reduces = name.startswith("reduce_")
        full = f"llvm.{'vector.reduce.' if reduces else ''}{name.removeprefix('reduce_')}.{first.type.suffix}"
        if name in ("cttz", "ctlz"):
            operands.append(Value("true", I1))
        return self.foreign(full, Type(first.type.kind) if reduces else first.type, operands)

    def op_where(self, p: Value, a: Any, b: Any) -> Value:
        """`a` where `p` holds, else `b`."""
        a, b = self.level(a, b)
        if p.type.lanes > a.type.lanes:
            a, b = (self.convert(Type(v.type.kind, p.type.lanes), v) for v in (a, b))
        return self.emit(f"select {p}, {a}, {b}", a.type)

    def op_room(self, type_: Type, count: int = 1) -> Value:
        """Memory of the routine's own, of so many of a type."""
        name = f"%room.{self.new()}"
        self.rooms.append(f"  {name} = alloca [{count} x {type_}], align 64")
        return Value(name, Pointer)

    def op_shuffle(self, a: Value, b: Value, lanes: tuple[int, ...]) -> Value:
        """Elements of two vectors, those of the second numbered behind those of the first."""
        chosen = self.literal(Type("i32", len(lanes)), lanes)
        return self.emit(f"shufflevector {a}, {b}, {chosen}", Type(a.type.kind, len(lanes)))

    def op_gather(self, type_: Type, pointers: Value, flags: Value) -> Value | None:
        """What lies at the addresses of the lanes with a flag; 0 in the others."""
        name = f"llvm.masked.gather.{type_.suffix}.{pointers.type.suffix}"
        return self.foreign(name, type_, [pointers, flags, Value("zeroinitializer", type_)], " align 1")

    def op_scatter(self, pointers: Value, value: Value, flags: Value) -> None:
        """Write the lanes with a flag to their addresses, in ascending order."""
        name = f"llvm.masked.scatter.{value.type.suffix}.{pointers.type.suffix}"
        self.foreign(name, Type("void"), [value, pointers, flags], " align 1")

    def op_put(self, pointer: Value, value: Value, flags: Value) -> None:
        """Write the lanes with a flag to an array."""
        name = f"llvm.masked.store.{value.type.suffix}.p0"
        self.foreign(name, Type("void"), [value, pointer, flags], " align 1")

    def op_copy(self, to: Value, source: Value, count: Any) -> None:
        """Copy bytes, which may overlap."""
        operands = [to, source, self.convert(I64, count), Value("false", I1)]
        self.foreign("llvm.memmove.p0.p0.i64", Type("void"), operands)

    def op_zero(self, to: Value, count: Any) -> None:
        """Make bytes zero."""
        operands = [to, Value("0", I8), self.convert(I64, count), Value("false", I1)]
        self.foreign("llvm.memset.p0.i64", Type("void"), operands)

    def op_call(self, function: Value, result: Type, *given: Value) -> Value | None:
        """Call a function at an address."""
        return self.call(function.name, result, [v.type for v in given], list(given))

    def op_library(self, name: str, x: Value) -> Value | None:
        """Call a function of the C library."""
        return self.foreign(name, x.type, [x])

    def op_acquire(self, type_: Type, pointer: Value) -> Value:
        """Load what another thread may release."""
        return self.emit(f"load atomic {type_}, {pointer} acquire, align 4", type_)

    def op_release(self, pointer: Value, value: Value) -> None:
        """Store for what other threads acquire."""
        self.do(f"store atomic {value}, {pointer} release, align 4")

    def op_claim(self, pointer: Value, old: Value, new: Value) -> Value:
        """Replace `old` by `new`; was it there?"""
        pair = self.emit(f"cmpxchg {pointer}, {old}, {new} acquire monotonic", Type("void"))
        return self.emit(f"extractvalue {{ {old.type}, i1 }} {pair.name}, 1", I1)

    def op_next(self, pointer: Value) -> Value:
        """A number, one less than that of the next who asks."""
        return self.emit(f"atomicrmw add {pointer}, i32 1 monotonic", I32)


def text(package: str) -> str:
    """LLVM IR of all routines of the loaded modules of a package."""
    bodies = [_Body(one) for one in routines(package)]
    declared = {line for body in bodies for line in body.declarations}
    return "\n".join([*sorted(declared), *(body.text() for body in bodies)])
