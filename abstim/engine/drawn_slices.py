"""Slices drawn at random for lines, in the order in which they are first asked for (`l2_slice_index` "random").

The reference draws them by the C library's `rand` from seed 1 (GPGPU-Sim 4.2, addrdec.cc), so that what is asked for
first lies where it lies there. Its fetch stage makes a request of every instruction, with a perfect cache, too."""

from abstim.engine.address_map import scrambled, send_to
from abstim.engine.read_only_caches import CODE_LINE
from abstim.engine.state import DRAW_TERMS, FETCHED, MOST_DRAWN
from abstim.engine.tags import find, place, touch, victim
from functional.jit.marked import outlined


def draw(m, drawn):
    """The next number of glibc's generator: r[i] = r[i - 3] + r[i - 31] modulo 2^32, without the lowest bit."""
    count = drawn.places[0]
    if count == 0:
        for n in range(DRAW_TERMS):
            drawn.terms[n] = m.draw_terms[n]
    k = count % DRAW_TERMS
    drawn.terms[k] = (drawn.terms[k] + drawn.terms[(k + DRAW_TERMS - 3) % DRAW_TERMS]) & 0xFFFFFFFF
    return drawn.terms[k] >> 1


@outlined
def slice_drawn(shared, line):
    """The slice of a line, which is drawn if nobody has asked for the line before."""
    m, drawn = shared.machine, shared.drawn
    block, last = line >> m.slice_log2, len(drawn.table) - 1
    hashed = scrambled(block)
    k, count = hashed & last, m.dram_channels * m.l2_slices_per_channel
    while drawn.table[k].block:
        if drawn.table[k].block == block + 1:
            return drawn.table[k].slice
        k = (k + 1) & last
    if drawn.places[0] == MOST_DRAWN:
        return hashed % count
    drawn.table[k].block, drawn.table[k].slice = block + 1, draw(m, drawn) % count
    drawn.places[0] += 1
    drawn.places[drawn.places[0]] = k
    return drawn.table[k].slice


def note_fetch(c, pc, time):
    """An instruction is fetched from a perfect cache; L1I's tags, which are not asked, tell whether its line was."""
    m, sm = c.machine, c.sm
    line = pc >> m.fetch_line_log2
    first = (line & (m.l1i_sets - 1)) * m.l1i_ways
    k = find(c.l1i.tag, first, m.l1i_ways, line)
    if k < 0:
        k = victim(c.l1i.last_use, first, m.l1i_ways)
        place(c.l1i, k, line, time)
        request = c.shared.outbox[sm.number, sm.asked]
        request.line, request.kind, request.due = CODE_LINE + line, FETCHED, time + 1
        sm.asked += 1
    touch(sm, c.l1i.last_use, k)


def draw_for(shared, m, n, due):
    """What SM `n` has asked for up to cycle `due` gets its slices."""
    rows, traffic = shared.requests.rows, shared.traffic[n]
    while traffic.undrawn and rows[traffic.undrawn - 1].due <= due:
        request = rows[traffic.undrawn - 1]
        send_to(m, request, slice_drawn(shared, request.home))
        traffic.undrawn = request.next


def draw_for_code(gpu, n, due):
    """The same of what it has fetched, a line each: rows of the outbox among others."""
    sm, shared = gpu.sm[n], gpu.shared
    while sm.drawn < sm.asked and (shared.outbox[n, sm.drawn].kind != FETCHED or shared.outbox[n, sm.drawn].due <= due):
        if shared.outbox[n, sm.drawn].kind == FETCHED:
            slice_drawn(shared, shared.outbox[n, sm.drawn].line)
        sm.drawn += 1


@outlined
def draw_slices(gpu, until):
    """What SMs have asked for in the window that ends with cycle `until` gets its slices, in the order in which it
    leaves them; in a cycle SM by SM, data first."""
    m = gpu.machine
    for due in range(until - m.window_cycles, until + 2):
        for n in range(m.sm_count):
            draw_for(gpu.shared, m, n, due)
            draw_for_code(gpu, n, due)
