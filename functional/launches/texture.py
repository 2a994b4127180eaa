"""Texture and surface objects: how a buffer of texels is looked at. Arguments of a launch, handles in a kernel."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import numpy as np

from functional.errors import InputError

CHANNEL_TYPES = {"u8": "u1", "s8": "i1", "u16": "u2", "s16": "i2", "u32": "u4", "s32": "i4", "f16": "f2", "f32": "f4"}
ADDRESS_MODES = ("clamp", "border", "wrap", "mirror")
HANDLE = 1 << 40  # of the first object; the others follow


@dataclass(frozen=True, slots=True)
class Texture:
    """A texture or surface object over a buffer: texels row after row, plane (or layer) after plane.

    `size` counts texels in x, y and z (or layers). `linear`: interpolate between texels, else take the nearest.
    `normalized`: coordinates go from 0 to 1; "wrap" and "mirror" need it. `as_float`: 8- and 16-bit integers are read
    as numbers in [0, 1] or [-1, 1].
    """

    buffer: str
    size: tuple[int, ...]
    type: str = "f32"
    channels: int = 1
    linear: bool = False
    address: str = "clamp"
    normalized: bool = False
    as_float: bool = False
    offset_bytes: int = 0  # of the first texel in the buffer
    pitch_bytes: int = 0  # from row to row; 0: rows follow each other without a gap

    @property
    def row_bytes(self) -> int:
        """From row to row."""
        return self.pitch_bytes or self.size[0] * self.texel_bytes

    @property
    def steps(self) -> tuple[int, ...]:
        """Texels from one to its neighbour along each axis, and from one layer (or end) to the next."""
        return tuple(self.row_bytes // self.texel_bytes * prod(self.size[1:axis]) if axis else 1 for axis in range(4))

    @property
    def dtype(self) -> np.dtype:
        """NumPy type of a channel."""
        return np.dtype(CHANNEL_TYPES[self.type])

    @property
    def texel_bytes(self) -> int:
        """Bytes of a texel."""
        return self.channels * self.dtype.itemsize

    def check(self, where: str, buffer_bytes: int) -> None:
        """Raise InputError for an impossible description, or one that a buffer of `buffer_bytes` is too small for."""
        if self.type not in CHANNEL_TYPES or self.channels not in (1, 2, 4) or self.address not in ADDRESS_MODES:
            known = f"{', '.join(CHANNEL_TYPES)}; 1, 2 or 4 channels; {', '.join(ADDRESS_MODES)}"
            raise InputError(f"{where}: a texture's type, channels and address mode are among {known}")
        if not 1 <= len(self.size) <= 3 or min(self.size) < 1:
            raise InputError(f"{where}: a texture's size is one to three positive numbers, not {self.size}")
        if self.address in ("wrap", "mirror") and not self.normalized:
            raise InputError(f"{where}: address mode '{self.address}' needs normalized coordinates")
        if self.linear and self.type[0] != "f" and not self.as_float:
            raise InputError(f"{where}: linear filtering of .{self.type} needs as_float")
        overlap = self.row_bytes < self.size[0] * self.texel_bytes
        if overlap or self.row_bytes % self.texel_bytes or self.offset_bytes < 0:
            raise InputError(f"{where}: rows of a texture begin whole texels apart, and do not overlap")
        rows = prod(self.size[1:])
        needed = self.offset_bytes + (rows - 1) * self.row_bytes + self.size[0] * self.texel_bytes
        if needed > buffer_bytes:
            raise InputError(f"{where}: the texture has {needed} bytes, buffer '{self.buffer}' only {buffer_bytes}")
