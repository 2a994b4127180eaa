"""Functions of real numbers that both JAX traces and compiled code calls: a formula of them is written once."""

from collections.abc import Callable
from importlib import import_module
from typing import Any

from functional.jit.marked import Marked, Operation
from functional.jit.values import REAL, Word


class Function(Operation):
    """In compiled code what `emit` writes; called from Python, a function of `jax.numpy` or another module, by name, or
    one of these functions."""

    def __init__(self, emit: Callable[..., Any], traced: str | Callable[..., Any]) -> None:
        super().__init__(emit)
        self._traced = traced

    def __call__(self, *given: Any) -> Any:
        if callable(self._traced):
            return self._traced(*given)
        module, _, name = self._traced.rpartition(".")
        return getattr(import_module(module or "jax.numpy"), name)(*given)


class Twin(Marked):
    """A compiled function that does in a loop what `traced` says as arrays of JAX."""

    def __init__(self, function: Callable[..., Any], traced: Callable[..., Any]) -> None:
        super().__init__(function)
        self._traced = traced

    def __call__(self, *given: Any) -> Any:
        return self._traced(*given)


def traced_as(traced: Callable[..., Any]) -> Callable[[Callable[..., Any]], Any]:
    """Decorator of a function for compiled code: JAX is to trace another one."""
    return lambda function: Twin(function, traced)


def _real(body: Any, value: Any) -> str:
    return str(body.converted(value, Word("", REAL)).name)


def _called(name: str, traced: str | Callable[..., Any]) -> Function:
    """A function of LLVM or of the mathematical library, of any number of arguments."""

    def emit(body: Any, *given: Any) -> Word:
        kinds, operands = ", ".join(["double"] * len(given)), ", ".join(f"double {_real(body, v)}" for v in given)
        body.unit.declarations.add(f"declare double @{name}({kinds})")
        return Word(body.new(f"call double @{name}({operands})"), REAL)

    return Function(emit, traced)


def _chosen(body: Any, test: str, a: Any, b: Any) -> Word:
    """The first of two numbers if the test holds, else the second. (LLVM 22 skips elements in loops of `maxnum`.)"""
    first, second = _real(body, a), _real(body, b)
    holds = body.new(f"fcmp {test} double {first}, {second}")
    return Word(body.new(f"select i1 {holds}, double {first}, double {second}"), REAL)


larger = Function(lambda body, a, b: _chosen(body, "ogt", a, b), "maximum")
smaller = Function(lambda body, a, b: _chosen(body, "olt", a, b), "minimum")
floor, ceil, nearest = (_called(f"llvm.{name}.f64", traced) for name, traced in (
    ("floor", "floor"), ("ceil", "ceil"), ("rint", "round"),
))  # fmt: skip
log, log2, exp, power, root = (_called(f"llvm.{name}.f64", traced) for name, traced in (
    ("log", "log"), ("log2", "log2"), ("exp", "exp"), ("pow", "power"), ("sqrt", "sqrt"),
))  # fmt: skip
log_gamma = _called("lgamma", "jax.scipy.special.gammaln")
fixed = Function(lambda body, x: x, "jax.lax.stop_gradient")  # without a derivative
stepped = Function(lambda body, x, whole: whole, lambda x, whole: x + fixed(whole - x))  # `whole`, as steep as x


def _select(body: Any, test: Any, a: Any, b: Any) -> Any:
    found = body.truth(test)
    if not isinstance(found, Word):
        return a if found else b
    return Word(body.new(f"select i1 {found.name}, double {_real(body, a)}, double {_real(body, b)}"), REAL)


where = Function(_select, "where")
number = Function(  # a whole one, to index with
    lambda body, x: Word(body.new(f"fptosi double {_real(body, x)} to i64"), "int"), lambda x: x.astype(int)
)


def _summed(*arrays: Any) -> Any:
    found = arrays[0]
    for array in arrays[1:]:
        found = found * array
    return found.sum()


@traced_as(_summed)
def dot(a, b):
    """The sum of products of two arrays' numbers."""
    total = 0.0
    for k in range(len(a)):
        total += a[k] * b[k]
    return total


@traced_as(_summed)
def dot_of_three(a, b, c):
    """The same of three."""
    total = 0.0
    for k in range(len(a)):
        total += a[k] * b[k] * c[k]
    return total


WIDTH = 8  # numbers that the processor multiplies at once


def _dot_of_rows(body: Any, a: Any, b: Any, count: int) -> Word:
    """`dot` of arrays of floats and of doubles, a known multiple of WIDTH of them."""
    total, vector = "zeroinitializer", f"<{WIDTH} x double>"
    for k in range(0, count, WIDTH):
        short = body.new(f"load <{WIDTH} x float>, ptr {body.moved(a, k)}, align 4")
        wide = body.new(f"fpext <{WIDTH} x float> {short} to {vector}")
        other = body.new(f"load {vector}, ptr {body.moved(b, k)}, align 8")
        total = body.new(f"fadd {vector} {total}, {body.new(f'fmul {vector} {wide}, {other}')}")
    body.unit.declarations.add(f"declare double @llvm.vector.reduce.fadd.v{WIDTH}f64(double, {vector})")
    return Word(
        body.new(f"call reassoc double @llvm.vector.reduce.fadd.v{WIDTH}f64(double -0.0, {vector} {total})"), REAL
    )


dot_of_rows = Function(_dot_of_rows, lambda a, b, count: _summed(a, b))
