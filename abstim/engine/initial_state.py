"""Memory for the engine's state: arrays of the sizes that a design point asks for, kept from launch to launch."""

from __future__ import annotations

import mmap
from collections.abc import Iterator, Mapping
from functools import cache
from math import prod
from typing import Any, ClassVar, NamedTuple

import numpy as np

from abstim.engine import state
from abstim.engine.rules import SECTORS, WINDOW_CYCLES
from abstim.engine.state import NEVER, Record, State
from functional.jit.machine_code import Staged
from functional.jit.marked import CACHE_LINE_BYTES, INT, Array, Known, View, layout, length, words_of
from precharacterize.synchronisation import FAMILIES, GROUPS
from precharacterize.table import BARRIERS, WORDS

Sizes = tuple[tuple[str, int], ...]  # names of dimensions, and how many of each there are
BLOCK_BYTES, MOST_STATES = 1 << 26, 64

_clear = Staged("abstim.engine.clear", "clear", (State, INT, INT))

_words = cache(str.split)
# Dimensions of what only a launch brings
OF_A_LAUNCH = _words(
    "tb alike_tb warp window issue instruction event record conflict block operand handed_out kernel awaited"
)


class Zeros:
    """Bytes that are 0, cut out of blocks of small pages that the system clears when they are touched: most of a GPU's
    state never is by a launch. Each begins on a line of the cache: else every request would lie on two."""

    def __init__(self) -> None:
        self._left = np.empty(0, np.uint8)

    def __call__(self, length: int) -> np.ndarray:
        """So many of them."""
        room = -(-length // CACHE_LINE_BYTES) * CACHE_LINE_BYTES
        if room > len(self._left):
            pages = mmap.mmap(-1, max(room, BLOCK_BYTES), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
            if hasattr(mmap, "MADV_NOHUGEPAGE"):
                pages.madvise(mmap.MADV_NOHUGEPAGE)
            self._left = np.frombuffer(pages, np.uint8)
        taken, self._left = self._left[:length], self._left[room:]
        return taken


class Memory:
    """What one launch at a time is run in. Each array of the state has its own place, whatever its sizes: what launches
    on other design points have touched is touched again, and the system need not bring new pages. All of it is 0 before
    a launch, but for what is written before it is read."""

    UNUSED: ClassVar[list[Memory]] = []  # as many as launches were ever under way at once, less those that are

    def __init__(self) -> None:
        self._zeros, self._places = Zeros(), dict[str, np.ndarray]()
        self._states: dict[Sizes, State] = {}
        self._numbers = np.zeros(state.MACHINE.itemsize, np.uint8)  # the latest MACHINE, for which all SMs have begun
        self._left: tuple[State, int, bool] | None = None  # by a launch; what of it `clear` is told

    @classmethod
    def unused(cls) -> Memory:
        """What an earlier launch had and nobody has now, or a new one."""
        try:
            return cls.UNUSED.pop()
        except IndexError:
            return cls()

    def take(self, m: np.ndarray, sizes: Sizes) -> tuple[State, bool]:
        """The state of a design point before its first cycle, and whether SMs that have had no thread block are ready
        for it; nothing of a launch."""
        if self._left:
            _clear(Known(), self._left[0].contexts.ctypes.data, *self._left[1:])
            self._left = None
        if sizes not in self._states:
            if len(self._states) == MOST_STATES:
                del self._states[next(iter(self._states))]
            self._states[sizes] = self._laid_out(dict(sizes))
        numbers = m.reshape(1).view(np.uint8)
        begun = bool((numbers == self._numbers).all())
        self._numbers[:] = numbers
        return self._states[sizes], begun

    def give_back(self, state: State, booked_cycles: int, warm: bool) -> None:
        """Nobody asks a launch for anything any more; the rest is what `clear` is told of it."""
        self._left = state, booked_cycles, warm
        self.UNUSED.append(self)

    def _laid_out(self, sizes: Mapping[str, int]) -> State:
        found: State = self._allocated(State, sizes, self._numbers.view(state.MACHINE).reshape(()), "")
        found = found._replace(contexts=np.zeros_like(found.contexts))  # of these sizes alone
        found.contexts[:] = words_of(found)
        number = np.arange(len(found.sm))
        for word, stride in _strides(State, found):
            found.contexts[:, word] += number * stride
        return found

    def _allocated(self, kind: Any, sizes: Mapping[str, int], m: np.ndarray, place: str) -> Any:
        """A named tuple as state.py declares its fields, the design point's numbers among them."""

        def made(name: str, field: Any) -> Any:
            if name == "machine":
                return m
            if isinstance(field, Array):
                return self._array(f"{place}.{name}", field, sizes)
            own = {name: sizes[ours] for name, ours in field.names.items()}
            return self._allocated(field.kind, {**sizes, **own} if own else sizes, m, f"{place}.{name}")

        return kind(*(made(name, field) for name, field in kind._field_defaults.items()))

    def _array(self, place: str, field: Array, sizes: Mapping[str, int]) -> np.ndarray:
        """As it is declared, in its place; one that is too small is left for one of twice the size."""
        shape, dtype = [sizes[name] for name in _words(field.dimensions)], np.dtype(field.dtype)
        length, there = prod(shape) * dtype.itemsize, self._places.get(place)
        if there is None or len(there) < length:
            there = self._places[place] = self._zeros(length if there is None else 2 * length)
        return there[:length].view(dtype).reshape(shape)


def _strides(kind: Any, state: Any) -> Iterator[tuple[int, int]]:
    """Words of addresses of arrays that have a row an SM, and how far one is from the next."""
    for name, field in layout(View(kind, "sm")).items():
        if field.kind is not None:
            yield from ((field.word + word, stride) for word, stride in _strides(field.kind.kind, getattr(state, name)))
        elif field.first_size == field.word + 2:
            array = getattr(state, name)
            yield field.word, array.strides[0]


def sizes_of(machine: np.ndarray) -> Sizes:
    """Dimensions of the state's arrays by name. What only real memory needs is not there if memory is perfect."""
    m = dict(zip(machine.dtype.names or (), machine.item(), strict=True))
    real = int(not m["perfect_memory"])
    slices = m["dram_channels"] * m["l2_slices_per_channel"] * real
    queues = m["l2_queue"] + m["l2_miss_queue"] + m["dram_queue"] + m["dram_write_batch"]
    requests = (2 + m["fetches_pairs"]) * SECTORS * state.IN_FLIGHT * m["sm_count"] * real + 4 * queues * slices
    drawn = state.MOST_DRAWN * real * m["slice_random"]
    fetched = WINDOW_CYCLES * m["fetches_per_cycle"] * m["slice_random"]  # lines, each of which draws its slice
    booked = {"unit": int(machine["first_unit"][-1]), "register": m["register_banks"]}
    found = {
        "one": 1, "pair": 2, "three": 3, "context_word": length(State), "cache_line": 16, "task": m["sm_count"] + 1,
        **dict.fromkeys(OF_A_LAUNCH, 0),
        "sm": m["sm_count"], "real_sm": m["sm_count"] * real,
        **{f"{cache}_line": m[f"{cache}_sets"] * m[f"{cache}_ways"] for cache in ("l1i", "const", "l1t")},
        "l1d_line": m["l1d_sets"] * m["l1d_set_lines"], "hint": state.HINTS, "l1d_bank": m["l1d_banks"] * real,
        "stage": m["l1d_latency_cycles"], "in_miss_queue": m["l1d_miss_queue"] * real,
        # as many as miss registers take, a sector each, and accesses that a constant or texture line keeps waiting
        "waiter": (m["l1d_mshrs"] * m["l1d_mshr_merges"] + 4 * SECTORS * state.ACCESSES) * real,
        "access": state.ACCESSES * real, "issued": state.ISSUED_ACCESSES * real,
        "unit_kind": state.KINDS * real * (m["shared_collectors"] > 0), "port_place": state.AT_PORTS,
        "port": state.KINDS * (m["schedulers_per_sm"] if m["sub_cores"] else 1), "collector": max(m["collectors"]),
        "warp_slot": m["max_warps_per_sm"], "register": m["register_count"] + 1, "ring": m["ring"],
        "ring_step": m["ring"] * m["register_file_ports"],
        **{f"{what}_word": -(-places >> state.PLACES_LOG2) for what, places in booked.items()},
        "barrier": BARRIERS, "word": WORDS, "family": FAMILIES, "group": GROUPS, "copying_warp": m["copying_warps"],
        "block_slot": m["blocks_per_sm"], "phase": m["phase_rows"], "later": state.LATER * real * (m["phase_rows"] > 0),
        "crossing": state.CROSSINGS * (m["cluster_blocks"] > 1), "posted": state.POSTED * m["side_by_side"],
        "slice": slices, "held_cycle": 1 << (2 * m["slice_delay"] + 64).bit_length(),
        "sm_word": -(-m["sm_count"] * real // 64), "slice_word": -(-slices // 64),
        "l2_line": slices * m["l2_sets"] * m["l2_ways"], "sector": SECTORS,
        "channel": m["dram_channels"] * real, "bank": m["dram_channels"] * m["dram_banks"] * real,
        "bank_group": m["dram_bank_groups"], "bank_word": -(-m["dram_banks"] // 64),
        "sought": state.SOUGHT * m["l2_coalesces"], "follower": requests * m["l2_coalesces"],
        "request": requests,
        # of an SM in a window: a flit each, for which it has credit, and with it what leaves L1D
        "asked": 2 * (m["inject_queue_flits"] + m["crossbar_queue_flits"]) + m["l1i_mshrs"] + fetched,
        "drawn": 2 * drawn, "drawn_placed": drawn + 1, "draw_term": state.DRAW_TERMS,
    }  # fmt: skip
    placed = {f"{cache}_placed": found[f"{cache}_line"] + 1 for cache in ("l1i", "const", "l1t", "l1d", "l2")}
    return tuple((found | placed).items())


class Beside(NamedTuple):
    """The launches that are run as one, side by side, or a single one."""

    kernels: np.ndarray  # KERNEL
    awaited: np.ndarray
    warps: int  # of all


def new_kernels(count: int) -> np.ndarray:
    """KERNELs that wait for nothing, and of which nothing is known."""
    rows = np.zeros(count, state.KERNEL)
    rows["ready"] = rows["end"] = NEVER
    rows["programmatic"], rows["cluster_blocks"] = -1, 1
    return rows


def new_record(thread_blocks: int, beside: Beside, windows: int = 0, window_cycles: int = 64) -> Record:
    """Of a launch of so many thread blocks."""
    launch = np.zeros((), state.LAUNCH)
    launch["window_log2"], launch["windows"], launch["pause"] = window_cycles.bit_length() - 1, windows, NEVER
    blocks, warps = np.empty(thread_blocks, state.THREAD_BLOCK), np.empty(beside.warps, state.WARP)
    for rows in (blocks, warps):
        rows.view(np.int64)[:] = -1
    left = beside.kernels["stop"] - beside.kernels["next"]
    log, history = np.empty(0, state.ISSUE), np.zeros(windows, np.int64)
    of_kernels = left, np.zeros_like(left), left.copy(), np.zeros_like(left)
    return Record(
        launch, blocks, np.zeros(0, np.int64), warps, history, log, beside.kernels, beside.awaited, *of_kernels
    )
