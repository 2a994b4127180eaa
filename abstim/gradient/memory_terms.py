"""Results: how long after its start an instruction's result came, in terms of the parameters."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from abstim.engine.simulation import Simulation
from abstim.engine.state import MEM
from abstim.gpu.config import Gpu
from abstim.gpu.spec import INSTRUCTION_CLASSES
from abstim.gradient.event_network import Edges, NetworkBuilder, maybe
from abstim.gradient.events import NONE, Issues
from abstim.gradient.parameter_vector import FAMILIES, INDEX, path_term, values_of
from precharacterize.classify import Kind
from precharacterize.table import WRITE_BACK_CYCLES

if TYPE_CHECKING:
    from jaxtyping import Int64

FETCH, CONST, LOAD, STORE, ATOMIC = range(len(FAMILIES))
FAMILY_OF = {
    Kind.PARAM_LOAD: CONST, Kind.CONST_LOAD: CONST, Kind.GLOBAL_LOAD: LOAD, Kind.GLOBAL_STORE: STORE,
    Kind.GLOBAL_ATOMIC: ATOMIC,
}  # fmt: skip
ENTRY_CYCLES = np.array([0, 0, 1, 1, 0])  # of a family: into the delay in front of the tags
LONGEST_HIT_CYCLES = 32  # a hit that takes longer waits for a line on its way
ROUNDED_CYCLES = 2  # the engine rounds service times down
RESPONSE, L2, DRAM = 0, 1, 2  # servers
WINDOW_CYCLES = 256  # over which a server's load is looked at
FIRST_LATENCY = 1 + INDEX[f"latency_cycles.{INSTRUCTION_CLASSES[0]}"]
SHARED = 1 + INDEX["shared_latency_cycles"]


def result_edges(issues: Issues, launch: Simulation, gpu: Gpu, latency_class, build: NetworkBuilder, at) -> list[Edges]:
    """From the start on the unit by the latencies on the way; and, where that leaves a wait in a queue, from the result
    before in the same queue."""
    alu = launch.inputs.table.unit[issues.instruction] != MEM
    term = np.where(alu, FIRST_LATENCY + latency_class[issues.instruction], 0)
    shared = (issues.kind >= Kind.SHARED_LOAD) & (issues.kind <= Kind.SHARED_ATOMIC)
    taken = issues.result - issues.start
    term[shared & (taken > build.base_terms[SHARED])] = SHARED
    constant = np.where(alu, WRITE_BACK_CYCLES, 0)
    queued = np.zeros(len(term), bool)
    family = np.full(len(term), NONE)
    for kind, number in FAMILY_OF.items():
        family[issues.kind == kind] = number
    through = np.flatnonzero((family >= 0) & (taken > 1))
    level = _levels(issues, through, family[through], gpu, build)
    term[through] = path_term(family[through], level)
    constant[through] = ENTRY_CYCLES[family[through]]
    rest = taken - constant - build.base_terms[term]
    queued[through] = rest[through] > np.where(level == 0, LONGEST_HIT_CYCLES, 0)
    constant = np.minimum(constant, taken - build.base_terms[term])  # the engine rounds service times down
    first = Edges(at.start + np.arange(len(term)), constant, term)
    chain = _queue(issues, through, level, queued[through], rest[through], gpu, at)
    wait = np.full(len(term), NONE), np.zeros(len(term)), np.zeros(len(term), np.int64), np.ones(len(term))
    for whole, part in zip(wait, chain, strict=True):
        whole[through] = part
    return [first, Edges(wait[0], wait[1], wait[2], wait[3])]


def _levels(issues: Issues, k: Int64[np.ndarray, " access"], family, gpu: Gpu, build: NetworkBuilder):
    """The last of LEVELS each access asked; never one that takes longer than it took."""
    misses = {name: counts[k] for name, counts in issues.misses.items()}
    if gpu.spec.perfect_memory:
        missed = (family == ATOMIC) | (family == STORE) | (family == CONST) | (misses["l1d_misses"] > 0)
        level = missed.astype(np.int64)
    else:
        level = (misses["l2_accesses"] > 0).astype(np.int64)
        read = (misses["dram_reads"] > 0) & (family != STORE)
        level = np.where(read & (level > 0), 3, level)
    taken = issues.result[k] - issues.start[k] - ENTRY_CYCLES[family]
    for highest in (3, 2, 1):
        too_long = build.base_terms[path_term(family, level)] > taken + ROUNDED_CYCLES
        level = np.where((level == highest) & too_long, highest - 1, level)
    return level


def fetch_term(unexplained, fetched, gpu: Gpu, build: NetworkBuilder) -> Int64[np.ndarray, " issue"]:
    """The term of a fetch whose wait nothing else explains and an instruction line from L2 or DRAM does."""
    if gpu.spec.perfect_memory:
        return np.zeros(len(unexplained), np.int64)
    term = np.zeros(len(unexplained), np.int64)
    for level in (1, 2, 3):
        way = path_term(FETCH, level)
        term[fetched & (unexplained > build.base_terms[way] - ROUNDED_CYCLES)] = way
    return term


def _queue(issues: Issues, k, level, queued, rest, gpu: Gpu, at):
    """(parent, constant, term, scale) of the edge from the result before in the queue an access waited in.

    Between two results of a busy server lies service, in proportion to its service time. An SM's response path, and a
    line on its way, are the SM's own; DRAM and L2 are queues of all SMs.
    """
    result, sm = issues.result[k], issues.sm[k]
    server = _busiest(issues, k, level, gpu)
    parent, gap = np.full(len(k), NONE), np.zeros(len(k))
    for number, reaches in ((RESPONSE, level >= 0), (L2, level >= 1), (DRAM, level >= 2)):
        before, distance = _before(result, np.where(reaches, 0, -1 - np.arange(len(k))) if number else sm)
        mine = server == number
        parent[mine], gap[mine] = before[mine], distance[mine]
    there = queued & (parent >= 0) & (gap <= rest)
    name = np.where(server == DRAM, INDEX["dram_sector_cycles"], _slice_service(issues, k))
    service = values_of(gpu)[name]
    fixed = (server == RESPONSE) | (service <= 0)
    scale = np.where(fixed, 1.0, gap / np.where(fixed, 1.0, service))
    parent = maybe(there, at.result + k[parent])
    return parent, np.where(fixed, gap, 0.0), np.where(fixed, 0, 1 + name), scale


def _slice_service(issues: Issues, k) -> Int64[np.ndarray, " access"]:
    """The parameter that says how long an L2 slice serves a sector of each access."""
    atomic = issues.kind[k] == Kind.GLOBAL_ATOMIC
    return np.where(atomic, INDEX["l2_atomic_cycles"], INDEX["l2_sector_cycles"])


def _busiest(issues: Issues, k, level, gpu: Gpu) -> Int64[np.ndarray, " access"]:
    """The server with most to do, of those an access came by, in the cycles before its result."""
    spec, params, result = gpu.spec, gpu.params, issues.result[k]
    asked, read = issues.misses["l2_accesses"][k], np.where(level >= 2, issues.misses["dram_reads"][k], 0)
    if spec.perfect_memory:
        return np.full(len(k), RESPONSE)
    everyone = np.zeros(len(k), np.int64)
    in_slices = asked * values_of(gpu)[_slice_service(issues, k)]
    beyond = np.where(level >= 2, params.dram_latency_cycles + params.dram_reply_cycles, params.l2_reply_cycles)
    served = np.maximum(result - beyond, 0)
    load = np.stack([
        _recent(result, issues.sm[k], asked),
        _recent(served, everyone, in_slices) / (spec.dram_channels * spec.l2_slices_per_channel),
        _recent(served, everyone, read) * params.dram_sector_cycles / spec.dram_channels,
    ])  # fmt: skip
    load[L2, level < 1], load[DRAM, level < 2] = -1, -1
    return load.argmax(0)


def _recent(result, group, amount):
    """Sum of `amount` over the accesses of the same group whose result came in the WINDOW_CYCLES up to each result."""
    key = group * (int(result.max(initial=0)) + 2 * WINDOW_CYCLES) + WINDOW_CYCLES + result
    order = np.argsort(key, kind="stable")
    total = np.concatenate([[0], np.cumsum(amount[order])])
    upto = np.searchsorted(key[order], key, "right")
    return total[upto] - total[np.searchsorted(key[order], key - WINDOW_CYCLES, "right")]


def _before(result, group):
    """The access whose result came just before in the same group, and how many cycles before; NONE: none."""
    order = np.lexsort((result, group))
    found = np.full(len(result), NONE)
    same = group[order[1:]] == group[order[:-1]]
    found[order[1:]] = np.where(same, order[:-1], NONE)
    return found, np.where(found >= 0, result - result[found], 0)
