"""Occupancy: how many thread blocks an SM holds at once, and which of its resources says so."""

from itertools import pairwise
from math import prod

from msgspec import Struct

from abstim.gpu.spec import Spec
from functional.errors import InputError

Dim3 = tuple[int, int, int]
_UNITS = {"shared memory": "B of shared memory", "tensor memory": "columns of tensor memory"}
_TENSOR_MEMORY_COLUMNS = dict.fromkeys(("sm_100", "sm_103", "sm_110"), 512)  # PTX ISA; other architectures have none


class Occupancy(Struct, frozen=True):
    """`limiter` is threads, warps, shared memory, registers, tensor memory, blocks or grid; on a tie the first."""

    blocks_per_sm: int
    limiter: str


def demands_of(
    spec: Spec, block: Dim3, registers_per_thread: int, shared_bytes: int, tensor_memory_columns: int = 0
) -> dict[str, tuple[int, int, str]]:
    """By resource of an SM: what a thread block takes of it, what there is, and what says so. As of `occupancy`."""
    threads = -(-prod(block) // spec.warp_size) * spec.warp_size
    granularity = spec.register_allocation_granularity
    registers = threads * -(-registers_per_thread // granularity) * granularity
    shared = shared_bytes + spec.shared_bytes_kept_per_block
    columns = _TENSOR_MEMORY_COLUMNS.get(spec.architecture, 0)
    return {
        "threads": (threads, spec.max_threads_per_sm, "max_threads_per_sm"),
        "warps": (threads // spec.warp_size, spec.max_warps_per_sm, "max_warps_per_sm"),
        "shared memory": (shared, spec.shared_bytes_per_sm, "shared_bytes_per_sm"),
        "registers": (registers, spec.registers_per_sm, "registers_per_sm"),
        "tensor memory": (tensor_memory_columns, columns, f"the columns of {spec.name}"),
        "blocks": (1, spec.max_blocks_per_sm, "max_blocks_per_sm"),
    }


def occupancy(
    spec: Spec, grid: Dim3, block: Dim3, registers_per_thread: int, shared_bytes: int, tensor_memory_columns: int = 0,
    cluster_blocks: int = 1,
) -> Occupancy:  # fmt: skip
    """Thread blocks an SM of one launch.

    `shared_bytes` is static plus dynamic shared memory a thread block (CUDA may keep some beside it),
    `tensor_memory_columns` what it allocates of those: a thread block that would have to wait for them counts as
    one that is not there. Threads are padded to whole warps, registers a thread rounded up to the allocation
    granularity. A grid with fewer blocks than that on every SM is spread evenly: the limit becomes ceil(blocks /
    SMs) (GPGPU-Sim 4.2, block dispatch), or what GPCs need to hold all clusters. Raises InputError, naming the
    limit, for a thread block that one SM cannot hold."""
    demands = demands_of(spec, block, registers_per_thread, shared_bytes, tensor_memory_columns)
    for what, (needed, available, key) in demands.items():
        if needed > available:
            wanted = f"{needed:,} {_UNITS.get(what, what)}"
            raise InputError(f"a thread block needs {wanted}, more than {key} = {available:,}")
    limits = {what: available // needed for what, (needed, available, _) in demands.items() if needed}
    limits["grid"] = _evenly(spec, prod(grid), cluster_blocks)
    limiter = min(limits, key=limits.__getitem__)
    return Occupancy(limits[limiter], limiter)


_TPC_SMS = 2  # SMs come in pairs, which are dealt evenly to GPCs (NVIDIA H100 white paper)


def first_sm(sm_count: int, gpcs: int, gpc: int) -> int:
    """The first SM of a GPC, on a GPU of so many."""
    pairs = (sm_count + _TPC_SMS - 1) // _TPC_SMS
    return min(sm_count, (gpc * pairs + gpcs - 1) // gpcs * _TPC_SMS)


def _gpc_sms(spec: Spec) -> list[int]:
    starts = [first_sm(spec.sm_count, spec.gpcs, gpc) for gpc in range(spec.gpcs + 1)]
    return [stop - start for start, stop in pairwise(starts)]


def _evenly(spec: Spec, blocks: int, cluster_blocks: int) -> int:
    """Thread blocks an SM with which all have a place at once, or the most that an SM can hold. Of a GPC's SMs some may
    be too few for another cluster: its thread blocks are held elsewhere then, beside others."""
    each, sms = max(1, -(-blocks // spec.sm_count)), _gpc_sms(spec)
    clusters = -(-blocks // cluster_blocks)
    while cluster_blocks > 1 and each < spec.max_blocks_per_sm:
        if sum(each * count // cluster_blocks for count in sms if count >= cluster_blocks) >= clusters:
            break
        each += 1
    return each


def check_cluster(spec: Spec, cluster_blocks: int) -> None:
    """Raises InputError for a cluster of more thread blocks than any GPC has SMs."""
    most = max(_gpc_sms(spec))
    if cluster_blocks > most:
        raise InputError(f"a cluster has {cluster_blocks} thread blocks, each for an SM of one GPC, which has {most}")
