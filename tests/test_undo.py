"""A launch that is begun again finds global memory as it was, whatever kind of store it has written with."""

from __future__ import annotations

import numpy as np
import ptx_kernels
import pytest
from oracle.array_executor import ArrayExecutor
from test_streams import launch_of, several, tiny_chunks  # noqa: F401

from functional.errors import ExecutionError
from functional.launches.launch import Launch, Pointer, make_launch
from functional.launches.memory import Memory
from functional.llvm_executor import LlvmExecutor
from functional.llvm_executor.undo import PAGE_BYTES
from functional.programs.link import link

PAGE_WORDS = PAGE_BYTES // 4
# Each changes what it finds, at an address of its own: done twice, it would leave something else
STORES = {
    "words": "ld.global.u32 %r4, [%rd1]; mad.lo.u32 %r4, %r4, 3, 1; st.global.u32 [%rd1], %r4;",
    "generic": "ld.u32 %r4, [%rd1]; mad.lo.u32 %r4, %r4, 3, 1; st.u32 [%rd1], %r4;",
    "bytes": "ld.global.u8 %r4, [%rd1]; mad.lo.u32 %r4, %r4, 3, 1; st.global.u8 [%rd1], %r4;",
    "pairs": "mul.wide.u32 %rd2, %r0, 8; add.s64 %rd1, %rd0, %rd2; ld.global.v2.u32 {%r4, %r5}, [%rd1];"
    "mad.lo.u32 %r4, %r4, 3, 1; st.global.v2.u32 [%rd1], {%r5, %r4};",
    "scattered": f"mul.wide.u32 %rd2, %r0, {PAGE_BYTES + 4}; add.s64 %rd1, %rd0, %rd2; ld.global.u32 %r4, [%rd1];"
    "mad.lo.u32 %r4, %r4, 3, 1; st.global.u32 [%rd1], %r4;",
    "by some lanes": "and.b32 %r5, %r0, 5; setp.eq.u32 %p1, %r5, 4; ld.global.u32 %r4, [%rd1];"
    "mad.lo.u32 %r4, %r4, 3, 1; @%p1 st.global.u32 [%rd1], %r4;",
    "atomic": "atom.global.add.u32 %r4, [%rd1], %r0;",
    "atomic without result": "red.global.xor.b32 [%rd1], %r0;",
    "atomic of halves": "mov.u32 %r4, 1006648320; red.global.add.noftz.f16x2 [%rd1], %r4;",  # by steps, as the next
    "atomic copy": ".shared .align 16 .b32 s[4]; mov.u32 %r5, s; mov.u32 %r4, 5; st.shared.u32 [%r5], %r4;"
    "mul.wide.u32 %rd2, %r0, 16; add.s64 %rd1, %rd0, %rd2;"
    "cp.reduce.async.bulk.global.shared::cta.bulk_group.add.u32 [%rd1], [%r5], 16;",
}
GRID = 12


def kernel(body: str, end: str) -> tuple[Launch, Memory]:
    """The last thread block also runs `end`."""
    last = f"setp.ne.u32 %p1, %r1, {GRID - 1}; @%p1 bra.uni DONE; {end} DONE:"
    return launch_of(body + last, GRID, GRID * 64 * (PAGE_WORDS + 1))


@pytest.mark.parametrize("kind", STORES)
def test_after_a_fault(kind: str, several: LlvmExecutor) -> None:  # noqa: F811
    """The oracle reports the fault on memory as it was: what it leaves is what it leaves when it runs alone."""
    launch, memory = kernel(STORES[kind], "mov.u64 %rd2, 64; st.global.u32 [%rd2], %r0;")
    memories = []
    for executor in (ArrayExecutor(), LlvmExecutor(threads=1), several):
        memories.append(memory.copy())
        with pytest.raises(ExecutionError, match=r"0x40"):
            executor.run(launch, memories[-1])
    assert not np.array_equal(memories[0].arena, memory.arena)
    assert all(np.array_equal(m.arena, memories[0].arena) for m in memories)


@pytest.mark.parametrize("kind", [k for k in STORES if "atomic" not in k])
def test_after_a_conflict(kind: str, several: LlvmExecutor) -> None:  # noqa: F811
    """The last block writes where one of an earlier chunk has."""
    back = 8 * 64 * {"pairs": 8, "scattered": PAGE_BYTES + 4}.get(kind, 4)
    end = f"ld.global.u32 %r4, [%rd1-{back}]; add.u32 %r4, %r4, 7; st.global.u32 [%rd1-{back}], %r4;"
    launch, memory = kernel(STORES[kind], end)
    one, more = memory.copy(), memory.copy()
    LlvmExecutor(threads=1).run(launch, one)
    several.run(launch, more)
    assert np.array_equal(one.arena, more.arena) and len(several._one_thread) == 1


def test_stores_of_several_words_are_seen_to_conflict(several: LlvmExecutor) -> None:  # noqa: F811
    body = "add.u32 %r5, %r0, 1; st.global.v2.u32 [%rd0], {%r0, %r5};"
    launch, memory = launch_of(body, grid=200, words=64)
    one, more = memory.copy(), memory.copy()
    LlvmExecutor(threads=1).run(launch, one)
    several.run(launch, more)
    assert np.array_equal(one.arena, more.arena) and len(several._one_thread) == 1


def test_one_block_copies_one_page() -> None:
    launch, memory = launch_of(STORES["words"], grid=4096, words=4096 * 64)
    executor = LlvmExecutor(threads=1)
    executor.run(launch, memory, [7])
    (undo,) = executor._undos._idle
    assert undo._count[0] == 1


def test_what_is_kept_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    from functional.llvm_executor import undo

    launch, memory = launch_of(STORES["words"], grid=512, words=512 * 64)
    executor = LlvmExecutor(threads=1)
    monkeypatch.setattr(undo, "MOST_KEPT_BYTES", PAGE_BYTES)
    executor.run(launch, memory)
    assert len(executor._undos._idle[0]._saved) == 0
    executor.run(launch, memory)


def test_memory_of_another_size() -> None:
    """One executor, launches on memories that grow and shrink."""
    executor, text = LlvmExecutor(threads=1), ptx_kernels.entry("st.global.u32 [%rd0], 5; st.global.u32 [%rd0+64], 6;")
    module = ptx_kernels.module(text)
    for size in (64, 1 << 22, 64, 1 << 24):
        memory = Memory(module.variables)
        memory.allocate("o", size)
        launch = make_launch(link(module, "k"), 1, 32, [Pointer("o")], memory)
        if size > 64:
            executor.run(launch, memory)
            assert memory.read("o", np.uint32)[[0, 16]].tolist() == [5, 6]
        else:
            with pytest.raises(ExecutionError, match="at the end of 'o'"):
                executor.run(launch, memory)
