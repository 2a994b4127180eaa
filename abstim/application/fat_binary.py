"""Files of programs, as far as they are looked into: ELF files with sections and symbols, and fat binaries, which hold
PTX and machine code of several architectures, each perhaps compressed.

Fat binaries are laid out as nvcc does it and public tools read it: a header, then entries, each with a header of its
own."""

import io
import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import zstandard

from functional.errors import InputError, refuse

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
        for name, kind, _, _, offset, length, link, information in rows:
            contents = b"" if kind == 8 else data[offset : offset + length]
            self.sections.append(Section(_text(labels, name), kind, contents, link, information))

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
