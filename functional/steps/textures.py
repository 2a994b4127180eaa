"""`tex`, `suld` and `sust` on texture and surface objects that the launch describes (functional.launches.views).

Linear filtering: CUDA C++ Programming Guide, "Texture Fetching": weights have 8 fractional bits."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from functional.isa.operation import DTYPES, Unsupported, as_address, raw, refuse_if
from functional.isa.slots import Slots
from functional.launches.memory import GLOBAL_BASE
from functional.launches.views import Texture
from functional.ptx.ir import Instruction, Operand, Symbol, parts_of
from functional.steps.machine import Frame, Getter, Step, getter, setter
from functional.steps.memory_ops import log_records, rows_with_a_lane
from functional.traces.line_record import line_records, repeat_active, sector_numbers

_GEOMETRIES = {"1d": 1, "2d": 2, "3d": 3, "a1d": 1, "a2d": 2, "cube": 2, "acube": 2}  # axes of a plane
_FACES = 6  # of a cube map: planes one behind the other, from the directions +x, -x, +y, -y, +z, -z
_F64 = np.float64


class _Access:
    def __init__(self, slots: Slots, inst: Instruction, coordinate_type: str) -> None:
        geometry = next((m for m in inst.modifiers if m in _GEOMETRIES), "")
        where = as_address(inst.sources[0])
        if not geometry or where.base is None or where.offset:
            raise Unsupported
        self.inst, self.layered, self.axes = inst, geometry[0] == "a", _GEOMETRIES[geometry]
        self.cube = geometry.endswith("cube")
        given_axes = 3 if self.cube else self.axes
        self.reference = where.base.name if isinstance(where.base, Symbol) else ""
        self.handle = _bound(self.reference) if self.reference else getter(slots, where.base, "u64")
        elements: tuple = parts_of(inst.sources[1])
        refuse_if(len(elements) < given_axes + self.layered or (self.cube and coordinate_type != "f32"))
        self.layer = getter(slots, elements[0], "u32") if self.layered else None
        spatial = elements[self.layered : self.layered + given_axes]
        self.coordinates: list[Getter] = [getter(slots, e, coordinate_type) for e in spatial]

    def objects(self, frame: Frame, active: np.ndarray) -> Iterator[tuple[Texture, np.ndarray]]:
        """Each object that active lanes name, and which do. Raises ExecutionError."""
        handles = frame.full(self.handle(frame))
        for handle in np.unique(handles[active]):
            texture = frame.machine.memory.texture(int(handle))
            if texture is None or len(texture.size) < self.axes + (self.layered or self.cube):
                what = "is not a texture or surface of this launch" if texture is None else "has too few dimensions"
                named = f"of reference '{self.reference}' " if self.reference else ""
                raise frame.fault(self.inst, f"handle {int(handle):#x} {named}{what}")
            yield texture, active & (handles == handle)

    def place(self, frame: Frame, texture: Texture, active: np.ndarray) -> tuple[list[np.ndarray], np.ndarray]:
        """(coordinates in a plane, the plane), each [row, lane]."""
        given = [np.where(active, frame.full(get(frame)), 0) for get in self.coordinates]
        if not self.cube:
            return given, self.plane(frame, texture)
        face, first, second = _face_of(*(x.astype(_F64) for x in given))
        scale = [1, 1] if texture.normalized else texture.size[:2]
        layers = texture.size[2] // _FACES
        layer = np.zeros_like(face) if self.layer is None else np.minimum(frame.full(self.layer(frame)), layers - 1)
        return [(x + 1) / 2 * s for x, s in zip((first, second), scale, strict=True)], layer * _FACES + face

    def plane(self, frame: Frame, texture: Texture) -> np.ndarray:
        """Layer numbers [row, lane], clamped."""
        if self.layer is None:
            return np.zeros((frame.count, 32), np.int64)
        return np.minimum(frame.full(self.layer(frame)), texture.size[self.axes] - 1).astype(np.int64)


def _bound(reference: str) -> Getter:
    """The handle of what a host has bound to a texture or surface reference (a variable): 0 for nothing."""

    def get(frame: Frame) -> np.ndarray:
        region = frame.machine.memory.global_variables[reference]
        return frame.machine.memory.bytes_of(region)[:8].view(np.uint64)[None, :]

    return get


def _face_of(x: np.ndarray, y: np.ndarray, z: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(face, place on it from -1 to 1 twice) of directions (CUDA C++ Programming Guide, "Cubemap Textures")."""
    along_x = (np.abs(x) >= np.abs(y)) & (np.abs(x) >= np.abs(z))
    along_y = ~along_x & (np.abs(y) >= np.abs(z))
    longest = np.select([along_x, along_y], [x, y], z)
    back = longest < 0
    face = np.select([along_x, along_y], [0, 2], 4) + back
    first = np.select([along_x, along_y], [np.where(back, z, -z), x], np.where(back, -x, x))
    second = np.select([along_x, along_y], [-y, np.where(back, -z, z)], -y)
    length = np.maximum(np.abs(longest), np.finfo(_F64).tiny)
    return face.astype(np.int64), first / length, second / length


def _record(frame: Frame, address: np.ndarray, active: np.ndarray) -> None:
    some = rows_with_a_lane(active)
    columns = [repeat_active(address[..., i], active, some) for i in range(address.shape[2])]
    log_records(frame, line_records(sector_numbers(np.concatenate(columns, axis=1))), some)


def texture_step(slots: Slots, inst: Instruction) -> Step:
    """`tex[.level|.grad].GEOMETRY.v4.TYPE.COORDINATES d, [object, {coordinates}]`; there is only one level, whatever
    level or gradients are given."""
    types = inst.modifiers[-2:]
    rest = set(inst.modifiers[:-2]) - {"v4", "level", "grad"} - set(_GEOMETRIES)
    refuse_if(rest or types[0] not in ("f32", "s32", "u32") or types[1] not in ("f32", "s32"))
    targets = parts_of(inst.destinations[0])
    given = 1 if "level" in inst.modifiers else 2 if "grad" in inst.modifiers else 0
    refuse_if(len(targets) != 4 or len(inst.sources) != 2 + given)  # no offsets in texels, nor depths to compare with
    access = _Access(slots, inst, types[1])
    corners = 2**access.axes  # whose texels are read, at most
    setters = [setter(slots, e, types[0]) for e in targets]

    def step(frame: Frame) -> None:
        active = frame.lanes()
        result = np.zeros((frame.count, 32, 4), DTYPES[types[0]])
        address = np.zeros((frame.count, 32, corners), np.int64)
        result[active, 3] = 1  # of channels that are missing, which are 0, 0, 1
        for texture, lanes in access.objects(frame, active):
            position, layer = access.place(frame, texture, lanes)
            values, texels = _fetch(frame, texture, position, layer, types[1] == "s32")
            result[lanes, : texture.channels] = values[lanes].astype(DTYPES[types[0]])
            address[lanes] = texels[lanes] if texels.shape[2] == corners else texels[lanes, :1]
        for i, write in enumerate(setters):
            write(frame, raw(np.ascontiguousarray(result[..., i])))
        _record(frame, address, active)

    return step


def _fetch(
    frame: Frame, texture: Texture, position: list[np.ndarray], layer: np.ndarray, integer: bool
) -> tuple[np.ndarray, np.ndarray]:
    """(filtered channels [row, lane, channel], addresses of the texels [row, lane, corner])."""
    linear = texture.linear and not integer
    total: Any = 0.0
    addresses = []
    axes = [_corners(p, texture.size[i], texture, linear, integer) for i, p in enumerate(position)]
    for corner in range(2 ** len(axes) if linear else 1):
        weight: Any = 1.0
        index, inside = layer * texture.steps[len(axes)], np.ones(layer.shape, bool)
        for i, axis in enumerate(axes):
            at, valid, share = axis[corner >> i & 1]
            index, inside, weight = index + at * texture.steps[i], inside & valid, weight * share
        memory = frame.machine.memory
        region = memory.buffers[texture.buffer]
        count = (region.bytes - texture.offset_bytes) // texture.texel_bytes
        texels = memory.bytes_of(region)[texture.offset_bytes :][: count * texture.texel_bytes]
        texel = texels.view(texture.dtype).reshape(-1, texture.channels)[index]
        if texture.as_float and texture.dtype.kind in "iu":
            texel = np.maximum(texel / np.iinfo(texture.dtype).max, -1.0)
        elif texture.dtype.kind == "f":
            texel = texel.astype(_F64)
        address = region.address + texture.offset_bytes + index * texture.texel_bytes
        texel = np.where(inside[..., None], texel, 0)
        total = texel if not linear else total + texel * np.asarray(weight)[..., None]
        addresses.append(address)
    return total, np.stack(addresses, axis=2)


def _corners(x: np.ndarray, size: int, texture: Texture, linear: bool, integer: bool) -> list[tuple]:
    """Of one axis: (texel number, is it inside?, weight) of the nearest texel, or of the two around."""
    if integer:
        return [(np.clip(x, 0, size - 1).astype(np.int64), (x >= 0) & (x < size), 1.0)]
    place = x.astype(_F64)
    place = np.where(np.isfinite(place), place, 0)
    if texture.address == "wrap":
        place = place - np.floor(place)
    elif texture.address == "mirror":
        whole = np.floor(place)
        place = np.where(whole % 2 == 0, place - whole, 1 - (place - whole))
    place = place * size if texture.normalized else place
    if not linear:
        return [(*_inside(np.floor(place), size, texture.address), 1.0)]
    low = np.floor(place - 0.5)
    share = np.rint((place - 0.5 - low) * 256) / 256
    return [(*_inside(low, size, texture.address), 1 - share), (*_inside(low + 1, size, texture.address), share)]


def _inside(at: np.ndarray, size: int, mode: str) -> tuple[np.ndarray, np.ndarray]:
    if mode == "wrap":
        return (at % size).astype(np.int64), np.ones(at.shape, bool)
    inside = np.ones(at.shape, bool) if mode != "border" else (at >= 0) & (at < size)
    return np.clip(at, 0, size - 1).astype(np.int64), inside


def surface_step(slots: Slots, inst: Instruction) -> Step:
    """`suld.b.GEOMETRY[.vN].bB.CLAMP d, [object, {x in bytes, y}]` and `sust.b ... [object, {x, y}], values`."""
    loads, flags = inst.opcode == "suld", [m for m in inst.modifiers if m not in _GEOMETRIES]
    refuse_if(flags[:1] != ["b"] or flags[-1] not in ("trap", "clamp", "zero"))
    refuse_if(len(inst.sources) != (2 if loads else 3))
    size = {"b8": 1, "b16": 2, "b32": 4, "b64": 8}.get(flags[-2], 0)
    operand: Operand | None = inst.destinations[0] if loads else inst.sources[2]
    elements: tuple = parts_of(operand)
    refuse_if(not size or flags[1:-2] != ([f"v{len(elements)}"] if len(elements) > 1 else []))
    access, kind = _Access(slots, inst, "s32"), flags[-2]
    setters = [setter(slots, e, kind) for e in elements] if loads else []
    getters = [] if loads else [getter(slots, e, kind) for e in elements]
    width = size * len(elements)

    def step(frame: Frame) -> None:
        active = frame.lanes()
        address, inside = _surface_places(frame, access, active, width, flags[-1])
        data = frame.machine.globals.words[size]
        at = (address - GLOBAL_BASE) // size
        for i, write in enumerate(setters):
            write(frame, np.where(inside, data[np.where(inside, at + i, 0)], data.dtype.type(0)))
        if getters:
            frame.machine.watch.note_writes(at[inside] * size, width)
        for i, get in enumerate(getters):
            data[at[inside] + i] = frame.full(raw(get(frame)))[inside]
        _record(frame, address[..., None], active)

    return step


def _surface_places(
    frame: Frame, access: _Access, active: np.ndarray, width: int, mode: str
) -> tuple[np.ndarray, np.ndarray]:
    """(addresses, lanes that access anything), both [row, lane]."""
    places, inside = np.full(active.shape, GLOBAL_BASE, np.int64), active.copy()
    for texture, lanes in access.objects(frame, active):
        address, valid = _places_of(frame, access, texture, lanes, width, mode)
        places[lanes], inside[lanes] = address[lanes], valid[lanes]
    return places, inside


def _places_of(
    frame: Frame, access: _Access, texture: Texture, active: np.ndarray, width: int, mode: str
) -> tuple[np.ndarray, np.ndarray]:
    region = frame.machine.memory.buffers[texture.buffer]
    offset, inside = np.full(active.shape, texture.offset_bytes, np.int64), active.copy()
    for i, get in enumerate(access.coordinates):
        extent = texture.size[i] * (texture.texel_bytes if i == 0 else 1)
        x = frame.full(get(frame)).astype(np.int64)
        last = extent - (width if i == 0 else 1)
        valid = (x >= 0) & (x <= last)
        wrong = active & (~valid if mode == "trap" else np.False_ if i else x % width != 0)
        say = f"is outside 0 to {last}, or misaligned"
        frame.check(access.inst, wrong, lambda at, x=x, say=say: f"surface coordinate {x[at]} {say}")  # type: ignore[misc]
        inside &= valid if mode == "zero" else np.True_
        offset += np.clip(x, 0, last) * (texture.steps[i] * texture.texel_bytes if i else 1)
    offset += access.plane(frame, texture) * (texture.steps[access.axes] * texture.texel_bytes)
    return region.address + offset // width * width, inside
