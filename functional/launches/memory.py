"""Device memory that outlives a launch: global buffers and variables, and constant memory.

Global memory is one byte array (`arena`) seen through GPU addresses that start at GLOBAL_BASE. Buffers are laid out in
the order they are made, as a CUDA allocator does, one after the other on 256 B boundaries, but each RED_ZONE_BYTES
further on: an access out of bounds never lands in a neighbour, and the address bits that pick a cache set are those of
a tight layout. Addresses are the same in every run. Pages of the arena that nobody touches take no memory."""

from __future__ import annotations

import mmap
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from threading import Lock
from zlib import crc32

import msgspec
import numpy as np

from functional.arrays import Bool, Int64, Integer, UInt8
from functional.errors import InputError, refuse
from functional.launches.views import HANDLE, Texture
from functional.ptx.ir import Symbol, Variable

# Types of elements, and of scalars, by the names that users give them
DTYPES = {f"f{8 * size}": f"<f{size}" for size in (2, 4, 8)}
DTYPES |= {f"{kind}{8 * size}": f"<{kind}{size}" for size in (1, 2, 4, 8) for kind in "ui"}
MOST_BYTES = 1 << 20  # CUDA's default for cudaLimitPrintfFifoSize


@dataclass
class Printed:
    """Calls of `printf` in order of launch, thread block, and warp. Behind the first MOST_BYTES nothing is kept."""

    calls: list[str] = field(default_factory=list)
    bytes: int = 0  # of the calls
    dropped_calls: int = 0
    dropped_bytes: int = 0

    def add(self, calls: Iterable[str]) -> None:
        """Keep the texts of more calls, as long as there is room."""
        for text in calls:
            size = len(text.encode())
            if self.dropped_calls or self.bytes + size > MOST_BYTES:
                self.dropped_calls += 1
                self.dropped_bytes += size
            else:
                self.calls.append(text)
                self.bytes += size

    def text(self) -> str:
        """All of it, and a line that says how much is missing."""
        kept = "".join(self.calls)
        if not self.dropped_calls:
            return kept
        new_line = "" if kept.endswith("\n") else "\n"
        dropped = f"{self.dropped_calls:,} more calls of printf, {self.dropped_bytes:,} bytes"
        return f"{kept}{new_line}[{dropped}, are not shown: the buffer holds {MOST_BYTES:,} bytes]\n"


LEAST_BYTES = 1 << 22  # below, NumPy's own does not ask for huge pages


def sparse_zeros(size_bytes: int) -> UInt8[np.ndarray, " byte"]:
    """As np.zeros, which asks for pages of 2 MiB: with 1 MiB between buffers, one byte of each would take all of it.

    Raises MemoryError."""
    advice = getattr(mmap, "MADV_NOHUGEPAGE", None)
    if advice is None or size_bytes < LEAST_BYTES:
        return np.zeros(size_bytes, np.uint8)
    try:
        pages = mmap.mmap(-1, size_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except OSError as error:
        raise MemoryError(f"{size_bytes} bytes: {error.strerror}") from None
    pages.madvise(advice)
    return np.frombuffer(pages, np.uint8)


GLOBAL_BASE = 0xC000_0000  # GPGPU-Sim's: which lines share a cache set, a bank and a channel depends on it
GLOBAL_LIMIT = 1 << 33  # line numbers (address / 128 B) stay below trace.LOCAL_WINDOW_LINE
ALIGNMENT_BYTES = 256  # what cudaMalloc guarantees
RED_ZONE_BYTES = 1 << 20  # above every bit that picks a cache set
# Readable in front of the first buffer, as red zones are behind: vector loads take idle lanes along
MARGIN_BYTES = 4096
CONST_WINDOW = 0x5000_0000  # generic address of constant address 0
CONST_LIMIT_BYTES = 64 << 10
# What kernels' `malloc` takes memory from, as large as CUDA makes it; launches by kernels that wait, at 64 bytes and
# their parameters each
HEAP, LAUNCHES = "the heap of malloc", "launches by kernels"
OPENED_BYTES = {HEAP: 8 << 20, LAUNCHES: 4 << 20}
FUNCTION_WINDOW = 0x4000_0000  # of the addresses that stand for functions


def function_address(name: str) -> int:
    """The address of a function: nothing can be read there. It depends on the name alone; link.py refuses clashes."""
    return FUNCTION_WINDOW + 16 * (crc32(name.encode()) & 0xFFFFFF)


class Region(msgspec.Struct, frozen=True):
    """A named stretch of memory: bytes `address` to `address + bytes - 1`."""

    name: str
    address: int
    bytes: int


@dataclass(frozen=True, slots=True)
class Contents:
    """What a buffer holds before anybody has looked at it: zeros, or what `make` writes into its bytes. `recipe` says
    all that decides these: buffers of equal recipes and sizes hold the same."""

    recipe: str
    make: Callable[[np.ndarray], None] | None = None


ZEROS = Contents("zeros")


@dataclass
class Store:
    """The bytes of an arena, which parts of a memory have in common, and all regions in it. `shared`: with processes
    forked from this one. `unmade`: by address, regions not looked at yet, still zero."""

    bytes: np.ndarray
    regions: list[Region]
    shared: bool = False
    unmade: dict[int, Contents] = field(default_factory=dict)
    gaps: bool = False  # something was released
    making: Lock = field(default_factory=Lock, compare=False)

    def moved(self, size_bytes: int, zeros: Callable[[int], np.ndarray]) -> UInt8[np.ndarray, " byte"]:
        """The regions' bytes in a new arena; of those not made yet there are none."""
        arena = zeros(size_bytes + MARGIN_BYTES)[MARGIN_BYTES:]
        for region in self.regions:
            if region.address in self.unmade:
                continue
            start = region.address - GLOBAL_BASE
            arena[start : start + region.bytes] = self.bytes[start : start + region.bytes]
        return arena

    def make(self, regions: Iterable[Region]) -> None:
        """From now on somebody may read or write these."""
        if not self.unmade:
            return
        with self.making:
            for region in regions:
                contents = self.unmade.pop(region.address, ZEROS)
                if contents.make is not None:
                    start = region.address - GLOBAL_BASE
                    contents.make(self.bytes[start : start + region.bytes])


def _too_much(size_bytes: int) -> InputError:
    return InputError(f"{size_bytes} bytes of device memory do not fit in this computer's memory")


class Memory:
    """The memory of one device. `arena` is a uint8 array; global address `a` is its element `a - GLOBAL_BASE`. It may
    be replaced by a longer one when something is allocated, so take views only afterwards. `const_arena` is addressed
    from 0."""

    def __init__(self, variables: Iterable[Variable] = ()) -> None:
        self.buffers: dict[str, Region] = {}
        self.global_variables: dict[str, Region] = {}
        self.const_variables: dict[str, Region] = {}
        self.given = set[str]()  # variables that were set
        self.regions: list[Region] = []  # global buffers and variables, by ascending address
        self.store = Store(np.zeros(0, np.uint8), self.regions)
        self._used_bytes = 0
        self._narrow_from = 0  # the place before which there is no room for more in red zones, as a rule
        self.const_arena: UInt8[np.ndarray, " byte"] = np.zeros(0, np.uint8)
        self._table: tuple[np.ndarray, np.ndarray] | None = None
        self._textures: list[Texture] = []
        self.printed = Printed()  # what kernels wrote with printf
        self._fixed = False
        self.place(variables)

    @classmethod
    def over(cls, bytes: UInt8[np.ndarray, " byte"]) -> Memory:
        """Memory whose arena lies in `bytes` and never moves, nor grows beyond them."""
        memory = cls()
        memory.store, memory._fixed = Store(bytes, memory.regions, shared=True), True
        return memory

    @property
    def arena(self) -> UInt8[np.ndarray, " byte"]:
        """All of global memory, red zones included."""
        self.store.make(self.regions)
        return self.store.bytes[: self._used_bytes]

    def share(self) -> None:
        """From now on processes forked from this one write to the same bytes of global memory. Arrays that were views
        of them are not any more. Raises InputError if the computer's memory cannot hold them."""
        store = self.store
        store.make(store.regions)  # the other processes would not know what this one makes
        if not store.shared:
            try:
                pages = store.moved(len(store.bytes), lambda size: np.frombuffer(mmap.mmap(-1, size), np.uint8))
                store.bytes, store.shared = pages, True
            except OSError:
                raise _too_much(len(store.bytes)) from None

    def allocate(self, name: str, size_bytes: int, contents: np.ndarray | Contents | None = None) -> Region:
        """A buffer of `size_bytes`, zero, a copy of the bytes of `contents`, or what these make when they are needed.
        Raises InputError for a name in use, a negative size, contents of another size, or no space left."""
        refuse(name in self.buffers, f"buffer '{name}' is defined twice")
        if isinstance(contents, np.ndarray) and contents.nbytes != size_bytes:
            raise InputError(f"buffer '{name}' has {size_bytes} bytes, but its contents have {contents.nbytes}")
        used_bytes = self._used_bytes
        region = self._reserve(name, size_bytes, ALIGNMENT_BYTES)
        self.buffers[name] = region
        self._fill(region, ZEROS if contents is None else contents, fresh=region.address - GLOBAL_BASE >= used_bytes)
        return region

    def _fill(self, region: Region, contents: np.ndarray | Contents, fresh: bool) -> None:
        """`fresh`: nothing was ever there, so that its bytes are zero, and may be made later."""
        if isinstance(contents, np.ndarray):
            if region.bytes:
                self.bytes_of(region)[:] = np.ascontiguousarray(contents).reshape(-1).view(np.uint8)
        elif fresh and not self.store.shared:
            self.store.unmade[region.address] = contents
        elif contents.make is not None:
            contents.make(self.bytes_of(region))

    def release(self, name: str) -> Region:
        """Forget a buffer; what is allocated next may lie where it was. Raises InputError if there is none."""
        refuse(name not in self.buffers, f"there is no buffer '{name}'")
        region = self.buffers.pop(name)
        self.regions.remove(region)
        self.store.gaps = True
        self.store.unmade.pop(region.address, None)
        self._table = None
        return region

    def texture_handle(self, texture: Texture) -> int:
        """The handle of a texture or surface object; the same one for an equal object."""
        if texture not in self._textures:
            self._textures.append(texture)
        return HANDLE + self._textures.index(texture)

    def texture(self, handle: int) -> Texture | None:
        """The object of a handle."""
        index = handle - HANDLE
        return self._textures[index] if 0 <= index < len(self._textures) else None

    def place(self, variables: Iterable[Variable]) -> None:
        """Allocate the .global and .const variables of a module and write their initial values. Raises InputError if
        constant memory overflows or an initialiser points to shared or local memory."""
        everything = list(variables)
        variables = [v for v in everything if v.space in ("global", "const")]
        without_address = {v.name for v in everything} - {v.name for v in variables}
        for variable in variables:
            if variable.space == "global":
                region = self._reserve(variable.name, variable.bytes, max(variable.align, ALIGNMENT_BYTES))
                self.global_variables[variable.name] = region
            else:
                start = -(-len(self.const_arena) // variable.align) * variable.align
                end = start + variable.bytes
                most = f"constant memory is {CONST_LIMIT_BYTES} bytes"
                refuse(end > CONST_LIMIT_BYTES, f"{most}; '{variable.name}' would end at byte {end}")
                self.const_arena = np.concatenate([self.const_arena, np.zeros(end - len(self.const_arena), np.uint8)])
                self.const_variables[variable.name] = Region(variable.name, start, variable.bytes)
        for variable in variables:
            self._initialise(variable, without_address)

    def opened(self, name: str) -> Region:
        """One of OPENED_BYTES, made when it is first asked for, zero. Raises InputError if there is no room."""
        found = next((region for region in self.regions if region.name == name), None)
        if found is None:
            found = self._reserve(name, OPENED_BYTES[name], ALIGNMENT_BYTES)
            self.bytes_of(found)[:] = 0
        return found

    def bytes_of(self, region: Region) -> UInt8[np.ndarray, " byte"]:
        """Writable bytes of a global region."""
        self.store.make((region,))
        start = region.address - GLOBAL_BASE
        return self.store.bytes[start : start + region.bytes]

    def read(self, name: str, dtype: np.dtype | type) -> np.ndarray:
        """A copy of a buffer's contents as a one-dimensional array of `dtype`."""
        return self.bytes_of(self.buffers[name]).copy().view(dtype)

    def contents(self) -> Iterator[np.ndarray]:
        """The bytes of every region, global, constant, then textures; the recipe of one that nobody has looked at."""
        for region in self.regions:
            unmade = self.store.unmade.get(region.address)
            yield self.bytes_of(region) if unmade is None else np.frombuffer(unmade.recipe.encode(), np.uint8)
        yield self.const_arena
        if self._textures:
            yield np.frombuffer(repr(self._textures).encode(), np.uint8)

    def ranges(self) -> tuple[Int64[np.ndarray, " region"], Int64[np.ndarray, " region"]]:
        """Addresses where global regions start and end (first byte behind), ascending."""
        if self._table is None:
            starts = np.array([r.address for r in self.regions], np.int64)
            self._table = starts, starts + np.array([r.bytes for r in self.regions], np.int64)
        return self._table

    def valid(self, addresses: Integer[np.ndarray, "*n"], size_bytes: int) -> Bool[np.ndarray, "*n"]:
        """Is each access of `size_bytes` at a global address wholly inside one buffer or variable?"""
        starts, ends = self.ranges()
        addresses = np.asarray(addresses).astype(np.int64)
        if not len(starts):
            return np.zeros(addresses.shape, bool)
        at = np.searchsorted(starts, addresses, side="right") - 1
        return (at >= 0) & (addresses + size_bytes <= ends[np.maximum(at, 0)])

    def describe(self, address: int) -> str:
        """Where an address lies, for messages: `4 bytes past the end of 'out' (1024 bytes)`."""
        at = bisect_right(self.regions, address, key=lambda r: r.address) - 1
        if at < 0 and not self.regions:
            return "no buffer is allocated"
        region = self.regions[max(at, 0)]
        end = region.address + region.bytes
        if address < region.address:
            return f"{region.address - address} bytes before '{region.name}'"
        if address < end:
            return f"byte {address - region.address} of '{region.name}' ({region.bytes} bytes)"
        if at + 1 < len(self.regions) and self.regions[at + 1].address - address < address - end:
            following = self.regions[at + 1]
            return f"{following.address - address} bytes before '{following.name}'"
        past = "at the end" if address == end else f"{address - end} bytes past the end"
        return f"{past} of '{region.name}' ({region.bytes} bytes)"

    def part(self, buffers: Iterable[str]) -> Memory:
        """The same bytes at the same addresses, of which only these buffers and the variables can be reached."""
        part = Memory()
        part.buffers = {name: self.buffers[name] for name in buffers}
        part.global_variables, part.const_variables = self.global_variables, self.const_variables
        heap = [region for region in self.regions if region.name in OPENED_BYTES]
        regions = (*part.buffers.values(), *part.global_variables.values(), *heap)
        part.regions = sorted(regions, key=lambda region: region.address)
        part.store, part._used_bytes, part.const_arena = self.store, self._used_bytes, self.const_arena
        return part

    def of_another_module(self, variables: Iterable[Variable]) -> Memory:
        """The same memory as another module sees it: with variables and constants of its own, which are placed here."""
        other = Memory()
        own = {"global_variables": {}, "const_variables": {}, "const_arena": other.const_arena, "printed": Printed()}
        other.__dict__.update(self.__dict__, **own)
        other.place(variables)
        self._used_bytes, self._table = other._used_bytes, None
        return other

    def follow(self, other: Memory) -> None:
        """See what was allocated and released in `other`, of which this is another module's view."""
        self._used_bytes, self._table, self.printed = other._used_bytes, other.ranges(), Printed()

    def unprinted(self) -> Memory:
        """The same memory, in which no kernel has printed yet."""
        other = Memory()
        other.__dict__.update(self.__dict__, printed=Printed())
        return other

    def copy(self) -> Memory:
        """An independent copy with the same addresses."""
        other = Memory()
        other.buffers, other.global_variables = dict(self.buffers), dict(self.global_variables)
        other.const_variables, other.regions = dict(self.const_variables), list(self.regions)
        moved = replace(self.store, regions=self.regions).moved(len(self.store.bytes), sparse_zeros)
        other.store = Store(moved, other.regions, unmade=dict(self.store.unmade), gaps=self.store.gaps)
        other._used_bytes = self._used_bytes
        other.const_arena = self.const_arena.copy()
        other.printed = replace(self.printed, calls=list(self.printed.calls))
        other._textures = list(self._textures)
        return other

    def _reserve(self, name: str, size_bytes: int, align: int) -> Region:
        refuse(size_bytes < 0, f"buffer '{name}' has a negative size, {size_bytes} bytes")
        place, start = self._gap(size_bytes, align)
        end = start + size_bytes + RED_ZONE_BYTES
        if end > GLOBAL_LIMIT and (narrow := self._narrow_gap(size_bytes, align)) is not None:
            place, start = narrow
            end = start + size_bytes + ALIGNMENT_BYTES
        if end > GLOBAL_LIMIT:
            raise InputError(f"'{name}' ({size_bytes} bytes) does not fit: device memory ends at {GLOBAL_LIMIT:#x}")
        self._grow(end - GLOBAL_BASE)
        region = Region(name, start, size_bytes)
        self.regions.insert(place, region)
        self._table = None
        return region

    def _gap(self, size_bytes: int, align: int) -> tuple[int, int]:
        """Where so many bytes and a red zone fit first: between which regions, and at which address. Only what was
        released leaves gaps."""
        after = GLOBAL_BASE
        if not self.store.gaps and self.regions:
            after = self.regions[-1].address + self.regions[-1].bytes + RED_ZONE_BYTES
            return len(self.regions), -(-after // align) * align
        for place, region in enumerate(self.regions):
            start = -(-after // align) * align
            if start + size_bytes + RED_ZONE_BYTES <= region.address:
                return place, start
            after = region.address + region.bytes + RED_ZONE_BYTES
        return len(self.regions), -(-after // align) * align

    def _narrow_gap(self, size_bytes: int, align: int) -> tuple[int, int] | None:
        """As `_gap`, in the red zones of what is there, of which some is left: where the rest of memory is full."""
        regions, first = self.regions, min(self._narrow_from, len(self.regions) - 1)
        for place in (*range(first + 1, len(regions) + 1), *range(first + 1)):
            after = regions[place - 1].address + regions[place - 1].bytes + ALIGNMENT_BYTES if place else GLOBAL_BASE
            start = -(-after // align) * align
            stop = regions[place].address if place < len(regions) else GLOBAL_LIMIT
            if start + size_bytes + ALIGNMENT_BYTES <= stop:
                self._narrow_from = place
                return place, start
        return None

    def _grow(self, used_bytes: int) -> None:
        """Lengthen the arena at least twofold, so that many small buffers stay cheap."""
        if used_bytes > len(self.store.bytes):
            refuse(self._fixed, f"device memory has {len(self.store.bytes)} bytes, {used_bytes} are needed")
            try:
                moved = self.store.moved(max(used_bytes, 2 * self._used_bytes), sparse_zeros)
            except MemoryError:
                raise _too_much(used_bytes) from None
            self.store = Store(moved, self.regions, unmade=dict(self.store.unmade), gaps=self.store.gaps)
        self._used_bytes = max(used_bytes, self._used_bytes)

    def _initialise(self, variable: Variable, without_address: set[str]) -> None:
        if variable.space == "global":
            target = self.bytes_of(self.global_variables[variable.name])
        else:
            region = self.const_variables[variable.name]
            target = self.const_arena[region.address : region.address + region.bytes]
        if variable.initialiser is not None:
            target[:] = np.frombuffer(variable.initialiser, np.uint8)
        for offset, symbol in variable.relocations:
            if symbol.name in without_address:
                raise InputError(f"'{variable.name}' points to '{symbol.name}', which is not in global memory")
            address = self._address(symbol)
            target[offset : offset + 8] = np.array([address], "<i8").view(np.uint8)

    def _address(self, symbol: Symbol) -> int:
        """What an initialiser holds of a symbol (PTX ISA, "Initializers"): its address within its space, or a generic
        one; of global memory both are the same."""
        if symbol.name in self.global_variables:
            return self.global_variables[symbol.name].address + symbol.offset
        if symbol.name in self.const_variables:
            window = CONST_WINDOW if symbol.generic else 0
            return window + self.const_variables[symbol.name].address + symbol.offset
        return function_address(symbol.name)
