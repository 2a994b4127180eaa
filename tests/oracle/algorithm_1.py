"""GATSim, Algorithm 1 ("Kernel timing computation"), line by line.

Abstracted as published: one thread block at a time on an SM, one scheduler, and the pre-characterised issue-to-issue
latency d_{b,i} alone. FUFree() is always true and no instruction is special: the caller adds what those cover.
"""

from __future__ import annotations

from abstim.engine import LaunchInputs


def algorithm_1(inputs: LaunchInputs, sm_count: int, policy: str) -> int:
    """Cycles of a launch whose thread blocks are dealt to the SMs in turn. `policy` is "lrr" or "oldest"."""
    table, trace = inputs.table, inputs.trace
    width, blocks = trace.warps_per_block, len(trace.thread_blocks)
    sequences = [
        trace.blocks[trace.block_offsets[w] : trace.block_offsets[w + 1]].tolist() for w in range(width * blocks)
    ]
    total = []
    for s in range(sm_count):  # line 1
        sm_cycles, last = 0, -1  # 2
        for tb in range(s, blocks, sm_count):  # 3
            lane = [0] * width  # 4
            counter: list[tuple[int, int] | None] = [(0, 0)] * width  # 5
            while any(pc is not None or left for pc, left in zip(counter, lane, strict=True)):  # 6
                ready = [p for p in range(width) if lane[p] == 0 and counter[p] is not None]  # 7
                if ready:  # 8
                    p = schedule_warp(ready, last, policy)  # 9
                    last = p
                    sequence = sequences[tb * width + p]
                    bc, ic = counter[p]  # 10
                    start, stop = int(table.block_start[sequence[bc]]), int(table.block_stop[sequence[bc]])
                    lane[p] = int(table.gap_cycles[start + ic])  # 14
                    counter[p] = (bc, ic + 1)  # 16
                    if start + ic + 1 >= stop:  # 17
                        counter[p] = (bc + 1, 0) if bc + 1 < len(sequence) else None  # 18, 19
                    elapsed = 1  # 21
                else:
                    elapsed = min(left for left in lane if left)  # 23
                sm_cycles += elapsed  # 25
                lane = [max(0, left - elapsed) for left in lane]  # 26
        total.append(sm_cycles)
    return max(total)  # 30


def schedule_warp(ready: list[int], last: int, policy: str) -> int:
    """Oldest first: the lowest ready warp. Loose round robin: the next ready one after the last issued."""
    if policy == "lrr":
        return next((p for p in ready if p > last), ready[0])
    return ready[0]
