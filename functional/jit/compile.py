"""Functions compiled by Numba as one piece of machine code: those that work on floating-point numbers, and short ones.

Numba by itself optimises and emits each function with all that it calls, level by level. Here only the outermost one
is: the others are parts of it, linked as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any, TypeVar

import numba
import numpy as np
from numba.core.codegen import JITCodeLibrary
from numba.core.compiler import Compiler
from numba.core.compiler_lock import global_compiler_lock
from numba.np import arrayobj

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


# Arrays belong to the caller throughout: counting references to them took three quarters of the run time.
_PART = {"_nrt": False, "no_cpython_wrapper": True, "no_cfunc_wrapper": True}
jit = numba.njit(**_PART, pipeline_class=PartCompiler, forceinline=True)
_entry = numba.njit(**_PART, pipeline_class=PartCompiler, forceinline=False)


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
    dispatcher, signature = _entry(function), tuple(type_of(argument) for argument in arguments)
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
