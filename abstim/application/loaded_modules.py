"""Modules that a program loads: PTX out of its fat binaries, parsed when a kernel or variable of it is first used; and
the case that a program is, whose launches come one by one. Files of programs are looked into as far as that takes: ELF
files with sections and symbols, and fat binaries, laid out as nvcc does it and public tools read it."""

from __future__ import annotations

import hashlib
import io
import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import numpy as np
import zstandard

from abstim.application.device_memory import DeviceMemory
from functional.errors import InputError, refuse
from functional.launches.case import Case
from functional.launches.launch import Launch
from functional.launches.memory import Memory, function_address
from functional.programs.link import link
from functional.programs.program import Program
from functional.programs.registers import Registers, registers_per_thread
from functional.ptx.ir import Module
from functional.ptx.joined_parts import joined_parts
from functional.ptx.parser import open_bytes, text_of

_SYMBOL = np.dtype("<u4, u1, u1, <u2, <u8, <u8")
_SYMBOL.names = ("name", "info", "other", "section", "value", "size")
_FUNCTION, _NEEDED = 2, 1


@dataclass(frozen=True)
class Section:
    """`link`: number of the section with its names; `information`: of machine code of a kernel, its registers."""

    name: str
    kind: int
    contents: bytes
    link: int
    information: int


class ElfFile:
    """A 64-bit little-endian ELF file. Anything else has no sections."""

    def __init__(self, data: bytes) -> None:
        self.sections: list[Section] = []
        if data[:6] != b"\x7fELF\x02\x01" or len(data) < 64:
            return
        (table,), (size, count, names) = struct.unpack_from("<Q", data, 40), struct.unpack_from("<HHH", data, 58)
        rows = [struct.unpack_from("<IIQQQQII", data, table + k * size) for k in range(count)]
        labels = data[rows[names][4] : rows[names][4] + rows[names][5]] if rows else b""
        for name, kind, _, _, offset, length, linked, information in rows:
            contents = b"" if kind == 8 else data[offset : offset + length]
            self.sections.append(Section(_text(labels, name), kind, contents, linked, information))

    def functions(self) -> Iterator[tuple[str, int]]:
        """Name and address of every function in the symbol table; none of a file that was stripped."""
        for section in self.sections:
            if section.name == ".symtab":
                names = self.sections[section.link].contents
                rows = np.frombuffer(section.contents, _SYMBOL)
                for row in rows[(rows["info"] & 15 == _FUNCTION) & (rows["value"] != 0)]:
                    yield _text(names, int(row["name"])), int(row["value"])

    def needed(self) -> list[str]:
        """Names of the shared libraries that it is linked with."""
        for section in self.sections:
            if section.name == ".dynamic":
                names = self.sections[section.link].contents
                pairs = np.frombuffer(section.contents, "<u8").reshape(-1, 2)
                return [_text(names, int(value)) for tag, value in pairs if tag == _NEEDED]
        return []


def _text(names: bytes, at: int) -> str:
    return names[at : names.find(b"\0", at)].decode(errors="replace")


_MAGIC = 0xBA55ED50
_HEADER = struct.Struct("<IHHQ")  # magic, version, bytes of the header, bytes of what follows
# kind, version, bytes of the header, bytes of the contents, compressed bytes, options, minor, major, architecture,
# offset and length of a name, flags, nothing, bytes once decompressed
_ENTRY = struct.Struct("<HHIQIIHHIIIQQQ")
_PTX, _ELF = 1, 2
_LZ4, _ZSTD = 0x2000, 0x8000
_OWN_FEATURES = re.compile(rb"^\s*\.target\s+sm_\d+[af]", re.MULTILINE)
_ELF_ABI_VERSION, _ELF_FLAGS = 8, 48  # bytes at which these stand


@dataclass(frozen=True)
class Image:
    """An entry: PTX text, or machine code (an ELF file), for compute capability `architecture` (80: 8.0)."""

    is_ptx: bool
    architecture: int
    contents: bytes


def images(data: bytes) -> Iterator[Image]:
    """The entries of a fat binary. Raises InputError for what is none, or is compressed in a way not known."""
    refuse(len(data) < _HEADER.size, "a fat binary of the program is cut short")
    magic, _, start, size = _HEADER.unpack_from(data)
    refuse(magic != _MAGIC or start + size > len(data), "a fat binary of the program is damaged")
    at, end = start, start + size
    while at + _ENTRY.size <= end:
        kind, _, header, size, compressed, _, _, _, architecture, _, _, flags, _, plain = _ENTRY.unpack_from(data, at)
        contents = data[at + header : at + header + (compressed or size)]
        if kind in (_PTX, _ELF):
            yield Image(kind == _PTX, architecture, _decompressed(contents, flags, plain))
        at += header + size


def _decompressed(contents: bytes, flags: int, size: int) -> bytes:
    if flags & _ZSTD:
        with zstandard.ZstdDecompressor().stream_reader(io.BytesIO(contents)) as stream:
            return stream.read(size)
    if flags & _LZ4:
        try:
            import lz4.block
        except ImportError:
            raise InputError("the program's PTX is compressed by LZ4: `pip install abstim[app]` reads it") from None
        return lz4.block.decompress(contents, uncompressed_size=size)
    return contents


def plain_image(data: bytes) -> Image:
    """PTX text, or an ELF file of machine code, that is in no fat binary."""
    if data[:4] != b"\x7fELF" or len(data) < _ELF_FLAGS + 4:
        return Image(True, 0, data)
    (flags,) = struct.unpack_from("<I", data, _ELF_FLAGS)
    architecture = flags >> 8 & 0xFF if data[_ELF_ABI_VERSION] >= 8 else flags & 0xFF
    return Image(False, architecture, data)


def best_ptx(found: list[Image]) -> bytes | None:
    """The PTX for the newest architecture, of several that for all its features (`sm_100a`), without what follows its
    text; None if there is none."""
    texts = (image for image in found if image.is_ptx)
    chosen = max(texts, key=lambda i: (i.architecture, bool(_OWN_FEATURES.search(i.contents))), default=None)
    return None if chosen is None else chosen.contents.rstrip(b"\0 \n") + b"\n"


def registers_of(machine_code: bytes) -> dict[str, int]:
    """Kernel -> registers a thread, of an ELF file: it has a section `.text.NAME` for each kernel."""
    sections = ElfFile(machine_code).sections
    return {s.name.removeprefix(".text."): s.information >> 24 for s in sections if s.name.startswith(".text.")}


@dataclass
class LoadedModule:
    """One or more texts of PTX, linked as one, or none where a program has machine code alone."""

    number: int
    folder: Path  # where its text is written, for ptxas
    texts: list[bytes]
    machine_code: list[Image]
    architecture: int  # of its PTX; 0: none
    programs: dict[str, Program] = field(default_factory=dict)
    constants_at: int = 0  # where the program finds them
    _memory: Memory | None = None

    @cached_property
    def module(self) -> Module:
        """The parsed PTX. Raises InputError if there is none, or it does not parse."""
        if not self.texts:
            names = sorted({name for image in self.machine_code for name in registers_of(image.contents)})
            held = ", ".join(f"sm_{image.architecture}" for image in self.machine_code)
            raise InputError(
                f"the program holds no PTX of {', '.join(names[:3]) or 'a module'}, only machine code for {held}; "
                "compile with PTX in it (nvcc -arch=sm_80, or -gencode arch=compute_80,code=compute_80)"
            )
        text = self.texts[0]
        if len(self.texts) > 1:
            text = joined_parts([text_of(part, "a part of the program") for part in self.texts]).encode()
        path = self.folder / f"{hashlib.sha256(text).hexdigest()[:16]}.ptx"
        if not path.exists():
            path.write_bytes(text)
        return open_bytes(text, str(path))

    def program(self, kernel: str) -> Program:
        """A kernel, linked. Raises InputError."""
        if kernel not in self.programs:
            self.programs[kernel] = link(self.module, kernel)
        return self.programs[kernel]

    def program_at(self, address: int) -> Program:
        """The kernel that kernels know by an address. Raises InputError if there is none, or more than one."""
        named = [name for name in self.module.entries if function_address(name) == address]
        refuse(len(named) != 1, f"{self.module.path}: {len(named)} kernels have the address {address:#x}")
        return self.program(named[0])

    def memory(self, device: DeviceMemory) -> Memory:
        """Device memory as this module sees it; its variables are placed on first use. Raises InputError."""
        if self._memory is None:
            self._memory, self.constants_at = device.of_module(self.module.variables)
        self._memory.follow(device.memory)
        return self._memory

    def variable(self, name: str, device: DeviceMemory) -> tuple[int, int]:
        """Address, as the program's process has it, and bytes. Raises InputError for one that is not there."""
        memory = self.memory(device)
        for variables, start in ((memory.global_variables, 0), (memory.const_variables, self.constants_at)):
            if region := variables.get(name):
                return start + region.address, region.bytes
        raise InputError(f"{self.module.path}: no variable '{name}'")


class LoadedModules:
    """All of a program's, by number (from 1)."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._modules: list[LoadedModule] = []

    def __getitem__(self, number: int) -> LoadedModule:
        refuse(not 1 <= number <= len(self._modules), "the program names a module that it did not load")
        return self._modules[number - 1]

    def of_digest(self, digest: str) -> LoadedModule:
        """The module, of those that were used, whose kernels' programs have this digest."""
        return next(m for m in self._modules if any(program.digest == digest for program in m.programs.values()))

    @property
    def architecture(self) -> int:
        """The newest that all modules with PTX have it for (80: 8.0); 80 if there are none. (Of programs linked from
        parts, one is CUDA's own, for kernels that launch kernels: with PTX for the very newest alone.)"""
        return min((module.architecture for module in self._modules if module.architecture), default=80)

    def load(self, is_fat: bool, data: bytes) -> int:
        """A fat binary, or PTX. Raises InputError for a damaged one."""
        found = list(images(data)) if is_fat else [plain_image(data)]
        text = best_ptx(found)
        machine_code = [image for image in found if not image.is_ptx]
        architecture = max((image.architecture for image in found if image.is_ptx), default=0)
        number, texts = len(self._modules) + 1, [] if text is None else [text]
        self._modules.append(LoadedModule(number, self.folder, texts, machine_code, architecture))
        return number

    def join(self, number: int, part: int) -> None:
        """Make a module's text part of another: both were linked before the program was built."""
        whole, other = self[number], self[part]
        whole.texts += other.texts
        whole.machine_code += other.machine_code


@dataclass
class ProgramCase(Case):
    """`module` is that of no kernel: programs name their own."""

    modules: LoadedModules | None = None
    _registers: dict[tuple[str, str], Registers] = field(default_factory=dict)

    @classmethod
    def of(cls, name: str, modules: LoadedModules) -> ProgramCase:
        """A program that has not launched anything yet."""
        return cls(name, Module(name, "", "", "", 64, (), {}), Memory(), (), modules=modules)

    def registers(self, launch: Launch) -> Registers:
        """Registers a thread of a launched kernel."""
        return self.registers_of(launch.program)

    def registers_of(self, program: Program) -> Registers:
        """Registers a thread, and where the number is from."""
        key = (program.digest, program.name)
        if key not in self._registers:
            assert self.modules is not None
            target = self.modules.of_digest(program.digest).module.target
            self._registers[key] = registers_per_thread(program, target, self.resources)
        return self._registers[key]
