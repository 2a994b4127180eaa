"""Expressions over the keys of design points: constraints, costs, objectives. A small safe part of Python's syntax.

Numbers, words in quotes, keys and defined names; + - * / // % **, comparisons, `and`, `or`, `not`, `in (...)`, and
FUNCTIONS. Nothing else is evaluated. Everything is computed for all points at once, in double precision.
"""

from __future__ import annotations

import ast
from collections.abc import Callable
from functools import reduce
from typing import Any

import numpy as np

from functional.errors import InputError

MOST_CHARACTERS = 2000
Lookup = Callable[[str], Any]  # a name's values, one a point; raises InputError if there is no such name
FUNCTIONS: dict[str, Callable[..., Any]] = {
    "abs": np.abs, "ceil": np.ceil, "exp": np.exp, "floor": np.floor, "log": np.log, "log2": np.log2, "sqrt": np.sqrt,
    "min": lambda *values: reduce(np.minimum, values), "max": lambda *values: reduce(np.maximum, values),
    "where": np.where,
}  # fmt: skip
_ARITY = {"where": 3, "min": None, "max": None}
_OPERATORS: dict[type, Callable[..., Any]] = {
    ast.Add: np.add, ast.Sub: np.subtract, ast.Mult: np.multiply, ast.Div: np.divide, ast.FloorDiv: np.floor_divide,
    ast.Mod: np.mod, ast.Pow: np.power, ast.USub: np.negative, ast.UAdd: np.positive, ast.Not: np.logical_not,
    ast.And: np.logical_and, ast.Or: np.logical_or,
    ast.Lt: np.less, ast.LtE: np.less_equal, ast.Gt: np.greater, ast.GtE: np.greater_equal,
    ast.Eq: np.equal, ast.NotEq: np.not_equal,
    ast.In: lambda value, among: reduce(np.logical_or, [value == one for one in among]),
    ast.NotIn: lambda value, among: np.logical_not(reduce(np.logical_or, [value == one for one in among])),
}  # fmt: skip


class Expression:
    """A parsed expression. `names` are the keys it needs."""

    def __init__(self, text: str, where: str = "") -> None:
        """Raises InputError, starting with `where`, for what is no expression or not allowed in one."""
        self.text, self.where = text.strip(), where or text
        try:
            if len(text) > MOST_CHARACTERS:
                raise ValueError(f"longer than {MOST_CHARACTERS} characters")
            self._root = ast.parse(self.text, mode="eval").body
            self.names = _names(self._root)
        except SyntaxError:
            raise InputError(f"{self.where}: not an expression, as in sm_count * l2_kib < 1e5") from None
        except (ValueError, RecursionError, MemoryError) as error:
            raise InputError(f"{self.where}: {error}") from None

    def __call__(self, lookup: Lookup) -> np.ndarray:
        """Its values. Raises InputError for an unknown name, words in arithmetic, and results that are no numbers."""
        try:
            with np.errstate(all="ignore"):
                result = np.asarray(_value(self._root, lookup))
        except InputError as error:
            raise InputError(f"{self.where}: {error}") from None
        except (TypeError, ValueError, RecursionError):
            raise InputError(f"{self.where}: words can be compared only, not calculated with") from None
        if result.dtype.kind not in "fb":
            raise InputError(f"{self.where}: gives words, not numbers")
        if not np.isfinite(result).all():
            raise InputError(f"{self.where}: is {result[~np.isfinite(result)].flat[0]} at some of the points")
        return result


def _names(root: ast.expr) -> set[str]:
    """Names used. Raises ValueError for syntax outside the safe part."""
    found: set[str] = set()
    waiting: list[ast.AST] = [root]
    while waiting:
        node = waiting.pop()
        match node:
            case ast.Name() | ast.Attribute():
                found.add(_dotted(node))
            case ast.Constant(value=bool() | int() | float() | str()):
                pass
            case ast.Call(func=ast.Name(id=name), args=arguments, keywords=[]) if name in FUNCTIONS:
                _check_arity(name, len(arguments))
                waiting += arguments
            case ast.Call():
                raise ValueError(f"{ast.unparse(node)} is no call of {', '.join(FUNCTIONS)}")
            case ast.Compare(ops=operators, comparators=values):
                _check_members(operators, values)
                waiting += [node.left, *operators]
                waiting += [part for value in values for part in getattr(value, "elts", [value])]
            case ast.BinOp() | ast.UnaryOp() | ast.BoolOp():
                waiting += ast.iter_child_nodes(node)
            case _ if type(node) in _OPERATORS:
                pass
            case _:
                raise ValueError(f"{ast.unparse(node) or type(node).__name__} is not allowed here")
    return found


def _dotted(node: ast.AST) -> str:
    """`a`, or `section.key`."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
        return f"{node.value.id}.{node.attr}"
    raise ValueError(f"{ast.unparse(node)} is not allowed here")


def _check_arity(name: str, count: int) -> None:
    wanted = _ARITY.get(name, 1)
    if count != wanted if wanted else count < 2:
        raise ValueError(f"{name} takes {wanted or 'two or more'} values, not {count}")


def _check_members(operators: list[ast.cmpop], values: list[ast.expr]) -> None:
    for operator, value in zip(operators, values, strict=True):
        is_list = isinstance(value, (ast.Tuple, ast.List)) and bool(value.elts)
        if isinstance(operator, (ast.In, ast.NotIn)) != is_list:
            raise ValueError("write membership as key in (1, 2, 3)")


def _value(node: ast.expr, lookup: Lookup) -> Any:
    match node:
        case ast.Constant(value=value):
            return value if isinstance(value, (str, bool)) else float(value)  # type: ignore[arg-type]
        case ast.Name() | ast.Attribute():
            values = np.asarray(lookup(_dotted(node)))
            return values.astype(float) if values.dtype.kind in "iu" else values
        case ast.Call(func=ast.Name(id=name), args=arguments):
            return FUNCTIONS[name](*(_number(argument, lookup) for argument in arguments))
        case ast.BinOp(left=left, op=operator, right=right):
            return _OPERATORS[type(operator)](_number(left, lookup), _number(right, lookup))
        case ast.UnaryOp(op=operator, operand=operand):
            of = _value if isinstance(operator, ast.Not) else _number
            return _OPERATORS[type(operator)](of(operand, lookup))
        case ast.BoolOp(op=operator, values=values):
            return reduce(_OPERATORS[type(operator)], [_value(value, lookup) for value in values])
        case ast.Compare():
            return _comparison(node, lookup)
    raise TypeError(node)


def _number(node: ast.expr, lookup: Lookup) -> Any:
    """True counts 1 in arithmetic."""
    value = np.asarray(_value(node, lookup))
    return value.astype(float) if value.dtype.kind == "b" else value


def _comparison(node: ast.Compare, lookup: Lookup) -> Any:
    """`a < b < c` as Python reads it."""
    left, held = _value(node.left, lookup), True
    for operator, right_node in zip(node.ops, node.comparators, strict=True):
        if isinstance(right_node, (ast.Tuple, ast.List)):
            right: Any = [_value(one, lookup) for one in right_node.elts]
        else:
            right = _value(right_node, lookup)
        held = np.logical_and(held, _OPERATORS[type(operator)](left, right))
        left = right
    return held
