"""Who leaves an SM first: what waits at the tags of L1D's banks for places of the miss queue; compiled.

Each cycle a place falls free, and the first bank that has something waiting takes it. So sectors of the first bank
leave before those of the others that came earlier, and the last sectors of all loads of a burst leave together."""

from __future__ import annotations

from abstim.engine.accesses import sectors_in
from abstim.engine.rules import SECTORS
from abstim.occupancy_vector.cache_walk import BANK_PLACES, FIRST_CYCLES


def serve(walk, caches, number, sm, time):
    """Sectors that wait take places that are free by `time`, those of the first bank before the others'."""
    room, b = sm.room + max(0, time - sm.served), 0
    sm.served = max(sm.served, time)
    while sm.waits and room and b < SECTORS:
        bank = caches.banks[number, b]
        count = min(room, bank.came - bank.left)
        bank.left += count
        sm.left += count
        sm.waits -= count
        room -= count
        while bank.first < bank.stop and caches.waiting[number, b, bank.first & (BANK_PLACES - 1)].last <= bank.left:
            row = caches.waiting[number, b, bank.first & (BANK_PLACES - 1)]
            found = walk.answers[row.access]
            found.left = max(found.left, sm.left - (bank.left - row.last))
            found.waits -= 1
            bank.first += 1
        b += 1
    sm.room = min(room, walk.machine[0].l1d_miss_queue - 1)


def wait_at_bank(walk, caches, number, sm, access, b):
    """A sector waits at a bank, whose pipe takes no more than it has stages."""
    bank, before = caches.banks[number, b], 0
    for k in range(b + 1):
        before += caches.banks[number, k].came - caches.banks[number, k].left
    if bank.came - bank.left >= FIRST_CYCLES:
        serve(walk, caches, number, sm, sm.served + before - FIRST_CYCLES + 1)
    bank.came += 1
    row = caches.waiting[number, b, bank.stop & (BANK_PLACES - 1)]
    row.access, row.last = access, bank.came
    bank.stop += 1
    walk.answers[access].waits += 1
    sm.waits += 1


def leave_sm(walk, caches, number, sm, access, sectors, time):
    """An access asks for, or writes, sectors of a line at `time`: they wait until they can leave the SM."""
    m, count, found = walk.machine[0], sectors_in(sectors), walk.answers[access]
    if m.l1d_banks == 1 or m.l1d_bypass:
        return
    serve(walk, caches, number, sm, time)
    if found.turn == 0:
        sm.turns += 1
        found.turn = sm.turns
    sm.came += count
    found.came = sm.came
    if sm.waits == 0 and sm.room >= count:
        sm.room -= count
        sm.left += count
        return
    for n in range(SECTORS):
        if (sectors >> n) & 1:
            wait_at_bank(walk, caches, number, sm, access, n & (m.l1d_banks - 1))
    serve(walk, caches, number, sm, time)
