"""Design points as floats, which the analytic model can be differentiated by, and random ones around a GPU."""

from collections import namedtuple
from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from abstim.gpu.config import Gpu, load_gpu
from abstim.gpu.spec import ALUS, INSTRUCTION_CLASSES, POLICIES

CLASSES = len(INSTRUCTION_CLASSES)


# A GPU in floats. Names and units are those of `Spec` and `Params`; flags are 1 or 0. Of the first three there is one a
# class of instructions; `on_unit` [alu, class] is 1 where the class runs on this kind of unit (ALUS); `scheduler` is 1
# where warps take turns
_NUMBERS = (
    "perfect_memory", "sm_count", "core_clock_hz", "max_threads_per_sm", "max_warps_per_sm", "max_blocks_per_sm",
    "registers_per_sm", "register_allocation_granularity", "shared_bytes_per_sm",
    "shared_bytes_kept_per_block", "schedulers_per_sm", "sp_units",
    "sfu_units", "int_units", "dp_units", "tensor_units", "lsu_units", "perfect_instruction_cache",
    "perfect_constant_cache", "fetches_per_cycle", "sp_port_width", "sfu_port_width", "int_port_width",
    "dp_port_width", "tensor_port_width", "mem_port_width", "result_bus_width", "l1d_sets", "l1d_ways",
    "l2_sets", "l2_ways", "l2_slices_per_channel", "dram_channels",
    "crossbar_repeats", "crossbar_output_queues", "flit_bytes", "packet_header_bytes", "shared_latency_cycles",
    "l1d_latency_cycles", "const_latency_cycles", "l1_miss_extra_cycles", "atomic_latency_cycles",
    "l1i_miss_extra_cycles", "l2_request_cycles", "l2_reply_cycles", "l2_sector_cycles", "l2_atomic_cycles",
    "dram_latency_cycles", "dram_reply_cycles", "dram_activate_cycles", "dram_sector_cycles", "dram_burst_cycles",
    "dram_banks", "dram_row_bytes", "dram_queue", "dram_row_to_row_cycles", "dram_row_cycle_cycles",
    "launch_latency_cycles",
)  # fmt: skip
POINT = np.dtype([
    ("latency_cycles", "f8", CLASSES), ("initiation_cycles", "f8", CLASSES), ("on_unit", "f8", (len(ALUS), CLASSES)),
    *((name, "f8") for name in ("scheduler", *_NUMBERS)),
])  # fmt: skip
Point = namedtuple("Point", list(POINT.names or ()))  # type: ignore[misc]  # the same as arrays, for JAX


def points_of(gpus: Sequence[Gpu]) -> np.ndarray:
    """GPUs as POINTs."""
    return np.frombuffer(bytearray().join(map(_point_of, gpus)), POINT)


@lru_cache(1024)
def _point_of(gpu: Gpu) -> bytes:
    operations, spec, params = map(gpu.pipeline.operation, INSTRUCTION_CLASSES), gpu.spec, gpu.params
    latencies, held, units = zip(*((o.latency_cycles, o.initiation_cycles, o.unit) for o in operations), strict=True)
    numbers = (getattr(spec if hasattr(spec, name) else params, name) for name in _NUMBERS)
    on_unit = [[own == unit for own in units] for unit in ALUS]
    return np.array((latencies, held, on_unit, POLICIES[spec.scheduler].in_turn, *numbers), POINT).tobytes()


# Each key is drawn evenly from its values, independently of the others. Sizes go in powers of two, rates and latencies
# from about half to twice those of the base.
CHOICES: dict[str, tuple[float, ...]] = {
    "sm_count": (4, 6, 8, 11, 15, 20, 28, 40, 56), "schedulers_per_sm": (1, 2, 4), "max_warps_per_sm": (32, 48, 64),
    "max_blocks_per_sm": (4, 8, 16, 32), "registers_per_sm": (32768, 65536), "shared_bytes_per_sm": (49152, 98304),
    "sfu_units": (1, 2, 4), "l1d_sets": (8, 16, 32, 64, 128, 256), "l1d_ways": (2, 4, 8),
    "l1d_latency_cycles": (20, 28, 35, 50, 70), "l2_sets": (8, 16, 32, 64, 128, 256), "l2_ways": (4, 8, 16),
    "l2_slices_per_channel": (1, 2, 4), "l2_request_cycles": (64, 90, 128, 180, 256),
    "l2_sector_cycles": (0.5, 1, 1.625, 3), "dram_channels": (2, 3, 4, 6, 8, 12, 16, 24),
    "dram_latency_cycles": (57, 80, 113, 160, 226), "dram_sector_cycles": (0.75, 1.0, 1.515, 2, 3),
}  # fmt: skip
# These change the latency table, so that only a few combinations of them are drawn and each point takes one.
PIPELINE_CHOICES: dict[str, tuple[float, ...]] = {
    "shared_latency_cycles": (13, 20, 26, 40, 52), "latency_cycles.int_add": (2, 4, 8),
    "latency_cycles.int_mad": (3, 5, 10), "latency_cycles.fp32_add": (2, 4, 8), "latency_cycles.fp32_mad": (3, 5, 10),
    "latency_cycles.other": (1, 2, 4), "initiation_cycles.sfu": (2, 4, 8, 16),
}  # fmt: skip
PIPELINES = 12


def random_points(count: int, seed: int = 0, base: str = "gtx480") -> list[Gpu]:
    """`count` GPUs with real memory; the same for the same seed."""
    generator = np.random.default_rng(seed)
    pipelines = [_draw(generator, PIPELINE_CHOICES) for _ in range(PIPELINES)]
    points = []
    for _ in range(count):
        own = _draw(generator, CHOICES)
        warps = next(int(o.partition("=")[2]) for o in own if o.startswith("max_warps_per_sm"))
        same = [f"max_threads_per_sm={32 * warps}", "perfect_memory=false"]
        points.append(load_gpu(base, [*same, *own, *pipelines[generator.integers(PIPELINES)]]))
    return points


def _draw(generator: np.random.Generator, choices: dict[str, tuple[float, ...]]) -> list[str]:
    return [f"{key}={values[generator.integers(len(values))]:g}" for key, values in choices.items()]
