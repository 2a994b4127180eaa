"""LLVM as everything here uses it: for this CPU, without Numba; object files are loaded as they are."""

from __future__ import annotations

from functools import cache
from typing import Any

ENTRY = "entry"  # what a function of Numba's is called in its object file


@cache
def binding() -> Any:
    """llvmlite's binding, ready for this CPU; imported when it is first needed."""
    import llvmlite.binding as llvm

    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    return llvm


@cache
def features() -> str:
    """Of this CPU, as LLVM names them."""
    return str(binding().get_host_cpu_features().flatten())


@cache
def target() -> str:
    """What machine code depends on besides its source: the system, the CPU, and the version of LLVM."""
    llvm = binding()
    version = ".".join(map(str, llvm.llvm_version_info))
    return " ".join((llvm.get_default_triple(), llvm.get_host_cpu_name(), features(), version))


def machine(level: int = 1) -> Any:
    """A target machine that emits code to be loaded into this process; `level` of optimisation, 0 the quickest."""
    llvm = binding()
    return llvm.Target.from_default_triple().create_target_machine(
        cpu=llvm.get_host_cpu_name(), features=features(), opt=level, jit=True, reloc="pic", codemodel="jitdefault"
    )


def engine_of(*codes: bytes) -> Any:
    """An engine that holds object files; their other symbols are those of the process. It has to outlive every call."""
    llvm, host = binding(), machine()
    empty = llvm.parse_assembly("")
    empty.triple = host.triple
    engine = llvm.create_mcjit_compiler(empty, host)
    for code in codes:
        engine.add_object_file(llvm.ObjectFileRef.from_data(code))
    engine.finalize_object()
    return engine
