"""The detailed engine with every index checked: `python tests/check_indices.py`, some minutes.

The engine is compiled so that no index counts from an array's end (`indexed_from_zero`); a negative one would be memory
before the array. Here each index that is negative or beyond its dimension stops the process (SIGILL), on the suite's
kernels of many kinds and on all GPUs, two launches each. Prints what it has been through.
"""

from __future__ import annotations

import os
import sys
import tempfile
from typing import Any

KERNELS = (
    "nn_euclid", "kmeans_invert_mapping", "btree_find_k", "histogram_atomics", "relu", "transpose", "hotspot",
    "micro_atomics", "micro_local_spill", "spmv_csr", "bfs",
)  # fmt: skip


def trapping(context: Any, builder: Any, kind: Any, index: Any, size: Any) -> Any:
    """In place of `compile.as_it_is`."""
    import numba
    from llvmlite import ir
    from numba.core import cgutils

    index = context.cast(builder, index, kind, numba.types.intp)
    with builder.if_then(builder.icmp_unsigned(">=", index, size), likely=False):
        stop = ir.FunctionType(ir.VoidType(), [])
        builder.call(cgutils.get_or_insert_function(builder.module, stop, "llvm.trap"), [])
    return index


def main(names: list[str]) -> None:
    """Each kernel on each GPU, a log kept, caches kept from launch to launch."""
    from abstim.engine import Caches, Simulation
    from abstim.gpu.config import gpu_names, load_gpu
    from abstim.session.session import open_session
    from functional.errors import InputError
    from functional.jit import compile as compiler
    from functional.jit import machine_code

    compiler.as_it_is = trapping
    machine_code._start = lambda *_: None  # another process would not trap
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


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as cache:  # what is kept is known by its sources, which are those of the other
        os.environ["ABSTIM_CACHE"] = cache
        main(sys.argv[1:])
