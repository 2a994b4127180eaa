"""A launch on a whole GPU: SMs run ahead until a thread block slot frees, blocks are handed out in time order
(docs/timing-rules.md, rules 1 and 10). Within a window SMs run alone, on any number of threads."""

from abstim.engine.clear import begin, context_of
from abstim.engine.clusters import deliver_arrivals, emptiest, gpc_with_room
from abstim.engine.equal_sms import first_free, follow_first, hand_out_alike, run_sm
from abstim.engine.fetch import next_fetch
from abstim.engine.issue import store_window
from abstim.engine.kernel_queue import choose_kernel, follow_kernels, is_any_coming, release_dependents
from abstim.engine.memory_side import exchange, is_all_served, serve_requests
from abstim.engine.one_sm import aim, launch_block
from abstim.engine.operand_collectors import waits_at_port
from abstim.engine.port_queues import next_collector
from abstim.engine.room import next_dispatch
from abstim.engine.rules import UNITS_A_CYCLE, WINDOW_CYCLES
from abstim.engine.state import NEVER, OVER, TWO_LEVEL
from functional.jit.marked import add, load, outlined, pause, raise_to, sleep, store

# Of one who waits: for about a millisecond, longer than a round, before it gives way, and before it sleeps
SPINS, YIELDS, SLEEP_MICROSECONDS = 1 << 14, 1 << 6, 50
LOOKS, PAUSES_A_LOOK = 8, 8  # of one who is done with its own: for a few microseconds, as a task takes


def rest(waited):
    """A thread has waited so many times for another, and is about to look again."""
    if waited < SPINS:
        pause()
    else:
        sleep(0 if waited < SPINS + YIELDS else SLEEP_MICROSECONDS)


def takes(gpu, k, number):
    """Task `k` of round `number` is for who asks: true for one of them, never if the round is over."""
    return load(gpu.team.taken, k) < number and raise_to(gpu.team.taken, k, number) < number


def others_are_late(gpu, number):
    """Is there a task of round `number` that nobody comes to for a while?"""
    for _ in range(LOOKS):
        k = 0
        while k < len(gpu.team.taken) and load(gpu.team.taken, k) >= number:
            k += 1
        if k == len(gpu.team.taken):
            return False
        for _ in range(PAUSES_A_LOOK):
            pause()
    return True


def wait_for_round(gpu, number):
    """The round after `number`, once there is one; OVER if there is none."""
    waited = 0
    while load(gpu.team.round, 0) == number:
        rest(waited)
        waited += 1
    return load(gpu.team.round, 0)


ALONE_WINDOW_CYCLES = 1 << 40  # longer than any launch, and short enough to be added up
ROUNDS_A_LOOK = 64  # with real memory: between two looks for a deadlock
SHARED_WINDOW_CYCLES = 256  # with perfect memory, on several threads: short beside a thread block, long beside a wait


def work(gpu, k, member, number):
    """Task `k` of a round, if nobody has taken it."""
    if takes(gpu, k, number):
        gpu.team.owner[k] = member
        if k < gpu.machine.sm_count:
            run_sm(gpu, k)
        else:
            serve_requests(gpu)
        add(gpu.team.done, 0, 1)


@outlined
def help_out(gpu, member, number):
    """What a member does in a round: the memory side if it leads, its own SMs, and then what others do not come to."""
    sms = gpu.machine.sm_count
    if member == 0:
        work(gpu, sms, member, number)
    for k in range(sms):
        if gpu.team.owner[k] == member:
            work(gpu, k, member, number)
    if others_are_late(gpu, number):
        for k in range(sms, -1, -1):
            work(gpu, k, member, number)


def run_all(gpu, more, members):
    """A round: every SM runs as far as it can, the memory side as well. Returns if any SM has something left."""
    busy = False
    if members == 1:
        gpu.team.round[0] += 1
        if not gpu.machine.perfect_memory:
            serve_requests(gpu)
        for n in range(gpu.machine.sm_count):
            if aim(gpu, n, more):
                run_sm(gpu, n)
    else:
        share_out(gpu, more)
    for n in range(gpu.machine.sm_count):
        busy |= gpu.sm[n].live > 0
    return busy


@outlined
def share_out(gpu, more):
    """The same by several threads."""
    m, number = gpu.machine, gpu.team.round[0] + 1
    tasks = 0 if m.perfect_memory else 1
    if m.perfect_memory:
        store(gpu.team.taken, m.sm_count, number)
    for n in range(m.sm_count):
        if aim(gpu, n, more):
            tasks += 1
        else:
            store(gpu.team.taken, n, number)
    store(gpu.team.done, 0, 0)
    store(gpu.team.round, 0, number)  # from here on what there is to do is there for all
    help_out(gpu, 0, number)
    waited = 0
    while load(gpu.team.done, 0) < tasks:
        rest(waited)
        waited += 1


def enter_sm(gpu, kernel, n, time):
    """The next thread block of a kernel goes to SM `n`."""
    launch = gpu.record.launch
    launch.next_dispatch_units += gpu.machine.dispatch_interval_units
    launch_block(context_of(gpu, n), kernel, kernel.next, time)
    launch.first, launch.clock = n + 1 if n + 1 < gpu.machine.sm_count else 0, time
    gpu.free[n] = next_dispatch(context_of(gpu, n))
    kernel.next += 1


def hand_out(gpu, handed_out):
    """Thread blocks go to SMs that can take them in this window, which then run on. Returns how many have gone there
    so far."""
    m, launch = gpu.machine, gpu.record.launch
    if m.perfect_memory and len(gpu.record.alike):
        return hand_out_alike(gpu, handed_out)
    while handed_out < len(gpu.order):
        if m.side_by_side and not choose_kernel(gpu):
            break
        kernel = gpu.record.kernels[launch.kernel]
        earliest = (launch.next_dispatch_units + UNITS_A_CYCLE - 1) // UNITS_A_CYCLE
        if m.side_by_side and kernel.cluster_blocks > 1:
            gpc = -1 if launch.changed or earliest > launch.limit else gpc_with_room(gpu, kernel)
            if gpc < 0:
                break
            since = launch.limit - window_cycles(m, 1)  # when the window began
            launch.next_dispatch_units = max(launch.next_dispatch_units, since * UNITS_A_CYCLE)
            for _ in range(kernel.cluster_blocks):
                enter_sm(gpu, kernel, emptiest(gpu, gpc), launch.limit)
            launch.gpc, handed_out = gpc + 1, handed_out + kernel.cluster_blocks
            continue
        n = first_free(gpu)
        time = gpu.free[n]
        if time > launch.limit:
            break
        if m.dispatch_interval_units and time < earliest:
            gpu.sm[n].last_dispatch = earliest - 1  # until then the SM, which has a slot free, runs on
            gpu.free[n] = next_dispatch(context_of(gpu, n))
            if aim(gpu, n, True):
                run_sm(gpu, n)
            continue
        if time > earliest:  # later than it might
            launch.next_dispatch_units = time * UNITS_A_CYCLE
        enter_sm(gpu, kernel, n, time)
        handed_out += 1
        if kernel.next < kernel.stop and aim(gpu, n, True):
            run_sm(gpu, n)
    return handed_out


def window_cycles(m, members):
    """With perfect memory SMs need not wait for each other, but those who share the work do."""
    if m.window_cycles >= NEVER and not m.side_by_side:
        alone = members == 1 and m.policy != TWO_LEVEL  # which goes through every cycle, and must see a deadlock
        return ALONE_WINDOW_CYCLES if alone else SHARED_WINDOW_CYCLES
    return min(m.window_cycles, WINDOW_CYCLES)


def is_at_rest(c, time):
    """Can nothing happen on an SM after `time` unless something comes from outside?"""
    sm = c.sm
    if sm.live and (sm.visitable or sm.wheel_used or next_fetch(sm, time) < NEVER):
        return False
    if waits_at_port(c.machine) and sm.at_port and next_collector(c, time) < NEVER:
        return False
    return sm.live == 0 or c.machine.perfect_memory or sm.memory_due >= NEVER


def is_deadlocked(gpu, more):
    """Is all that is left on the GPU, after a window, waiting for what nothing can bring? Mostly something goes on,
    so the glances come first."""
    m, time = gpu.machine, gpu.record.launch.limit
    if m.side_by_side and (is_any_coming(gpu) or gpu.record.launch.next_dispatch_units > time * UNITS_A_CYCLE):
        return False
    for n in range(m.sm_count):  # a cluster may find no room, though some SMs have some
        if more and gpu.free[n] < NEVER and (m.cluster_blocks == 1 or gpu.free[n] > time):
            return False
        if gpu.sm[n].live > 0 and gpu.sm[n].clock < NEVER and m.policy != TWO_LEVEL:
            return False
    if not (m.perfect_memory or is_all_served(gpu.shared)):
        return False
    for n in range(m.sm_count):  # noqa: SIM110 (compiled)
        if not is_at_rest(context_of(gpu, n), time):
            return False
    return True


def lead(gpu, drain, members):
    """Hand out all of `order`, and run to the end, or to the last dispatch, or until the launch is to pause: between
    two windows, from where it goes on as if nothing had been."""
    m, launch, handed_out, busy = gpu.machine, gpu.record.launch, 0, True
    if launch.limit == 0:
        begin(gpu)
        if m.perfect_memory and len(gpu.record.alike):
            follow_first(gpu)
        launch.limit = window_cycles(m, members) if m.cluster_blocks == 1 else 0  # at the end of which clusters come
        if not m.perfect_memory:
            exchange(gpu, 0)
    while (handed_out < len(gpu.order) or (drain and busy)) and launch.limit <= launch.pause:
        more = handed_out < len(gpu.order)
        busy = run_all(gpu, (more or not drain) and m.cluster_blocks == 1, members)  # clusters come between two windows
        handed_out = hand_out(gpu, handed_out)
        if (more and handed_out == len(gpu.order)) or launch.changed:  # SMs need not wait for what they waited for
            launch.changed, busy = 0, True
            continue
        if not m.perfect_memory:
            exchange(gpu, launch.limit)
        if m.side_by_side:
            deliver_arrivals(gpu, launch.limit)
            follow_kernels(gpu)
            for n in range(m.sm_count):
                release_dependents(gpu, n, launch.limit)
        due = m.perfect_memory or gpu.team.round[0] % ROUNDS_A_LOOK == 0
        more = handed_out < len(gpu.order)
        if (busy or more) and due and not launch.coupled and is_deadlocked(gpu, more):
            launch.deadlocked = 1
            break
        launch.limit += window_cycles(m, members)
    if drain and not (m.perfect_memory or busy):
        serve_requests(gpu)
        while m.posted_stores and not is_all_served(gpu.shared):
            exchange(gpu, launch.limit)
            serve_requests(gpu)
            launch.limit += window_cycles(m, members)
    if m.side_by_side:
        follow_kernels(gpu)
    launch.handed_out = handed_out
    for n in range(m.sm_count):
        store_window(gpu.record, gpu.sm[n])
    store(gpu.team.round, 0, OVER)


@outlined
def run_grid(gpu, drain, member, members):
    """Hand out the thread blocks `order` (positions in the trace), and run to the end, or to the last dispatch: one of
    `members` threads, of which the first, 0, is there until all is done, and others may come late."""
    if member:
        number = wait_for_round(gpu, 0)
        while number != OVER:
            help_out(gpu, member, number)
            number = wait_for_round(gpu, number)
    else:
        lead(gpu, drain, members)
