"""Random GPUs of perfect memory: variations of the GTX 480, the GPUs of `configs/`, and mixtures of their settings."""

from __future__ import annotations

from dataclasses import fields, replace
from functools import cache

from hypothesis import strategies as st

from abstim.gpu.config import Gpu, changed, gpu_names, load_gpu
from abstim.gpu.spec import POLICIES, Params, Spec

KINDS_OF_UNITS = ("sp", "sfu", "int", "dp", "tensor")
# Beside what the GPUs of `configs/` have: what none of them uses
MORE = {
    "schedulers_per_sm": (2,),
    "scheduler": tuple(POLICIES),
    "two_level_active_warps": (1, 2),
    "fetches_per_cycle": (2,),
    "instructions_per_fetch": (1, 3),
    "register_file_ports": (4,),
    "result_bus_width": (1,),
    "l1i_line_bytes": (32,),
    "const_line_bytes": (128,),
    "l1d_index": ("ipoly",),
    "l1d_write": ("evict", "back"),
    "l1d_replacement": ("fifo",),
    "l1d_latency_cycles": (1,),
    "const_latency_cycles": (5,),
    "l1_miss_extra_cycles": (0, 60),
    "l1i_miss_extra_cycles": (0, 9),
    "atomic_latency_cycles": (0,),
    "dispatch_interval_cycles": (0.5, 7.25),
    "shared_bytes_per_cycle": (32, 64),
    "load_store_lanes": (8, 16),
}
# Caches that fill up
SMALL = {
    "l1i_sets": (1, 2),
    "l1i_ways": (1, 2),
    "const_sets": (1, 2),
    "l1d_sets": (1, 2),
    "l1d_ways": (2, 3, 4),
    "l1t_sets": (1, 2),
    "l1t_ways": (1, 2),
}


@cache
def loaded(name: str) -> Gpu:
    """A GPU of `configs/`, read once."""
    return load_gpu(name)


@st.composite
def gpus(draw: st.DrawFn, policies: tuple[str, ...] = tuple(POLICIES)) -> Gpu:
    """A small variation of the GTX 480: counts, policy, ports, caches and latencies (rules 1 to 10)."""
    gpu = loaded("gtx480_perfect")
    widths = {f"{port}_port_width": draw(st.integers(1, 3)) for port in ("sp", "sfu", "mem")}
    collectors = {
        f"{port}_collectors": widths[f"{port}_port_width"] + draw(st.integers(0, 4)) for port in ("sp", "sfu", "mem")
    }
    spec = replace(
        gpu.spec,
        sm_count=draw(st.integers(1, 4)),
        schedulers_per_sm=draw(st.integers(1, 4)),
        scheduler=draw(st.sampled_from(policies)),
        two_level_active_warps=draw(st.integers(1, 6)),
        max_warps_per_sm=draw(st.sampled_from([8, 24, 48])),
        sp_units=draw(st.integers(1, 3)),
        sfu_units=draw(st.integers(1, 2)),
        result_bus_width=draw(st.integers(1, 3)),
        register_banks=draw(st.sampled_from([1, 4, 16, 64])),
        l1i_sets=draw(st.sampled_from([1, 4])),
        l1i_ways=draw(st.sampled_from([1, 4])),
        const_sets=draw(st.sampled_from([1, 64])),
        const_line_bytes=draw(st.sampled_from([64, 128])),
        l1d_sets=draw(st.sampled_from([1, 32])),
        l1d_ways=draw(st.sampled_from([1, 4])),
        l1d_index=draw(st.sampled_from(["hash", "linear"])),
        coalescing=draw(st.sampled_from(["fermi", "sector", "line"])),
        **widths,
        **collectors,
    )
    params = replace(
        gpu.params,
        l1d_latency_cycles=draw(st.sampled_from([1, 35, 90])),
        l1_miss_extra_cycles=draw(st.sampled_from([0, 4, 60])),
        l1i_miss_extra_cycles=draw(st.sampled_from([0, 1, 9])),
        launch_latency_cycles=draw(st.sampled_from([0, 100])),
    )
    pipeline = replace(
        gpu.pipeline,
        shared_cycles=draw(st.sampled_from([3, 28])),
        const_hit_cycles=draw(st.sampled_from([1, 5])),
        register_banks=spec.register_banks,
        instructions_per_fetch=draw(st.integers(1, 4)),
        fetch_line_instructions=draw(st.sampled_from([1, 4, 16])),
    )
    return Gpu(spec, params, pipeline)


@st.composite
def configured(draw: st.DrawFn, name: str) -> Gpu:
    """A GPU of `configs/` with its own settings, on fewer SMs and with perfect memory."""
    gpu = loaded(name)
    return replace(gpu, spec=replace(gpu.spec, perfect_memory=True, sm_count=draw(st.integers(1, 3))))


@cache
def values(key: str) -> list:
    """What `Spec` or `Params` has under `key` on any GPU of `configs/`, the GTX 480's first, and what MORE adds."""
    found = [loaded(name).settings[key].value for name in ("gtx480", *gpu_names())]
    return list(dict.fromkeys([*found, *MORE.get(key, ())]))


@st.composite
def mixtures(draw: st.DrawFn, policies: tuple[str, ...] = tuple(POLICIES)) -> Gpu:
    """Each setting is some GPU's, or one of MORE or SMALL; where two exclude each other, the later one gives way."""
    keys = [f.name for cls in (Spec, Params) for f in fields(cls) if f.name != "name"]
    choices = {key: values(key) for key in keys} | (SMALL if draw(st.booleans(), label="small caches") else {})
    chosen = {key: draw(st.sampled_from(choices[key]), label=key) for key in keys}
    chosen |= {
        "perfect_memory": True,
        "sm_count": draw(st.integers(1, 3)),
        "scheduler": draw(st.sampled_from(policies)),
        "timed_code": "ptx",  # the engine gets a table; which code it was made of does not reach it
    }
    groups = chosen["schedulers_per_sm"] if chosen["sub_cores"] else 1
    chosen["shared_collectors"] = groups * draw(st.integers(0, 3))
    for kind in KINDS_OF_UNITS:
        fewest = 1 if kind in ("sp", "sfu") else 0
        chosen[f"{kind}_units"] = groups * draw(st.integers(fewest, 2))
    for kind in (*KINDS_OF_UNITS, "mem"):
        chosen[f"{kind}_port_width"] = groups * draw(st.integers(1, 2))
    for port in ("sp", "sfu", "mem"):
        chosen[f"{port}_collectors"] = chosen[f"{port}_port_width"] + groups * draw(st.integers(0, 4))
    chosen["l1d_banks"] = chosen["l1d_banks"] if chosen["l1d_sectored"] else 1
    chosen["l1d_dense_banks"] = draw(st.sampled_from([n for n in (0, 1, 2) if n <= chosen["l1d_banks"]]))
    return changed(loaded("gtx480"), chosen, "mixture")  # refuses what contradicts itself
