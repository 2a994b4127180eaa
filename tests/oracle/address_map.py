"""Where a line lies: its slice, set, channel, bank and row; literal."""

from __future__ import annotations

from abstim.gpu.config import Gpu

POLYNOMIALS = {1: 0x3, 2: 0x7, 3: 0xB, 4: 0x13, 5: 0x25, 6: 0x43, 7: 0x83, 8: 0x11D, 9: 0x211, 10: 0x409, 11: 0x805}


def folded(value: int, degree: int) -> int:
    """`value` as a polynomial over GF(2), modulo the one of a degree."""
    if degree == 0:
        return value
    while value >> degree:
        value ^= POLYNOMIALS[degree] << (value.bit_length() - 1 - degree)
    return value


def spread(block: int) -> int:
    """MurmurHash3's finalizer of 32 bits."""
    h = block % 2**32
    for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35)):
        h = ((h ^ (h >> shift)) * factor) % 2**32
    return h ^ (h >> 16)


class Map:
    """Where a line lies."""

    def __init__(self, gpu: Gpu) -> None:
        self.spec = gpu.spec
        self.slices = gpu.spec.dram_channels * gpu.spec.l2_slices_per_channel
        self.drawn: dict[int, int] = {}  # by block, if slices are drawn
        self.terms = [1]  # of glibc's `rand`, seed 1
        while len(self.terms) < 31:
            self.terms.append(16807 * self.terms[-1] % (2**31 - 1))
        self.terms += self.terms[:3]
        for _ in range(310):
            self.draw()

    def _local(self, line: int) -> tuple[int, int]:
        """(channel by interleaving, line number in the channel)."""
        lines = self.spec.channel_interleave_bytes // 128
        block, inside = divmod(line, lines)
        rest, channel = divmod(block, self.spec.dram_channels)
        return channel, rest * lines + inside

    def _spread(self, line: int) -> tuple[int, int, int]:
        """(slice, line number in the channel, line number in the slice) where each run of blocks goes round them."""
        lines = self.spec.slice_interleave_bytes // 128
        block, inside = divmod(line, lines)
        rest = block // self.slices
        number = (block + spread(rest)) % self.slices
        part = self.spec.l2_slices_per_channel
        return number, (rest * part + number % part) * lines + inside, rest * lines + inside

    def draw(self) -> int:
        """The next number of the generator."""
        self.terms.append((self.terms[-3] + self.terms[-31]) % 2**32)
        return self.terms[-1] >> 1

    def near(self, line: int, sm: int) -> int:
        """The slice that an SM asks for a line: of its own part of L2."""
        home, spec = self.slice_of(line), self.spec
        size = self.slices // spec.l2_partitions
        return sm * spec.l2_partitions // spec.sm_count * size + home % size

    def is_from_afar(self, sm: int, number: int) -> bool:
        """Is a slice in the part of L2 that an SM is not in?"""
        parts = self.spec.l2_partitions
        return sm * parts // self.spec.sm_count != number * parts // self.slices

    def slice_of(self, line: int) -> int:
        spec = self.spec
        if spec.l2_slice_index == "spread":
            return self._spread(line)[0]
        channel, local = self._local(line)
        number = channel * spec.l2_slices_per_channel
        number += local // (spec.slice_interleave_bytes // 128) % spec.l2_slices_per_channel
        if spec.l2_slice_index == "random":
            block = line // (spec.slice_interleave_bytes // 128)
            if block not in self.drawn:
                self.drawn[block] = self.draw() % self.slices
            return self.drawn[block]
        if spec.l2_slice_index == "ipoly":
            degree = (self.slices - 1).bit_length()
            above = line // (spec.channel_interleave_bytes // 128) >> degree
            return (folded(above << degree, degree) ^ number) % self.slices
        return number

    def set_of(self, line: int) -> int:
        spec = self.spec
        _, local = self._local(line)
        part = spec.slice_interleave_bytes // 128
        inside = local // part // spec.l2_slices_per_channel * part + local % part
        if spec.l2_slice_index == "spread":
            inside = self._spread(line)[2]
        index, degree = inside % spec.l2_sets, (spec.l2_sets - 1).bit_length()
        return folded(inside >> degree << degree, degree) ^ index if spec.l2_index == "ipoly" else index

    def bank_and_row(self, line: int) -> tuple[int, int]:
        spec = self.spec
        _, local = self._local(line)
        turned = spec.l2_slice_index == "spread"
        if turned:
            local = self._spread(line)[1]
        lowest, row = local // (spec.slice_interleave_bytes // 128) % 2, local * 128 // spec.dram_row_bytes
        bank = local * 128 * 8 // spec.dram_row_bytes * 2 + lowest
        if not turned:
            return bank % spec.dram_banks, local * 128 % 2**28 // spec.dram_row_bytes
        return (bank + spread(row)) % spec.dram_banks, row
