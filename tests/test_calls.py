"""Calls: parameters, recursion with frames, functions named by registers, jump tables, printf and assertions."""

from __future__ import annotations

import re

import numpy as np
import pytest
from both_executors import run
from ptx_kernels import HEADER, entry, module

from functional.errors import ExecutionError, PtxError
from functional.launches.launch import Pointer, make_launch
from functional.launches.memory import Memory, function_address
from functional.programs.link import link
from functional.ptx.parser import parse_bytes

LOAD = "mad.wide.u32 %rd3, %r0, 4, %rd0; ld.global.u32 %r1, [%rd3];\n"
STORE = "st.global.u32 [%rd3], %r2;\n"


def call(function: str, argument: str, result: str, number: int = 0) -> str:
    """`result = function(argument)` of 32-bit words."""
    a, r = f"a{number}", f"r{number}"
    return (
        f"{{ .param .b32 {a}; .param .b32 {r}; st.param.b32 [{a}], {argument};\n"
        f"call ({r}), {function}, ({a});\nld.param.b32 {result}, [{r}]; }}\n"
    )


def function(name: str, body: str) -> str:
    """A function of one 32-bit word in %r1 that leaves its result in %r2."""
    return (
        f".func (.param .b32 out) {name}(.param .b32 x) {{ .reg .b32 %r<20>; .reg .b64 %rd<9>; .reg .pred %p<9>;\n"
        f"ld.param.b32 %r1, [x];\n{body}\nDONE: st.param.b32 [out], %r2; ret; }}\n"
    )


FIB = function(
    "fib",
    f"mov.u32 %r2, %r1; setp.lt.u32 %p1, %r1, 2; @%p1 bra DONE; sub.u32 %r3, %r1, 1;\n{call('fib', '%r3', '%r4')}"
    f"sub.u32 %r3, %r1, 2;\n{call('fib', '%r3', '%r5', 1)}add.u32 %r2, %r4, %r5;",
)


def fib(n: int) -> int:
    return n if n < 2 else fib(n - 1) + fib(n - 2)


def test_recursion_of_unequal_depth() -> None:
    given = (np.arange(70) * 7 % 11).astype(np.uint32)
    text = entry(LOAD + call("fib", "%r1", "%r2") + STORE, before=FIB)
    out, trace = run(text, {"o": given}, block=70, native=False)
    assert out["o"].tolist() == [fib(int(n)) for n in given]
    assert trace.thread_instructions[2] < trace.thread_instructions[0]


def test_mutual_recursion_keeps_local_variables_apart() -> None:
    """even(n) and odd(n) leave n in an array of their own frame, and add what they find there on the way back."""
    declared = ".func (.param .b32 out) odd(.param .b32 x);\n"
    both = declared
    for name, other, base in (("even", "odd", 1), ("odd", "even", 0)):
        both += function(
            name,
            f".local .align 4 .b32 kept[2]; mov.u64 %rd1, kept; cvta.local.u64 %rd2, %rd1; st.u32 [%rd2+4], %r1;\n"
            f"mov.u32 %r2, {base}; setp.eq.u32 %p1, %r1, 0; @%p1 bra DONE; sub.u32 %r3, %r1, 1;\n"
            f"{call(other, '%r3', '%r4')}ld.local.u32 %r5, [kept+4]; mad.lo.u32 %r2, %r5, 1000, %r4;",
        )
    given = (np.arange(32) % 9).astype(np.uint32)
    out, _ = run(entry(LOAD + call("even", "%r1", "%r2") + STORE, before=both), {"o": given}, native=False)
    assert out["o"].tolist() == [1000 * (n * (n + 1) // 2) + (n % 2 == 0) for n in given.tolist()]


def test_registers_live_across_a_recursive_call_in_a_loop() -> None:
    """sum(n) = n plus sum(m) over m < n, whose loop counter and total live across the call: 2^(n-1) n for n > 0."""
    body = (
        "mov.u32 %r2, %r1; mov.u32 %r3, 0;\nL: setp.ge.u32 %p1, %r3, %r1; @%p1 bra DONE;\n"
        f"{call('sum', '%r3', '%r4')}add.u32 %r2, %r2, %r4; add.u32 %r3, %r3, 1; bra.uni L;"
    )

    def total(n: int) -> int:
        return n + sum(total(m) for m in range(n))

    given = (np.arange(32) % 6).astype(np.uint32)
    text = entry(LOAD + call("sum", "%r1", "%r2") + STORE, before=function("sum", body))
    out, _ = run(text, {"o": given}, native=False)
    assert out["o"].tolist() == [total(int(n)) for n in given]


def test_endless_recursion_is_an_error() -> None:
    text = entry(LOAD + call("f", "%r1", "%r2") + STORE, before=function("f", call("f", "%r1", "%r2")))
    with pytest.raises(ExecutionError, match=r"kernel.ptx:\d+: call, thread .*the stack overflows"):
        run(text, {"o": np.zeros(32, np.uint32)}, native=False)


def test_calls_without_recursion_run_natively_and_in_divergent_code() -> None:
    twice = function(
        "twice", "setp.gt.u32 %p1, %r1, 40; @%p1 bra BIG; shl.b32 %r2, %r1, 1; bra.uni DONE;\nBIG: mov.u32 %r2, 9;"
    )
    outer = function("outer", call("twice", "%r1", "%r3") + "add.u32 %r2, %r3, 100;")
    body = LOAD + "mov.u32 %r2, 5; and.b32 %r4, %r1, 1; setp.eq.u32 %p1, %r4, 1; @%p1 bra SKIP;\n"
    body += call("outer", "%r1", "%r2") + "SKIP: " + call("twice", "%r2", "%r2", 7) + STORE
    out, _ = run(entry(body, before=twice + outer), {"o": np.arange(64, dtype=np.uint32)}, grid=1, block=64)

    def double(x: int) -> int:
        return 9 if x > 40 else 2 * x

    assert out["o"].tolist() == [double(5) if n % 2 else double(double(n) + 100) for n in range(64)]


@pytest.mark.parametrize("recursive", [False, True])
def test_the_address_of_a_parameter(recursive: bool) -> None:
    """As nvcc has it of structures that are passed by value."""
    again = "setp.gt.u32 %p1, %r2, 100; @%p1 bra DONE;\n" + call("f", "%r2", "%r2") if recursive else ""
    body = f"mov.b64 %rd1, x; ld.param.b32 %r3, [%rd1]; add.u32 %r2, %r3, 50;\n{again}"
    text = entry(LOAD + call("f", "%r1", "%r2") + STORE, before=function("f", body))
    out, _ = run(text, {"o": np.arange(32, dtype=np.uint32)}, native=False)
    steps = [next(n + 50 * k for k in range(1, 9) if n + 50 * k > 100 or not recursive) for n in range(32)]
    assert out["o"].tolist() == steps


THREE = "".join(function(f"f{i}", body) for i, body in enumerate(
    ("add.u32 %r2, %r1, 7;", "mul.lo.u32 %r2, %r1, 3;", "mov.u32 %r2, 77; setp.gt.u32 %p1, %r1, 9; "
                                                        "@%p1 bra DONE; xor.b32 %r2, %r1, 5;")
))  # fmt: skip
INDIRECT = (
    "{ .param .b32 a0; .param .b32 r0; st.param.b32 [a0], %r1; P: .callprototype (.param .b32 _) _ (.param .b32 _);\n"
    "call (r0), %rd5, (a0), P; ld.param.b32 %r2, [r0]; }\n"
)


def test_functions_named_by_registers() -> None:
    """Each lane takes its function from a table in global memory; lanes of a warp name three."""
    table = ".global .align 8 .u64 table[3] = {f0, f1, f2};\n"
    body = (
        LOAD + "rem.u32 %r3, %r0, 3; mov.u64 %rd4, table; mad.wide.u32 %rd4, %r3, 8, %rd4; ld.global.u64 %rd5, [%rd4];"
    )
    body += "and.b32 %r9, %r0, 15;\n" + INDIRECT + "add.u32 %r2, %r2, %r9;" + STORE
    out, _ = run(entry(body, before=THREE + table), {"o": np.arange(32, dtype=np.uint32)}, native=False)
    functions = (lambda x: x + 7, lambda x: 3 * x, lambda x: 77 if x > 9 else x ^ 5)
    assert out["o"].tolist() == [functions[n % 3](n) + n % 16 for n in range(32)]


def test_an_address_that_is_no_function_is_an_error() -> None:
    body = LOAD + "mov.u64 %rd5, f1; setp.eq.u32 %p1, %r0, 6; @%p1 add.u64 %rd5, %rd5, 1;" + INDIRECT + STORE
    where = f"{function_address('f1') + 1:#x} is not the address of a function"
    with pytest.raises(ExecutionError, match=rf"thread \(6, 0, 0\) of block \(0, 0, 0\): {where}"):
        run(entry(body, before=THREE), {"o": np.zeros(32, np.uint32)}, native=False)


PRINT = ".extern .func (.param .b32 r) vprintf(.param .b64 f, .param .b64 a);\n"


def printed(format_: str, stores: str, before: str = "", block: int = 2) -> list[str]:
    """What `printf(format_, ...)` shows with the arguments that `stores` put into [args]."""
    codes = ", ".join(str(b) for b in format_.encode() + b"\0")
    text = entry(
        f".local .align 8 .b8 args[64]; mov.u64 %rd1, text; cvta.global.u64 %rd2, %rd1; mov.u64 %rd3, args;\n"
        f"cvta.local.u64 %rd4, %rd3; {stores}\n{{ .param .b64 p0; .param .b64 p1; .param .b32 r0;\n"
        "st.param.b64 [p0], %rd2; st.param.b64 [p1], %rd4; call (r0), vprintf, (p0, p1); ld.param.b32 %r2, [r0]; }\n"
        "st.global.u32 [%rd0], %r2;",
        before=PRINT + before + f".global .align 1 .b8 text[{len(format_.encode()) + 1}] = {{{codes}}};",
    )  # fmt: skip
    parsed = module(text)
    memory = Memory(parsed.variables)
    memory.allocate("o", 4)
    from functional.llvm_executor import LlvmExecutor

    LlvmExecutor().run(make_launch(link(parsed, "k"), 2, block, [Pointer("o")], memory), memory)
    return [*memory.printed.calls, str(memory.read("o", np.uint32)[0])]


def test_printf() -> None:
    stores = (
        "mov.u32 %r5, %ctaid.x; st.local.u32 [args], %r5; st.local.u32 [args+4], %r0; "
        "mov.f64 %fd1, 0d3FF8000000000000; st.local.f64 [args+8], %fd1;"
    )
    lines = printed("block %d thread %u: %6.2f 100%%\n", stores)
    assert lines == [f"block {b} thread {t}:   1.50 100%\n" for b in range(2) for t in range(2)] + ["3"]
    stores = (
        "mov.u64 %rd5, name; cvta.global.u64 %rd5, %rd5; st.local.u64 [args], %rd5; "
        "st.local.u64 [args+8], -5; st.local.u32 [args+16], 65; st.local.u64 [args+24], 255;"
    )
    before = ".global .align 1 .b8 name[3] = {104, 105, 0};\n"
    assert (
        printed("%-4s|%lld|%c|%p|%#llx", stores + "st.local.u64 [args+32], 16;", before, 1)[0] == "hi  |-5|A|0xff|0x10"
    )


def test_a_failed_assertion_names_itself() -> None:
    names = {"m": "n > 0", "f": "k.cu", "g": "run"}
    data = "".join(
        f".global .align 1 .b8 {n}[{len(v) + 1}] = {{{', '.join(str(b) for b in v.encode())}, 0}};\n"
        for n, v in names.items()
    )
    declared = (
        ".extern .func __assertfail(.param .b64 a, .param .b64 b, .param .b32 c, .param .b64 d, .param .b64 e);\n"
    )
    addresses = "".join(f"mov.u64 %rd{i}, {n}; cvta.global.u64 %rd{i}, %rd{i};" for i, n in enumerate(names, 1))
    body = LOAD.replace("%rd3", "%rd9") + "setp.ne.u32 %p1, %r1, 0; @%p1 bra OK;" + addresses + (
        "{ .param .b64 a; .param .b64 b; .param .b32 c; .param .b64 d; .param .b64 e; st.param.b64 [a], %rd1;\n"
        "st.param.b64 [b], %rd2; st.param.b32 [c], 12; st.param.b64 [d], %rd3; st.param.b64 [e], 1;\n"
        "call __assertfail, (a, b, c, d, e); }\nOK: st.global.u32 [%rd9], 3;"
    )  # fmt: skip
    text = entry(body, before=data + declared)
    assert run(text, {"o": np.ones(32, np.uint32)})[0]["o"].tolist() == [3] * 32
    with pytest.raises(ExecutionError, match=r"thread \(4, 0, 0\) .*assertion 'n > 0' failed at k.cu:12, run"):
        run(text, {"o": np.array([1] * 4 + [0] + [1] * 27, np.uint32)})


def test_jump_table_paths() -> None:
    """Lanes take the targets in the order of the table and meet behind; the trace shows the masks."""
    body = LOAD + (
        "T: .branchtargets A, B, A, E;\nbrx.idx %r1, T;\nA: add.u32 %r1, %r1, 100; "
        "bra.uni E;\nB: add.u32 %r1, %r1, 200;\n"
        "E: add.u32 %r2, %r1, 0;" + STORE
    )
    given = (np.arange(32) % 4).astype(np.uint32)
    out, trace = run(entry(body), {"o": given})
    assert out["o"].tolist() == [[100, 201, 102, 3][n % 4] for n in range(32)]
    assert [hex(m) for m in trace.masks] == ["0xffffffff", "0x55555555", "0x22222222", "0xffffffff"]


def test_what_a_loaded_kernel_prints(tmp_path) -> None:
    import abstim

    text = (
        PRINT
        + ".global .align 1 .b8 text[4] = {104, 105, 10, 0};\n.entry k() { .reg .b64 %rd<3>; mov.u64 %rd1, text;\n"
    )
    text += "cvta.global.u64 %rd2, %rd1; { .param .b64 p0; .param .b64 p1; .param .b32 r0; st.param.b64 [p0], %rd2;\n"
    text += "st.param.b64 [p1], 0; call (r0), vprintf, (p0, p1); }\nret; }\n"
    (tmp_path / "k.ptx").write_text(HEADER + text)
    launch = abstim.load(tmp_path / "k.ptx").kernel("k").launch(grid=2, block=2)
    assert launch.printed() == ("hi\n",) * 4


@pytest.mark.parametrize(("sizes", "message"), [
    ((16, 16, 16, 2048), "call of 'f': return value 'r' has 2048 B, the call gives 16"),
    ((16, 2048, 16, 16), "call of 'f': argument 'a' has 2048 B, the call gives 16"),
    ((8, 16, 16, 16), "call of 'f': argument 'a' has 16 B, the call gives 8"),
])  # fmt: skip
def test_a_call_hands_over_what_the_function_declares(sizes, message):
    """Executors copy the declared size: a larger one would reach the host's memory behind the thread's."""
    given, declared, returned_to, returned = sizes
    text = f"""
.version 7.8
.target sm_80
.address_size 64
.func (.param .align 8 .b8 r[{returned}]) f(.param .align 8 .b8 a[{declared}])
{{
    .reg .b32 %q<4>;
    ld.param.u32 %q1, [a];
    st.param.u32 [r], %q1;
    ret;
}}
.visible .entry k()
{{
    .reg .b32 %r<4>;
    .param .align 8 .b8 a0[{given}];
    .param .align 8 .b8 r0[{returned_to}];
    mov.u32 %r1, %tid.x;
    st.param.u32 [a0], %r1;
    call (r0), f, (a0);
    ld.param.u32 %r2, [r0];
    ret;
}}
"""
    with pytest.raises(PtxError, match=re.escape(message)):
        link(parse_bytes(text.encode(), "k.ptx"), "k")
