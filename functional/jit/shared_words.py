"""Words that several threads of compiled code read and write: what is written before a store is seen by whoever loads
what it stored. Arrays are one-dimensional, of int64."""

from __future__ import annotations

import platform
from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic

ORDERING, WORD_BYTES = "seq_cst", 8
PAUSES = {"x86_64": "llvm.x86.sse2.pause", "AMD64": "llvm.x86.sse2.pause"}  # LLVM's name of the instruction


def _place(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
    words = context.make_array(signature.args[0])(context, builder, arguments[0])
    return builder.gep(words.data, [arguments[1]])


def _modify(operation: str) -> Callable[..., Any]:
    def make(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        place = _place(context, builder, signature, arguments)
        return builder.atomic_rmw(operation, place, arguments[2], ORDERING)

    return make


@intrinsic
def load(typing: Any, words: Any, k: Any) -> Any:
    """`words[k]`."""

    def make(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.load_atomic(_place(context, builder, signature, arguments), ORDERING, WORD_BYTES)

    return types.int64(words, types.int64), make


@intrinsic
def store(typing: Any, words: Any, k: Any, value: Any) -> Any:
    """`words[k] = value`."""

    def make(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        place = _place(context, builder, signature, arguments)
        builder.store_atomic(arguments[2], place, ORDERING, WORD_BYTES)
        return context.get_dummy_value()

    return types.void(words, types.int64, types.int64), make


@intrinsic
def add(typing: Any, words: Any, k: Any, value: Any) -> Any:
    """`words[k] += value`; returns what was there."""
    return types.int64(words, types.int64, types.int64), _modify("add")


@intrinsic
def raise_to(typing: Any, words: Any, k: Any, value: Any) -> Any:
    """`words[k] = max(words[k], value)`; returns what was there."""
    return types.int64(words, types.int64, types.int64), _modify("max")


@intrinsic
def pause(typing: Any) -> Any:
    """A moment's rest for a thread that waits for another."""

    def make(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        if name := PAUSES.get(platform.machine()):
            builder.call(_outside(builder, ir.FunctionType(ir.VoidType(), []), name), [])
        return context.get_dummy_value()

    return types.void(), make


@intrinsic
def sleep(typing: Any, microseconds: Any) -> Any:
    """Let others have the processor; 0: only if they want it."""

    def make(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        word = ir.IntType(32)
        duration = builder.trunc(arguments[0], word)
        with builder.if_else(builder.icmp_signed("==", duration, word(0))) as (at_once, later):
            with at_once:
                builder.call(_outside(builder, ir.FunctionType(word, []), "sched_yield"), [])
            with later:
                builder.call(_outside(builder, ir.FunctionType(word, [word]), "usleep"), [duration])
        return context.get_dummy_value()

    return types.void(types.int64), make


def _outside(builder: Any, kind: Any, name: str) -> Any:
    return cgutils.get_or_insert_function(builder.module, kind, name)
