"""ELF files, as far as programs and machine code are looked into: sections, symbols, needed libraries."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

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
