"""The engine's memory side alone: requests at given cycles in, the cycles of their replies out."""

from __future__ import annotations

from abstim.engine.address_map import address, send_to
from abstim.engine.clear import begin
from abstim.engine.drawn_slices import slice_drawn
from abstim.engine.memory_side import exchange, serve_requests
from abstim.engine.state import TO_ACCESS
from abstim.engine.switch import give_back, new_place, put, take
from functional.jit.marked import outlined


@outlined
def replay(gpu, asked, due):
    """`asked` [request]: cycle, SM, line, sectors, kind, flits, words, ascending by cycle; `due` [request, sector] gets
    the cycle of each reply, in the order in which they come."""
    m, shared = gpu.machine, gpu.shared
    rows, position, limit = shared.requests.rows, 0, m.window_cycles
    begin(gpu)
    exchange(gpu, 0)
    waiting = 0
    for k in range(len(asked)):
        for j in range(4):
            waiting += (asked[k, 3] >> j) & 1
    while waiting:
        while position < len(asked) and asked[position, 0] <= limit:
            place = new_place(shared.requests.rows, shared.requests.unused)
            request = rows[place - 1]
            request.line, request.sectors, request.kind = asked[position, 2], asked[position, 3], asked[position, 4]
            request.sm, request.who, request.place = asked[position, 1], TO_ACCESS, position
            request.flits, request.due, request.from_dram = asked[position, 5], asked[position, 0] + 1, 0
            request.words = asked[position, 6]
            address(m, request)
            if m.slice_random:
                send_to(m, request, slice_drawn(shared, request.home))
            put(shared.there, rows, asked[position, 1], place)
            position += 1
        exchange(gpu, limit)
        serve_requests(gpu)  # what comes of it is in the inboxes a window later, in time
        for n in range(m.sm_count):
            inbox = shared.inbox[n]
            while inbox.count and rows[inbox.first - 1].due <= limit:
                place = take(rows, inbox)
                request, j = rows[place - 1], 0
                while due[request.place, j] >= 0:
                    j += 1
                due[request.place, j] = request.due
                give_back(shared.requests.rows, shared.requests.unused, place)
                waiting -= 1
        limit += m.window_cycles
