"""Compiled code with every index checked: `python tests/check_indices.py`, some minutes.

In compiled code no index counts from an array's end; a negative one would be memory before the array. Here each index
that is negative or beyond its dimension stops the process (SIGILL): of the detailed engine on the suite's kernels of
many kinds and on all GPUs, two launches each, and of the other models. Prints what it has been through.
"""

from __future__ import annotations

import os
import sys
import tempfile

KERNELS = (
    "nn_euclid", "kmeans_invert_mapping", "btree_find_k", "histogram_atomics", "relu", "transpose", "hotspot",
    "micro_atomics", "micro_local_spill", "spmv_csr", "bfs",
)  # fmt: skip


def main(names: list[str]) -> None:
    """Each kernel on each GPU, a log kept, caches kept from launch to launch; then by the other models."""
    import abstim
    from abstim.engine import Caches, Simulation, design_point
    from abstim.gpu.config import gpu_names, load_gpu
    from abstim.session.session import open_session
    from functional.errors import InputError
    from functional.jit.machine_code import Native

    load = Native._load
    Native._load = lambda own, name, known, *more: load(own, name, known._replace(checked=True), *more)
    known_of = design_point.known_of
    design_point.known_of = lambda *given: known_of(*given)._replace(checked=True)
    for name in names or KERNELS:
        session = open_session(name)
        for gpu in (load_gpu(each, []) for each in gpu_names()):
            caches = Caches()
            for k in range(min(2, len(session.case.launches))):
                try:
                    inputs, blocks = session.inputs(k, gpu), session.blocks_per_sm(k, gpu)
                    launch = Simulation(inputs, gpu, blocks, caches=caches, windows=1 << 14)
                except InputError as error:  # a program the GPU cannot run
                    print(name, gpu.spec.name, error)
                    continue
                order = range(len(inputs.trace.thread_blocks))
                launch.run(order, drain=True, log_rows=1 << 12)
                launch.leave(caches)
                print(name, gpu.spec.name, launch.result().cycles, flush=True)
        for model in ("occupancy", "analytic"):
            for gpu in gpu_names():
                print(name, gpu, model, abstim.run(name, gpu=gpu, model=model).totals["cycles"], flush=True)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as cache:  # what is kept is known by its sources, which are those of the other
        os.environ["ABSTIM_CACHE"] = cache
        main(sys.argv[1:])
