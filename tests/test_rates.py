"""Results in TFLOP/s and GB/s, and what a grid leaves idle."""

from __future__ import annotations

import json

import numpy as np
import pytest
from call_command import call

from abstim.gpu.config import load_gpu
from abstim.models import run
from abstim.session.limits import TENSOR_FLOP, block_operations, grid_notes, peaks

KERNEL = """.version 8.0
.target sm_80
.address_size 64
.visible .entry k(.param .u64 p)
{
    .reg .f32 %f<3>;
    .reg .f64 %d<2>;
    .reg .b32 %r<7>;
    .reg .b64 %rd<4>;
    ld.param.u64 %rd1, [p];
    mov.u32 %r1, %tid.x;
    mul.wide.u32 %rd2, %r1, 4;
    add.s64 %rd3, %rd1, %rd2;
    ld.global.f32 %f1, [%rd3];
    fma.rn.f32 %f1, %f1, %f1, %f1;
    add.f32 %f1, %f1, %f1;
    mul.f64 %d1, %d1, %d1;
    mov.b32 %r2, 0;
    mma.sync.aligned.m16n8k16.row.col.f16.f16.f16.f16 {%r2, %r3}, {%r2, %r2, %r2, %r2}, {%r2, %r2}, {%r2, %r2};
    st.global.f32 [%rd3], %f1;
    ret;
}
"""


FILL = """
.version 8.0
.target sm_75
.address_size 64
.visible .entry fill(.param .u64 out) {
    .reg .b32 %r<4>;
    .reg .b64 %rd<4>;
    ld.param.u64 %rd1, [out];
    mov.u32 %r1, %ctaid.x;
    mov.u32 %r2, %ntid.x;
    mov.u32 %r3, %tid.x;
    mad.lo.s32 %r1, %r1, %r2, %r3;
    mul.wide.u32 %rd2, %r1, 4;
    add.s64 %rd3, %rd1, %rd2;
    st.global.u32 [%rd3], %r1;
    ret;
}
"""


@pytest.mark.parametrize(("gpu", "kind", "value"), [
    ("gtx480", "fp32_flops", 15 * 2 * 64 * 0.7e9),  # NVIDIA: 1.345 TFLOP/s
    ("gtx480", "dram_bytes", 177.4e9),
    ("rtx3070", "dram_bytes", 448e9),
    ("v100", "tensor_flops", 125e12),
    ("a100", "fp32_flops", 19.5e12),
    ("a100", "fp64_flops", 9.7e12),
    ("a100", "tensor_flops", 312e12),
    ("h100", "tensor_flops", 132 * 4096 / 1.1 * 1.98e9),  # public: 989 TFLOP/s at 1.83 GHz; measured a tenth less
])  # fmt: skip
def test_peaks_are_the_public_ones(gpu, kind, value):
    assert peaks(load_gpu(gpu))[kind] == pytest.approx(value, rel=0.01)


def test_a_gpu_without_tensor_units_has_no_peak_of_them():
    assert "tensor_flops" not in peaks(load_gpu("gtx480"))
    assert "dram_bytes" not in peaks(load_gpu("gtx480_perfect"))
    assert "fp32_flops" not in peaks(load_gpu("gtx480", ["unit.fp32_mad=int"]))


def test_operations_of_a_block_are_counted_by_hand(tmp_path):
    from abstim.targets.loading import load

    (tmp_path / "k.ptx").write_text(KERNEL)
    program = load(str(tmp_path / "k.ptx")).kernel("k").program
    assert block_operations(program).sum(0).tolist() == [3, 1, TENSOR_FLOP // 32]  # a thread's


@pytest.mark.parametrize("model", ["detailed", "occupancy"])
def test_rates_are_work_and_traffic_over_time(model):
    (launch,) = run("relu", "gtx480", model=model).launches
    moved = launch.memory.get("dram_bytes") or launch.memory["dram_read_bytes"] + launch.memory["dram_write_bytes"]
    assert launch.rates["dram_bytes"] == pytest.approx(moved / launch.seconds)
    shares = {name: share for name, share in launch.rates.items() if name.endswith("_share")}
    assert shares and all(0 <= share <= 1 for share in shares.values())


def test_the_formula_which_knows_no_writes_says_no_rate_of_dram():
    found = run("relu", "gtx480", model="analytic")
    assert "l2_bytes" in found.rates and "dram_bytes" not in found.rates
    assert "DRAM bytes read" in " ".join(call("run", "relu", "--model", "analytic").out.split())


def test_no_kernel_writes_faster_than_the_peak(tmp_path):
    """Writes fill whole bursts of a GTX 480, reads of a sector half of one."""
    from abstim.targets.loading import load

    (tmp_path / "fill.ptx").write_text(FILL)
    data = np.zeros(2048 * 256, np.uint32)
    launch = load(str(tmp_path / "fill.ptx")).kernel("fill").launch(grid=2048, block=256, args=[data])
    (found,) = run(launch, "gtx480").launches
    assert found.rates["dram_bytes_share"] == pytest.approx(found.memory["dram_use"], rel=0.1)


def test_the_run_says_rates_and_what_its_grid_leaves_idle():
    code, out, _ = call("run", "hotspot", "--gpu", "gtx480")
    assert code == 0 and "Rates: FP32" in out and "TFLOP/s" in out and "GB/s" in out and "of the peak" in out
    assert "1.34 waves of 90 thread blocks; the last fills 34% of one" in " ".join(out.split())
    found = json.loads(call("run", "hotspot", "--json").out)["launches"][0]
    assert found["rates"]["fp32_flops_share"] == pytest.approx(found["rates"]["fp32_flops"] / 1.344e12)


def test_a_small_rate_is_said_in_small_units(tmp_path):
    one = FILL.replace("st.global.u32", "cvt.rn.f32.u32 %f1, %r1;\n    add.f32 %f1, %f1, %f1;\n    st.global.u32")
    (tmp_path / "one.ptx").write_text(one.replace(".reg .b64", ".reg .f32 %f<2>;\n    .reg .b64"))
    out = call("run", tmp_path / "one.ptx", "--grid", 1, "--block", 1, "--arg", "buf:u32:1").out
    assert "Rates: FP32" in out and "MFLOP/s" in out and "e-0" not in out


def test_a_grid_is_told_by_its_waves():
    assert grid_notes("k", 4, 1, 15) == ["k: a grid of 4 on 15 SMs: 11 of them have nothing to do"]
    assert grid_notes("k", 100, 6, 15) == ["k: 1.11 waves of 90 thread blocks; the last fills 11% of one"]
    assert not grid_notes("k", 180, 6, 15) and not grid_notes("k", 15, 1, 15)
