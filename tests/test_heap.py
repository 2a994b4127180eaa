"""`malloc` and `free` of kernels, against what blocks of memory may be."""

from __future__ import annotations

import numpy as np
import pytest
from both_executors import run
from hypothesis import given, settings
from hypothesis import strategies as st

from functional.errors import ExecutionError
from functional.launches.memory import Memory
from functional.steps.device_runtime import Heap

DECLARED = ".extern .func (.param .b64 r) malloc(.param .b64 s); .extern .func free(.param .b64 p);\n"
MALLOC = "{{ .param .b64 s; .param .b64 r; st.param.b64 [s], {0}; call (r), malloc, (s); ld.param.b64 {1}, [r]; }}\n"
FREE = "{{ .param .b64 p; st.param.b64 [p], {0}; call free, (p); }}\n"
BEGIN = """.entry k(.param .u64 o) { .reg .b64 %rd<9>; .reg .b32 %r<9>; .reg .pred %p; ld.param.u64 %rd0, [o];
 mov.u32 %r0, %tid.x; mul.wide.u32 %rd1, %r0, 4; add.u64 %rd0, %rd0, %rd1; cvt.u64.u32 %rd2, %r0; add.u64 %rd2, %rd2, 4;
"""


def test_each_thread_has_a_block_of_its_own():
    text = DECLARED + BEGIN + MALLOC.format("%rd2", "%rd3") + "st.u32 [%rd3], %r0; bar.sync 0; ld.u32 %r1, [%rd3];"
    text += FREE.format("%rd3") + MALLOC.format("%rd2", "%rd4") + "st.u32 [%rd4], %r1; bar.sync 0; ld.u32 %r2, [%rd4];"
    text += (
        "mov.u64 %rd5, 99999999999;"
        + MALLOC.format("%rd5", "%rd6")
        + "setp.ne.u64 %p, %rd6, 0; @%p add.u32 %r2, %r2, 1;"
    )
    text += FREE.format("%rd6") + "st.global.u32 [%rd0], %r2; ret; }"
    found, _ = run(text, {"o": np.zeros(64, np.uint32)}, block=64, native=False)
    assert np.array_equal(found["o"], np.arange(64))


def test_what_malloc_did_not_give_is_not_freed():
    with pytest.raises(ExecutionError, match="malloc did not give"):
        run(DECLARED + BEGIN + FREE.format("%rd0") + "ret; }", {"o": np.zeros(64, np.uint32)}, native=False)


@pytest.mark.parametrize("place, value", [(-32, 1 << 63), (-32, 8), (-32, 24), (-16, 1 << 40), (-16, 3)])
def test_headers_that_the_kernel_overwrote_are_named(place, value):
    """`place`: from the first block on; its header lies 16 bytes before it, the heap's another 16."""
    text = DECLARED + BEGIN + MALLOC.format("%rd2", "%rd3") + "setp.ne.u32 %p, %r0, 0; @%p ret;"
    text += MALLOC.format("16", "%rd4") + FREE.format("%rd4")
    text += f"mov.u64 %rd5, {value}; st.global.u64 [%rd3 + {-48 - place}], %rd5;" + MALLOC.format("16", "%rd4")
    with pytest.raises(ExecutionError, match="is damaged: the kernel wrote over"):
        run(text + "ret; }", {"o": np.zeros(64, np.uint32)}, native=False)


def test_a_function_of_that_name():
    own = ".func (.param .b64 r) malloc(.param .b64 s) { .reg .b64 %a;\n"
    own += "ld.param.b64 %a, [s]; st.param.b64 [r], %a; ret; }\n"
    text = own + BEGIN + MALLOC.format("%rd2", "%rd3") + "cvt.u32.u64 %r1, %rd3; st.global.u32 [%rd0], %r1; ret; }"
    found, _ = run(text, {"o": np.zeros(32, np.uint32)})
    assert np.array_equal(found["o"], np.arange(32) + 4)


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 3 << 20)), max_size=40))
@settings(max_examples=30)
def test_blocks_do_not_overlap(steps):
    memory = Memory()
    taken: dict[int, int] = {}
    for take, size in steps:
        heap = Heap(memory)  # nothing is known but what lies in memory
        if take:
            address = heap.allocate(size)
            assert address % 16 == 0
            if address:
                assert heap.region.address <= address and address + size <= heap.region.address + heap.region.bytes
                assert all(address + size <= a or a + max(n, 1) <= address for a, n in taken.items())
                taken[address] = size
        elif taken:
            address = sorted(taken)[size % len(taken)]
            assert heap.release(address) and not heap.release(address)
            del taken[address]
