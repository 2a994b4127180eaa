"""Compiled functions as calls of an XLA program on the CPU: handlers of XLA's foreign function interface, in LLVM.

A handler is given a frame of pointers (XLA_FFI_CallFrame of jaxlib's xla/ffi/api/c_api.h). It hands the function the
same words that `Native` does, with the addresses of XLA's buffers in place of those of NumPy's arrays."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from llvmlite import ir

from functional.jit.machine_code import ENTRY, Native, binding, engine_of, machine
from functional.jit.marked import Known, kind_of
from functional.jit.marked import words_of as words_of_all

API_MINOR, EXECUTE = 3, 3  # of the interface, whose major version is 0; the stage in which work is done
# Words of XLA_FFI_CallFrame, XLA_FFI_Buffer and the extension that asks for versions; bytes of the versions
EXTENSION, STAGE, OPERANDS, RESULTS = 1, 4, 9, 14
DATA, METADATA, VERSION_BYTE, TRAITS_BYTE = 3, 3, 24, 32
_engines: list[Any] = []  # which hold the code
_WORD = ir.IntType(64)


def words_of(arguments: tuple[Any, ...]) -> np.ndarray:
    """The words of a call with arrays of the shapes that these have: a handler's first operand, as bytes."""
    return np.array(words_of_all(arguments), np.int64).view(np.uint8)


def handler(native: Native, arguments: tuple[Any, ...], results: Sequence[int]) -> int:
    """The address of a handler that calls a function with arguments of these types, all of them arrays or tuples of
    arrays. Its operands are the words (`words_of`) and all arrays but `results`, which are its results in this order;
    arrays are counted in the order in which tuples hold them. Results begin with whatever was there."""
    code = binding().parse_assembly(str(_handler(arguments, results)))
    code.triple = binding().get_default_triple()
    own = native.object_code(Known(), tuple(map(kind_of, arguments)))
    _engines.append(engine_of(own, machine(2).emit_object(code)))
    return int(_engines[-1].get_function_address("handler"))


def _arrays(arguments: Sequence[Any]) -> Iterator[np.ndarray]:
    """All arrays of arguments, those of a tuple in its order."""
    for one in arguments:
        yield from _arrays(one) if isinstance(one, tuple) else [one]


def _handler(arguments: tuple[Any, ...], results: Sequence[int]) -> ir.Module:
    module, sizes = ir.Module(), [len(words_of_all((one,))) for one in arguments]
    given = [1 if isinstance(one, tuple) else size for one, size in zip(arguments, sizes, strict=True)]
    entry = ir.Function(module, ir.FunctionType(ir.VoidType(), [_WORD] * sum(given)), ENTRY)
    function = ir.Function(module, ir.FunctionType(_WORD, [_WORD]), "handler")
    b, frame = ir.IRBuilder(function.append_basic_block()), function.args[0]

    def at(address: Any, k: int) -> Any:
        return b.gep(b.inttoptr(address, _WORD.as_pointer()), [_WORD(k)])

    def word(address: Any, k: int) -> Any:
        return b.load(at(address, k))

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
    words = b.ptrtoint(b.alloca(_WORD, sum(sizes)), _WORD)
    template, place, other = word(word(operands, 0), DATA), 0, 1
    for k, array in enumerate(_arrays(arguments)):
        buffer = word(found, results.index(k)) if k in results else word(operands, other)
        other += k not in results
        b.store(word(buffer, DATA), at(words, place))
        for n in range(place + 1, place + 1 + array.ndim):
            b.store(word(template, n), at(words, n))
        place += 1 + array.ndim
    passed, place = [], 0
    for one, size in zip(arguments, sizes, strict=True):
        whole = isinstance(one, tuple)
        passed += [b.ptrtoint(at(words, place), _WORD)] if whole else [word(words, place + k) for k in range(size)]
        place += size
    b.call(entry, passed)
    b.ret(_WORD(0))
    return module
