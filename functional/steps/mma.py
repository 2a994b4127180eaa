"""Matrices in registers: products of `mma.sync`, `mma.sp` and `wmma`, and the ways from and to memory.

In a fragment of `wmma`, which PTX leaves open, lane l holds elements l e to l e + e - 1 of the matrix in row-major
order, e elements a lane; where lanes hold more than the matrix has, every element is held several times, each copy the
same. Of `ldmatrix`, lane i names the 16-byte row i % 8 of matrix i / 8; of matrix r, lane l holds elements 2 (l % 4)
and + 1 of row l / 4 in register r.

Of `mma.sp` half of the elements of A are stored; metadata say which. They are nibbles, one a group of A's columns,
lowest bits first: of 4 columns (2 of tf32, 8 of 4-bit integers) the positions of the two elements (pairs, of 4-bit
integers) that are there. Of 16-bit types and tf32 a word holds 4 groups of row g in its lower half and of row g + 8 in
its upper one; of narrower types 8 groups of one row, row g in lanes 0 and 2, row g + 8 in lanes 1 and 3 of a quad. With
`m8n8k4` of f16 a warp makes four products, each by eight threads, four of either half of the warp: quarter q = (lane
mod 16) / 4 is the product's number, the lower half of the warp has rows (or columns, of B) 0 to 3, the upper half 4 to
7. Sources: PTX ISA, "mma.sp", "Matrix Fragments for mma.m8n8k4 with .f16 floating point type"; ELayout_* of CUTLASS.

Products are exact; the sum over k is formed in float64 in ascending order of k, C is added last, and the result is
rounded once (hardware truncates partial sums: differences of an ulp or so). float64 matrices are a chain of fused
multiply-adds that begins with C. Integers are exact."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from functional.isa.matrices import (
    FLOAT_ELEMENTS,
    Element,
    Fragment,
    a_layout,
    access_form,
    b_layout,
    c_layout,
    fragments_of,
    from_bf16,
    matrices_of,
    mma_form,
    values,
)
from functional.isa.memory import SHARED_WINDOW
from functional.isa.operation import as_address, as_number, raw, refuse_if
from functional.isa.slots import Slots
from functional.ptx.ir import Address, Instruction, Operand, parts_of
from functional.steps.machine import Frame, Getter, Setter, Step, getter, setter
from functional.steps.memory_ops import Place, address_getter, bank_passes_of, log_records, pass_records, record, split
from functional.traces.line_record import joined_records, line_records

Layout = tuple[np.ndarray, np.ndarray]  # (rows, columns) [lane, element]


def registers_of(slots: Slots, operand: Operand, kind: Element) -> list[Getter]:
    """Getters of a source fragment."""
    refuse_if(None in parts_of(operand))
    return [getter(slots, e, kind.register) for e in parts_of(operand) if e is not None]


def setters_of(slots: Slots, operand: Operand | None, kind: Element) -> list[Setter]:
    """Setters of a destination fragment."""
    return [setter(slots, e, kind.register) for e in parts_of(operand)]


def read(frame: Frame, registers: list[Getter], kind: Element) -> np.ndarray:
    """Registers of all lanes as float64 or int64 [row, lane, element]."""
    return decode(np.stack([raw(frame.full(get(frame))) for get in registers], axis=2), kind)


def decode(words: np.ndarray, kind: Element) -> np.ndarray:
    """Registers [..., register] as numbers [..., element]; elements as memory has them, unsigned and of their own size,
    as numbers of the same shape. They are float64 or int64."""
    name, words = kind.name, np.ascontiguousarray(words)
    if name in ("f64", "f32", "f16"):
        return words.view(f"f{kind.bits // 8}").astype(np.float64)
    if name == "bf16":
        return from_bf16(words.view(np.uint16)).astype(np.float64)
    if name == "tf32":
        return (words & np.uint32(0xFFFFE000)).view(np.float32).astype(np.float64)
    if name in ("e4m3", "e5m2"):
        return values(name)[words.view(np.uint8)]
    if name == "s32":
        return words.view(np.int32).astype(np.int64)
    if kind.bits == 8:
        return words.view(np.int8 if name == "s8" else np.uint8).astype(np.int64)
    shifts = np.arange(0, 32, kind.bits, dtype=np.uint32)
    parts = ((words[..., None] >> shifts) & np.uint32((1 << kind.bits) - 1)).astype(np.int64)
    parts = parts.reshape(*words.shape[:-1], -1)
    return np.where(parts > 7, parts - 16, parts) if name == "s4" else parts


def encode(values: np.ndarray, kind: Element) -> np.ndarray:
    """Numbers [..., element] as registers [..., register]; f16 pairs are packed. Only accumulator types."""
    if kind.name == "f16":
        return np.ascontiguousarray(values.astype(np.float16)).view(np.uint32)
    return values.astype({"f32": np.float32, "f64": np.float64, "s32": np.int64}[kind.name])


def write(frame: Frame, setters: list[Setter], values: np.ndarray, kind: Element) -> None:
    """Write an accumulator [row, lane, element] to a destination fragment."""
    registers = encode(values, kind)
    if kind.name == "s32":
        registers = registers.astype(np.uint32)
    for i, put in enumerate(setters):
        put(frame, np.ascontiguousarray(registers[..., i]))


def assembled(values: np.ndarray, places: tuple[Any, ...], extents: tuple[int, ...]) -> np.ndarray:
    """Matrices [row, *extents] of fragments [row, lane, element], whose elements go to `places` [lane, element]; of
    several lanes that hold an element, the first one's."""
    matrix = np.zeros((len(values), *extents), values.dtype)
    matrix[:, *(place[::-1] for place in places)] = values[:, ::-1]
    return matrix


def multiply_in(
    frame: Frame, a: np.ndarray, b: np.ndarray, c: np.ndarray, kind: Element, options: frozenset[str]
) -> np.ndarray:
    """`multiply`, of float64 too."""
    return frame.fused_product(a, b, c) if kind.name == "f64" else multiply(a, b, c, kind, options)


def multiply(a: np.ndarray, b: np.ndarray, c: np.ndarray, kind: Element, options: frozenset[str]) -> np.ndarray:
    """D = A B + C of matrices [row, m, k], [row, k, n] and [row, m, n]; `options` may hold satfinite, xor, and."""
    if kind.name in FLOAT_ELEMENTS:
        total = np.zeros(c.shape)
        for k in range(a.shape[2]):
            total = total + a[:, :, k, None] * b[:, None, k, :]
        return total + c
    product = np.matmul(a.astype(np.float64), b.astype(np.float64))  # integers below 2**53: exact in any order
    if kind.name == "b1" and "xor" in options:
        product = a.sum(axis=2)[:, :, None] + b.sum(axis=1)[:, None, :] - 2 * product
    total = product.astype(np.int64) + c
    return np.clip(total, -(1 << 31), (1 << 31) - 1) if "satfinite" in options else total


_GROUP = {32: 2, 16: 4, 8: 4, 4: 8}  # columns of a nibble of metadata, by bits of an element
_QUAD = np.arange(8)[:, None] * 4


def product_step(
    slots: Slots, inst: Instruction, kinds: Sequence[Element], places: Sequence[Layout], extents: Sequence[tuple],
    product: Callable[..., np.ndarray], number: np.ndarray | None = None,
) -> Step:  # fmt: skip
    """The step that puts A, B and C together from their fragments, makes `product(frame, a, b, c)`, and takes it apart:
    `kinds` and `places` of A, B, C and D. `number` [lane, 1]: which of several products of the warp a lane is of."""
    sources = [registers_of(slots, o, kind) for o, kind in zip(inst.sources[:3], kinds, strict=False)]
    setters = setters_of(slots, inst.destinations[0], kinds[3])
    counts = [*map(len, sources), len(setters)]
    widths = [rows.shape[1] for rows, _ in places]
    refuse_if(any(n * kind.per_register != width for n, kind, width in zip(counts, kinds, widths, strict=True)))
    numbers = [np.broadcast_to(0 if number is None else number, rows.shape) for rows, _ in places]
    products = int(numbers[0].max()) + 1

    def step(frame: Frame) -> None:
        matrices = []
        for get, kind, (rows, columns), of, extent in zip(sources, kinds, places, numbers, extents, strict=False):
            matrix = assembled(read(frame, get, kind), (of, rows, columns), (products, *extent))
            matrices.append(matrix.reshape(-1, *extent))
        total = product(frame, *matrices).reshape(frame.count, products, *extents[2])
        write(frame, setters, total[:, numbers[3], *places[3]], kinds[3])

    return step


def metadata_getter(
    slots: Slots, metadata: Operand, selector: Operand, kind: Element, depth: int
) -> Callable[[Frame], np.ndarray]:
    """Yields for each element of a stored A [row, 16, k / 2] the row of B that it belongs to."""
    per = _GROUP[kind.bits]
    groups, halves = depth // per, kind.bits >= 16  # nibbles of a row; is a word shared by two rows?
    words = groups // 4 if halves else 2 * groups // 8  # lanes of a quad that have one
    refuse_if(not 0 <= as_number(selector) < 4 // words)
    lanes = _QUAD + as_number(selector) * words + np.arange(words)
    get: Getter = getter(slots, metadata, "b32")
    shifts = np.arange(0, 32, 4, dtype=np.uint32)

    def index_of(frame: Frame) -> np.ndarray:
        given = raw(frame.full(get(frame)))[:, lanes]  # [row, g, word]
        nibbles = (given[..., None] >> shifts & np.uint32(15)).astype(np.int64)
        parts = nibbles.reshape(*given.shape, 2, 4) if halves else nibbles.reshape(*given.shape[:2], words // 2, 2, 8)
        of_rows = parts.transpose(0, 3, 1, 2, 4)  # [row, upper half of the rows, g, word, nibble]
        return positions(of_rows.reshape(len(given), 16, groups), per)

    return index_of


def positions(nibbles: np.ndarray, per: int) -> np.ndarray:
    """Rows of B of the stored elements [row, m, k / 2], by nibbles [row, m, group] of `per` columns of A each."""
    first, second = nibbles & 3, nibbles >> 2
    start = per * np.arange(nibbles.shape[2])
    if per == 2:  # two halves of one number
        return start + (first >> 1)
    if per == 4:
        return np.stack([start + first, start + second], axis=3).reshape(*nibbles.shape[:2], -1)
    pairs = [start + 2 * which + part for which in (first, second) for part in range(2)]
    return np.stack(pairs, axis=3).reshape(*nibbles.shape[:2], -1)


def multiply_sparse(
    a: np.ndarray, index: np.ndarray, b: np.ndarray, c: np.ndarray, kind: Element, options: frozenset[str]
) -> np.ndarray:
    """D = A B + C of a stored A [row, m, k / 2], the rows of B that its elements belong to, B [row, k, n] and C."""
    total = np.zeros(c.shape, np.float64 if kind.name in FLOAT_ELEMENTS else np.int64)
    for k in range(a.shape[2]):
        total = total + a[:, :, k, None] * np.take_along_axis(b, index[:, :, k, None], axis=1)
    total = total + c
    return np.clip(total, -(1 << 31), (1 << 31) - 1) if "satfinite" in options else total


_LANE = np.arange(32)[:, None]
_PRODUCT, _OWN, _UPPER = _LANE % 16 // 4, _LANE % 4, _LANE // 16 * 4  # of four products; a lane's number, and half


def _volta_places(majors: tuple[str, str], accumulators: Sequence[Element]) -> tuple[Layout, ...]:
    along, index, own = np.arange(4)[None], np.arange(8)[None], _OWN + _UPPER
    left = (own, along) if majors[0] == "row" else (along + _UPPER, _OWN)
    right = (_OWN, along + _UPPER) if majors[1] == "row" else (along, own)
    narrow = (own, index)
    wide = (_LANE & 1) + (index & 2) + _UPPER, (index & 4) + (_LANE & 2) + (index & 1)
    results = (narrow if kind.name == "f16" else wide for kind in accumulators)
    return tuple(np.broadcast_arrays(*layout) for layout in (left, right, *results))  # type: ignore[misc]


def mma_step(slots: Slots, inst: Instruction) -> Step:
    """`mma.sync`, `mma.sp`."""
    form = mma_form(inst)
    stored = form.k // 2 if form.sparse else form.k
    index_of = metadata_getter(slots, inst.sources[3], inst.sources[4], form.a, form.k) if form.sparse else None

    def product(frame: Frame, left: np.ndarray, right: np.ndarray, third: np.ndarray) -> np.ndarray:
        if index_of is not None:
            return multiply_sparse(left, index_of(frame), right, third, form.a, form.options)
        return multiply_in(frame, left, right, third, form.a, form.options)

    kinds, last = (form.a, form.b, form.c, form.d), c_layout(form.m)
    if form.volta:
        places, number = _volta_places(form.majors, (form.c, form.d)), _PRODUCT
    else:
        places, number = (a_layout(form.m, stored, form.a), b_layout(form.k, form.b), last, last), None
    extents = ((form.m, stored), (form.k, form.n), (form.m, form.n))
    return product_step(slots, inst, kinds, places, extents, product, number)


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
    named = np.broadcast_to(8 * matrices > np.arange(32), (frame.count, 32))
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
