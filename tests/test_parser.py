"""The PTX parser and linker: structure of what they give, and one clear error for everything else."""

from __future__ import annotations

import math
import struct

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from functional import suite
from functional.errors import InputError, PtxError
from functional.programs.link import link
from functional.ptx.ir import Address, Guard, Immediate, Register, Special, Symbol, Vector
from functional.ptx.parser import parse, parse_bytes

HEAD = ".version 9.0\n.target sm_80\n.address_size 64\n"
OPEN = ".visible .entry k(.param .u64 k_param_0, .param .f32 k_param_1)\n{\n"
REGISTERS = ".reg .b32 %r<9>; .reg .b64 %rd<9>; .reg .f32 %f<9>; .reg .pred %p<9>;\n"


def body(text: str):
    """Instructions of a kernel with this body."""
    return parse(f"{HEAD}{OPEN}{REGISTERS}{text}\nret;\n}}\n").kernels["k"].instructions


def r(number: int) -> Register:
    return Register(f"%r{number}", "b32")


def test_every_suite_kernel_parses_and_links():
    kernels = 0
    for name in suite.names():
        module = parse(suite.ptx_path(name))
        assert set(suite.registers(name)) == {k for k, kernel in module.kernels.items() if kernel.is_entry}
        for kernel in module.kernels:
            program = link(module, kernel)
            assert [i.index for i in program.instructions] == list(range(len(program.instructions)))
            covered = [i for b in program.blocks for i in range(b.start, b.stop)]
            assert covered == list(range(len(program.instructions)))
            assert all(program.block_of(i) == b.index for b in program.blocks for i in range(b.start, b.stop))
            kernels += 1
    assert kernels == 105


def test_structure_of_a_suite_kernel():
    module = parse(suite.ptx_path("bfs"))
    assert (module.version, module.target, module.address_size) == ("9.0", "sm_75", 64)
    assert len(module.digest) == 64
    expand, update = module.kernels["bfs_expand"], module.kernels["bfs_update"]
    assert [p.offset for p in expand.parameters] == [0, 8, 16, 24, 32, 40, 48]
    assert (expand.parameters[6].type, expand.parameters[6].bytes) == ("u32", 4)
    assert expand.pc_base == 0 and update.pc_base == len(expand.instructions) == 119
    first = expand.instructions[0]
    assert first.name == "ld.param.u64" and first.space == "param" and first.type == "u64" and first.is_memory
    assert first.sources == (Address(Symbol("bfs_expand_param_0")),)
    assert link(module, "bfs_update").pcs[0] == 119


def test_operands():
    i = body("mad.lo.s32 %r1, %r2, -3, 0x10U;")[0]
    assert i.destinations == (r(1),) and i.sources == (r(2), Immediate(-3), Immediate(16))
    assert body("mov.u32 %r1, %tid.x;")[0].sources == (Special("%tid.x"),)
    assert body("mov.u32 %r1, WARP_SZ;")[0].sources == (Special("WARP_SZ"),)
    assert [x.value for x in body("add.s32 %r1, 017, 0b101;")[0].sources] == [15, 5]
    assert body("st.global.u32 [%rd1+-4], %r1;")[0].sources == (Address(Register("%rd1", "b64"), -4), r(1))
    assert body("ld.global.u32 %r1, [%rd1-4];")[0].sources == (Address(Register("%rd1", "b64"), -4),)
    assert body("ld.shared.u32 %r1, [-4];")[0].sources == (Address(None, -4),)
    assert body("ld.global.v4.u32 {%r1,%r2,_,%r4}, [%rd1];")[0].destinations == (Vector((r(1), r(2), None, r(4))),)
    pair = body("shfl.sync.down.b32 %r1|%p1, %r2, 1, 31, -1;")[0]
    assert pair.destinations == (r(1), Register("%p1", "pred")) and len(pair.sources) == 4
    assert body("atom.global.add.u32 _, [%rd1], 1;")[0].destinations == (None,)
    setp = body("setp.lt.and.s32 %p1|%p2, %r1, %r2, !%p3;")[0]
    assert setp.negated_sources == {2} and len(setp.destinations) == 2
    assert body("tex.2d.v4.f32.f32 {%f1,%f2,%f3,%f4}, [%rd1, {%f5,%f6}];")[0].sources[1] == Vector(
        (Register("%f5", "f32"), Register("%f6", "f32"))
    )


def test_floating_literals():
    values = [s.value for s in body("fma.rn.f32 %f1, 0f3F000000, -1.5, 0d3FE0000000000000;")[0].sources]
    assert values == [0.5, -1.5, 0.5]
    nan = body("mov.f32 %f1, 0f7FC00001;")[0].sources[0].value
    assert math.isnan(nan) and struct.pack(">f", nan).hex() == "7fc00001"


def test_guards_labels_and_branches():
    code = body("L: @!%p1 bra L;\n@%p2 bra.uni M;\n@ %p3 ret;\nM:")
    assert code[0].guard == Guard(Register("%p1", "pred"), True) and code[0].target == 0
    assert code[1].target == 3 and code[1].modifiers == ("uni",)
    assert code[2].guard == Guard(Register("%p3", "pred"), False)
    table = body("ts: .branchtargets A, B;\nbrx.idx %r1, ts;\nA: add.s32 %r1, %r1, 1;\nB:")
    assert table[0].targets == (1, 2) and table[0].sources == (r(1),)


def test_a_label_may_stand_at_the_end_of_a_body():
    kernel = parse(f"{HEAD}.entry k() {{ .reg .pred %p; @%p bra E; ret; E: }}\n").kernels["k"]
    assert [i.opcode for i in kernel.instructions] == ["bra", "ret", "ret"] and kernel.instructions[0].target == 2


def test_nested_scopes_make_names_unique():
    code = body(
        "{ .reg .u32 t; mov.u32 t, 1; { .reg .f32 t; mov.f32 t, 1.0; bra L; L: } add.u32 %r1, t, t; }\n"
        "{ .reg .u64 t; mov.u64 t, 2; bra L; L: }"
    )
    registers = [i.destinations[0] for i in code if i.opcode == "mov"]
    assert len({x.name for x in registers}) == 3 and [x.type for x in registers] == ["u32", "f32", "u64"]
    assert code[3].sources == (registers[0], registers[0])
    assert [i.target for i in code if i.opcode == "bra"] == [3, 6]


def test_module_variables():
    module = parse(
        HEAD
        + ".const .align 4 .b8 c[8] = {1, 2, 0xff};\n.global .f32 f[2][2] = {{1.0, 2.0}, {0f40400000}};\n"
        + ".global .u64 p[2] = {generic(c)+4, f};\n.extern .shared .align 16 .b8 dyn[];\n"
        + ".global .align 2 .u16 s = (1 << 4) | 3 * 2;\n.global .v4 .f32 v[3];\n"
        + ".global .b8 q[9] = {7,0xFF(f),0xFF00(f),"
        + "0xFF0000(f),0xFF000000(f),0xFF00000000(f),0xFF0000000000(f),0xFF000000000000(f),0xFF00000000000000(f)};\n"
        + ".global .b32 open[] = {1, 2, 3};\n.visible .global .attribute(.managed) .align 4 .u32 m;\n"
    )
    v = {x.name: x for x in module.variables}
    assert v["c"].initialiser == bytes([1, 2, 255, 0, 0, 0, 0, 0]) and v["c"].space == "const" and v["c"].align == 4
    assert v["f"].initialiser == struct.pack("<4f", 1, 2, 3, 0)
    assert v["p"].relocations == ((0, Symbol("c", 4, generic=True)), (8, Symbol("f")))
    assert v["dyn"].external and v["dyn"].bytes == 0 and v["dyn"].align == 16
    assert v["s"].initialiser == struct.pack("<H", 22)
    assert (v["v"].bytes, v["v"].align) == (48, 16)
    assert v["q"].relocations == ((1, Symbol("f")),) and v["q"].initialiser[0] == 7
    assert v["open"].bytes == 12 and v["m"].bytes == 4


FUNCTIONS = (
    HEAD
    + ".func (.param .b32 func_retval0) twice(.param .b32 twice_param_0)\n{\n.reg .b32 %r<3>;\n"
    + "ld.param.u32 %r1, [twice_param_0];\nadd.u32 %r2, %r1, %r1;\nst.param.b32 [func_retval0], %r2;\nret;\n}\n"
    + ".func unused() { ret; }\n.extern .func missing();\n"
    + ".visible .entry k(.param .u32 k_param_0) .maxntid 64, 1, 1 .minnctapersm 2\n{\n.reg .b32 %r<3>;\n"
    + "ld.param.u32 %r1, [k_param_0];\n"
    + "{ .param .b32 param0; st.param.b32 [param0], %r1; .param .b32 retval0;\n"
    + "call.uni (retval0), twice, (param0);\nld.param.b32 %r2, [retval0]; }\nret;\n}\n"
    + ".visible .entry bad() { call missing, (); ret; }\n"
)


def test_calls_are_linked():
    module = parse(FUNCTIONS)
    program = link(module, "k")
    call = next(i for i in program.instructions if i.opcode == "call")
    assert program.callee_entry == {call.index: 5} and call.destinations == (Symbol("retval0'1"),)
    assert program.function_of == ("k",) * 5 + ("twice",) * 4
    assert program.function_parameters["twice"][0][0].name == "twice:twice_param_0"
    assert program.instructions[5].sources == (Address(Symbol("twice:twice_param_0")),)
    assert program.instructions[5].destinations == (Register("twice:%r1", "b32"),)
    assert program.directives == {"maxntid": (64, 1, 1), "minnctapersm": (2,), "address_size": (64,)}
    assert program.pcs == (5, 6, 7, 8, 9, 0, 1, 2, 3)
    block = program.blocks[program.block_of(call.index)]
    assert block.stop == call.index + 1 and block.successors == (block.index + 1,)


def test_link_errors():
    module = parse(FUNCTIONS)
    with pytest.raises(PtxError, match=r":23: 'bad' calls 'missing', which has no body"):
        link(module, "bad")
    with pytest.raises(InputError, match="no kernel 'kk'; did you mean 'k'"):
        link(module, "kk")
    with pytest.raises(InputError, match="no kernel 'twice'"):
        link(module, "twice")
    loop = parse(f"{HEAD}.func f();\n.func g() {{ call f, (); ret; }}\n.func f() {{ call g, (); ret; }}\n"
                 ".entry k() { call f, (); ret; }\n")  # fmt: skip
    program = link(loop, "k")
    assert program.recursive and set(program.functions) == {"f", "g"}
    indirect = parse(f"{HEAD}.entry k() {{ .reg .b64 %rd<2>;\n call %rd1, (); ret; }}\n")
    assert link(indirect, "k").functions == {}  # no function whose address is taken: nothing it could call


def test_shared_variables_of_other_kernels_are_left_out():
    module = parse(
        f"{HEAD}.shared .b32 a[4];\n.shared .b32 b[4];\n.entry k() {{ .reg .b32 %r; ld.shared.u32 %r, [a+4]; ret; }}\n"
    )
    assert [v.name for v in link(module, "k").variables] == ["a"]


def test_debugging_information_is_ignored():
    module = parse(
        f'{HEAD}.file 1 "/a/k.cu"\n.entry k() {{\n.loc 1 3 5, function_name $L__info0, inlined_at 1 2 3\nret;\n}}\n'
        ".section .debug_abbrev\n{\n.b8 1, 2\n$L__x:\n.b64 .debug_line\n}\n"
    )
    assert len(module.kernels["k"].instructions) == 1 and module.kernels["k"].instructions[0].line == 7


ERRORS = [
    ("", 1, "expected '.version' at the start of a PTX file, found the end of the file"),
    ("\x7fELF\x02\n", 1, "expected '.version' at the start"),
    (".version 9.0\n.target sm_75\n.address_size 16\n", 3, ".address_size is 32 or 64, not 16"),
    (HEAD + OPEN + REGISTERS + "add.s32 %r1, %r2, 1 foo;\n", 7, "expected ',' or ';' after the operands, found 'foo'"),
    (HEAD + OPEN + REGISTERS + "add.s32 %r1, %r2, 1\nret;\n}", 8, "after the operands, found 'ret'"),
    (HEAD + OPEN + REGISTERS + "add.s32 %r1, , 1;\n", 7, "expected an operand, found ','"),
    (HEAD + OPEN + REGISTERS + "add.s32 %r1, %r99, 1;\n}", 7, "register '%r99' is not declared"),
    (HEAD + OPEN + REGISTERS + "mov.u64 %rd1, nowhere;\n}", 7, "'nowhere' is not declared"),
    (HEAD + OPEN + REGISTERS + "bra L;\n}", 7, "label 'L' is not defined in this function"),
    (HEAD + OPEN + REGISTERS + "L:\nL:\n}", 8, "label 'L' is defined twice"),
    (HEAD + OPEN + REGISTERS + "@%r1 bra L;\nL:\n}", 7, "the guard '%r1' is a .b32 register, not a .pred"),
    (HEAD + OPEN + REGISTERS + "@%p99 ret;\n}", 7, "register '%p99' is not declared"),
    (HEAD + OPEN + REGISTERS + ".reg .b32 x;\n.reg .b32 x;\n}", 8, "register 'x' is declared twice"),
    (HEAD + OPEN + REGISTERS + '.pragma "nounroll;\n}', 7, "this string is not closed on its line"),
    (HEAD + OPEN + REGISTERS + "/* forever\n}", 7, "this comment is never closed"),
    (HEAD + OPEN + REGISTERS + "ret;\n", 7, "expected an instruction, a declaration or '}', found the end of the file"),
    (HEAD + OPEN + REGISTERS + "mov.u32 %r1, %r2.x;\n}", 7, "'%r2.x' is no element of a vector"),
    (HEAD + OPEN + REGISTERS + "brx.idx %r1, ts;\n}", 7, "'ts' is not the label of a .branchtargets list"),
    (HEAD + OPEN + REGISTERS + "call nothing, ();\n}", 7, "function 'nothing' is not declared"),
    (HEAD + OPEN + REGISTERS + "mov.u64 %rd1, 99999999999999999999;\n}", 7, "does not fit in 64 bits"),
    (HEAD + OPEN + REGISTERS + "{" * 3000, 7, "found the end of the file"),
    (HEAD + OPEN + REGISTERS + "{" * 3000 + "}" * 3001, 6, "scopes nested more than 64 deep"),
    (HEAD + OPEN + "ret;\n}\n}\n", 8, "expected a function or a variable, found '}'"),
    (HEAD + ".entry k() { ret; }\n.entry k() { ret; }\n", 5, "'k' is defined twice"),
    (HEAD + ".global .b32 x[2] = {1, 2, 3};\n", 4, "3 initialisers for 2 elements"),
    (HEAD + ".global .b8 x = " + "-" * 3000 + "1;\n", 4, "nested too deeply"),
    (HEAD + ".global .b8 x = 1 / 0;\n", 4, "division by zero"),
    (HEAD + ".global .b8 x[1 << 62];\n", 4, "too many for a variable"),
    (HEAD + ".global .b32 x;\n.global .b32 x;\n", 5, "variable 'x' is declared twice"),
    (HEAD + ".global .u32 x = 1.5;\n", 4, "a floating-point value cannot initialise .u32"),
    (HEAD + ".global .align 3 .u32 x;\n", 4, "not a power of two"),
    (HEAD + ".global .pred x;\n", 4, "cannot be kept in memory"),
]


@pytest.mark.parametrize(("text", "line", "message"), ERRORS, ids=[m for _, _, m in ERRORS])
def test_errors_name_the_line_and_what_was_expected(text, line, message):
    with pytest.raises(PtxError) as caught:
        parse_bytes(text.encode(), "kernel.ptx")
    assert str(caught.value).startswith("kernel.ptx:") and message in str(caught.value)
    assert "\n" not in str(caught.value)
    if "3000" not in message and "nested more" not in message:
        assert caught.value.line == line


def test_unreadable_files(tmp_path):
    with pytest.raises(InputError, match="cannot read the PTX file"):
        parse(tmp_path / "none.ptx")
    with pytest.raises(InputError, match="cannot read the PTX file"):
        parse(tmp_path)
    (tmp_path / "k.ptx").write_bytes(b"// ok\n// \xff\n")
    with pytest.raises(PtxError, match=r"k.ptx:2: byte 0xff is not text"):
        parse(tmp_path / "k.ptx")


def parses_or_explains(data: bytes) -> None:
    """Only PtxError may escape; a module that parses links, or says why not."""
    try:
        module = parse_bytes(data, "fuzz.ptx")
        for kernel in module.kernels.values():
            if kernel.is_entry:
                link(module, kernel.name)
    except PtxError as error:
        assert "\n" not in str(error) and error.line >= 1


@settings(max_examples=150, suppress_health_check=[HealthCheck.too_slow])
@given(st.binary(max_size=200), st.booleans())
def test_random_bytes_never_crash(data, headed):
    parses_or_explains((HEAD + OPEN + REGISTERS).encode() + data if headed else data)


FRAGMENTS = [
    "{", "}", ";", ",", "[", "]", "%r1", "%r<3>", "@%p1", "@", "bra L;", "L:", "ret;", ".reg .b32 %q;", "0f3F", "1e999",
    "-", "|", "(", ")", "\n", '"', "/*", "*/", "//", ".param", ".align 3", ".global .b32 y;",
    "call.uni", "call", "_", "!", "mov.u32",
    "0x", "=", ".entry z()", ".func", "brx.idx %r1, L;", "L: .branchtargets L;", "generic(k)", "<", ">", ".version 1.0",
    "\x00", "é", "%tid.x", "1", "+",
]  # fmt: skip


@settings(max_examples=150, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(st.sampled_from(FRAGMENTS), max_size=25), st.booleans())
def test_random_fragments_never_crash(fragments, headed):
    parses_or_explains((HEAD + (OPEN + REGISTERS if headed else "") + " ".join(fragments) + "\nret;\n}").encode())


@settings(max_examples=80, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.sampled_from(["bfs", "micro_block_launch", "gemm_mma", "dct8x8"]),
    st.integers(0, 1 << 30),
    st.integers(0, 30),
    st.one_of(st.binary(max_size=4), st.sampled_from(FRAGMENTS).map(str.encode)),
)
def test_mutated_suite_kernels_never_crash(name, position, removed, inserted):
    data = suite.ptx_path(name).read_bytes()
    at = position % len(data)
    parses_or_explains(data[:at] + inserted + data[at + removed :])
