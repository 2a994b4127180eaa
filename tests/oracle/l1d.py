"""L1D: what it holds, sector by sector or line by line, and what becomes of loads and stores (rules 5 and 12)."""

from __future__ import annotations

from abstim.gpu.config import Gpu
from oracle.resources import ResponsePath

# x^degree + ..., bit k for x^k: the primitive polynomials of rule 12, by the number of index bits
PRIMITIVE = {0: 0x1, 1: 0x3, 2: 0x7, 3: 0xB, 4: 0x13, 5: 0x25, 6: 0x43, 7: 0x83, 8: 0x11D, 9: 0x211, 10: 0x409,
             11: 0x805, 12: 0x1053}  # fmt: skip


def remainder(value: int, polynomial: int) -> int:
    """What is left of a polynomial over GF(2) after division by another; both as bits."""
    degree = polynomial.bit_length()
    while value.bit_length() >= degree:
        value ^= polynomial << (value.bit_length() - degree)
    return value


def set_of(line: int, sets: int, index: str) -> int:
    """Number of the set that a line belongs in."""
    if index == "hash":
        bits = [(line >> b) & 1 for b in (6, 7, 8, 10, 12)]
        return (line ^ sum(bit << k for k, bit in enumerate(bits))) % sets
    if index == "ipoly":
        return remainder(line, PRIMITIVE[sets.bit_length() - 1])
    return line % sets


def ways_left(gpu: Gpu, shared_bytes: int) -> int:
    """Ways of L1D beside the shared memory of the resident blocks, where one memory serves as both."""
    spec = gpu.spec
    if spec.shared_options_kib == "":
        return spec.l1d_ways
    options = sorted(1024 * int(kib) for kib in spec.shared_options_kib.split(","))
    large_enough = [option for option in options if option >= shared_bytes]
    taken = large_enough[0] if large_enough else options[-1]
    share = (spec.unified_l1d_bytes - taken) / spec.unified_l1d_bytes
    return max(1, int(spec.l1d_ways * share + 0.5))


class L1d:
    """A set maps its lines, the next to be replaced first, to the cycle in which each of their parts is there.

    A part is a sector, by number; of a cache without sectors the whole line, part 0. A part neither there nor on its
    way is missing from the map.
    """

    def __init__(self, gpu: Gpu, ways: int, responses: ResponsePath) -> None:
        self.spec, self.ways, self.responses = gpu.spec, ways, responses
        self.miss_cycles = gpu.params.l1_miss_extra_cycles
        self.sets: list[dict[int, dict[int, int]]] = [{} for _ in range(self.spec.l1d_sets)]
        self.accesses = self.misses = 0

    def load(self, line: int, sectors: list[int], hit: int) -> int:
        """Result of a load, or a local store, that is a hit at `hit` if it is one."""
        parts, here = self._parts(sectors), self._lines(line)
        self.accesses += 1
        if line not in here or not here[line].keys() >= parts:
            self.misses += 1
            out = self.responses.out(hit + self.miss_cycles)
            self._allocate(line)
            here[line] |= dict.fromkeys(parts, out)
        self._used(line)
        return max([hit, *(here[line][part] for part in parts)])

    def store(self, line: int, sectors: list[int], hit: int) -> int:
        """Acknowledgement of a global store that meets the tags at `hit`."""
        parts, here = self._parts(sectors), self._lines(line)
        self.accesses += 1
        self.misses += line not in here or not here[line].keys() >= parts
        if self.spec.l1d_write in ("local_back", "evict"):
            here.pop(line, None)
            return self.responses.out(hit + self.miss_cycles)
        if self.spec.l1d_write_allocate:
            self._allocate(line)
            on_its_way = 0 if self.spec.l1d_sectored else here[line].get(0, 0)
            here[line] |= dict.fromkeys(parts, max(hit, on_its_way))
        if line in here:
            self._used(line)
            if self.spec.l1d_write == "back":
                return hit
        return self.responses.out(hit + self.miss_cycles)

    def _parts(self, sectors: list[int]) -> set[int]:
        return set(sectors) if self.spec.l1d_sectored else {0}

    def _lines(self, line: int) -> dict[int, dict[int, int]]:
        return self.sets[set_of(line, self.spec.l1d_sets, self.spec.l1d_index)]

    def _allocate(self, line: int) -> None:
        """Make room for a line if it is not there; the first of a full set goes."""
        here = self._lines(line)
        if line not in here:
            if len(here) == self.ways:
                del here[next(iter(here))]
            here[line] = {}

    def _used(self, line: int) -> None:
        if self.spec.l1d_replacement == "lru":
            here = self._lines(line)
            here[line] = here.pop(line)
