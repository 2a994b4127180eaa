"""What an SM asks of the memory side: a row each, which goes to the switch when all SMs are through with the window
(docs/timing-rules.md, rule 11)."""

from __future__ import annotations

import numpy as np

from abstim.engine.address_map import address
from abstim.engine.l2 import sectors_in
from abstim.engine.state import IN_FLIGHT, READ
from functional.jit.compile import jit, outlined
from functional.traces.trace import SECTOR_BYTES


@jit
def flits_of(m, kind, sectors):
    """Flits of a request's packet: a read is its header alone."""
    if kind == READ:
        return 1
    size = SECTOR_BYTES * sectors_in(sectors) + m.packet_bytes
    return (size + m.flit_bytes - 1) // m.flit_bytes


@jit
def can_send(c, kind, sectors):
    """May the SM ask now? If not: in the next window, or when something has come back."""
    return c.sm.credits >= flits_of(c.machine, kind, sectors) and c.sm.in_flight < IN_FLIGHT


@outlined
def send(context, line, sectors, kind, who, place, time):
    """Ask for, or write, sectors of a line; the packet goes to the switch at `time` at the earliest. Returns when."""
    c = context
    sm, m = c.sm, c.machine
    flits = flits_of(m, kind, sectors)
    sent = max(time, sm.last_sent + 1, sm.link_free + flits - m.inject_queue)
    sm.last_sent, sm.link_free = sent, max(sent, sm.link_free) + flits
    sm.credits -= flits
    sm.in_flight += sectors_in(sectors)
    request = c.shared.outbox[sm.number, sm.asked]
    sm.asked += 1
    request.line, request.sectors, request.kind, request.sm = line, sectors, kind, sm.number
    request.who, request.place, request.flits, request.from_dram = who, place, flits, 0
    request.due = sent + 1
    address(m, request)
    return np.int64(sent)
