"""Object files brought into memory without LLVM, whose import takes longer than it takes to run what is kept: ELF for
x86-64, position independent, small code model (System V ABI, AMD64 supplement 1.0, chapter 4)."""

import ctypes
import mmap
import platform
import sys
from struct import iter_unpack, pack_into, unpack_from
from typing import NamedTuple

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
