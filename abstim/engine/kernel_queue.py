"""Which of the kernels side by side hands out thread blocks: the one of highest priority that may begin, of several the
one that could first, until it has no more; then the next gets the room that is left (docs/timing-rules.md, rule 10)."""

from abstim.engine.clear import context_of
from abstim.engine.mbarriers import wake
from abstim.engine.room import next_dispatch
from abstim.engine.state import NEVER
from abstim.engine.warp_slots import bit
from functional.jit.marked import add, load, members, outlined, raise_to


def trigger(c, block, time):
    """A thread block lets the next kernel begin: the first of its warps that says so, or its end."""
    kernel = c.sm.block_kernel[block]
    if not c.sm.triggered & bit(block):
        c.sm.triggered |= bit(block)
        raise_to(c.record.triggered, kernel, time)
        add(c.record.untriggered, kernel, -1)


def await_primary(c, w):
    """A warp waits until the kernel has ended that let its own begin."""
    sm, primary = c.sm, c.record.kernels[c.sm.block_kernel[c.sm.warps.block_of[w]]].programmatic
    if primary >= 0:
        sm.awaiting, sm.warps.not_before[w] = sm.awaiting | bit(w), NEVER


@outlined
def release_dependents(gpu, n, time):
    """Warps of SM `n` for which it is known, after the window up to `time`, when the kernel before theirs has ended."""
    c = context_of(gpu, n)
    for w in members(c.sm.awaiting):
        end = gpu.record.kernels[gpu.record.kernels[c.sm.block_kernel[c.sm.warps.block_of[w]]].programmatic].end
        if end < NEVER:
            c.sm.awaiting &= ~bit(w)
            c.sm.warps.not_before[w] = end
            wake(c, w, time)
            c.sm.clock = min(c.sm.clock, time + 1)


def ready_of(gpu, kernel):
    """When a kernel may begin; NEVER: that is not known."""
    record, ready = gpu.record, kernel.delay_cycles
    for j in range(kernel.awaits_at, kernel.awaits_end):
        k = record.awaited[j]
        other = record.kernels[k]
        if k != kernel.programmatic:
            ready = max(ready, other.end + kernel.delay_cycles)
        elif load(record.untriggered, k) or other.ready == NEVER:
            ready = NEVER
        else:
            ready = max(ready, load(record.triggered, k), other.ready + kernel.delay_cycles)
    return min(ready, NEVER)


def end_of(gpu, k):
    """When a kernel is over: with its last thread block and its last posted store, and not before the one that let it
    begin. NEVER: that is not known."""
    m, record, kernel = gpu.machine, gpu.record, gpu.record.kernels[k]
    before = record.kernels[kernel.programmatic].end if kernel.programmatic >= 0 else 0
    if kernel.ready == NEVER or load(record.left, k) or (m.posted_stores and load(gpu.shared.posted, k)):
        return NEVER
    end = load(record.retired, k) + 1 if kernel.first_block < kernel.stop else kernel.ready
    if m.posted_stores and gpu.shared.posted_end[k]:
        end = max(end, gpu.shared.posted_end[k] + m.hit_delay + 1)
    return max(end, before)


@outlined
def follow_kernels(gpu):
    """Kernels that are over, and those that may begin after them. Those that others wait for come before them."""
    kernels = gpu.record.kernels
    for k in range(len(kernels)):
        if kernels[k].ready == NEVER:
            kernels[k].ready = ready_of(gpu, kernels[k])
        if kernels[k].end == NEVER:
            kernels[k].end = end_of(gpu, k)


@outlined
def choose_kernel(gpu):
    """Make the kernel whose turn it is in this window the launch's; false if there is none."""
    launch, kernels, best = gpu.record.launch, gpu.record.kernels, -1
    follow_kernels(gpu)
    for k in range(len(kernels)):
        kernel = kernels[k]
        if kernel.next == kernel.stop or kernel.ready > launch.limit:
            continue
        if (
            best < 0
            or kernel.priority > kernels[best].priority
            or (kernel.priority == kernels[best].priority and kernel.ready < kernels[best].ready)
        ):
            best = k
    if best != launch.kernel:
        launch.kernel, launch.changed = best, 1
        for n in range(gpu.machine.sm_count):
            gpu.free[n] = next_dispatch(context_of(gpu, n))
    return best >= 0


def is_any_coming(gpu):
    """Is it known of a kernel that it will begin?"""
    for k in range(len(gpu.record.kernels)):
        kernel = gpu.record.kernels[k]
        if kernel.next < kernel.stop and gpu.record.launch.limit < kernel.ready < NEVER:
            return True
    return False
