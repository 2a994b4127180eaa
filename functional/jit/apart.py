"""Parts of compiled code with object files of their own, which another process makes while this one makes the rest."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from numba.core import cgutils, types
from numba.extending import intrinsic


def apart(function: Callable[..., None]) -> Any:
    """Decorator: a function of a reference (by_reference.py), and perhaps of one whole number, that returns nothing.

    Compiled code calls it as any other, and is linked with it when it is loaded: whoever loads code that calls it names
    it among the `parts` of the `Native`.
    """
    symbol = symbol_of(function)

    def call(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        convention = context.call_conv
        kind = convention.get_function_type(signature.return_type, signature.args)
        callee = cgutils.get_or_insert_function(builder.module, kind, symbol)
        status, _ = convention.call_function(builder, callee, signature.return_type, signature.args, arguments)
        with cgutils.if_unlikely(builder, status.is_error):
            convention.return_status_propagate(builder, status)
        return context.get_dummy_value()

    def of_one(typing: Any, one: Any) -> Any:
        return types.none(one), call

    def of_two(typing: Any, one: Any, number: Any) -> Any:
        return types.none(one, types.int64), call

    caller = (of_one, of_two)[whole_numbers(function)]
    caller.__name__ = function.__name__
    made = intrinsic(caller)
    made.function = function
    return made


def symbol_of(function: Callable[..., None]) -> str:
    """What a part is called in its object file."""
    return f"{function.__module__}.{function.__name__}"


def whole_numbers(function: Callable[..., None]) -> int:
    """How many a part takes, after its reference."""
    return function.__code__.co_argcount - 1
