"""Compiled functions as calls of an XLA program on the CPU: handlers of XLA's foreign function interface, in LLVM.

A handler is given a frame of pointers (XLA_FFI_CallFrame of jaxlib's xla/ffi/api/c_api.h). It hands the function the
same words that `Native` does, with the addresses of XLA's buffers in place of those of NumPy's arrays.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from llvmlite import ir

from functional.jit.machine_code import ENTRY, Native, binding, engine_of, flat, machine

API_MINOR, EXECUTE = 3, 3  # of the interface, whose major version is 0; the stage in which work is done
# Words of XLA_FFI_CallFrame, XLA_FFI_Buffer and the extension that asks for versions; bytes of the versions
EXTENSION, STAGE, OPERANDS, RESULTS = 1, 4, 9, 14
DATA, METADATA, VERSION_BYTE, TRAITS_BYTE = 3, 3, 24, 32
WORDS_OF_ARRAY = 5  # beside its shape and strides
ADDRESS = 4  # which of them is its address
_engines: list[Any] = []  # which hold the code
_WORD, _INT, _BYTES = ir.IntType(64), ir.IntType(32), ir.IntType(8).as_pointer()


def words_of(arguments: tuple[Any, ...]) -> np.ndarray:
    """The words of a call with arrays of the shapes that these have: a handler's first operand, as bytes."""
    return np.array(flat(arguments)[1], np.int64).view(np.uint8)


def handler(native: Native, arguments: tuple[Any, ...], results: Sequence[int]) -> int:
    """The address of a handler that calls a function with arguments of these types, all of them arrays or tuples of
    arrays. Its operands are the words (`words_of`) and all arrays but `results`, which are its results in this order;
    arrays are counted in the order in which tuples hold them. Results begin with whatever was there."""
    kinds, words = flat(arguments)
    code = binding().parse_assembly(
        str(_handler([int(kind.rpartition(":")[2]) for kind in kinds], len(words), results))
    )
    code.triple = binding().get_default_triple()
    engine = engine_of(native.object_code(kinds, arguments), machine(2).emit_object(code))
    _engines.append(engine)
    return int(engine.get_function_address("handler"))


def _handler(dimensions: Sequence[int], count: int, results: Sequence[int]) -> ir.Module:
    """The handler of a function of `count` words, given how many dimensions each of its arrays has."""
    module = ir.Module()
    entry = ir.Function(module, ir.FunctionType(_INT, [_BYTES, _BYTES] + [_WORD] * count), ENTRY)
    function = ir.Function(module, ir.FunctionType(_WORD, [_WORD]), "handler")
    b, frame = ir.IRBuilder(function.append_basic_block()), function.args[0]

    def word(address: Any, k: int) -> Any:
        return b.load(b.gep(b.inttoptr(address, _WORD.as_pointer()), [_WORD(k)]))

    extension = word(frame, EXTENSION)
    with b.if_then(b.icmp_signed("!=", extension, _WORD(0))):
        metadata = word(extension, METADATA)
        for byte, value in ((VERSION_BYTE, API_MINOR << 32), (TRAITS_BYTE, 0)):
            b.store(_WORD(value), b.inttoptr(b.add(metadata, _WORD(byte)), _WORD.as_pointer()))
        b.ret(_WORD(0))
    stage = b.and_(word(frame, STAGE), _WORD((1 << 32) - 1))
    with b.if_then(b.icmp_signed("!=", stage, _WORD(EXECUTE))):
        b.ret(_WORD(0))
    operands, found = word(frame, OPERANDS), word(frame, RESULTS)
    own = [k for k in range(len(dimensions)) if k not in results]
    template, words = word(word(operands, 0), DATA), [_WORD(0)] * count
    place = 0
    for k, dimension in enumerate(dimensions):
        buffer = word(found, results.index(k)) if k in results else word(operands, 1 + own.index(k))
        for n in range(place, place + WORDS_OF_ARRAY + 2 * dimension):
            words[n] = word(buffer, DATA) if n == place + ADDRESS else word(template, n)
        place += WORDS_OF_ARRAY + 2 * dimension
    scratch = [b.bitcast(b.alloca(_WORD), _BYTES) for _ in range(2)]
    b.call(entry, [*scratch, *words])
    b.ret(_WORD(0))
    return module
