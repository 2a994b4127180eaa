"""Instructions that wait at their ports for one of the operand collectors that ports share (docs/timing-rules.md,
rule 13). Who gets one is known when it is free: a kind that comes later in the order may be overtaken for long."""

from abstim.engine import memory_pipe, pending_accesses
from abstim.engine.issue import started, with_collector
from abstim.engine.operand_collectors import cycle_of, first_free, take
from abstim.engine.state import AT_PORTS, DP, INT, KINDS, MEM, NEVER, SFU, SP, TENSOR
from functional.jit.marked import outlined


def leave_port(c, kind, row, step, time):
    """An instruction gets a collector in a step of cycle `time`."""
    sm, w, i = c.sm, row.warp, row.instruction
    take(c, row.pool, step)
    sm.queued_first[kind] = (sm.queued_first[kind] + 1) & (AT_PORTS - 1)
    sm.queued[kind] -= 1
    sm.ports[row.pool].waiting -= 1
    sm.at_port -= 1
    if kind == MEM:
        memory_pipe.with_collector(c, row.issued, step)
        if not memory_pipe.in_any_order(c.machine):
            memory_pipe.go_on(c, time)
        return
    result = with_collector(c, i, w, row.port, row.pool, row.place, step)
    if row.log_row:
        log = c.record.log[row.log_row - 1]
        log.start_cycle, log.result_cycle = started(sm, c.machine, kind, w), result
    pending_accesses.conclude(c, w, c.code[i], result)
    pending_accesses.let_go(c, w, time)


@outlined
def fill_collectors(c, time):
    """Collectors that are free in cycle `time` go to instructions issued before, in each step by kinds, of each kind to
    the oldest; one that finds none free keeps those of its kind behind it waiting, as in GPGPU-Sim 4.2
    (opndcoll_rfu_t::allocate_cu)."""
    sm, ports = c.sm, c.machine.register_file_ports
    for step in range(time * ports, (time + 1) * ports):
        more = True
        while more and sm.at_port:
            more = False
            for kind in (SP, SFU, MEM, TENSOR, DP, INT):
                if sm.queued[kind]:
                    row = c.port_queues[kind, sm.queued_first[kind]]
                    if first_free(c, row.pool) <= step:
                        leave_port(c, kind, row, step, time)
                        more = True


def next_collector(c, time):
    """The next cycle after `time` in which an instruction may get a collector; NEVER: not known."""
    sm, following = c.sm, NEVER
    for kind in range(KINDS):
        if sm.queued[kind]:
            pool = c.port_queues[kind, sm.queued_first[kind]].pool
            free = first_free(c, pool)
            if free < NEVER:
                following = min(following, cycle_of(c.machine, free))
    return max(following, time + 1)
