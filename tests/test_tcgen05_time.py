"""How long `tcgen05` takes: products by their extents, a commit that is waited for, tensor memory and occupancy."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from ptx_kernels import module
from tcgen05_kernels import COMMIT, COMMIT_PAIR, SHARED_BYTES, descriptor_of, pair_text_of, text_of
from test_tcgen05 import described
from test_tcgen05_scaled import described as block_scaled

from abstim.gpu.config import load_gpu
from abstim.gpu.occupancy import occupancy
from abstim.models import run
from abstim.session.session import open_session
from functional.accelsim.write import write
from functional.errors import InputError, PtxError
from functional.launches.case import Case
from functional.launches.launch import Pointer, Scalar, make_launch
from functional.launches.memory import Memory
from functional.programs.link import link
from precharacterize.build import build_table
from precharacterize.tensor_work import bound, columns_of, unknown_descriptors

GOOD = descriptor_of(0, (128, 256), 0)
START = f"mov.b64 %m0, {GOOD}; mov.b64 %m1, {GOOD}; setp.eq.u32 %p4, %r0, %r0;"
SS = "@%p1 tcgen05.mma.cta_group::1.kind::{kind} [%r6], %m0, %m1, %r12, !%p4;"
TS = "@%p1 tcgen05.mma.cta_group::1.kind::{kind} [%r6], [%r6], %m1, %r12, !%p4;"


def program(body: str, columns: int = 32):
    return link(module(text_of(START + body, columns, False, False)), "k")


def held(body: str, what: str = "mma") -> list[int]:
    """Cycles that each such instruction holds its unit on a B200."""
    linked = program(body, 256)
    table = build_table(linked, load_gpu("b200").pipeline)
    return [
        int(table.initiation_cycles[i.index])
        for i in linked.instructions
        if i.opcode == "tcgen05" and i.modifiers[0] == what
    ]


@pytest.mark.parametrize(
    ("rows", "columns", "kind", "types", "form", "cycles"),
    [
        (128, 256, "f16", "f16", SS, 128),  # 128 x 256 x 16 at 4,096 products a cycle
        (128, 256, "f8f6f4", "e4m3", SS, 128),  # twice as deep, at twice the rate
        (128, 64, "f16", "f16", SS, 48),  # 32 of products; 192 rows of 32 B at 128 B a cycle
        (128, 64, "f16", "f16", TS, 32),
        (64, 256, "f16", "f16", SS, 128),
    ],
)
def test_a_product_holds_the_unit_as_long_as_its_products_or_its_operands_take(
    rows, columns, kind, types, form, cycles
):
    body = f"mov.b32 %r12, {described('f32', types, types, rows, columns)};" + form.format(kind=kind)
    assert held(body) == [cycles]


@pytest.mark.parametrize("kind,packed", [("mxf8f6f4", False), ("mxf4", True)])
def test_a_block_scaled_product_holds_it_as_long_as_one_without_scales(kind, packed):
    word = block_scaled("e2m1", "e2m1", 256, packed=packed)
    form = SS.format(kind=f"{kind}.block_scale").replace("%r12,", "%r12, [%r6], [%r6],")
    assert held(f"mov.b32 %r12, {word};" + form) == [128]  # of 128 x 256 x 32; x 64 at twice the rate


PAIR = SS.replace("cta_group::1", "cta_group::2")
SPARSE = SS.replace("mma.", "mma.sp.").replace("%m1,", "%m1, [%r6],")
STATIONARY = SS.replace("mma.", "mma.ws.")


@pytest.mark.parametrize(
    ("rows", "columns", "kind", "types", "form", "bits", "cycles"),
    [
        (256, 256, "f16", "f16", PAIR, 0, 128),  # each SM its 128 rows of all columns
        (256, 64, "f16", "f16", PAIR, 0, 40),  # 160 rows of 32 B from each shared memory
        (128, 256, "f16", "f16", PAIR, 0, 64),  # 64 rows, in all lanes: half of the columns beside the other half
        (128, 256, "f16", "f16", SPARSE, 4, 160),  # twice as deep in the same time: 128 rows of 32 B, 256 of 64 B
        (128, 64, "i8", "s8", SPARSE, 4, 64),
        (32, 256, "f16", "f16", STATIONARY, 0, 72),  # a quarter of the columns beside another; 288 rows of 32 B
    ],
)
def test_pairs_sparse_and_stationary_products(rows, columns, kind, types, form, bits, cycles):
    d = "s32" if kind == "i8" else "f32"
    body = f"mov.b32 %r12, {described(d, types, types, rows, columns, bits)};" + form.format(kind=kind)
    assert held(body) == [cycles]


def test_copies_and_moves():
    assert held("@%p1 tcgen05.cp.cta_group::1.128x256b [%r6], %m0;", "cp") == [32]  # 4 KiB
    assert held("tcgen05.ld.sync.aligned.16x128b.x2.b32 {%d0, %d1, %d2, %d3}, [%r9];", "ld") == [4]


def test_the_descriptor_is_a_constant_or_a_parameter_or_the_time_is_not_known():
    word = described("f32", "f16", "f16", 128, 256)
    kernel = text_of(START + "{}" + SS.format(kind="f16"), 256, False, False)
    kernel = kernel.replace(".param .u64 o)", ".param .u64 o, .param .u32 w)")
    loaded = link(module(kernel.replace("{}", "ld.param.u32 %r11, [w]; or.b32 %r12, %r11, 0;")), "k")
    pipeline = load_gpu("b200").pipeline
    with pytest.raises(PtxError, match="its time is not known"):
        build_table(loaded, pipeline)
    parameters = bytes(24) + word.to_bytes(4, "little")
    known = bound(loaded, unknown_descriptors(loaded), parameters)
    (product,) = [i.index for i in known.instructions if i.opcode == "tcgen05" and i.modifiers[0] == "mma"]
    assert build_table(known, pipeline).initiation_cycles[product] == 128
    shared = link(module(kernel.replace("{}", "ld.shared.u32 %r12, [s];")), "k")
    assert not bound(shared, unknown_descriptors(shared), parameters).constants


def test_launches_whose_descriptors_differ_are_not_alike():
    """As a parameter, of which the trace says nothing."""
    text = text_of(START + "ld.param.u32 %r12, [w];" + SS.format(kind="f16") * 8 + COMMIT, 256, False, False)
    whole, memory = case(1, 256), case(1, 256).memory
    parsed = module(text.replace(".param .u64 o)", ".param .u64 o, .param .u32 w)"))
    words = [described("f32", "f16", "f16", 128, columns) for columns in (256, 64, 256)]
    arguments = [[*(Pointer(name) for name in "ico"), Scalar("u32", word)] for word in words]
    launches = tuple(make_launch(link(parsed, "k"), 1, 128, own, memory) for own in arguments)
    session = open_session(replace(whole, module=parsed, launches=launches))
    first, narrow, again = (launch.cycles for launch in run(session, "b200", ["timed_code=ptx"]).launches)
    assert first == again > narrow
    assert [session.first_alike(k, session.traces.trace(0)) for k in range(3)] == [0, 1, 0]


def case(products: int, columns: int) -> Case:
    word = described("f32", "f16", "f16", 128, 256)
    body = START + f"mov.b32 %r12, {word};" + SS.format(kind="f16") * products + COMMIT
    parsed, memory = module(text_of(body, columns, False, False)), Memory()
    memory.allocate("i", SHARED_BYTES, np.zeros(SHARED_BYTES, np.uint8))
    for name in "co":
        memory.allocate(name, 64)
    launch = make_launch(link(parsed, "k"), 1, 128, [Pointer(n) for n in "ico"], memory)
    return Case("products", parsed, memory, (launch,))


def test_who_waits_for_a_commit_waits_for_the_products():
    found = [run(case(n, 256), "b200", ["timed_code=ptx"]).launches[0].cycles for n in (4, 36)]
    assert 32 * 128 <= found[1] - found[0] <= 32 * 128 + 200


def pair_case(products: int) -> Case:
    word = described("f32", "f16", "f16", 256, 256)
    body = START + f"mov.b32 %r12, {word};" + PAIR.format(kind="f16") * products + COMMIT_PAIR
    parsed, memory = module(pair_text_of(body, 256, 0, False, False)), Memory()
    for name in "ico":
        memory.allocate(name, 2 * SHARED_BYTES)
    launch = make_launch(link(parsed, "k"), 2, 128, [Pointer(n) for n in "ico"], memory)
    return Case("products", parsed, memory, (launch,))


def test_who_waits_for_a_commit_of_a_pair_waits_for_the_products():
    """With as many products the block that asked for them is the last to end."""
    found = [run(pair_case(n), "b200", ["timed_code=ptx"]).launches[0].cycles for n in (20, 52)]
    assert 32 * 128 <= found[1] - found[0] <= 32 * 128 + 200


def test_tensor_memory_limits_occupancy():
    spec = load_gpu("b200").spec
    found = [occupancy(spec, (10_000, 1, 1), (128, 1, 1), 32, 0, columns) for columns in (0, 128, 256, 512)]
    assert [f.blocks_per_sm for f in found[1:]] == [4, 2, 1] and found[0].blocks_per_sm == 16
    assert found[2].limiter == "tensor memory"
    assert columns_of(program("", 64)) == 64
    with pytest.raises(InputError, match="columns of tensor memory, more than the columns of h100 = 0"):
        run(case(1, 256), "h100")


@pytest.mark.parametrize("model", ["analytic", "occupancy"])
def test_models_that_do_not_wait_refuse(model):
    with pytest.raises(InputError, match=f"the model '{model}' knows nothing of tcgen05"):
        run(case(1, 256), "b200", ["timed_code=ptx"], model=model)


def test_traces_of_accel_sim_are_refused(tmp_path):
    with pytest.raises(InputError, match="kernel 'k' uses tcgen05"):
        write(case(1, 256), tmp_path / "traces", lambda instruction, in_entry: "NOP")
