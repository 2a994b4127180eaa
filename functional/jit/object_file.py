"""Object files brought into memory without LLVM, whose import takes longer than it takes to run what is kept: ELF for
x86-64, position independent, small code model (System V ABI, AMD64 supplement 1.0, chapter 4)."""

from __future__ import annotations

import ctypes
import mmap
import platform
import sys
from struct import iter_unpack, pack_into, unpack_from
from typing import NamedTuple

CAN_LOAD = sys.platform == "linux" and platform.machine() == "x86_64"
SYMBOLS, RELOCATIONS = 2, 4  # types of sections
WRITABLE, LOADED = 1, 2  # flags of sections
RELATIVE, CALL = 2, 4  # relocations, both of which are written as a distance of 32 bits
STUB, STUB_BYTES = 0x25FF | 2 << 16, 16  # a jump to the address in the stub's second word
MAY_READ_AND_RUN = 5
KNOWN: dict[str, int] = {}  # addresses of functions that files may lack, besides those of this process


class Section(NamedTuple):
    """A row of a file's table of sections."""

    name: int
    type: int
    flags: int
    address: int
    offset: int
    size: int
    link: int
    info: int
    align: int
    each: int

    def of(self, code: bytes) -> bytes:
        """What it holds."""
        return code[self.offset : self.offset + self.size]


class Symbol(NamedTuple):
    """A row of a file's table of symbols."""

    name: int
    info: int
    other: int
    section: int
    value: int
    size: int

    @property
    def is_given(self) -> bool:
        """Does the file define it, for others to see?"""
        return self.section > 0 and self.info >> 4 > 0


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
        """Of a function that a file lacks."""
        found = self._given.get(name) or KNOWN.get(name)
        return found or ctypes.cast(getattr(ctypes.CDLL(None), name), ctypes.c_void_p).value or 0

    def _load(self, code: bytes) -> None:
        first, count = unpack_from("<40xQ12xH", code)
        sections = [Section(*row) for row in iter_unpack("<IIQQQQIIQQ", code[first : first + 64 * count])]
        places, stubs = _laid_out(sections)
        (table,) = (section for section in sections if section.type == SYMBOLS)
        symbols, names = [Symbol(*row) for row in iter_unpack("<IBBHQQ", table.of(code))], sections[table.link].of(code)
        memory = mmap.mmap(-1, stubs + STUB_BYTES * len(symbols))
        base, addresses = ctypes.addressof(ctypes.c_char.from_buffer(memory)), list[int]()
        for k, place in places.items():
            memory[place : place + sections[k].size] = sections[k].of(code)
        for n, symbol in enumerate(symbols):
            name = names[symbol.name : names.index(b"\0", symbol.name)].decode()
            if symbol.section in places:
                addresses.append(base + places[symbol.section] + symbol.value)
            else:
                addresses.append(0 if symbol.section or not name else self._address(name))
            pack_into("<QQ", memory, stubs + STUB_BYTES * n, STUB, addresses[-1])
            if symbol.is_given:
                self._given[name] = addresses[-1]
        for section in sections:
            if section.type == RELOCATIONS and section.info in places:
                for offset, kind, n, addend in iter_unpack("<QIIq", section.of(code)):
                    if kind not in (RELATIVE, CALL):
                        raise ValueError(f"relocations of type {kind} are not known here")
                    place = places[section.info] + offset
                    to = addresses[n] - base if symbols[n].section else stubs + STUB_BYTES * n
                    pack_into("<i", memory, place, to + addend - place)
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
