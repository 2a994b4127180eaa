"""Machine code of kernels and of the run time's helpers, kept on disk; the helpers are loaded once a process."""

from __future__ import annotations

import ctypes
import platform
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any, TypeVar

import msgspec

from functional.errors import refuse
from functional.isa.operation import Unsupported
from functional.isa.slots import Slots
from functional.jit import native
from functional.jit.machine_code import FEW_PASSES, assembled, engine_of, features, provide, target
from functional.keep.kept import Kept, key
from functional.llvm_executor import (  # noqa: F401 - to load their routines
    runtime_access,
    runtime_matrices,
    runtime_races,
    runtime_records,
    runtime_schedule,
    runtime_stack,
)
from functional.llvm_executor.analysis import independent
from functional.llvm_executor.context_layout import ENTRY_BYTES
from functional.llvm_executor.emit import ATTRIBUTES
from functional.llvm_executor.generate import Generated, generate
from functional.llvm_executor.pieces import Care, needs_care
from functional.programs.program import Program

MODULES = ("functional.llvm_executor", "functional.ptx.parser", "functional.programs.link")  # what makes code of a text
T = TypeVar("T")
_LANES = 32


class Compiled:
    """A loaded kernel. `address`: its entry; `frames`: of launches by block extents. The engine outlives every call."""

    def __init__(self, program: Program, generated: Generated, engine: Any) -> None:
        self.program, self.generated, self._engine = program, generated, engine
        self.slots = Slots(program)
        self.independent = independent(program) and not generated.by_piece
        self.ordered = bool(program.order_points)
        self.frames: dict[tuple[int, ...], Any] = {}
        calls = self.slots.frames if program.recursive else len(program.functions)
        self.stack_depth = 2 * (_LANES + calls)  # where lanes part, as often as they can, and a call save two entries
        self.frame_bytes = generated.frame_bytes + -(-ENTRY_BYTES * self.stack_depth // 64) * 64
        self.address = engine.get_function_address("kernel")
        self._steps: Any = None

    def steps(self, make: Callable[[Compiled], T]) -> T:
        """What `make` makes of it for the instructions that are left out, made once."""
        if self._steps is None:
            self._steps = make(self)
        return self._steps


# Of text, beyond which code is made quickly: good code takes LLVM time that grows with the square of a function's size
_WELL_BYTES = 1 << 20


def _object(text: str, passes: tuple[str, ...]) -> bytes:
    try:
        return assembled(text, passes, int(len(text) <= _WELL_BYTES))
    except RuntimeError as error:
        raise Unsupported(str(error)) from error


_KERNEL_PASSES = ("sroa", "simplify_cfg")
_RUNTIME_PASSES = (*FEW_PASSES, "new_gvn", "instruction_combine", "simplify_cfg")
PACKAGE = "functional.llvm_executor"


def text() -> str:
    """LLVM IR of the run time: all its routines as one module."""
    return f"{native.text(PACKAGE)}\n{ATTRIBUTES}\n"


@cache
def helpers() -> dict[str, int]:
    """Addresses of the run time's routines, known to kernels by name from now on."""
    kept = Kept("objects").load_or_make(key(MODULES, "runtime", target()), lambda: _object(text(), _RUNTIME_PASSES))
    engine = engine_of(kept)
    found = {name: engine.get_function_address(name) for name in native.exported(PACKAGE)}
    for name, address in found.items():
        provide(name, address)
    _keep_alive.append(engine)
    return found


_keep_alive: list[Any] = []


def load(program: Program, in_clusters: bool = False, care: Care = Care.NONE) -> Compiled:
    """The machine code of a program, from the cache folder if it is there; for clusters of thread blocks it is another
    one, and for each care, of which it may need some. Raises Unsupported."""
    helpers()
    care = max(care, Care(needs_care(program)))

    def build() -> bytes:
        generated = generate(program, in_clusters, care)
        lacks_halves = platform.machine() in ("x86_64", "AMD64") and "+f16c" not in features()
        refuse(" half" in generated.text and lacks_halves, "this CPU cannot convert halves (F16C)", Unsupported)
        head = msgspec.json.encode(replace(generated, text=""))
        return head + b"\n" + _object(generated.text, _KERNEL_PASSES)

    name = key(MODULES, "kernel", program.digest, program.name, in_clusters, care, target())
    head, _, code = Kept("objects").load_or_make(name, build).partition(b"\n")
    return Compiled(program, msgspec.json.decode(head, type=Generated), engine_of(code))


def call(name: str, *arguments: int) -> int:
    """Call a helper with 64-bit arguments."""
    return _callable(name, len(arguments))(*arguments)


@cache
def _callable(name: str, arity: int) -> Any:
    return ctypes.CFUNCTYPE(ctypes.c_int32, *[ctypes.c_int64] * arity)(helpers()[name])
