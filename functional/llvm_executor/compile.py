"""IR text to machine code, kept on disk; the run time's helpers loaded once a process.

Object files are keyed by the text's content, the CPU with its features, and the versions of LLVM and of this package.
"""

from __future__ import annotations

import ctypes
import hashlib
import json
import os
import tempfile
from dataclasses import asdict, replace
from functools import cache
from pathlib import Path
from typing import Any

from functional.ir import Symbol
from functional.llvm_executor import runtime
from functional.llvm_executor.analysis import independent
from functional.llvm_executor.kernel import Generated, generate
from functional.llvm_executor.unit import NotGenerated
from functional.numpy_executor.slots import Slots
from functional.program import Program

_VERSION = "1"  # of what the code generator makes of a program


class Compiled:
    """A loaded kernel. `address` is its entry; `frames` keeps the frames of launches by their block's extents.

    The engine has to outlive every call.
    """

    def __init__(self, program: Program, generated: Generated, engine: Any) -> None:
        self.generated, self._engine = generated, engine
        self.slots = Slots(program)
        self.independent = independent(program)
        self.frames: dict[tuple[int, ...], Any] = {}
        self.address = engine.get_function_address("kernel")


@cache
def _binding() -> Any:
    import llvmlite.binding as llvm

    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    return llvm


def _features() -> str:
    return _binding().get_host_cpu_features().flatten()


def _machine() -> Any:
    llvm = _binding()
    target = llvm.Target.from_default_triple()
    return target.create_target_machine(
        cpu=llvm.get_host_cpu_name(), features=_features(), opt=1, jit=True, reloc="pic", codemodel="jitdefault"
    )


def _object(text: str, passes: tuple[str, ...]) -> bytes:
    """Machine code of a module."""
    llvm = _binding()
    machine = _machine()
    try:
        module = llvm.parse_assembly(text)
    except RuntimeError as error:  # a form the generator gets wrong costs time, not the launch
        raise NotGenerated from error
    module.triple = machine.triple
    module.data_layout = str(machine.target_data)
    builder = llvm.create_pass_builder(machine, llvm.create_pipeline_tuning_options(speed_level=1))
    manager = llvm.create_new_module_pass_manager()
    for name in passes:
        getattr(manager, f"add_{name}_pass")()
    manager.run(module, builder)
    return machine.emit_object(module)


_KERNEL_PASSES = ("sroa", "simplify_cfg")
_RUNTIME_PASSES = ("always_inliner", "sroa", "instruction_combine", "simplify_cfg")


def _engine(code: bytes) -> Any:
    """An engine that holds an object file; its other symbols are those of the process."""
    llvm = _binding()
    machine = _machine()
    empty = llvm.parse_assembly("")
    empty.triple = machine.triple
    engine = llvm.create_mcjit_compiler(empty, machine)
    engine.add_object_file(llvm.ObjectFileRef.from_data(code))
    engine.finalize_object()
    return engine


@cache
def helpers() -> dict[str, int]:
    """Addresses of the run time's functions, known to kernels by name from now on."""
    text = runtime.text()
    code = _kept(_key("runtime", text), lambda: _object(text, _RUNTIME_PASSES))
    engine = _engine(code)
    found = {name: engine.get_function_address(name) for name in runtime.exported(text)}
    for name, address in found.items():
        _binding().add_symbol(name, address)
    _keep_alive.append(engine)
    return found


_keep_alive: list[Any] = []


def load(program: Program) -> Compiled:
    """The machine code of a program, from the cache folder if it is there. Raises NotGenerated."""
    helpers()
    key = _key("kernel", program.digest, program.name, _source_digest())

    def build() -> bytes:
        generated = generate(program)
        if " half" in generated.text and "+f16c" not in _features():  # would call a library that may not be there
            raise NotGenerated
        head = json.dumps(asdict(replace(generated, text=""))).encode()
        return head + b"\n" + _object(generated.text, _KERNEL_PASSES)

    head, _, code = _kept(key, build).partition(b"\n")
    fields = json.loads(head)
    symbols = tuple(Symbol(**s) for s in fields.pop("symbols"))
    return Compiled(program, Generated(symbols=symbols, **fields), _engine(code))


def call(name: str, *arguments: int) -> int:
    """Call a helper with 64-bit arguments."""
    return _callable(name, len(arguments))(*arguments)


@cache
def _callable(name: str, arity: int) -> Any:
    return ctypes.CFUNCTYPE(ctypes.c_int32, *[ctypes.c_int64] * arity)(helpers()[name])


@cache
def _source_digest() -> str:
    """Digest of the code generator itself, so that a changed one never meets old objects."""
    digest = hashlib.sha256()
    for path in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()


def _key(*parts: str) -> str:
    llvm = _binding()
    version = ".".join(map(str, llvm.llvm_version_info))
    whole = "\0".join((*parts, llvm.get_host_cpu_name(), _features(), version, _VERSION))
    return hashlib.sha256(whole.encode()).hexdigest()


def _kept(key: str, build: Any) -> bytes:
    """The bytes under a key, made if they are not there. A folder that cannot be used only costs time."""
    folder = _folder()
    path = folder / key if folder else None
    if path is not None:
        try:
            data = path.read_bytes()
            if hashlib.sha256(data[32:]).digest() == data[:32]:
                return data[32:]
        except OSError:
            pass
    data = build()
    if folder is not None and path is not None:
        _write(folder, path, hashlib.sha256(data).digest() + data)
    return data


def _write(folder: Path, path: Path, data: bytes) -> None:
    try:
        with tempfile.NamedTemporaryFile(dir=folder, delete=False) as file:
            file.write(data)
        os.replace(file.name, path)
    except OSError:
        return


def _folder() -> Path | None:
    own = os.environ.get("ABSTIM_CACHE")
    try:
        base = Path(own) if own else Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "abstim"
        (base / "objects").mkdir(parents=True, exist_ok=True)
    except (OSError, RuntimeError):
        return None
    return base / "objects"
