"""Small kernels through both executors, which have to agree, for tests that then compare with numbers of their own."""

from __future__ import annotations

import numpy as np
from ptx_kernels import module
from test_llvm_executor import LLVM, assert_equal

from functional.launches.launch import Pointer, make_launch
from functional.launches.memory import Memory
from functional.programs.link import link
from functional.programs.program import Program
from functional.traces.line_record import more_follow
from functional.traces.trace import Trace
from precharacterize.classify import Kind, kind_of


def run(
    text: str, buffers: dict[str, np.ndarray], grid: int | tuple = 1, block: int = 32, native: bool = True,
    more: tuple = (), cluster: int | tuple | None = None, dynamic_shared_bytes: int = 0,
) -> tuple[dict[str, np.ndarray], Trace]:  # fmt: skip
    """Contents of the buffers after kernel `k` of a module text, and its trace.

    `native`: every instruction has to be generated. `more`: arguments behind the buffers.
    """
    parsed = module(text)
    memory = Memory(parsed.variables)
    for name, values in buffers.items():
        memory.allocate(name, values.nbytes, values)
    arguments = [*(Pointer(name) for name in buffers), *more]
    launch = make_launch(link(parsed, "k"), grid, block, arguments, memory, dynamic_shared_bytes, cluster=cluster)
    compiled = LLVM.compiled(launch.program, launch.cluster.total > 1)
    assert (compiled is not None and not compiled.generated.by_piece) == native
    trace = assert_equal(launch, memory)
    assert_streams_fit(trace, launch.program)
    return {name: memory.read(name, values.dtype) for name, values in buffers.items()}, trace


def assert_streams_fit(trace: Trace, program: Program) -> None:
    """A warp's streams hold what the timing engine will take from them: one entry a memory instruction, by its kind."""
    kinds = np.array([kind_of(i, program.function_of[i.index] == program.name) for i in program.instructions])
    shared = np.isin(kinds, [Kind.SHARED_LOAD, Kind.SHARED_STORE, Kind.SHARED_ATOMIC])
    other = (kinds >= Kind.PARAM_LOAD) & ~shared
    blocks = [slice(b.start, b.stop) for b in program.blocks]
    per_block = np.array([(other[b].sum(), shared[b].sum()) for b in blocks])
    for warp in range(len(trace.block_offsets) - 1):
        cut = [slice(*o[warp : warp + 2]) for o in (trace.block_offsets, trace.record_offsets, trace.conflict_offsets)]
        expected = per_block[trace.blocks[cut[0]]].sum(axis=0).tolist()
        assert [int((more_follow(trace.records[cut[1]]) == 0).sum()), len(trace.conflicts[cut[2]])] == expected


def each_lane(body: str, words: np.ndarray, results: int, native: bool = True, before: str = "") -> np.ndarray:
    """`body` in 32 threads, with row `lane` of `words` (uint32 [32, n]) in %i0, %i1, ...

    Yields what it leaves in %o0, %o1, ... as uint32 [32, results].
    """
    count = words.shape[1]
    lines = [f"{before}.entry k(.param .u64 i, .param .u64 o) {{ .reg .b32 %i<{count + 1}>, %o<{results + 1}>, %r<60>;"]
    lines.append(".reg .b64 %rd<20>; .reg .pred %p<10>; .reg .b16 %h<40>; .reg .f32 %f<20>; .reg .f64 %fd<20>;")
    lines.append("ld.param.u64 %rd0, [i]; ld.param.u64 %rd1, [o]; mov.u32 %r0, %tid.x;")
    lines.append(f"mad.wide.u32 %rd0, %r0, {4 * count}, %rd0; mad.wide.u32 %rd1, %r0, {4 * results}, %rd1;")
    lines += [f"ld.global.u32 %i{n}, [%rd0+{4 * n}];" for n in range(count)]
    lines.append(body)
    lines += [f"st.global.u32 [%rd1+{4 * n}], %o{n};" for n in range(results)]
    text = "\n".join([*lines, "ret;", "}"])
    given = np.ascontiguousarray(words, np.uint32)
    out, _ = run(text, {"i": given.reshape(-1), "o": np.zeros(32 * results, np.uint32)}, native=native)
    return out["o"].reshape(32, results)
