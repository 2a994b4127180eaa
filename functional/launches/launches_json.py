"""Read a user's own case: `launches.json` with its PTX and buffers (schema in suite/README.md)."""

import json
import os
import re
from codecs import BOM_UTF8
from dataclasses import replace
from difflib import get_close_matches
from io import BytesIO
from pathlib import Path
from typing import Any, Literal, TypeVar

import msgspec
import numpy as np

from functional.errors import InputError, refuse
from functional.files import read_bytes
from functional.launches.case import Case, Expected, check_order, say_unset_constants, set_pointer, set_symbol
from functional.launches.launch import Launch, Order, Pointer, Scalar, Struct, check_after, encode_typed, make_launch
from functional.launches.memory import DTYPES, Memory
from functional.launches.views import TensorMap, Texture
from functional.programs.link import link
from functional.programs.registers import MOST_REGISTERS
from functional.ptx.ir import Module
from functional.ptx.parser import open_module

SCALARS = ("i32", "u32", "f32", "i64", "u64", "f64", "i16", "u16", "i8", "u8", "f16")
Document = TypeVar("Document")
Described = TypeVar("Described", Texture, TensorMap)
OUTSIDE = "ABSTIM_OUTSIDE_FILES"  # an environment variable: files a launches.json names may lie anywhere


class _PointerEntry(msgspec.Struct, forbid_unknown_fields=True):
    at: int  # bytes into the buffer that holds it
    buf: str
    offset: int = 0  # bytes into the buffer that it leads to


class _BufferEntry(msgspec.Struct, forbid_unknown_fields=True):
    bytes: int | None = None  # taken from the file if it is left out
    init: str | None = None
    expect: str | None = None
    dtype: Literal["f16", "f32", "f64", "u8", "i8", "u16", "i16", "u32", "i32", "u64", "i64"] = "u8"
    rtol: float = 0.0
    atol: float = 0.0
    expect_offset: int | None = None  # bytes in front of what is expected; without, the whole buffer is
    expect_mask: str | None = None  # a byte for each expected element: 0 where any value will do
    pointers: list[_PointerEntry] = []


class _LaunchEntry(msgspec.Struct, forbid_unknown_fields=True):
    kernel: str
    grid: list[int] | int
    block: list[int] | int
    args: list[dict[str, Any]] = []
    dynamic_smem: int = 0
    label: str = ""
    cluster: list[int] | int | None = None
    stream: str = ""
    after: list[int] = []  # numbers of launches before it
    priority: int = 0
    programmatic: bool = False


class _CaseEntry(msgspec.Struct, forbid_unknown_fields=True):
    ptx: str
    launches: list[_LaunchEntry]
    buffers: dict[str, _BufferEntry] = {}
    symbols: dict[str, str | dict[str, Any]] = {}  # a file, one number ({"f32": 1.5}), {"buf": name}, or a texture


class _KernelEntry(msgspec.Struct):
    registers: int  # `ptxas -v` tools also write smem, local, ...; they are not needed here


_ENTRIES = (_CaseEntry, _LaunchEntry, _BufferEntry, _PointerEntry)
_KEYS = sorted({key for entry in _ENTRIES for key in entry.__struct_fields__})


def load_case(path: str | Path) -> Case:
    """The case a `launches.json` describes; files it names are beside it. `labels.json` (one label a launch) and
    `resources.json` (registers a thread of every kernel) are read if they are there too. Raises InputError: no such
    file, an unknown key, a wrong size, an argument that does not fit."""
    path = Path(path)
    entry = _decode(path, _CaseEntry)
    refuse(not entry.launches, f"{path}: 'launches' is empty")
    folder = path.parent
    module = open_module(_beside(path, entry.ptx, "ptx"))
    memory = Memory(module.variables)
    expected: dict[str, Expected] = {}
    for name, buffer in entry.buffers.items():
        _allocate(path, memory, expected, name, buffer)
    for name, buffer in entry.buffers.items():
        for pointer in buffer.pointers:
            leads_to = Pointer(pointer.buf, pointer.offset)
            set_pointer(memory, name, pointer.at, leads_to, f"{path}: buffers.{name}.pointers")
    for name, value in entry.symbols.items():
        set_symbol(memory, name, _symbol(path, name, value, memory), f"{path}: symbols")
    launches = _launches(path, entry.launches, _labels(folder, len(entry.launches)), module, memory)
    for program in {launch.program.name: launch.program for launch in launches}.values():
        say_unset_constants(program, entry.symbols)
    dtypes = {name: np.dtype(DTYPES[b.dtype]) for name, b in entry.buffers.items()}
    return Case(str(path), module, memory, launches, expected, dtypes, "", read_resources(folder / "resources.json"))


def _allocate(path: Path, memory: Memory, expected: dict[str, Expected], name: str, entry: _BufferEntry) -> None:
    dtype = np.dtype(DTYPES[entry.dtype])
    init = None if entry.init is None else _array(path, name, entry.init, dtype, "init")
    expect = None if entry.expect is None else _array(path, name, entry.expect, dtype, "expect")
    given = next((a for a in (init, expect) if a is not None), None)
    size_bytes = entry.bytes if entry.bytes is not None else None if given is None else given.nbytes
    if size_bytes is None:
        raise InputError(f"{path}: buffer '{name}' needs 'bytes', since it has no file")
    if size_bytes % dtype.itemsize:
        raise InputError(f"{path}: buffer '{name}': {size_bytes} bytes is not a whole number of {entry.dtype}")
    if init is not None and init.nbytes != size_bytes:
        raise InputError(f"{path}: buffer '{name}' has {size_bytes} bytes, but {entry.init} has {init.nbytes}")
    refuse(entry.rtol < 0 or entry.atol < 0, f"{path}: buffer '{name}': rtol and atol must not be negative")
    memory.allocate(name, size_bytes, init)
    if expect is not None:
        expected[name] = _expected(path, name, entry, expect, size_bytes)


def _expected(path: Path, name: str, entry: _BufferEntry, values: np.ndarray, size_bytes: int) -> Expected:
    where = f"{path}: buffer '{name}'"
    offset = entry.expect_offset or 0
    if offset < 0 or offset % values.itemsize:
        raise InputError(f"{where}: expect_offset {offset} is not a whole number of {entry.dtype}")
    whole = entry.expect_offset is None
    if values.nbytes > size_bytes - offset or (whole and values.nbytes < size_bytes):
        raise InputError(f"{where} has {size_bytes} bytes, but {entry.expect} has {values.nbytes}")
    compared = None
    if entry.expect_mask is not None:
        compared = _array(path, name, entry.expect_mask, np.dtype("u1"), "expect_mask") != 0
        if compared.size != values.size:
            raise InputError(f"{where}: expect_mask has {compared.size} elements, {entry.expect} has {values.size}")
    return Expected(values, entry.rtol, entry.atol, offset // values.itemsize, compared)


def _array(path: Path, name: str, file: str, dtype: np.dtype, key: str) -> np.ndarray:
    """A buffer file, raw or .npy, as a flat array. A .npy of another type must match in size only if raw bytes."""
    source = _beside(path, file, f"buffers.{name}.{key}")
    try:
        if source.suffix == ".npy":
            array = np.load(BytesIO(read_bytes(source)), allow_pickle=False)
        else:
            array = np.frombuffer(read_bytes(source), np.uint8)
    except (OSError, ValueError, EOFError) as error:
        raise InputError(f"{source}: cannot read buffer '{name}': {error}") from None
    if source.suffix == ".npy" and dtype not in (array.dtype, np.dtype(np.uint8)):
        raise InputError(f"{source}: holds {array.dtype}, but buffer '{name}' is declared {dtype}")
    check_order(array, str(source))
    flat = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    refuse(flat.nbytes % dtype.itemsize, f"{source}: {flat.nbytes} bytes is not a whole number of {dtype}")
    return flat.view(dtype)


def _symbol(path: Path, name: str, value: str | dict[str, Any], memory: Memory) -> np.ndarray:
    """What a variable is set to: a file's bytes, one number, or where a buffer lies."""
    if isinstance(value, str):
        return _array(path, name, value, np.dtype("u1"), "symbols")
    where = f"{path}: symbols.{name}"
    if not {"buf", "texture"} & value.keys() and len(value) != 1:
        known = 'like {"f32": 1.5}, or {"buf": name}, or a texture'
        raise InputError(f"{where}: expected a file, or one type with its value, {known}")
    data = encode_typed(_argument_of(where, value, memory), memory, where)
    if data is None:
        raise InputError(f"{where}: a variable is set to a file's bytes, a number, a buffer's address or a texture")
    return np.frombuffer(data, np.uint8)


def _launches(
    path: Path, entries: list[_LaunchEntry], labels: list[str], module: Module, memory: Memory
) -> tuple[Launch, ...]:
    programs = {kernel: link(module, kernel) for kernel in dict.fromkeys(e.kernel for e in entries)}
    made = []
    for number, (entry, label) in enumerate(zip(entries, labels, strict=True)):
        where = f"{path}: launch {number}"
        arguments = [_argument_of(f"{where}: argument {position}", a, memory) for position, a in enumerate(entry.args)]
        shape, named = (entry.grid, entry.block), entry.label or label
        try:
            program, dynamic = programs[entry.kernel], entry.dynamic_smem
            launch = make_launch(program, *shape, arguments, memory, dynamic, named, entry.cluster)
            check_after(entry.after, number)
        except InputError as error:
            raise InputError(f"{where}: {error}") from None
        order = Order(entry.stream, tuple(entry.after), entry.priority, entry.programmatic)
        made.append(replace(launch, order=order))
    return tuple(made)


def _argument_of(where: str, entry: dict[str, Any], memory: Memory) -> Pointer | Scalar | Struct | Texture | TensorMap:
    if "buf" in entry:
        _only_keys(where, entry, {"buf", "offset"})
        name, offset = entry["buf"], entry.get("offset", 0)
        if not isinstance(name, str) or not isinstance(offset, int) or isinstance(offset, bool):
            raise InputError(f'{where}: expected {{"buf": name, "offset": bytes}}, found {json.dumps(entry)}')
        if name not in memory.buffers:
            raise InputError(f"{where}: there is no buffer '{name}'{_suggest(name, memory.buffers)}")
        return Pointer(name, offset)
    if "texture" in entry:
        return _described(where, entry, "texture", Texture)
    if "tensor_map" in entry:
        return _described(where, entry, "tensor_map", TensorMap)
    if isinstance(entry.get("struct"), list) and len(entry) == 1:
        if other := [member for member in entry["struct"] if not isinstance(member, dict)]:
            known = 'like {"f32": 1.5} or {"buf": name}'
            raise InputError(f"{where}: a member of a structure is {known}, not {other[0]!r:.40}")
        return Struct(tuple(_argument_of(where, member, memory) for member in entry["struct"]))
    if len(entry) != 1:
        known = f"buf, {', '.join(SCALARS)}, texture, struct"
        raise InputError(f"{where}: expected one of {known}, found {json.dumps(entry)}")
    _only_keys(where, entry, {"buf", *SCALARS})
    ((type_, value),) = entry.items()
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise InputError(f"{where}: the value of '{type_}' must be a number, found {json.dumps(value)}")
    return Scalar(type_, value)


def _described(where: str, entry: dict[str, Any], key: str, kind: type[Described]) -> Described:
    """`{"texture": buffer, "size": [x, y], "type": "f32", "channels": 1, "linear": true, ...}` or
    `{"tensor_map": buffer, "element": "f16", "size": [64, 64], "strides_bytes": [128], "box": [64, 8], ...}`"""
    _only_keys(where, entry, {field.name for field in msgspec.structs.fields(kind)} - {"buffer"} | {key})
    try:
        return msgspec.convert({"buffer" if name == key else name: value for name, value in entry.items()}, kind)
    except msgspec.ValidationError as error:
        what = f"{json.dumps(entry)} does not describe a {key.replace('_', ' ')}"
        raise InputError(f"{where}: {what}: {_plain(str(error))}") from None


def _labels(folder: Path, launches: int) -> list[str]:
    path = folder / "labels.json"
    if not path.is_file():
        return [""] * launches
    labels = _decode(path, list[str])
    refuse(len(labels) != launches, f"{path}: {len(labels)} labels for {launches} launches")
    return labels


def read_resources(path: Path) -> dict[str, int]:
    """Kernel -> registers a thread, of a `resources.json`; empty if there is no such file. Either `{kernel:
    {"registers": n, ...}}` or, as in the suite, `{name: {"kernels": {kernel: {...}}, ...}}`."""
    if not path.is_file():
        return {}
    found: dict[str, int] = {}
    for name, entry in _decode(path, dict[str, dict[str, Any]]).items():
        kernels = entry.get("kernels", {name: entry})
        try:
            checked = msgspec.convert(kernels, dict[str, _KernelEntry])
        except msgspec.ValidationError as error:
            raise InputError(f"{path}: '{name}': {_plain(str(error))}") from None
        found.update({kernel: resources.registers for kernel, resources in checked.items()})
    for kernel, count in found.items():
        if not 0 < count <= MOST_REGISTERS:
            raise InputError(f"{path}: {count} registers a thread of '{kernel}' is outside 1 to {MOST_REGISTERS}")
    return found


def _decode(path: Path, type_: type[Document]) -> Document:
    try:
        whole = msgspec.json.decode(read_bytes(path).removeprefix(BOM_UTF8))
        if isinstance(whole, dict) and isinstance(whole.get("kind"), str):  # what abstim prints to be looked at
            raise InputError(f"{path}: a result of abstim, and no launches.json; `abstim report` draws it")
        return msgspec.convert(whole, type_)
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}") from None
    except RecursionError:
        raise InputError(f"{path}: nested too deeply") from None
    except msgspec.ValidationError as error:
        raise InputError(f"{path}: {_plain(str(error))}") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: is not JSON: {error}") from None


def _plain(message: str) -> str:
    """msgspec's message, with the nearest key if one is unknown."""
    unknown = re.match(r"Object contains unknown field `([^`]*)`(?: - at `\$\.?(.*)`)?", message)
    if unknown is None:
        return message.replace("`$.", "`").replace("`", "'")
    place = f" in {unknown[2]}" if unknown[2] else ""
    known = _suggest(unknown[1], _KEYS) or ("" if place else "; a launches.json has ptx, buffers and launches")
    return f"unknown key '{unknown[1]}'{place}{known}"


def _suggest(name: str, known: Any) -> str:
    near = get_close_matches(name, list(known), 1)
    return f"; did you mean '{near[0]}'?" if near else ""


def _only_keys(where: str, entry: dict[str, Any], known: set[str]) -> None:
    for key in entry:
        if key not in known:
            raise InputError(f"{where}: unknown key '{key}'{_suggest(key, sorted(known))}")


def _beside(path: Path, file: str, key: str) -> Path:
    """A file that a launches.json names: in its folder or below, because the file may be a stranger's."""
    source = path.parent / file
    try:
        inside, there = source.resolve().is_relative_to(path.parent.resolve()), source.is_file()
    except (OSError, ValueError) as error:  # a name too long, or with a zero in it
        reason = getattr(error, "strerror", None) or str(error)
        raise InputError(f"{path}: '{key}' names {file}, which cannot be read: {reason}") from None
    if not inside and not os.environ.get(OUTSIDE):
        raise InputError(f"{path}: '{key}' names {file}, which is outside of its folder; {OUTSIDE}=1 allows that")
    refuse(not there, f"{path}: '{key}' names {file}, but there is no such file")
    return source
