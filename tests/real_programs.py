"""Random programs with real memory, on the engine and on its oracle.

`python tests/real_programs.py COUNT [FIRST]` compares so many, with the settings of all GPUs in turn, and says which of
them differ, by the number that makes each again; then the exit code is 1. Seconds of processor time each.
"""

from __future__ import annotations

import sys

import numpy as np
import oracle
from random_launches import Launch, as_machine_code, simulate, table_of, trace_of

from abstim.engine import LaunchInputs
from abstim.gpu.config import Gpu, changed, gpu_names, load_gpu

# So few that queues, ways and miss registers run out, and lines leave with what was written of them
SCARCE_BELOW = {
    "l2_sets": 4, "l2_ways": 2, "l2_mshrs": 6, "l2_miss_queue": 3, "l2_queue": 8, "dram_queue": 4,
    "crossbar_queue_flits": 6,
}  # fmt: skip
SCARCE_IN_SM = {
    "l1d_sets": 2, "l1d_ways": 2, "l1d_mshrs": 3, "l1d_miss_queue": 2, "l1d_mshr_merges": 2, "l1i_sets": 1,
    "l1i_ways": 2, "l1i_mshrs": 1, "const_sets": 1, "const_ways": 2, "const_mshrs": 1, "l1t_sets": 1, "l1t_ways": 2,
    "inject_queue_flits": 4,
}  # fmt: skip
WRITES = ({"l1d_write": "back"}, {"l1d_write": "through"}, {"l1d_write": "evict"}, {})


def real_gpu(rng: np.random.Generator, name: str) -> Gpu:
    """A GPU of `configs/` with real memory, on few SMs and channels; half of them scarce in this or that."""
    changes: dict[str, object] = {"perfect_memory": False, "sm_count": int(rng.integers(1, 4)), "dram_channels": 2}
    changes |= SCARCE_BELOW if rng.random() < 0.5 else {}
    if rng.random() < 0.5:
        changes |= {key: value for key, value in SCARCE_IN_SM.items() if rng.random() < 0.6}
    changes["l1d_dense_banks"] = int(rng.choice([n for n in (0, 1, 2) if n <= load_gpu(name).spec.l1d_banks]))
    changes["retry_cycles"] = int(rng.choice([0, 7]))
    changes["l1i_prefetch_lines"] = int(rng.choice([0, 1, 3]))
    if load_gpu(name).spec.shared_collectors:
        widths = ("sp_port_width", "int_port_width", "mem_port_width", "shared_collectors")
        changes |= {key: int(rng.choice([4, 8, 16])) for key in widths if rng.random() < 0.5}
    changes["l2_fp64_atomic_cycles"] = float(rng.choice([0, 0.5, 3]))
    changes["shared_bytes_per_cycle"] = int(rng.choice([32, 64, 128, 128]))
    if rng.random() < 0.2:
        changes |= WRITES[rng.integers(len(WRITES))] | {"l1d_write_allocate": bool(rng.random() < 0.5)}
    return changed(load_gpu(name), changes, name)


def of_hardware(rng: np.random.Generator) -> dict[str, object]:
    """Values of keys that the reference's GPUs do without."""
    return {
        "barrier_cycles": int(rng.choice([0, 12])), "barrier_warp_cycles": int(rng.choice([0, 2])),
        "const_access_cycles": int(rng.choice([1, 2])), "const_address_cycles": int(rng.choice([0, 0, 2, 3])),
        "l2_write_cycles": float(rng.choice([0, 0, 0.7, 1.3, 3])), "l2_dirty_ways": int(rng.choice([0, 0, 1, 3])),
        "fence_cycles": int(rng.choice([0, 0, 500])), "l2_fetch_bytes": int(rng.choice([32, 64])),
    }  # fmt: skip


def real_launch(
    seed: int, name: str, most_warps: int = 2, most_blocks: int = 4, machine: bool = False, hardware: bool = True
) -> Launch:
    """Launch number `seed` on a variation of GPU `name`; `machine`: its code is mostly machine code; `hardware`: keys
    of hardware are varied, too, drawn apart, lest a new one changes which launch a seed is."""
    rng = np.random.default_rng(seed)
    gpu = real_gpu(rng, name)
    gpu = changed(gpu, of_hardware(rng.spawn(1)[0]), name) if hardware else gpu
    mix, lengths = str(rng.choice(["alu", "memory", "any"])), rng.integers(1, 6, rng.integers(2, 5)).tolist()
    table = table_of(rng, lengths, mix, gpu.spec)
    table = as_machine_code(np.random.default_rng(seed), table) if machine else table
    warps, blocks = int(rng.integers(1, most_warps + 1)), int(rng.integers(1, most_blocks + 1))
    trace = trace_of(rng, table, warps, blocks, int(rng.integers(0, 2)), int(rng.integers(0, 3)))
    blocks_per_sm = int(rng.integers(1, 1 + min(8, gpu.spec.max_warps_per_sm // warps)))
    shared_bytes = int(rng.integers(0, 1 + gpu.spec.shared_bytes_per_sm // blocks_per_sm))
    return Launch(LaunchInputs(table, trace, shared_bytes), gpu, blocks_per_sm)


def differences(launch: Launch) -> dict[str, tuple]:
    """What the engine and the rules say otherwise of a launch: (engine, rules) by name."""
    engine = simulate(launch.inputs, [launch.gpu], [launch.blocks_per_sm], threads=1)[0]
    rules = oracle.simulate(launch.inputs, launch.gpu, launch.blocks_per_sm)
    counters = dict.fromkeys(engine.counters, 0) | rules.counters
    both = {
        "cycles of each SM": (engine.sm_cycles.tolist(), rules.sm_cycles),
        "cycles with an issue": (engine.issue_slots[:, 0].tolist(), rules.issued),
        "cycles of resident warps": (engine.resident_warp_cycles.tolist(), rules.resident_warp_cycles),
        **{name: (count, counters[name]) for name, count in engine.counters.items()},
    }
    return {name: pair for name, pair in both.items() if pair[0] != pair[1]}


def main(count: int, first: int = 0) -> int:
    names, found = gpu_names(), 0
    for seed in range(first, first + count):
        name = names[seed % len(names)]
        if different := differences(real_launch(seed, name, 4, 8, machine=seed % 2 == 1)):
            found += 1
            print(f"{name}, launch {seed}: {different}", flush=True)
        elif seed % 10 == 9:
            print(f"{seed + 1 - first} launches, {found} of them different", flush=True)
    print(f"{count} launches, {found} of them different")
    return min(found, 1)


if __name__ == "__main__":
    sys.exit(main(*map(int, sys.argv[1:])))
