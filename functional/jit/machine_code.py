"""Compiled functions as the rest of the package calls them: object files kept on disk, loaded without LLVM, which takes
longer to import than it takes to run what is kept. They are ELF for x86-64, position independent, small code model
(System V ABI, AMD64 supplement 1.0, chapter 4)."""

import ctypes
import mmap
import platform
import sys
from collections import defaultdict
from collections.abc import Callable
from functools import cache, update_wrapper
from importlib import import_module
from inspect import unwrap
from operator import index
from struct import iter_unpack, pack_into, unpack_from
from threading import Lock
from typing import Any, NamedTuple

import numpy as np

from functional.errors import note
from functional.jit.marked import Known, Marked, address_of, described, kind_of, words_of
from functional.keep.kept import Kept, key

CAN_LOAD = sys.platform == "linux" and platform.machine() == "x86_64"
SYMBOLS, RELOCATIONS = 2, 4  # types of sections
WRITABLE, LOADED = 1, 2  # flags of sections
DISTANCES = 2, 4  # relocations that write one of 32 bits; the rest of them wants none
STUB, STUB_BYTES = 0x0225FF, 16  # a jump to the address in the stub's second word
MAY_READ_AND_RUN = 5
KNOWN: dict[str, int] = {}  # addresses of functions that files may lack, besides those of this process


class Section(NamedTuple):
    """A row of a file's table of sections."""

    type: int
    flags: int
    offset: int
    size: int
    link: int
    info: int
    align: int


class ObjectFiles:
    """Object files in memory as long as this is held. What one lacks, those before it have, or KNOWN, or the process.
    Raises ValueError for what no compiler in this house emits, AttributeError for a function that nobody has."""

    def __init__(self, *codes: bytes) -> None:
        self._held, self._given = list[mmap.mmap](), dict[str, int]()
        for code in codes:
            self._load(code)

    def get_function_address(self, name: str) -> int:
        """Of a function of one of them."""
        return self._given[name]

    def _address(self, name: str) -> int:
        found = self._given.get(name) or KNOWN.get(name)
        return found or ctypes.cast(getattr(ctypes.CDLL(None), name), ctypes.c_void_p).value or 0

    def _load(self, code: bytes) -> None:
        first, count = unpack_from("<40xQ12xH", code)
        sections = [Section(*row) for row in iter_unpack("<4xIQ8xQQIIQ8x", code[first : first + 64 * count])]
        parts = [code[section.offset : section.offset + section.size] for section in sections]
        places, stubs = _laid_out(sections)
        (table,) = (k for k, section in enumerate(sections) if section.type == SYMBOLS)
        symbols = [*iter_unpack("<IBxHQ8x", parts[table])]  # name, kind, section, value
        memory = mmap.mmap(-1, stubs + STUB_BYTES * len(symbols), mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        base, near = ctypes.addressof(ctypes.c_char.from_buffer(memory)), list[int]()  # where in memory calls lead to
        for k, place in places.items():
            memory[place : place + sections[k].size] = parts[k]
        for n, (at, kind, section, value) in enumerate(symbols):
            name = parts[sections[table].link][at:].partition(b"\0")[0].decode()
            near.append(places[section] + value if section in places else stubs + STUB_BYTES * n)
            if not section and name:
                pack_into("<QQ", memory, near[n], STUB, self._address(name))
            elif section and kind >> 4:  # others see it
                self._given[name] = base + near[n]
        for k, section in enumerate(sections):
            for offset, kind, n, addend in iter_unpack("<QIIq", parts[k] if section.type == RELOCATIONS else b""):
                if kind not in DISTANCES and section.info in places:
                    raise ValueError(f"relocations of type {kind} are not known here")
                if section.info in places:
                    pack_into("<i", memory, (place := places[section.info] + offset), near[n] + addend - place)
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.mprotect(ctypes.c_void_p(base), ctypes.c_size_t(len(memory)), MAY_READ_AND_RUN):
            raise OSError(ctypes.get_errno(), "machine code may not be run here")
        self._held.append(memory)


def _laid_out(sections: list[Section]) -> tuple[dict[int, int], int]:
    """Where in memory those sections lie that are loaded, and where what comes behind them may begin."""
    places, end = dict[int, int](), 0
    for k, section in enumerate(sections):
        if section.flags & LOADED:
            if section.flags & WRITABLE:
                raise ValueError("variables are not known here")
            places[k] = -(-end // section.align) * section.align
            end = places[k] + section.size
    return places, -(-end // STUB_BYTES) * STUB_BYTES


CODE_MODEL = "small" if CAN_LOAD else "jitdefault"  # LLVM may put a file's parts farther apart than a small one allows
ENTRY = "entry"  # what a function is called in its object file


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
    """What machine code depends on besides its source and the version of LLVM."""
    return f"{sys.platform} {platform.machine()} {processor()}"


def processor() -> str:
    """What says which instructions this CPU has: the kernel's description of the first one, else LLVM's."""
    try:
        with open("/proc/cpuinfo", "rb", buffering=0) as file:
            first = file.read(1 << 14).decode(errors="replace").partition("\n\n")[0]
    except OSError:
        return f"{binding().get_host_cpu_name()} {features()}"
    told = ("vendor_id", "cpu family", "model", "stepping", "flags", "CPU ", "Features")
    return "\n".join(line for line in first.splitlines() if line.startswith(told) and "MHz" not in line)


def machine(level: int = 1) -> Any:
    """A target machine that emits code to be loaded into this process; `level` of optimisation, 0 the quickest."""
    llvm = binding()
    return llvm.Target.from_default_triple().create_target_machine(
        cpu=llvm.get_host_cpu_name(), features=features(), opt=level, jit=True, reloc="pic", codemodel=CODE_MODEL
    )


def engine_of(*codes: bytes) -> Any:
    """What holds object files; what they lack is of the process, or was given to `provide`. It outlives every call."""
    if CAN_LOAD:
        return ObjectFiles(*codes)
    llvm, host = binding(), machine()
    empty = llvm.parse_assembly("")
    empty.triple = host.triple
    engine = llvm.create_mcjit_compiler(empty, host)
    for code in codes:
        engine.add_object_file(llvm.ObjectFileRef.from_data(code))
    engine.finalize_object()
    return engine


def provide(name: str, address: int) -> None:
    """A function that object files may call by this name from now on."""
    KNOWN[name] = address
    if not CAN_LOAD:
        binding().add_symbol(name, address)


_compiling = Lock()
_making: dict[Any, Lock] = defaultdict(Lock)  # by function and what is known of it
FEW_PASSES = ("always_inliner", "sroa", "instruction_combine", "simplify_cfg")
_TOGETHER = "sroa", "new_gvn", "instruction_combine", "simplify_cfg", "dead_store_elimination"
# Each function by itself, then with all that it calls and is not outlined, a copy at each call: as long to compile
# where most is called once or twice, and a twelfth faster
WHOLE = (*FEW_PASSES[1:], "always_inliner", *_TOGETHER), 1
QUICKLY = FEW_PASSES, 0  # a quarter of the time to compile, twice as long to run


def assembled(text: str, passes: tuple[str, ...] = (), level: int = 1) -> bytes:
    """An object file of LLVM IR, for this CPU, by passes of these names, else by LLVM's own of the first level: more
    make no code of ours faster. Raises RuntimeError for what is no IR."""
    llvm, host = binding(), machine(level)
    module = llvm.parse_assembly(text, llvm.create_context())
    module.triple, module.data_layout = host.triple, str(host.target_data)
    options = llvm.create_pipeline_tuning_options(speed_level=1)
    options.loop_unrolling = options.loop_vectorization = False  # others are short, or what they do is long
    builder = llvm.create_pass_builder(host, options)
    manager = llvm.create_new_module_pass_manager() if passes else builder.getModulePassManager()
    for name in passes:
        getattr(manager, f"add_{name}_pass")()
    manager.run(module, builder)
    return bytes(host.emit_object(module))


class Staged:
    """The function `name` of a module, which is imported only if there is no machine code yet, compiled by
    functional.jit.staged for what is known of it, once for each such `Known`.

    Its arguments are of `kinds`: classes of named tuples, of which the address of their words is passed, declarations
    of arrays, and INT. It returns nothing. The interpreter lock is released while it runs. `notice` is said on stderr,
    if that is a terminal, when it must be compiled; `how`: see `assembled`."""

    def __init__(self, module: str, name: str, kinds: tuple = (), notice: str = "", how: tuple = ()) -> None:
        self._module, self._name, self._kinds, self._notice, self._how = module, name, kinds, notice, how
        self._kept = Kept("objects")
        self._entries: dict[Any, Callable[..., None]] = {}  # by what is known, and kinds
        self._engines: list[Any] = []  # which hold the code

    def __call__(self, known: Known, *arguments: Any) -> None:
        words: list[int] = []
        for argument in arguments:
            words += words_of((argument,)) if isinstance(argument, np.ndarray) else (index(argument),)
        (self._entries.get(known.key) or self._load(known.key, known, self._kinds, len(words)))(*words)

    def _load(self, name: Any, known: Known, kinds: tuple[Any, ...], words: int) -> Callable[..., None]:
        with _making[self, name]:  # what is compiled for something else goes on meanwhile
            if name not in self._entries:
                code = self.object_code(known, kinds)
                with _compiling:
                    self._engines.append(engine_of(code))
                    kind = ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * words)
                    self._entries[name] = kind(self._engines[-1].get_function_address(ENTRY))
            return self._entries[name]

    def object_code(self, known: Known, kinds: tuple[Any, ...]) -> bytes:
        """From disk, if it is there. Copies of the sources share it: where they lie is no part of the key."""
        modules, checked = (self._module, "functional.jit.staged", __name__), str(known.checked)
        given = (known.key, checked, *map(described, kinds))
        name = key(modules, "staged", self._module, self._name, *given, *map(str, self._how), target())
        return self._kept.load_or_make(name, lambda: self._compile(known, kinds))

    def _compile(self, known: Known, kinds: tuple[Any, ...]) -> bytes:
        from functional.jit.staged import Unit

        if self._notice and sys.stderr.isatty():
            note(self._notice)
        unit, function = Unit(known, self._how == WHOLE), unwrap(getattr(import_module(self._module), self._name))
        unit.entry(function if isinstance(function, Marked) else Marked(function), kinds, ENTRY)
        return assembled(unit.text(), *self._how)


_kinds: dict[tuple[Any, ...], object] = {}  # one object for all that show the same, which is told from others at once


class Held:
    """A named tuple that a Native is given again and again, or by its address, whose arrays stay where they are."""

    def __init__(self, value: Any) -> None:
        shown: list[Any] = [type(value)]
        self.value: Any = value
        self.words = np.array(words_of(value, shown), np.int64)
        self.shown, self.address = _kinds.setdefault(tuple(shown), object()), address_of(self.words)


class Native(Staged):
    """The same for whatever it is called with: C-contiguous arrays, records, named tuples of arrays and whole numbers,
    and whole numbers. Nothing else is known of it."""

    def __init__(self, module: str, name: str, notice: str = "", how: tuple = ()) -> None:
        super().__init__(module, name, (), notice, how)

    def __call__(self, *arguments: Any) -> None:  # type: ignore[override]
        """Raises ValueError for an array that is not contiguous, TypeError for a number that is not whole."""
        shown: list[Any] = []
        words, blocks = [], []
        for argument in arguments:
            if isinstance(argument, Held):
                shown.append(argument.shown)
                words.append(argument.address)
                continue
            own = words_of(argument if isinstance(argument, tuple) else (argument,), shown)
            if isinstance(argument, tuple):
                shown.append((type(argument), len(argument)))
                blocks.append((ctypes.c_int64 * len(own))(*own))
                own = [ctypes.addressof(blocks[-1])]
            words += own
        entry = self._entries.get(seen := tuple(shown))
        if entry is None:
            kinds = tuple(kind_of(a.value if isinstance(a, Held) else a) for a in arguments)
            entry = self._entries[seen] = self._load(kinds, Known(), kinds, len(words))
        entry(*words)


def compiled(function: Callable[..., None]) -> Native:
    """Decorator: the function as machine code."""
    native = Native(function.__module__, function.__name__)
    update_wrapper(native, function)
    return native
