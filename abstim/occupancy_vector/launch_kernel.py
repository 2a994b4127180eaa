"""A launch on a design point, compiled: its items, its thread blocks dealt, what the caches answer, its lanes."""

import numpy as np

from abstim.analytic.real_numbers import larger, nearest, root, smaller
from abstim.occupancy_vector import records as rec
from abstim.occupancy_vector.answer_kernel import tell
from abstim.occupancy_vector.evenness import find_evenness
from abstim.occupancy_vector.item_kernel import cut_into
from abstim.occupancy_vector.lane_kernel import run_some
from abstim.occupancy_vector.walk_kernel import walk_caches
from functional.jit.marked import all_written, zero

NUMBER, TICKS = rec.NUMBER, rec.TICKS


def length_of(plan, warps, block):
    """Instructions of a thread block."""
    found = 0
    for warp in range(block * plan.warps_per_block, (block + 1) * plan.warps_per_block):
        found += warps.lengths[warp]
    return found


def next_free(queues, count):
    """The SM whose slot is expected to be free first; ties go round the SMs."""
    best = 0
    for sm in range(1, count):
        a, b = queues[sm], queues[best]
        if a.time < b.time or (a.time == b.time and a.blocks < b.blocks):
            best = sm
    return best


def deal_unevenly(plan, warps, dealer, blocks, count):
    """Which SM each thread block goes to: to the slot that is expected to be free first, when each takes as long as it
    has instructions."""
    for block in range(blocks):
        sm = next_free(dealer.queues, count)
        own, ring = dealer.queues[sm], sm * plan.residents
        dealer.lengths[ring + own.blocks % plan.residents] = length_of(plan, warps, block)
        own.blocks += 1
        if own.blocks >= plan.residents:
            own.time += dealer.lengths[ring + own.blocks % plan.residents]
        dealer.sm_of[block] = sm


def deal(plan, warps, dealer, dealt, told):
    """Thread blocks of each SM, in order; `told`: TOLD_SMs, as many as get some."""
    blocks, count, first = len(warps.paths) // plan.warps_per_block, len(told), length_of(plan, warps, 0)
    same = first > 0
    for block in range(1, blocks):
        same &= length_of(plan, warps, block) == first
    zero(dealer.queues, count)
    if not same:
        deal_unevenly(plan, warps, dealer, blocks, count)
    for block in range(blocks if same else 0):  # then they go round
        dealer.sm_of[block] = block % count
        dealer.queues[block % count].blocks += 1
    stop = 0
    for sm in range(count):
        told[sm].first = stop
        stop += dealer.queues[sm].blocks
        told[sm].stop = stop
        dealer.queues[sm].time = told[sm].first
    for block in range(blocks):
        own = dealer.queues[dealer.sm_of[block]]
        dealt[own.time] = block
        own.time += 1


def sector_cycles(sharers, one, in_runs, servers):
    """Cycles a sector of a server's takes each of so many SMs that ask: `one` for each, and no less than a switch to so
    many servers takes that queues at its inputs, `in_runs` of whose packets follow one of their line (-1: none waits
    there). Before each stand (sharers - 1) / servers others in the mean (docs/occupancy-vector.md, "Memory")."""
    heads = larger(0.0, sharers - 1) / servers
    runs, singles = 1 + heads, (1 + heads + root(1 + heads * heads)) / 2
    return larger(one * sharers, in_runs * runs + (1 - in_runs) * singles if in_runs >= 0 else 0.0)


def share(told, sharing, cycles, one, in_runs, servers):
    """Cycles a sector takes each SM in the mean, until it has all it asks for: they are served alike, as long as they
    have work left (processor sharing)."""
    count, order, asked, done, before = len(told), sharing.order, sharing.asked, 0.0, 0.0
    for sm in range(count):
        k = sm
        while k > 0 and asked[order[k - 1]] > asked[sm]:
            order[k] = order[k - 1]
            k -= 1
        order[k] = sm
    for k in range(count):
        work = asked[order[k]] + 0.0
        if work > before:
            done += (work - before) * sector_cycles(count - k, one, in_runs, servers)
        before = work
        cycles[order[k]] = done / work if work > 0 else sector_cycles(1, one, in_runs, servers)


def number_lanes(gpu, found, told, sharing, numbers):
    """NUMBERS of each lane, in cycles. `found`: a FOUND; `told`: TOLD_SMs."""
    servers, count = gpu.servers[0], len(told)
    one = smaller(1.0, servers.l2_port)  # that misses takes a turn at the tags, no port; all are replied to
    sector = found.port_share * servers.l2_port + (1 - found.port_share) * one
    for sm in range(count):
        sharing.asked[sm] = told[sm].sectors
    in_runs = found.in_runs if servers.queues_at_inputs > 0 else -1.0
    share(told, sharing, sharing.l2, sector * found.slice_imbalance / servers.slices, in_runs, servers.slices)
    for sm in range(count):
        sharing.asked[sm] = told[sm].dram_sectors
    read = larger(servers.dram_sector, found.rows_a_sector * servers.dram_row)
    share(told, sharing, sharing.dram, read * found.channel_imbalance / servers.channels, -1.0, servers.channels)
    for sm in range(count):
        own = numbers[sm]
        for k in range(len(rec.NUMBERS)):
            own[k] = gpu.numbers[k]
        own[NUMBER.l2_sector] = sharing.l2[sm]
        own[NUMBER.l2_atomic] = sharing.l2[sm] * larger(1.0, servers.l2_atomic / sector)
        own[NUMBER.dram_sector] = sharing.dram[sm]
        beyond = servers.dram_latency + found.rows_a_sector * servers.dram_activate + servers.other_part
        own[NUMBER.dram_latency] = larger(0.0, beyond)
        own[NUMBER.dispatch] = larger(1.0, servers.dispatch * count)


def find_lanes(told, numbers, lanes):
    """Machines of all SMs in ticks, and the lanes to be run; returns how many are."""
    found = 0
    for sm in range(len(told)):
        for k in range(len(rec.NUMBERS)):
            lanes.machines[sm, k] = np.int64(nearest(numbers[sm][k] * TICKS))
        if told[sm].is_run:
            own = lanes.own[found]
            own.first, own.stop, own.point, own.machine = told[sm].first, told[sm].stop, 0, sm
            found += 1
    return found


def summed(warps, items, told, lanes, out):
    """What of a launch follows from its SMs' walks, and how many items its warps have."""
    out.work = out.sectors = out.dram_sectors = out.held = out.longest = out.l2_ticks = out.dram_ticks = 0
    for warp in range(len(warps.paths)):
        path = warps.paths[warp]
        out.work += items.offsets[path + 1] - items.offsets[path]
    for sm in range(len(told)):
        own = told[sm]
        out.sectors += own.sectors
        out.dram_sectors += own.dram_sectors
        out.held += own.held
        out.longest = max(out.longest, own.longest)
        out.l2_ticks += own.sectors * lanes.machines[sm, NUMBER.l2_sector]
        out.dram_ticks += own.dram_sectors * lanes.machines[sm, NUMBER.dram_sector]


def ended(lanes, out):
    """When the last SM ends, and how many items were issued for that."""
    out.end, out.stepped, out.is_run = 0, 0, 1
    for lane in range(out.lanes):
        out.end = max(out.end, lanes.ends[lane])
        out.stepped += lanes.issued[lane]


def walk_launch(plan, gpu, warps, walk, told, scratch, caches):
    """Deal the thread blocks, and see what the caches answer: a Told. Returns how many fills there are, and late
    lines."""
    found, accesses = told.found[0], walk.access_offsets[len(warps.paths)]
    zero(told.sms)
    deal(plan, warps, scratch.dealer, walk.dealt, told.sms)
    found.slice_imbalance = found.channel_imbalance = found.port_share = 1.0
    found.rows_a_sector = found.in_runs = 0.0
    walk.fetch_offsets[0] = 0
    for warp in range(len(warps.paths)):
        path = warps.paths[warp]
        count = 0 if gpu.shape.perfect else walk.offsets[path + 1] - walk.offsets[path]
        walk.fetch_offsets[warp + 1] = walk.fetch_offsets[warp] + count
    walk.followed[0 : accesses + 1] = 0
    walk.fetch_waits[0 : walk.fetch_offsets[len(warps.paths)]] = 0
    if gpu.shape.perfect:
        walk.answers[0:accesses] = 0
    else:
        walk_caches(walk, caches, told.sms, scratch.sms, scratch.slots)
        find_evenness(caches, len(told.sms), found)
    return tell(walk, told, warps.lengths, scratch.telling)


def time_launch(
    plan, gpu, code, traced, warps, nominal, items, walk, told, streams, scratch, caches, lane, lanes
):  # fmt: skip
    """A launch on a design point, as far as `plan` says that it is still to be done: a LAUNCH_OUTCOME.

    `nominal`: the items that caches are walked with, of instructions that take a cycle each."""
    out = lanes.outs[0]
    out.is_run, out.misfits, out.fills = 0, 0, plan.fills
    if plan.cuts_nominal:
        cut_into(code, traced, code.nominal, gpu.nominal, warps, nominal, scratch.cutting)
        all_written()
    if plan.walks:
        out.fills, out.lates = walk_launch(plan, gpu, warps, walk, told, scratch, caches)
        out.l1d_uses, out.l2_uses = caches.totals[0].l1d_uses, caches.totals[0].l2_uses
    if plan.cuts:
        cut_into(code, traced, code.instructions, gpu.shape, warps, items, scratch.cutting)
        out.misfits = scratch.cutting.misfits[0]
    number_lanes(gpu, told.found[0], told.sms, scratch.sharing, scratch.numbers)
    out.lanes = find_lanes(told.sms, scratch.numbers, lanes)
    summed(warps, items, told.sms, lanes, out)
    if out.misfits == 0 and out.work < plan.most_work:
        all_written()
        own = lanes.own[0 : out.lanes]
        run_some(lane, streams, gpu.lanes[0], lanes.machines, own, out.fills, lanes.ends, lanes.issued, lanes.stopped)
        ended(lanes, out)
