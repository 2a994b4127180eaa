"""What the engine cannot time, said before it starts: it would wait for ever for a unit that is not there, and its
records have room for so much and no more."""

from __future__ import annotations

from abstim.engine.state import COLLECTORS, L1D_LINE, L2_LINE, PORT_WIDTH, SCHEDULERS, SLOTS, UNITS, Tags
from abstim.gpu.config import Gpu
from abstim.gpu.spec import Spec
from functional.errors import InputError
from functional.execution.computer import memory_bytes
from precharacterize import LatencyTable
from precharacterize.table import UNITS as KIND_NAMES

_TAG_BYTES = 24  # of a line: its tag, its last use, when it is there
_WHOLE_LINE_BYTES = 8 * len(Tags._fields)
LIMITS = {
    "max_warps_per_sm": SLOTS, "max_blocks_per_sm": SLOTS, "schedulers_per_sm": SCHEDULERS,
    "shared_collectors": COLLECTORS,
    **{f"{kind}_port_width": PORT_WIDTH for kind in KIND_NAMES},
    **{f"{kind}_collectors": COLLECTORS for kind in ("sp", "sfu", "mem")},
}  # fmt: skip


def refuse_unsupported(gpu: Gpu, table: LatencyTable, warps_per_block: int, blocks_per_sm: int) -> None:
    """Raises InputError, one line, for a GPU that cannot run the program of `table`, or is too large for the engine;
    or for more resident warps than the SM has slots."""
    spec = gpu.spec
    if (needed := cache_bytes(spec)) > (there := memory_bytes()):
        raise InputError(
            f"{spec.name}: not enough memory: its caches take {needed / 2**30:.3g} GiB of this computer's "
            f"{there / 2**30:.3g} GiB"
        )
    for name, most in LIMITS.items():
        if getattr(spec, name) > most:
            raise InputError(f"{spec.name}: {name} = {getattr(spec, name)}; the engine knows {most} at most")
    count = {kind: getattr(spec, f"{'lsu' if kind == 'mem' else kind}_units") for kind in KIND_NAMES}
    if sum(count.values()) > UNITS:
        raise InputError(f"{spec.name}: {sum(count.values())} execution units; the engine knows {UNITS} an SM at most")
    for number in sorted(set(table.unit.tolist())):  # `np.unique` would load masked arrays
        kind = KIND_NAMES[number]
        sharers = spec.schedulers_per_sm if spec.sub_cores and kind != "mem" else 1
        if count[kind] < sharers:
            missing = f"{count[kind]} for {sharers} sub-cores" if count[kind] else "none"
            raise InputError(
                f"{spec.name}: the program needs {kind} units, and the SM has {missing}; set {kind}_units, or [unit]"
            )
    if warps_per_block * blocks_per_sm > spec.max_warps_per_sm:
        raise InputError(
            f"{spec.name}: {blocks_per_sm} thread blocks of {warps_per_block} warps do not fit into "
            f"max_warps_per_sm = {spec.max_warps_per_sm}"
        )


def cache_bytes(spec: Spec) -> int:
    """What the engine holds of the caches' lines, by far the most of its state; L2 only if memory is not perfect."""
    tags = sum(getattr(spec, f"{cache}_sets") * getattr(spec, f"{cache}_ways") for cache in ("l1i", "const", "l1t"))
    l1d = spec.l1d_sets * spec.l1d_ways * (_TAG_BYTES + L1D_LINE.itemsize)
    slices = 0 if spec.perfect_memory else spec.dram_channels * spec.l2_slices_per_channel
    l2 = slices * spec.l2_sets * spec.l2_ways * (_TAG_BYTES + L2_LINE.itemsize)
    return spec.sm_count * (tags * _WHOLE_LINE_BYTES + l1d) + l2
