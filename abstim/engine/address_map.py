"""Where a line lies: channel, slice, set, bank and row (docs/timing-rules.md, rule 11)."""

from abstim.engine.state import READ
from functional.traces.trace import LINE_BYTES

CHANNEL_LINES = (1 << 28) // LINE_BYTES


def hashed(index, above, residues):
    """An index with the bits above it folded in."""
    k = 0
    while above:
        index ^= residues[k] * (above & 1)
        above >>= 1
        k += 1
    return index


def scrambled(block):
    """A number that looks random: the finalizer of MurmurHash3 (A. Appleby, 2011), of 32 bits."""
    h = block & 0xFFFFFFFF
    h = ((h ^ (h >> 16)) * 0x85EBCA6B) & 0xFFFFFFFF
    h = ((h ^ (h >> 13)) * 0xC2B2AE35) & 0xFFFFFFFF
    return h ^ (h >> 16)


def spread_slice_of(m, line):
    """The same where each run of as many blocks as there are slices goes round all of them, from one that looks
    random."""
    count, low = m.dram_channels * m.l2_slices_per_channel, line & ((1 << m.slice_log2) - 1)
    block = line >> m.slice_log2
    rest = block // count
    number = (block + scrambled(rest)) % count
    channel, in_slice = number // m.l2_slices_per_channel, (rest << m.slice_log2) | low
    local = ((rest * m.l2_slices_per_channel + number % m.l2_slices_per_channel) << m.slice_log2) | low
    return number, channel, local, in_slice


def slice_of(m, line):
    """(slice, channel, line number in the channel, line number in the slice) of a line; of random slices one that does
    not depend on the order in which lines are asked for."""
    if m.slice_spread:
        return spread_slice_of(m, line)
    block = line >> m.interleave_log2
    channel, rest = block % m.dram_channels, block // m.dram_channels
    local = (rest << m.interleave_log2) | (line & ((1 << m.interleave_log2) - 1))
    upper, part = (local >> m.slice_log2) // m.l2_slices_per_channel, (local >> m.slice_log2) % m.l2_slices_per_channel
    number = channel * m.l2_slices_per_channel + part
    if m.slice_random:
        number = scrambled(line >> m.slice_log2) % (m.dram_channels * m.l2_slices_per_channel)
        channel = number // m.l2_slices_per_channel
    elif m.slice_hash_log2:
        above = line >> (m.interleave_log2 + m.slice_hash_log2)
        number = hashed(number, above, m.slice_residues) % (m.dram_channels * m.l2_slices_per_channel)
        channel = number // m.l2_slices_per_channel
    return number, channel, local, (upper << m.slice_log2) | (local & ((1 << m.slice_log2) - 1))


def l2_set_of(m, in_slice):
    """The set of a line in its slice, by its number there."""
    index = in_slice % m.l2_sets
    return hashed(index, in_slice >> m.l2_hash_log2, m.l2_residues) if m.l2_hash_log2 else index


def row_of(m, local):
    """The DRAM row of a line by its number in the channel, of which the reference's GPUs look at 28 bits
    (gpgpu_mem_addr_mapping): what lies 256 MiB further on is in the same row."""
    return (local if m.slice_spread else local & (CHANNEL_LINES - 1)) >> m.row_log2


def bank_of(m, local):
    """The DRAM bank, of its channel's, of a line by its number in the channel."""
    bank = ((local >> m.bank_log2) << 1) | ((local >> m.slice_log2) & 1)
    if m.slice_spread:
        bank += scrambled(row_of(m, local))
    return bank % m.dram_banks


def parts_of(m, sm, number):
    """The part of L2 that an SM is in, and the part of slice `number`."""
    count = m.dram_channels * m.l2_slices_per_channel
    return sm * m.l2_partitions // m.sm_count, number * m.l2_partitions // count


def send_to(m, request, number):
    """A request is of a line that lies in slice `number`, and its SM asks that one; for a read, of its own part of L2,
    the one that stands for it."""
    near, count = number, m.dram_channels * m.l2_slices_per_channel
    if m.l2_partitions > 1 and request.kind == READ:
        own, home = parts_of(m, request.sm, number)
        near = (number + (own - home) * (count // m.l2_partitions)) % count
    request.home, request.near = number, near
    request.slice = request.output = near


def address(m, request):
    """Says where the line of a request lies, and which slice its SM asks; if slices are drawn (drawn_slices.py), `home`
    is the line until then."""
    number, _, local, in_slice = slice_of(m, request.line)
    request.l2_set, request.bank, request.row = l2_set_of(m, in_slice), bank_of(m, local), row_of(m, local)
    if m.slice_random:
        request.home = request.line
    else:
        send_to(m, request, number)
