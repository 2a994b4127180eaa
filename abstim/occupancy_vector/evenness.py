"""How unevenly a walk finds slices and channels busy, and how DRAM's rows serve; compiled."""

STRETCH_CYCLES = 64  # by which SMs may be apart
WINDOW_CYCLES = 6 * STRETCH_CYCLES  # in which slices and channels are busy unevenly: some answer from DRAM
BURST_CYCLES = WINDOW_CYCLES * 7 // 12  # of a window: what a switch that queues at its inputs serves (2 - sqrt 2)
FEW_SECTORS = WINDOW_CYCLES // 4  # a channel that is asked for fewer in a window delays nobody


def counted(counts):
    """(sum of all, the largest); all are zero then."""
    whole = most = 0
    for k in range(len(counts)):
        whole, most = whole + counts[k], max(most, counts[k])
        counts[k] = 0
    return whole, most


def end_stretch(caches, count, queues_at_outputs):
    """What slices were asked for in a stretch, and by how many of some SMs, is added to its window."""
    totals, most, asking = caches.totals[0], 0, 0
    for number in range(count):
        asking += caches.servers[number].asks
        caches.servers[number].asks = 0
    for k in range(len(caches.slice_sectors)):
        most = max(most, caches.slice_sectors[k])
        caches.window_sectors[k] += caches.slice_sectors[k]
        caches.slice_sectors[k] = 0
    totals.bursts += 0 if queues_at_outputs else most * asking
    totals.asking = max(totals.asking, asking)


def end_window(caches, count):
    """How unevenly slices and channels were busy in a window is added up; a slice, as all SMs that ask are served.
    Where packets queue before a switch, bursts at one slice after the other are served one after the other."""
    totals = caches.totals[0]
    whole, most = counted(caches.window_sectors)
    totals.slice_sectors += whole
    totals.busiest_slice += max(most * totals.asking, min(totals.bursts, BURST_CYCLES * count))
    totals.bursts = totals.asking = 0
    whole, most = counted(caches.channel_sectors)
    totals.channel_sectors += max(whole, FEW_SECTORS * len(caches.channel_sectors))
    totals.busiest_channel += max(most, FEW_SECTORS)


def find_evenness(caches, count, found):
    """What a walk found of a launch as a whole is a FOUND."""
    totals = caches.totals[0]
    slices = totals.busiest_slice * len(caches.slice_sectors) / max(1, totals.slice_sectors * count)
    channels = totals.busiest_channel * len(caches.channel_sectors) / max(1, totals.channel_sectors)
    found.slice_imbalance, found.channel_imbalance = max(1.0, slices), max(1.0, channels)
    found.rows_a_sector = totals.rows_opened / max(1, totals.dram_reads)
    found.in_runs = 1 - totals.asks / max(1, totals.slice_sectors)
    found.port_share = totals.port_sectors / max(1, totals.slice_sectors)
