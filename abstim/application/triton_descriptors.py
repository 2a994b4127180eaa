"""Triton's tensor descriptors that the host makes (`TensorDescriptor`): what a kernel gets for such an argument.

Where the GPU has tensor maps, that is one, else the tensor's address; in both cases followed by its shape and
strides."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from msgspec.structs import replace

from functional.errors import InputError
from functional.launches.views import ELEMENTS, SWIZZLES_BYTES, TensorMap

TENSOR_MAP = "tensor map"  # beside Triton's own names of types


@dataclass(frozen=True)
class MappedTensor:
    """A tensor of the host, and its map, whose address counts from the tensor's first element."""

    tensor: Any
    map: TensorMap


def expanded(type_: str, descriptor: Any, about: Mapping[str, Any] | None) -> Iterator[tuple[str, Any]]:
    """Types and values of the parameters. `about`: what the compiler chose of the map; None where there is none. Raises
    InputError for elements that are not there."""
    if about is None:
        yield "*" + type_.partition("<")[2].partition("[")[0], descriptor.base
        yield from _sizes(descriptor, "i64")
        yield "i1", descriptor.padding == "nan"
        yield "i1", descriptor.round_f32_to_tf32
    else:
        yield TENSOR_MAP, MappedTensor(descriptor.base, _tensor_map(descriptor, about))
    yield from _sizes(descriptor, "i32")


def _sizes(descriptor: Any, shape_type: str) -> Iterator[tuple[str, int]]:
    yield from ((shape_type, extent) for extent in descriptor.shape)
    yield from (("i64", stride) for stride in descriptor.strides)


def _tensor_map(descriptor: Any, about: Mapping[str, Any]) -> TensorMap:
    """Triton's axes go from the outermost in, a map's from the innermost out."""
    number, swizzle = about["elem_type"], about["swizzle"]
    if number >= len(ELEMENTS) or swizzle >= len(SWIZZLES_BYTES):
        raise InputError(f"a tensor descriptor of element type {number}, swizzle {swizzle} is not supported")
    inner, *outer = _inwards(descriptor.shape)
    tiles = TensorMap(
        "tf32" if descriptor.round_f32_to_tf32 else ELEMENTS[number],
        (inner * (2 if about["fp4_padded"] else 1), *outer),  # two in a byte of the tensor
        tuple(stride * about["elem_size"] for stride in _inwards(descriptor.strides)[1:]),
        _inwards(about["block_size"]),
        swizzle_bytes=SWIZZLES_BYTES[swizzle],
        fill_nan=descriptor.padding == "nan",
    )
    if not about.get("is_im2col"):
        return tiles
    channels, pixels = tiles.box
    lower, upper = map(_inwards, (descriptor.pixel_box_lower_corner, descriptor.pixel_box_upper_corner))
    box, steps = (channels, *[1] * (len(tiles.size) - 1)), _inwards(descriptor.element_strides or ())
    return replace(tiles, box=box, pixels=pixels, steps=steps, lower=lower, upper=upper)


def _inwards(values: Any) -> tuple[int, ...]:
    return tuple(int(value) for value in reversed(values))
