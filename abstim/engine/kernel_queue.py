"""Which of the kernels side by side hands out thread blocks: the one of highest priority that may begin, of several the
one that could first, until it has no more; then the next gets the room that is left (docs/timing-rules.md, rule 10)."""

from __future__ import annotations

from abstim.engine.clear import context_of
from abstim.engine.room import next_dispatch
from abstim.engine.state import NEVER
from functional.jit.marked import jit, load, outlined


@jit
def end_of(gpu, kernel):
    """When a kernel is over of which no thread block is left: with its last one, and with the acknowledgement of the
    last posted store that an SM has made until then."""
    m, last = gpu.machine, kernel.ready
    for k in range(kernel.first_block, kernel.stop):
        last = max(last, gpu.record.blocks[k].retire_cycle)
    end = last
    for n in range(m.sm_count):
        if gpu.sm[n].last_store > 0:
            end = max(end, min(last, gpu.sm[n].last_store) + m.slice_delay + m.hit_delay)
    return end + 1


@outlined
def follow_kernels(gpu):
    """Kernels that are over, and those that may begin after them. Those that others wait for come before them."""
    kernels = gpu.record.kernels
    for k in range(len(kernels)):
        kernel = kernels[k]
        if kernel.ready == NEVER:
            ready = kernel.delay_cycles
            for j in range(kernel.awaits_at, kernel.awaits_end):
                other = kernels[gpu.record.awaited[j]]
                if gpu.record.awaited[j] == kernel.programmatic:  # which lets it be launched when it begins itself
                    ready = max(ready, other.end, other.ready + kernel.delay_cycles)
                else:
                    ready = max(ready, other.end + kernel.delay_cycles)
            kernel.ready = min(ready, NEVER)
        if kernel.end == NEVER and kernel.ready < NEVER and load(gpu.record.left, k) == 0:
            kernel.end = kernel.ready if kernel.first_block == kernel.stop else end_of(gpu, kernel)


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


@jit
def is_any_coming(gpu):
    """Is it known of a kernel that it will begin?"""
    for k in range(len(gpu.record.kernels)):
        kernel = gpu.record.kernels[k]
        if kernel.next < kernel.stop and gpu.record.launch.limit < kernel.ready < NEVER:
            return True
    return False
