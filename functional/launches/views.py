"""Views of buffers: texture and surface objects, and tensor maps, which cut a tensor into boxes that one instruction
copies (`cp.async.bulk.tensor`). They are arguments of a launch; kernels see a handle, or 128 bytes.

CUDA leaves the 128 bytes of a tensor map open ("opaque"); whoever makes maps for kernels that run here writes these,
little-endian:

| byte | what |
|---|---|
| 0 | "TMAP" |
| 4 | element type, as `tensormap.replace.elemtype` numbers it (ELEMENTS) |
| 5 to 9 | rank, interleave, swizzle, fill mode, swizzle atomicity, as `tensormap.replace` numbers them |
| 16 | address of the tensor, u64 |
| 24 | elements along each of five axes, the innermost first, u32 |
| 44 | elements of a box along each axis, u16 |
| 54 | steps between the elements that a box takes, along each axis, u8 |
| 64 | bytes from one element to the next along the axes from the second on, four u64 |
| 96 | of an im2col map: where its window begins and ends along three axes, s16 |
| 108 | and pixels that a copy takes, u16; 0: a map of tiles |

Elements of 4 and 6 bits are counted one by one. Source: CUDA driver API, `cuTensorMapEncodeTiled`,
`cuTensorMapEncodeIm2col`; PTX ISA, "Tensors", "Sub-byte Types", "tensormap.replace"."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from math import prod
from typing import NamedTuple

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from functional.errors import InputError, refuse

CHANNEL_TYPES = {"u8": "u1", "s8": "i1", "u16": "u2", "s16": "i2", "u32": "u4", "s32": "i4", "f16": "f2", "f32": "f4"}
ADDRESS_MODES = ("clamp", "border", "wrap", "mirror")
HANDLE = 1 << 40  # of the first object; the others follow


class Texture(Struct, frozen=True):
    """A texture or surface object over a buffer: texels row after row, plane (or layer) after plane.

    `size` counts texels in x, y and z (or layers). `linear`: interpolate between texels, else take the nearest.
    `normalized`: coordinates go from 0 to 1; "wrap" and "mirror" need it. `as_float`: 8- and 16-bit integers are read
    as numbers in [0, 1] or [-1, 1]."""

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


_ROW, _ALIGNMENT_BYTES = 128, 32  # of padded elements: how many a box has, and where they begin in global memory


class Packing(NamedTuple):
    """How they lie: so many are `words` words of global memory, and begin `pitch_bytes` of shared memory."""

    elements: int
    words: int
    word: str
    pitch_bytes: int

    @property
    def padded(self) -> bool:
        """Whether there are gaps in shared memory; such elements are loaded, and never stored."""
        return self.pitch_bytes > self.elements // 2

    @property
    def step(self) -> int:
        """What the first coordinate of a box is a multiple of."""
        return _ROW if self.padded else self.elements

    def of(self, elements: int) -> int:
        """Words of so many elements."""
        return elements // self.elements * self.words

    def problem(self, tensor: TensorMap) -> str:
        """What the driver, or abstim, refuses of a tensor map; empty if nothing."""
        size, box = tensor.size[0], tensor.box[0]
        if tensor.pixels or size % self.elements or box % self.elements:
            return f"{size} elements {tensor.element} in boxes of {box} are not supported"
        if self.padded and (box != _ROW or size % _ROW or tensor.swizzle_bytes not in (0, _ROW)):
            wanted = f"boxes have {_ROW} of them, tensors a multiple of that, and a swizzle {_ROW} bytes"
            return f"padded elements {tensor.element}: {wanted}"
        if self.padded and any(at % _ALIGNMENT_BYTES for at in (tensor.address, *tensor.strides_bytes)):
            return f"padded elements {tensor.element}: address and strides are multiples of {_ALIGNMENT_BYTES} bytes"
        return ""


# By their names in PTX, in the order of CUtensorMapDataType
PACKINGS = {"b4x16": Packing(2, 1, "u8", 1), "b4x16_p64": Packing(16, 1, "u64", 16)}
PACKINGS |= {"b6x16_p32": Packing(16, 3, "u32", 16)}

BYTES = 128
MAGIC, _LAYOUT = b"TMAP", "<4s6B6xQ5I5H5B5x4Q6hH18x"
_WHOLE = ("u8", "u16", "u32", "s32", "u64", "s64", "f16", "f32")
ELEMENTS = (*_WHOLE, "f32.ftz", "f64", "bf16", "tf32", "tf32.ftz", *PACKINGS)
DRIVER_ELEMENTS = (*_WHOLE, "f64", "bf16", "f32.ftz", "tf32", "tf32.ftz", *PACKINGS)  # as CUtensorMapDataType
SWIZZLES_BYTES = (0, 32, 64, 128)  # by number
_UNITS_BYTES = (16, 32)  # that a swizzle exchanges, by number
_DRIVER_WIDE = 4  # CU_TENSOR_MAP_SWIZZLE_128B_ATOM_32B
_MOST_BOX, _MOST_STEP, _MOST_STRIDE_BYTES, _UNIT_BYTES = 256, 8, 1 << 40, 16
_MOST_AXES = 5
_MOST_ADDRESS = 1 << 57  # of a GPU
_MOST_PIXELS, _LEAST_IM2COL_AXES = 1024, 3
_CORNERS = {1: 1 << 15, 2: 1 << 7, 3: 1 << 4}  # spatial axes -> how far a corner may lie off


class TensorMap(Struct, frozen=True):
    """A tensor map. Axes go from the innermost out; `size`, `box` and `steps` count elements.

    `strides_bytes` are those of the axes from the second on. `swizzle_bytes`: rows of a box, so wide, have their
    units exchanged by row, which are of 16 bytes, or of 32. `fill_nan`: elements outside the tensor are NaN, not 0.
    `buffer`, of an argument of a launch: the tensor begins `address` bytes into it; without it `address` is a global
    address.

    With `pixels` a map for im2col: the innermost axis is of channels, of which `box[0]` are taken of so many pixels,
    the outermost of images, and those between of space; `lower` and `upper` say, along each of these, how far the
    window that a filter's first tap goes through begins behind the image's first element, and ends behind its last."""

    element: str
    size: tuple[int, ...]
    strides_bytes: tuple[int, ...]
    box: tuple[int, ...]
    steps: tuple[int, ...] = ()
    swizzle_bytes: int = 0
    fill_nan: bool = False
    address: int = 0
    buffer: str = ""
    pixels: int = 0
    lower: tuple[int, ...] = ()
    upper: tuple[int, ...] = ()
    swizzle_unit_bytes: int = 16

    @property
    def packing(self) -> Packing | None:
        """Of elements of 4 and 6 bits."""
        return PACKINGS.get(self.element)

    @property
    def in_words(self) -> TensorMap:
        """The same, with a word in place of elements that are less than a byte."""
        if self.packing is None:
            return self
        size, box = ((self.packing.of(first), *rest) for first, *rest in (self.size, self.box))
        return replace(self, element=self.packing.word, size=size, box=box)

    @property
    def element_bytes(self) -> int:
        """Bytes of an element; where it is less than a byte, of its words."""
        if self.packing is not None:
            return self.in_words.element_bytes
        kind = self.element.removesuffix(".ftz")
        return 4 if kind == "tf32" else int(kind.lstrip("busf")) // 8

    @property
    def counts(self) -> tuple[int, ...]:
        """Elements that are copied along each axis; the innermost has no steps."""
        return tuple(-(-b // s) for b, s in zip(self.box, self.taken, strict=True))

    @property
    def taken(self) -> tuple[int, ...]:
        """Steps along each axis."""
        return (1, *(self.steps or (1,) * len(self.size))[1:])

    def encode(self) -> bytes:
        """The 128 bytes. Raises InputError for what `check` refuses."""
        self.check()
        kinds = (ELEMENTS.index(self.element), len(self.size), 0, SWIZZLES_BYTES.index(self.swizzle_bytes))
        axes = [_padded(values, 1) for values in (self.size, self.box, self.taken)]
        strides = _padded(self.strides_bytes, 0)[: _MOST_AXES - 1]
        corners = (*_padded(self.lower, 0)[:3], *_padded(self.upper, 0)[:3])
        fill, unit = self.fill_nan, _UNITS_BYTES.index(self.swizzle_unit_bytes)
        numbers = (*axes[0], *axes[1], *axes[2], *strides, *corners, self.pixels)
        return struct.pack(_LAYOUT, MAGIC, *kinds, fill, unit, self.address, *numbers)

    def check(self) -> None:
        """Raise InputError for a map that the driver, or abstim, refuses."""
        refuse(problem := self._problem(), f"tensor map: {problem}")

    def _problem(self) -> str:
        axes = len(self.size)
        if self.element not in ELEMENTS or self.swizzle_bytes not in SWIZZLES_BYTES or not 1 <= axes <= _MOST_AXES:
            return f"elements {self.element}, {axes} axes, swizzle {self.swizzle_bytes} are not supported"
        if self.swizzle_unit_bytes not in _UNITS_BYTES[: 2 if self.swizzle_bytes == SWIZZLES_BYTES[-1] else 1]:
            return f"a swizzle of {self.swizzle_bytes} bytes with units of {self.swizzle_unit_bytes} is not supported"
        if len(self.box) != axes or len(self.strides_bytes) != axes - 1 or len(self.steps) not in (0, axes):
            return f"size, box and strides have {axes}, {len(self.box)} and {len(self.strides_bytes)} axes"
        if not all(0 < n < 1 << 32 for n in self.size) or not all(0 < n <= _MOST_BOX for n in self.box):
            wanted = f"axes are positive, and {_MOST_BOX} at most of a box"
            return f"a tensor of {self.size} in boxes of {self.box}: {wanted}"
        if any(s % _UNIT_BYTES or not 0 <= s < _MOST_STRIDE_BYTES for s in self.strides_bytes):
            return f"strides {self.strides_bytes} are no multiples of {_UNIT_BYTES} below 2^40"
        if self.address % _UNIT_BYTES or any(not 0 < s <= _MOST_STEP for s in self.steps):
            return f"address {self.address:#x} is no multiple of {_UNIT_BYTES}, or steps {self.steps} are not 1 to 8"
        last = self.address + sum((n - 1) * s for n, s in zip(self.size[1:], self.strides_bytes, strict=True))
        if last >= _MOST_ADDRESS:
            return f"a tensor of {self.size} from {self.address:#x} on ends at {last:#x}, beyond all memory"
        if self.packing is not None and (problem := self.packing.problem(self)):
            return problem
        row_bytes = self.box[0] * self.element_bytes  # of a box's innermost axis, in shared memory
        if self.packing is not None:
            row_bytes = self.box[0] // self.packing.elements * self.packing.pitch_bytes
        if row_bytes % _UNIT_BYTES or (self.swizzle_bytes and row_bytes != self.swizzle_bytes):
            return f"rows of {row_bytes} bytes; they fill 16-byte units, and with a swizzle its {self.swizzle_bytes}"
        if self.pixels and (problem := self._im2col_problem()):
            return problem
        if self.fill_nan and (self.element[0] in "us" or self.packing):
            return "integers outside a tensor are 0"
        return ""

    def _im2col_problem(self) -> str:
        space = len(self.size) - 2
        if len(self.size) < _LEAST_IM2COL_AXES or len(self.lower) != space or len(self.upper) != space:
            return f"im2col of {len(self.size)} axes with corners {self.lower}, {self.upper}: one each spatial axis"
        if not 0 < self.pixels <= _MOST_PIXELS or set(self.box[1:]) != {1}:
            return f"{self.pixels} pixels, boxes of {self.box}: 1 to {_MOST_PIXELS}, and a box says channels alone"
        reach = _CORNERS[space]
        if not all(-reach <= corner < reach for corner in (*self.lower, *self.upper)):
            return f"corners {self.lower}, {self.upper} are outside {-reach} to {reach - 1}"
        return ""


def _padded(values: tuple[int, ...], value: int) -> tuple[int, ...]:
    return (*values, *[value] * (_MOST_AXES - len(values)))


def decode(data: bytes) -> TensorMap:
    """The map of 128 bytes. Raises InputError if they are none."""
    magic, element, rank, interleave, swizzle, fill, unit, address, *rest = struct.unpack(_LAYOUT, data)
    refuse(magic != MAGIC, "there is no tensor map; abstim's driver makes those that kernels find here")
    if interleave or not 1 <= rank <= _MOST_AXES or element >= len(ELEMENTS) or swizzle >= len(SWIZZLES_BYTES):
        raise InputError(f"tensor map: interleave {interleave}, swizzle {swizzle}, rank {rank} are not supported")
    refuse(unit >= len(_UNITS_BYTES), f"tensor map: swizzle atomicity {unit} is not supported")
    size, box, steps, strides = (tuple(rest[i : i + n]) for i, n in ((0, rank), (5, rank), (10, rank), (15, rank - 1)))
    where, pixels, space = (SWIZZLES_BYTES[swizzle], bool(fill), address, ""), rest[25], max(0, rank - 2)
    lower, upper = (tuple(rest[at : at + space]) if pixels else () for at in (19, 22))
    found = TensorMap(ELEMENTS[element], size, strides, box, steps, *where, pixels, lower, upper, _UNITS_BYTES[unit])
    found.check()
    return found


def driver_map(
    element: int, address: int, interleave: int, swizzle: int, fill_nan: bool, pixels: int,
    axes: Sequence[tuple[int, ...]],
) -> TensorMap:  # fmt: skip
    """The map that `cuTensorMapEncodeTiled` is asked for, or `cuTensorMapEncodeIm2col` (with `pixels`), by the driver's
    numbers. `axes`: size, box, steps, strides in bytes, lower and upper corners, each of all axes. Raises InputError
    for a form that is not there."""
    refuse(element >= len(DRIVER_ELEMENTS), f"a tensor map of data type {element} is not supported")
    if interleave:
        layout = {1: "CU_TENSOR_MAP_INTERLEAVE_16B", 2: "CU_TENSOR_MAP_INTERLEAVE_32B"}.get(interleave, str(interleave))
        raise InputError(f"a tensor map with {layout}: where its boxes lie in shared memory is not published")
    wide = swizzle == _DRIVER_WIDE
    width = SWIZZLES_BYTES[-1] if wide else SWIZZLES_BYTES[swizzle] if swizzle < len(SWIZZLES_BYTES) else None
    if width is None:
        which = "of 128 bytes with flips, or 64-byte atoms"
        raise InputError(f"a tensor map with swizzle {swizzle} is not supported: {which}")
    size, box, steps, strides, lower, upper = axes
    corners, filled = (lower[1:-1], upper[1:-1]) if pixels else ((), ()), (width, fill_nan, address, "")
    kind, unit_bytes = DRIVER_ELEMENTS[element], _UNITS_BYTES[wide]
    return TensorMap(kind, size, strides[1:], box, steps, *filled, pixels, *corners, unit_bytes)


# Where `tensormap.replace` writes: field -> (byte, bytes), of an axis for each
_BYTE_FIELDS = ("elemtype", "rank", "interleave_layout", "swizzle_mode", "fill_mode", "swizzle_atomicity")
_AXES = {"global_dim": (24, 4), "box_dim": (44, 2), "element_stride": (54, 1), "global_stride": (64, 8)}
FIELDS = {name: (4 + n, 1) for n, name in enumerate(_BYTE_FIELDS)} | {"global_address": (16, 8)} | _AXES
AXIS_FIELDS = frozenset(_AXES)


def placed(tensor: TensorMap, address: int) -> TensorMap:
    """A map of a buffer that lies at `address`."""
    return replace(tensor, address=tensor.address + address, buffer="")
