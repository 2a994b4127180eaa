"""PTX that gave a wrong number once: addresses in constant initialisers, a borrow that is a carry."""

from __future__ import annotations

import numpy as np
import pytest
from oracle.array_executor import ArrayExecutor

from functional.launches.launch import Pointer, make_launch
from functional.launches.memory import CONST_WINDOW, Memory
from functional.llvm_executor import LlvmExecutor
from functional.programs.link import link
from functional.ptx.parser import parse

HEAD = ".version 8.0\n.target sm_80\n.address_size 64\n"
EXECUTORS = [ArrayExecutor, LlvmExecutor]


def results(text, executor, count):
    """What a kernel `k(out)` leaves in `count` 64-bit words, run by one thread."""
    module = parse(HEAD + text)
    memory = Memory(module.variables)
    memory.allocate("out", 8 * count)
    executor().run(make_launch(link(module, "k"), 1, 1, [Pointer("out")], memory), memory)
    return memory.read("out", np.uint64).tolist(), memory


@pytest.mark.parametrize("executor", EXECUTORS)
def test_an_initialiser_holds_addresses_within_the_space(executor):
    """`ptxas` puts 0 and 8 there, the places of x and y in constant memory; generic(x) is what a generic load takes."""
    text = """
    .const .u64 x = 11; .const .u64 y = 22;
    .const .u64 c[2] = {x, y}; .const .u64 g[2] = {generic(x), generic(y) + 0}; .global .u64 v = 33;
    .global .u64 p[2] = {v, generic(v)};
    .entry k(.param .u64 out) { .reg .u64 %a<9>;
      ld.param.u64 %a0, [out];
      ld.const.u64 %a1, [c+8]; st.global.u64 [%a0], %a1; ld.const.u64 %a2, [%a1]; st.global.u64 [%a0+8], %a2;
      ld.const.u64 %a3, [g+8]; st.global.u64 [%a0+16], %a3; ld.u64 %a4, [%a3]; st.global.u64 [%a0+24], %a4;
      ld.global.u64 %a5, [p]; ld.global.u64 %a6, [p+8]; sub.u64 %a7, %a5, %a6; st.global.u64 [%a0+32], %a7;
      ld.global.u64 %a8, [%a5]; st.global.u64 [%a0+40], %a8; ret; }"""
    found, _ = results(text, executor, 6)
    assert found == [8, 22, CONST_WINDOW + 8, 22, 0, 33]


@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize("a,b", [(5, 3), (3, 5), (7, 7), (0, 2**32 - 1), (2**32 - 1, 0)])
def test_the_condition_code_of_a_subtraction_is_the_carry(executor, a, b):
    """A subtraction adds the complement: the carry is set where nothing is borrowed. subc takes that back."""
    text = f"""
    .entry k(.param .u64 out) {{ .reg .u64 %o; .reg .u32 %a<9>;
      ld.param.u64 %o, [out]; mov.u32 %a1, {a}; mov.u32 %a2, {b};
      sub.cc.u32 %a3, %a1, %a2; addc.u32 %a4, 100, 0; st.global.u32 [%o], %a4;
      sub.cc.u32 %a3, %a1, %a2; subc.u32 %a5, 100, 0; st.global.u32 [%o+8], %a5;
      add.cc.u32 %a3, %a1, %a2; subc.u32 %a6, 100, 0; st.global.u32 [%o+16], %a6;
      sub.cc.u32 %a3, %a1, %a2; subc.cc.u32 %a7, 0, 0; addc.u32 %a8, 100, 0; st.global.u32 [%o+24], %a8;
      ret; }}"""
    found, _ = results(text, executor, 4)
    borrow, carry = a < b, a + b >= 2**32
    assert found == [100 + (not borrow), 100 - borrow, 100 - (not carry), 100 + (not borrow)]


def test_the_alignment_of_what_a_pointer_leads_to_is_not_the_pointers():
    text = ".entry k(.param .u64 .ptr .global .align 1 a, .param .u32 n, .param .u64 .ptr .global .align 1 b) { ret; }"
    parameters = link(parse(HEAD + text), "k").parameters
    assert [(p.offset, p.align) for p in parameters] == [(0, 8), (8, 4), (16, 8)]
