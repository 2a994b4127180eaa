"""Expressions over the keys of design points: constraints, costs, objectives. A small safe part of Python's syntax.

Numbers, words in quotes, keys and defined names; + - * / // % **, comparisons, `and`, `or`, `not`, `in (...)`, and
FUNCTIONS. Nothing else is evaluated. Everything is computed for all points at once, in double precision."""

import ast
from collections.abc import Callable
from functools import partial, reduce
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


Evaluate = Callable[[Lookup], Any]


class Expression:
    """A parsed expression. `names` are the keys it needs."""

    def __init__(self, text: str, where: str = "") -> None:
        """Raises InputError, starting with `where`, for what is no expression or not allowed in one."""
        self.text, self.where = text.strip(), where or text
        self.names: set[str] = set()
        try:
            if len(text) > MOST_CHARACTERS:
                raise ValueError(f"longer than {MOST_CHARACTERS} characters")
            self._evaluate = _built(ast.parse(self.text, mode="eval").body, self.names)
        except SyntaxError:
            raise InputError(f"{self.where}: not an expression, as in sm_count * l2_kib < 1e5") from None
        except (ValueError, RecursionError, MemoryError) as error:
            raise InputError(f"{self.where}: {error}") from None

    def __call__(self, lookup: Lookup) -> np.ndarray:
        """Its values. Raises InputError for an unknown name, words in arithmetic, and results that are no numbers."""
        try:
            with np.errstate(all="ignore"):
                result = np.asarray(self._evaluate(lookup))
        except InputError as error:
            raise InputError(f"{self.where}: {error}") from None
        except (TypeError, ValueError, RecursionError):
            raise InputError(f"{self.where}: words can be compared only, not calculated with") from None
        if result.dtype.kind not in "fb":
            raise InputError(f"{self.where}: gives words, not numbers")
        if not np.isfinite(result).all():
            raise InputError(f"{self.where}: is {result[~np.isfinite(result)].flat[0]} at some of the points")
        return result


def _built(node: ast.AST, names: set[str]) -> Evaluate:
    """What works a node out; the names it needs are added. Raises ValueError for syntax outside the safe part."""

    def number(child: ast.AST) -> Evaluate:  # in arithmetic True counts 1
        own = _built(child, names)
        return lambda lookup: _floats(own(lookup), "b")

    match node:
        case ast.Constant(value=bool() | str() as known):
            return lambda lookup: known
        case ast.Constant(value=int() | float() as known):
            return lambda lookup: float(known)
        case ast.Name() | ast.Attribute(value=ast.Name()):
            name = ast.unparse(node)
            names.add(name)
            return lambda lookup: _floats(lookup(name), "iu")
        case ast.Call(func=ast.Name(id=name), args=arguments, keywords=[]) if name in FUNCTIONS:
            wanted, count = _ARITY.get(name, 1), len(arguments)
            if count != wanted if wanted else count < 2:
                raise ValueError(f"{name} takes {wanted or 'two or more'} values, not {count}")
            return _applied(FUNCTIONS[name], *map(number, arguments))
        case ast.Call():
            raise ValueError(f"{ast.unparse(node)} is no call of {', '.join(FUNCTIONS)}")
        case ast.BinOp():
            return _applied(_operator(node.op), number(node.left), number(node.right))
        case ast.UnaryOp():
            of = partial(_built, names=names) if isinstance(node.op, ast.Not) else number
            return _applied(_operator(node.op), of(node.operand))
        case ast.BoolOp():
            together = _operator(node.op)
            return _applied(lambda *values: reduce(together, values), *(_built(value, names) for value in node.values))
        case ast.Compare():
            return _comparison(node, names)
    raise ValueError(f"{ast.unparse(node)} is not allowed here")


def _floats(values: Any, kinds: str) -> np.ndarray:
    """Values, as floats if they are of one of these kinds of NumPy's."""
    found = np.asarray(values)
    return found.astype(float) if found.dtype.kind in kinds else found


def _applied(function: Callable[..., Any], *arguments: Evaluate) -> Evaluate:
    return lambda lookup: function(*(argument(lookup) for argument in arguments))


def _operator(node: ast.AST) -> Callable[..., Any]:
    if type(node) not in _OPERATORS:
        raise ValueError(f"{type(node).__name__} is not allowed here")
    return _OPERATORS[type(node)]


def _comparison(node: ast.Compare, names: set[str]) -> Evaluate:
    """`a < b < c` as Python reads it; the right side of a membership is a list."""
    tests, sides = [_operator(operator) for operator in node.ops], [_built(node.left, names)]
    for operator, value in zip(node.ops, node.comparators, strict=True):
        members = value.elts if isinstance(value, (ast.Tuple, ast.List)) else []
        if isinstance(operator, (ast.In, ast.NotIn)) != bool(members):
            raise ValueError("write membership as key in (1, 2, 3)")
        each = [_built(member, names) for member in members]
        sides.append(_applied(lambda *values: values, *each) if each else _built(value, names))

    def held(lookup: Lookup) -> Any:
        known = [side(lookup) for side in sides]
        results = (test(a, b) for test, a, b in zip(tests, known, known[1:], strict=False))
        return reduce(np.logical_and, results, True)

    return held
