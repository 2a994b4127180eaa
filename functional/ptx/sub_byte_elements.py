"""Elements of 4 and 6 bits in tensors: packed in global memory, and packed or in units with gaps in shared memory.

Source: PTX ISA, "Sub-byte Types"; CUDA driver API, `cuTensorMapEncodeTiled`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from functional.launches.tensor_map import TensorMap

_ROW, _ALIGNMENT_BYTES = 128, 32  # of padded elements: how many a box has, and where they begin in global memory


class Packing(NamedTuple):
    """How they lie: so many of them are `words` words of global memory, which are copied to `pitch_bytes` of shared
    memory, from the first byte on."""

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
            return (
                f"padded elements {tensor.element}: boxes have {_ROW} of them, tensors a multiple of that, and "
                f"a swizzle {_ROW} bytes"
            )
        if self.padded and any(at % _ALIGNMENT_BYTES for at in (tensor.address, *tensor.strides_bytes)):
            return f"padded elements {tensor.element}: address and strides are multiples of {_ALIGNMENT_BYTES} bytes"
        return ""


PACKINGS = {  # by their names in PTX, in the order of CUtensorMapDataType
    "b4x16": Packing(2, 1, "u8", 1), "b4x16_p64": Packing(16, 1, "u64", 16), "b6x16_p32": Packing(16, 3, "u32", 16),
}  # fmt: skip
