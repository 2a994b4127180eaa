"""The driver from Python: own kernels, several GPUs at once, and what is never done twice."""

from __future__ import annotations

import numpy as np
import pytest
from ptx_kernels import module, prepared

import abstim
from abstim.models import run_many
from abstim.session.issue_logs import hot_spots
from abstim.session.session import Session
from abstim.study.sample.ideal import _columns
from functional.errors import InputError
from functional.launches.case import Case
from functional.launches.memory import Memory
from functional.programs.dependence import signatures

SAXPY = """
.version 9.0
.target sm_75
.address_size 64
.visible .entry saxpy(.param .u64 x, .param .u64 y, .param .f32 a, .param .u32 n)
{
	.reg .pred 	%p<2>;
	.reg .f32 	%f<5>;
	.reg .b32 	%r<6>;
	.reg .b64 	%rd<8>;
	ld.param.u64 	%rd1, [x];
	ld.param.u64 	%rd2, [y];
	ld.param.f32 	%f1, [a];
	ld.param.u32 	%r1, [n];
	mov.u32 	%r2, %ctaid.x;
	mov.u32 	%r3, %ntid.x;
	mov.u32 	%r4, %tid.x;
	mad.lo.s32 	%r5, %r2, %r3, %r4;
	setp.ge.u32 	%p1, %r5, %r1;
	@%p1 bra 	$DONE;
	cvta.to.global.u64 	%rd3, %rd1;
	cvta.to.global.u64 	%rd4, %rd2;
	mul.wide.u32 	%rd5, %r5, 4;
	add.s64 	%rd6, %rd3, %rd5;
	add.s64 	%rd7, %rd4, %rd5;
	ld.global.f32 	%f2, [%rd6];
	ld.global.f32 	%f3, [%rd7];
	fma.rn.f32 	%f4, %f1, %f2, %f3;
	st.global.f32 	[%rd7], %f4;
$DONE:
	ret;
}
"""
MACRO = ["sm_count=30", "schedulers_per_sm=1", "scheduler=lrr", "max_blocks_per_sm=2", "l1d_sets=64", "const_ways=4"]


@pytest.fixture
def launch(tmp_path, monkeypatch):
    import abstim.engine.simulation  # its machine code stays in the cache of all tests

    monkeypatch.setenv("ABSTIM_CACHE", str(tmp_path / "cache"))
    path = tmp_path / "saxpy.ptx"
    path.write_text(SAXPY)
    x, y = np.arange(4000, dtype=np.float32), np.ones(4000, np.float32)
    return abstim.load(path).kernel("saxpy").launch(grid=16, block=256, args=[x, y, 2.0, 4000])


def test_own_kernel_runs_and_computes(launch):
    result = abstim.run(launch, gpu="gtx480", overrides=["sm_count=30"])
    (only,) = result.launches
    assert result.totals["cycles"] == only.cycles > 0
    assert only.registers_source in ("ptxas", "liveness estimate")
    np.testing.assert_array_equal(launch.outputs()[1], 2 * np.arange(4000) + 1)


def test_several_gpus_at_once_are_the_same_as_one_by_one(launch):
    gpus = [abstim.load_gpu("gtx480", [override]) for override in (*MACRO, "latency_cycles.fp32_mad=50")]
    together = [result.launches for result in run_many(launch, gpus)]
    assert together == [abstim.run(launch, gpu).launches for gpu in gpus]
    assert len({launches[0].cycles for launches in together}) > 2


def test_characterised_and_executed_once_for_every_macro_architecture(launch, monkeypatch):
    abstim.run(launch, "gtx480")

    def never(*_, **__):
        raise AssertionError("done again")

    monkeypatch.setattr("precharacterize.build.build_table", never)
    monkeypatch.setattr("abstim.targets.execution.execute_case", never)
    for override in MACRO:
        abstim.run(launch, "gtx480", [override])
    with pytest.raises(AssertionError, match="done again"):
        abstim.run(launch, "gtx480", ["latency_cycles.fp32_mad=50"])


def test_overrides_need_a_name(launch):
    with pytest.raises(InputError, match="overrides need a GPU by name"):
        abstim.run(launch, abstim.load_gpu("gtx480_perfect"), ["sm_count=3"])


def test_public_names_load_on_demand():
    assert all(getattr(abstim, name) for name in abstim.__all__)
    with pytest.raises(AttributeError, match="nonsense"):
        _ = abstim.nonsense


LIVE = "".join(f"ld.global.u32 %r{k}, [%rd0+{4 * k}];" for k in range(1, 40)) + "".join(
    f"st.global.u32 [%rd0+{4 * k}], %r{k};" for k in range(1, 40)
)


def test_kernels_of_one_name_have_their_own_registers():
    few, many = (prepared(body)[0] for body in ("", LIVE))
    session = Session(Case("two modules", module(""), Memory(()), (few, many)))
    own = [Session(Case("one module", module(""), Memory(()), (one,))).registers(0).count for one in (few, many)]
    assert [session.registers(k).count for k in (0, 1)] == own and own[0] < own[1]
    assert [session.first_launch_of(k) for k in (0, 1)] == [0, 1]


def test_kernels_of_one_name_have_their_own_hot_spots_and_traces():
    (few, memory), (many, _) = (prepared(body) for body in ("", LIVE))
    case = Case("two modules", module(""), memory, (few, many))
    spots = hot_spots(abstim.open_session(case), abstim.load_gpu("gtx480"))
    assert len(spots) == sum(len(one.program.instructions) for one in (few, many)) and all(x.issues == 1 for x in spots)
    first, second = signatures(case)
    assert first != second and len(_columns([few.program, many.program])[0]) == 2
