"""The functions of the compiled engine as one piece of machine code.

Numba by itself optimises and emits each function with all that it calls, level by level. Here only the outermost one
is: the others are parts of it, linked as they are. Numba hands a named tuple over as all the words of all its arrays
(seven an array), which every one of some hundred inlined functions would take apart and put together again: a third of
the compiler's time. A `reference` is one word, made once, by the function that is not inlined; when all is inlined the
optimiser takes its fields for the plain values they are.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any, TypeVar

import numba
import numpy as np
from numba.core import cgutils, types
from numba.core.codegen import JITCodeLibrary
from numba.core.compiler import Compiler
from numba.core.compiler_lock import global_compiler_lock
from numba.core.types.containers import BaseNamedTuple
from numba.core.typing.templates import AttributeTemplate
from numba.extending import infer_getattr, intrinsic, lower_getattr_generic, models, register_model
from numba.np import arrayobj


class Reference(types.Type):
    """To a named tuple; has its fields, those that are named tuples as references."""

    def __init__(self, to: BaseNamedTuple) -> None:
        self.to = to
        # Types are part of every function's name, and the full one would run to pages
        digest = hashlib.sha256(str(to).encode()).hexdigest()[:16]
        super().__init__(f"Reference({to.instance_class.__name__}, {digest})")


@register_model(Reference)
class _Pointer(models.PrimitiveModel):
    def __init__(self, manager: Any, reference: Reference) -> None:
        super().__init__(manager, reference, manager.lookup(reference.to).get_value_type().as_pointer())


@intrinsic
def reference(typing: Any, value: Any) -> Any:
    """A reference to a named tuple, for as long as the function runs that makes it."""

    def make(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return cgutils.alloca_once_value(builder, arguments[0])

    return Reference(value)(value), make


@infer_getattr
class _Fields(AttributeTemplate):  # type: ignore[misc]
    key = Reference

    def generic_resolve(self, of: Reference, name: str) -> Any:
        if name not in of.to.fields:
            return None
        field = of.to.types[of.to.fields.index(name)]
        return Reference(field) if isinstance(field, BaseNamedTuple) else field


@lower_getattr_generic(Reference)
def _field(context: Any, builder: Any, of: Reference, pointer: Any, name: str) -> Any:
    at = of.to.fields.index(name)
    place = cgutils.gep_inbounds(builder, pointer, 0, at)
    return place if isinstance(of.to.types[at], BaseNamedTuple) else builder.load(place)


def apart(function: Callable[..., None]) -> Any:
    """Decorator: a function of a reference, and perhaps of one whole number, that returns nothing.

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


Entry = TypeVar("Entry", bound=Callable[..., Any])


class PartLibrary(JITCodeLibrary):
    """A function and those it calls."""

    def finalize(self) -> None:
        """Link what is called."""
        for library in dict.fromkeys(self._linking_libraries):
            self._final_module.link_in(library._get_module_for_linking(), preserve=True)
        self._finalized = True

    def emit(self, entry: str, name: str) -> bytes:
        """An object file of the function whose mangled name is `entry`, there called `name`."""
        self._ensure_finalized()
        self._final_module.get_function(entry).name = name
        for _ in range(2):  # the second time makes a run 3 % faster
            self._optimize_final_module()
        return bytes(self._codegen._tm.emit_object(self._final_module))


class PartCompiler(Compiler):
    """Numba's own, short of machine code."""

    def define_pipelines(self) -> list[Any]:
        """Numba's passes, with a library of our own and without the emission of machine code."""
        state = self.state
        state.flags.no_compile = True
        state.library = PartLibrary(state.targetctx.codegen(), state.func_id.func_qualname)
        return super().define_pipelines()

    def compile_extra(self, func: Callable[..., Any]) -> Any:
        """Compile, and make the result known to callers under an entry point."""
        # Callers find a function by its entry point, which must be a built-in method; calling this one is a TypeError.
        part = super().compile_extra(func)._replace(entry_point=object().__format__)
        self.state.targetctx.insert_user_function(part.entry_point, part.fndesc, [part.library])
        return part


class ApartCompiler(PartCompiler):
    """Of a part that stays a function: no two of its arrays and records overlap, which the optimiser is told."""

    def define_pipelines(self) -> list[Any]:
        self.state.flags.noalias = True
        return super().define_pipelines()


# Arrays belong to the caller throughout: counting references to them took three quarters of the run time. A call hands
# over 60 words of array descriptions, half of the rest: everything is inlined but what runs long.
_PART = {"_nrt": False, "no_cpython_wrapper": True, "no_cfunc_wrapper": True}
jit = numba.njit(**_PART, pipeline_class=PartCompiler, forceinline=True)
# Said, because a part inherits what is left out from its caller
outlined = numba.njit(**_PART, pipeline_class=ApartCompiler, forceinline=False)
# Of what returns a tuple that holds a record, which Numba cannot hand back: part of its caller before it is compiled
spliced = numba.njit(inline="always")
_entry = numba.njit(**_PART, pipeline_class=PartCompiler, forceinline=False)
_part = numba.njit(**_PART, pipeline_class=ApartCompiler, forceinline=False)


def indexed_from_zero(function: Entry) -> Entry:
    """Decorator: an outermost function in which no index is negative, nor in what it calls. Numba lets an index count
    from an array's end, which costs a load of its size, a comparison and a choice for every index: a sixth to a
    quarter of the engine's time. A negative index is then memory before the array; tests/check_indices.py looks."""
    function.__dict__["indexed_from_zero"] = True
    return function


def as_it_is(context: Any, builder: Any, kind: Any, index: Any, size: Any) -> Any:
    """An index that is not negative, in place of Numba's choice (the same arguments)."""
    return context.cast(builder, index, kind, numba.types.intp)


@contextmanager
def _indices_as_they_are() -> Iterator[None]:
    """What is compiled meanwhile counts from zero; others who use Numba wait."""
    with global_compiler_lock:
        before = arrayobj.fix_integer_index
        arrayobj.fix_integer_index = as_it_is
        try:
            yield
        finally:
            arrayobj.fix_integer_index = before


def object_code(function: Callable[..., Any], arguments: tuple[Any, ...], name: str) -> bytes:
    """An object file with the machine code of a function for arguments of these types, for this CPU; it is
    called `name` there."""
    return _emitted(_entry, function, tuple(type_of(argument) for argument in arguments), name)


def part_object_code(function: Callable[..., Any], to: Any) -> bytes:
    """The same of a part (`apart`), whose reference is to a tuple of Numba's type `to`."""
    signature = (Reference(to), *[numba.types.int64] * whole_numbers(function))
    return _emitted(_part, function, signature, symbol_of(function))


def _emitted(dispatcher_of: Callable[..., Any], function: Callable[..., Any], signature: Any, name: str) -> bytes:
    dispatcher = dispatcher_of(function)
    with _indices_as_they_are() if hasattr(function, "indexed_from_zero") else nullcontext():
        dispatcher.compile(signature)
    result = dispatcher.overloads[signature]
    return result.library.emit(result.fndesc.llvm_func_name, name)  # type: ignore[no-any-return]


def type_of(argument: Any) -> Any:
    """Numba's type of an argument; all arrays are contiguous, and of one type whether they can be written or not."""
    if isinstance(argument, tuple):
        return numba.types.BaseTuple.from_types([type_of(part) for part in argument], type(argument))
    if isinstance(argument, np.ndarray):
        return numba.types.Array(numba.from_dtype(argument.dtype), argument.ndim, "C")
    return numba.typeof(argument)
