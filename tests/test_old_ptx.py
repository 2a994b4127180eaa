"""PTX as people and older compilers write it, and `ptxas` takes: both executors, parsed as a whole and by function."""

from __future__ import annotations

import numpy as np
import pytest
from oracle.array_executor import ArrayExecutor

from functional.errors import PtxError
from functional.launches.launch import Pointer, make_launch
from functional.launches.memory import Memory
from functional.llvm_executor import LlvmExecutor
from functional.programs.link import link
from functional.ptx.parser import open_bytes, parse, parse_bytes

HEAD = ".version 8.0\n.target sm_80\n.address_size 64\n"
BEGIN = (
    ".visible .entry k(.param .u64 p) { .reg .b32 %r<6>; .reg .b64 %rd<2>; .reg .pred %q;\n"
    "ld.param.u64 %rd1, [p]; ld.global.u32 %r1, [%rd1]; "
)
END = " st.global.u32 [%rd1], %r2; ret; }\n"
PROTOTYPE = (
    ".func (.param .b32 r) f(.param .b32 a)\n"
    + BEGIN
    + "{ .param .b32 a0; .param .b32 r0; st.param.b32 [a0], %r1; call (r0), f, (a0); ld.param.b32 %r2, [r0]; }"
    + END
    + ".func (.param .b32 r) f(.param .b32 a) { .reg .b32 %r<3>; ld.param.b32 %r1, [a]; add.u32 %r2, %r1, 5;\n"
    "st.param.b32 [r], %r2; ret; }\n"
)
# `ret` under a predicate, one that goes without saying, a loop to a label before a `ret`; called three times
IN_REGISTERS = (
    ".func (.reg .u32 r) f(.reg .u32 a, .reg .u32 b) { .reg .pred q; mov.u32 r, 1; setp.eq.u32 q, a, 0; @q ret;\n"
    "L: add.u32 r, r, b; sub.u32 a, a, 1; setp.ne.u32 q, a, 0; @q bra L; }\n"
    + BEGIN
    + "mov.u32 %r3, 7; call (%r2), f, (%r1, %r3); mov.u32 %r4, 0; call (%r5), f, (%r4, %r3);\n"
    "add.u32 %r2, %r2, %r5; setp.eq.u32 %q, %r1, 0; @%q call (%r2), f, (%r1, %r3);" + END
)
TWO_RETURNED = (
    ".func (.reg .u32 r, .reg .u32 s) f(.reg .u32 a) { add.u32 r, a, 1; add.u32 s, a, 2; ret; }\n"
    + BEGIN
    + "call (%r2, %r3), f, (%r1); mad.lo.u32 %r2, %r2, 100, %r3;"
    + END
)
VECTORS = (
    BEGIN + ".reg .v4 .u32 v; .reg .v2 .u32 w<2>; ld.global.v4.u32 v, [%rd1]; ld.global.v2.u32 w1, [%rd1+8];\n"
    "add.u32 %r2, v.x, v.g; add.u32 v.z, v.z, v.a; add.u32 %r2, %r2, v.b; mad.lo.u32 %r2, w1.y, 1000, %r2;\n"
    "st.global.v4.u32 [%rd1], v;" + END
)
VECTORS_AND_TRUTH = (
    ".func (.reg .v2 .u32 r, .reg .pred t) f(.reg .v4 .u32 a, .reg .pred q) { mov.u32 r.x, a.w; mov.u32 r.y, a.y;\n"
    "not.pred t, q; ret; }\n" + BEGIN + ".reg .v4 .u32 v; .reg .v2 .u32 w; .reg .pred %t; ld.global.v4.u32 v, [%rd1];\n"
    "mov.v4.u32 v, {v.y, v.z, v.w, v.x};\n"
    "setp.eq.u32 %q, %r1, 10; call (w, %t), f, (v, %q); mad.lo.u32 %r2, w.x, 100, w.y; @%t mov.u32 %r2, 0;" + END
)
NO_SPACE = (
    ".global .u32 g = 4; .const .u32 c = 6; .shared .u32 s;\n"
    + BEGIN
    + ".local .u32 l[4]; st.u32 [l+8], %r1; st.volatile.u32 [s], %r1; ld.u32 %r2, [l+8];\n"
    "ld.u32 %r3, [g];\n"
    + "mad.lo.u32 %r2, %r2, 10, %r3; ld.u32 %r3, [c]; mad.lo.u32 %r2, %r2, 10, %r3; ld.u32 %r3, [s];\n"
    "add.u32 %r2, %r2, %r3; atom.add.u32 %r3, [g], 1; add.u32 %r2, %r2, %r3;" + END
)
VIDEO = (
    BEGIN
    + "mov.u32 %r3, 0x80000000; vshr.u32.u32.u32.clamp.add %r2, %r3, 35, %r1; vadd.s32.s32.s32.sat %r4, %r3, -5;\n"
    "vmin.s32.s32.u32.max %r5, %r4, %r1, %r1; add.u32 %r2, %r2, %r5; shr.u32 %r4, %r4, 31; add.u32 %r2, %r2, %r4;" + END
)
NAMED_TEXTURE = ".global .texref t;\n.global .samplerref s;\n" + BEGIN + "mov.u32 %r2, 9;" + END
CASES = {
    "prototype": (PROTOTYPE, 15),
    "in registers": (IN_REGISTERS, 1 + 10 * 7 + 1),
    "two returned": (TWO_RETURNED, 11 * 100 + 12),
    "vectors": (VECTORS, 46 + 13_000),
    "vectors and truth": (VECTORS_AND_TRUTH, 10 * 100 + 12),
    "no space": (NO_SPACE, 1046 + 10 + 4),
    "video": (VIDEO, 10 + 10 + 1),
    "texture by name": (NAMED_TEXTURE, 9),
}


@pytest.mark.parametrize("executor", [ArrayExecutor, LlvmExecutor])
@pytest.mark.parametrize("opened", [parse_bytes, open_bytes])
@pytest.mark.parametrize("name", CASES)
def test_what_it_computes(name, opened, executor):
    text, expected = CASES[name]
    module = opened((HEAD + text).encode() + b"\0", "old.ptx")
    memory = Memory(module.variables)
    memory.allocate("p", 64, np.arange(10, 26, dtype=np.uint32))
    executor().run(make_launch(link(module, "k"), 1, 1, [Pointer("p")], memory), memory)
    assert memory.read("p", np.uint32)[0] == expected


@pytest.mark.parametrize("executor", [ArrayExecutor, LlvmExecutor])
def test_addresses_of_32_bits(executor):
    text = HEAD.replace("64", "32") + (
        ".shared .u32 s; .visible .entry k(.param .u32 p) { .reg .b32 %r<9>;\n"
        "ld.param.u32 %r0, [p]; cvta.to.global.u32 %r1, %r0; ld.global.u32 %r2, [%r1+8]; mov.u32 %r3, s;\n"
        "cvta.shared.u32 %r4, %r3; st.u32 [%r4], %r2; ld.shared.u32 %r5, [s]; add.u32 %r0, %r0, 4;\n"
        "st.u32 [%r0+-4], %r5; ret; }"
    )
    module = parse_bytes(text.encode(), "old.ptx")
    memory = Memory(module.variables)
    memory.allocate("p", 64, np.arange(10, 26, dtype=np.uint32))
    executor().run(make_launch(link(module, "k"), 1, 1, [Pointer("p")], memory), memory)
    assert memory.read("p", np.uint32)[0] == 12


WRONG = [
    ("call (%r2), f, (%r1, 3);", "a literal as an argument is not supported"),
    (".reg .v2 .u32 v; .reg .v2 .u32 v;", "'v' is declared twice"),
    (".reg .v2 .u32 v; mov.u32 %r2, v.z;", "'v.z' is not declared"),
    (".reg .v8 .u32 v;", "too many registers in 'v'"),
]


@pytest.mark.parametrize("statement,message", WRONG)
def test_what_is_wrong_is_said(statement, message):
    function = ".func (.reg .u32 r) f(.reg .u32 a, .reg .u32 b) { add.u32 r, a, b; ret; }\n"
    with pytest.raises(PtxError, match=message):
        parse(HEAD + function + BEGIN + statement + END)
