"""Tag stores and the response path of one SM, perfect memory behind them (MODEL.md rules 4 and 6)."""

from __future__ import annotations

from numba import njit

from abstim.engine.compiled.layout import (
    CONST_ACCESSES,
    CONST_MISSES,
    FETCH_RING,
    L1D_ACCESSES,
    L1D_MISSES,
    L1I_ACCESSES,
    L1I_MISSES,
    RESPONSE_FREE,
    STAMP,
)


@njit(cache=True)
def find(tag, first, ways, line):
    """Position of `line` among the ways from `first`, or -1."""
    for k in range(first, first + ways):
        if tag[k] == line:
            return k
    return -1


@njit(cache=True)
def victim(used, first, ways):
    """Least recently used way."""
    best = first
    for k in range(first + 1, first + ways):
        if used[k] < used[best]:
            best = k
    return best


@njit(cache=True)
def respond(sm, time):
    """A response enters the one-a-cycle FIFO at `time`; returns the cycle it comes out."""
    out = max(time, sm.now[RESPONSE_FREE])
    sm.now[RESPONSE_FREE] = out + 1
    return out


@njit(cache=True)
def first_free(fetch, time):
    """Book the first fetch slot at or after `time`."""
    while fetch[time % FETCH_RING] == time:
        time += 1
    fetch[time % FETCH_RING] = time
    return time


@njit(cache=True)
def fetch_at(sm, m, time, pc):
    """Book a fetch of `pc` requested at `time`; returns the cycle it is granted. An L1I miss takes a second slot."""
    granted = first_free(sm.fetch, time)
    line = pc // m.l1i[2]
    first = (line % m.l1i[0]) * m.l1i[1]
    k = find(sm.l1i_tag, first, m.l1i[1], line)
    sm.counters[L1I_ACCESSES] += 1
    if k < 0:
        sm.counters[L1I_MISSES] += 1
        k = victim(sm.l1i_used, first, m.l1i[1])
        sm.l1i_tag[k] = line
        granted = first_free(sm.fetch, granted + m.l1i_miss_cycles)
    sm.now[STAMP] += 1
    sm.l1i_used[k] = sm.now[STAMP]
    return granted


@njit(cache=True)
def const_line(sm, m, line, time):
    """Result cycle of one constant-cache line looked up at `time` (its hit result would be `time`)."""
    first = (line % m.const[0]) * m.const[1]
    k = find(sm.const_tag, first, m.const[1], line)
    sm.counters[CONST_ACCESSES] += 1
    done = time
    if k < 0:
        sm.counters[CONST_MISSES] += 1
        k = victim(sm.const_used, first, m.const[1])
        done = respond(sm, time + m.miss_cycles)
        sm.const_tag[k] = line
        sm.const_fill[k] = done
    elif sm.const_fill[k] > time:
        done = sm.const_fill[k]
    sm.now[STAMP] += 1
    sm.const_used[k] = sm.now[STAMP]
    return done


@njit(cache=True)
def l1d_set(m, line):
    """Set of an L1D line: linear, or the hash of Nugteren et al. (HPCA 2014) that the reference uses."""
    if m.l1d[2]:
        upper = ((line >> 6) & 7) | (((line >> 10) & 1) << 3) | (((line >> 12) & 1) << 4)
        index = (line & 31) ^ upper
        if m.l1d[0] == 64:
            index |= ((line >> 5) & 1) << 5
        return index % m.l1d[0]
    return line % m.l1d[0]


@njit(cache=True)
def l1d_load(sm, m, line, time):
    """Result cycle of one load transaction whose hit result would be at `time`. Allocates on a miss."""
    first = l1d_set(m, line) * m.l1d[1]
    k = find(sm.l1d_tag, first, m.l1d[1], line)
    sm.counters[L1D_ACCESSES] += 1
    done = time
    if k < 0:
        sm.counters[L1D_MISSES] += 1
        k = victim(sm.l1d_used, first, m.l1d[1])
        done = respond(sm, time + m.miss_cycles)
        sm.l1d_tag[k] = line
        sm.l1d_fill[k] = done
    elif sm.l1d_fill[k] > time:
        sm.counters[L1D_MISSES] += 1  # hit on a pending line: the reference counts it so
        done = sm.l1d_fill[k]
    sm.now[STAMP] += 1
    sm.l1d_used[k] = sm.now[STAMP]
    return done


@njit(cache=True)
def l1d_store(sm, m, line, time):
    """Acknowledgement of one global store transaction: a hit evicts, a miss does not allocate, both go on to L2."""
    first = l1d_set(m, line) * m.l1d[1]
    k = find(sm.l1d_tag, first, m.l1d[1], line)
    sm.counters[L1D_ACCESSES] += 1
    if k < 0:
        sm.counters[L1D_MISSES] += 1
    else:
        sm.l1d_tag[k] = -1
        sm.l1d_used[k] = 0
    return respond(sm, time + m.miss_cycles)


@njit(cache=True)
def l1d_local_store(sm, m, line, time):
    """One local store transaction: write-back, allocated on a miss."""
    return l1d_load(sm, m, line, time)
