"""Matrices between memory and registers: `wmma`, whose fragments PTX leaves open, `ldmatrix`, `stmatrix`, `movmatrix`.

In a fragment of `wmma` lane l holds elements l e to l e + e - 1 of the matrix in row-major order, e elements a lane;
where lanes hold more than the matrix has, every element is held several times, each copy the same. Of `ldmatrix`, lane
i names the 16-byte row i % 8 of matrix i / 8; of matrix r, lane l holds elements 2 (l % 4) and + 1 of row l / 4 in
register r."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from functional.isa.matrices import Fragment, access_form, fragments_of, matrices_of
from functional.isa.memory import SHARED_WINDOW
from functional.isa.operation import as_address, raw, refuse_if
from functional.isa.slots import Slots
from functional.ptx.ir import Address, Instruction, parts_of
from functional.steps.memory_ops import Place, address_getter, bank_passes_of, log_records, pass_records, record, split
from functional.steps.mma import multiply_in, product_step, registers_of, setters_of
from functional.steps.operands import Frame, Getter, Step, getter, setter
from functional.traces.line_record import joined_records, line_records

_LANE = np.arange(32)


def ldmatrix_step(slots: Slots, inst: Instruction) -> Step:
    """`ldmatrix.sync.aligned.m8n8.x{1,2,4}[.trans][.shared].b16`."""
    matrices, transposed = matrices_of(inst)
    elements = parts_of(inst.destinations[0])
    refuse_if(len(elements) != matrices)
    where = _shared_address(slots, inst, as_address(inst.sources[0]))
    setters = [setter(slots, e, "b32") for e in elements]

    def step(frame: Frame) -> None:
        at, halves = _rows(frame, inst, where, matrices)
        tiles = halves[at].reshape(frame.count, matrices, 8, 8)
        if transposed:
            tiles = tiles.swapaxes(2, 3)
        pairs = np.ascontiguousarray(tiles).view(np.uint32)  # [row, matrix, 8, 4]
        for i, put in enumerate(setters):
            put(frame, pairs[:, i].reshape(frame.count, 32))

    return step


def stmatrix_step(slots: Slots, inst: Instruction) -> Step:
    """`stmatrix.sync.aligned.m8n8.x{1,2,4}[.trans][.shared].b16`."""
    matrices, transposed = matrices_of(inst)
    address, value = inst.sources
    elements = parts_of(value)
    refuse_if(len(elements) != matrices or None in elements)
    where = _shared_address(slots, inst, as_address(address))
    getters = [getter(slots, e, "b32") for e in elements if e is not None]

    def step(frame: Frame) -> None:
        at, halves = _rows(frame, inst, where, matrices)
        words = np.stack([raw(frame.full(get(frame))) for get in getters], axis=1)
        tiles = np.ascontiguousarray(words).view(np.uint16).reshape(frame.count, matrices, 8, 8)
        halves[at] = (tiles.swapaxes(2, 3) if transposed else tiles).reshape(at.shape)

    return step


def _shared_address(slots: Slots, inst: Instruction, address: Address) -> Getter:
    """Addresses in shared memory, of an instruction that may give generic ones; others are beyond its end."""
    if inst.space == "shared":
        return address_getter(slots, address, "shared")
    generic = address_getter(slots, address, "generic")
    return lambda frame: np.minimum(generic(frame) - np.uint64(SHARED_WINDOW), np.uint64(0xFFFFFF00)).astype(np.uint32)


def _rows(frame: Frame, inst: Instruction, where: Callable, matrices: int) -> tuple[np.ndarray, np.ndarray]:
    """(indices [row, 8 matrices, 8] of the halves an instruction names, shared memory as halves); recorded."""
    named = np.broadcast_to(8 * matrices > _LANE, (frame.count, 32))
    parts = list(split(frame, inst, "shared", where(frame), named))
    (part,) = parts
    at = frame.full(part.places("loads" if inst.opcode == "ldmatrix" else "stores", 2, 8))[:, : 8 * matrices]
    record(frame, True, 16, parts)
    return at[..., None] + np.arange(8), part.words(2)


def movmatrix_step(slots: Slots, inst: Instruction) -> Step:
    """`movmatrix.sync.aligned.m8n8.trans.b16 d, a`: one matrix in registers, transposed."""
    refuse_if(inst.modifiers != ("sync", "aligned", "m8n8", "trans", "b16"))
    get, write = getter(slots, inst.sources[0], "b32"), setter(slots, inst.destinations[0], "b32")

    def step(frame: Frame) -> None:
        halves = np.ascontiguousarray(frame.full(get(frame))).view(np.uint16).reshape(frame.count, 8, 8)
        write(frame, np.ascontiguousarray(halves.swapaxes(1, 2)).view(np.uint32).reshape(frame.count, 32))

    return step


def wmma_step(slots: Slots, inst: Instruction) -> Step:
    """`wmma.load`, `wmma.store`, `wmma.mma`."""
    refuse_if(inst.guard is not None or not {"sync", "aligned"} <= set(inst.modifiers))
    return {"load": _moved, "store": _moved, "mma": _mma}[inst.modifiers[0]](slots, inst)


def _moved(slots: Slots, inst: Instruction) -> Step:
    address, pitch, by_column, fragment = access_form(inst)
    loads, kind, role = inst.modifiers[0] == "load", fragment.kind, inst.modifiers[1]
    refuse_if(role not in ("abc" if loads else "d"))
    refuse_if(kind.name in ("s4", "u4", "b1") and by_column != (role == "b"))
    matrix, kept = Place(slots, inst, address, inst.space), "u8" if kind.name == "f64" else "u4"
    stride: Getter | None = None if pitch is None else getter(slots, pitch, "u32")
    setters = setters_of(slots, inst.destinations[0], kind) if loads else []
    getters = [] if loads else registers_of(slots, inst.sources[1], kind)
    refuse_if(len(setters) + len(getters) != fragment.registers)

    def step(frame: Frame) -> None:
        at, words = _place(frame, matrix, stride, by_column, fragment)
        if not loads:
            registers = np.stack([raw(frame.full(get(frame))) for get in getters], axis=2)
            units = np.ascontiguousarray(registers).view(words.dtype).reshape(-1, fragment.rows, fragment.columns)
            words[at] = (units.swapaxes(1, 2) if by_column else units).reshape(frame.count, -1)
            return
        units = words[at]
        if by_column and kind.bits >= 8:
            units = units.reshape(frame.count, fragment.columns, -1).swapaxes(1, 2).reshape(frame.count, -1)
        filled = np.tile(units, (1, 32 * fragment.registers * int(kept[1]) // (units.shape[1] * units.itemsize)))
        registers = np.ascontiguousarray(filled).view(kept).reshape(frame.count, 32, fragment.registers)
        for i, put in enumerate(setters):
            put(frame, np.ascontiguousarray(registers[..., i]))

    return step


def _place(
    frame: Frame, matrix: Place, pitch: Getter | None, by_column: bool, fragment: Fragment
) -> tuple[np.ndarray, np.ndarray]:
    """(element indices [row, unit], storage words); checked and recorded. All lanes name the same matrix."""
    inst, parts = matrix.inst, matrix.parts(frame)
    if len(parts) != 1:
        raise frame.fault(inst, "warps that run together name matrices in different memories, which is not supported")
    part = parts[0]
    base = frame.full(part.addresses)[:, :1].astype(np.int64)
    stride = np.full((frame.count, 1), fragment.rows if by_column else fragment.columns, np.int64)
    if pitch is not None:
        stride = frame.full(pitch(frame))[:, :1].astype(np.int64)
    addresses = (base + fragment.addresses(stride, by_column)).astype(part.addresses.dtype)
    whole, size = replace(part, addresses=addresses, active=None, some=None), max(8, fragment.kind.bits) // 8
    at = whole.places("loads" if inst.modifiers[0] == "load" else "stores", size)
    if inst.space == "shared":
        frame.machine.conflicts.append((frame.index, bank_passes_of(addresses)))
    elif part.space.name == "shared":
        log_records(frame, joined_records([pass_records(bank_passes_of(addresses))], frame.count), None)
    else:
        log_records(frame, line_records(part.space.sectors(frame, whole, size)), None)  # type: ignore[arg-type]
    return at, part.words(size)


def _mma(slots: Slots, inst: Instruction) -> Step:
    """Sub-byte B are kept column by column, as they lie in memory."""
    (d, a, b, c), options = fragments_of(inst)
    fragments = (a, b, c, d)
    places = [np.divmod(f.places, f.columns) for f in fragments]
    if b.kind.bits < 8:
        columns, rows = np.divmod(b.places, b.rows)
        places[1] = rows, columns
    product = lambda frame, left, right, third: multiply_in(frame, left, right, third, a.kind, options)  # noqa: E731
    extents = [(f.rows, f.columns) for f in fragments]
    return product_step(slots, inst, [f.kind for f in fragments], places, extents, product)
