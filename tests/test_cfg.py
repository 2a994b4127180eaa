"""Basic blocks, post-dominators and liveness, against their definitions."""

from __future__ import annotations

import shutil
from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from functional import suite
from functional.programs import registers
from functional.programs.link import link
from functional.programs.program import Program, immediate_post_dominators
from functional.programs.registers import Registers, estimate_registers, live_in, parse_ptxas, registers_per_thread
from functional.ptx.parser import parse

HEAD = ".version 9.0\n.target sm_80\n.address_size 64\n"


@cache
def suite_programs() -> tuple[tuple[str, Program], ...]:
    """(benchmark, program) of every kernel of the suite."""
    modules = [(name, parse(suite.ptx_path(name))) for name in suite.names()]
    return tuple((name, link(module, kernel)) for name, module in modules for kernel in module.kernels)


def program(body: str, functions: str = "", directives: str = "") -> Program:
    registers = ".reg .b32 %r<300>; .reg .b64 %rd<9>; .reg .pred %p<9>;"
    return link(parse(f"{HEAD}{functions}.entry k() {directives} {{\n{registers}\n{body}\n}}\n"), "k")


@st.composite
def graphs(draw):
    count = draw(st.integers(1, 9))
    node = st.integers(0, count - 1)
    return [tuple(draw(st.lists(node, max_size=3, unique=True))) for _ in range(count)]


def reaches_exit(graph, start, without=None):
    """Is there a path from `start` to a node without successors that avoids the node `without`?"""
    seen, stack = set(), [start]
    while stack:
        node = stack.pop()
        if node == without or node in seen:
            continue
        seen.add(node)
        if not graph[node]:
            return True
        stack.extend(graph[node])
    return False


def post_dominators(graph, node):
    """Strict post-dominators: the other nodes on every path from `node` to the exit."""
    return {d for d in range(len(graph)) if d != node and not reaches_exit(graph, node, without=d)}


@settings(max_examples=300)
@given(graphs())
def test_immediate_post_dominators_by_definition(graph):
    found = immediate_post_dominators(graph)
    for node in range(len(graph)):
        strict = post_dominators(graph, node) if reaches_exit(graph, node) else set()
        # the immediate one is the closest: every other strict post-dominator post-dominates it too
        closest = [d for d in strict if strict - {d} <= post_dominators(graph, d)]
        assert found[node] == (closest[0] if closest else None)
        assert len(closest) <= 1


def test_endless_loop_has_no_post_dominator():
    assert immediate_post_dominators([(1,), (0,)]) == [None, None]
    assert immediate_post_dominators([(1, 2), (1,), ()]) == [2, None, None]


def test_blocks_of_a_diamond():
    p = program("@%p1 bra A;\nmov.u32 %r1, 1;\nbra.uni B;\nA: mov.u32 %r1, 2;\nB: bar.sync 0;\nmov.u32 %r2, %r1;\nret;")
    assert [(b.start, b.stop, b.successors, b.reconvergence) for b in p.blocks] == [
        (0, 1, (2, 1), 3),
        (1, 3, (3,), 3),
        (3, 4, (3,), 3),
        (4, 5, (4,), 4),
        (5, 7, (), None),
    ]


def test_guarded_exit_falls_through():
    p = program("@%p1 ret;\n@%p2 exit;\n@%p3 trap;\nret;")
    assert [b.successors for b in p.blocks] == [(1,), (2,), (3,), ()]


def test_indexed_branch_has_every_target():
    p = program("ts: .branchtargets A, B, A;\nbrx.idx %r1, ts;\nA: mov.u32 %r1, 1;\nB: ret;")
    assert [b.successors for b in p.blocks] == [(1, 2), (2,), ()]
    assert p.blocks[0].reconvergence == 2


def test_a_function_has_a_graph_of_its_own():
    p = program("call f, ();\nret;", ".func f() { .reg .pred %q; @%q bra X; ret; X: ret; }\n")
    assert [b.successors for b in p.blocks] == [(1,), (), (4, 3), (), ()]
    assert [b.reconvergence for b in p.blocks] == [1, None, None, None, None]


def test_every_suite_instruction_is_in_one_block():
    for _, p in suite_programs():
        blocks = p.code_blocks
        assert blocks == p.blocks[: len(blocks)]
        assert [b.start for b in blocks[1:]] == [b.stop for b in blocks[:-1]]
        assert blocks[0].start == 0 and blocks[-1].stop == len(p.instructions)
        starts = {b.start for b in blocks}
        for b in blocks:
            inside = p.instructions[b.start : b.stop - 1]
            assert not {"bra", "ret", "exit", "bar", "call"} & {i.opcode for i in inside}
            assert all(p.blocks[s].start in starts for s in b.successors)
        assert all(i.target in starts for i in p.instructions if i.target is not None)


def live_names(p: Program) -> list[set[str]]:
    return [{r.name for r in live} for live in live_in(p)]


def test_liveness_in_a_loop():
    p = program(
        "mov.u32 %r1, 0;\nmov.u32 %r2, 9;\nL: add.u32 %r1, %r1, %r2;\nsetp.lt.u32 %p1, %r1, 100;\n@%p1 bra L;\n"
        "st.global.u32 [%rd1], %r1;\nret;"
    )
    assert live_names(p) == [{"%rd1"}, {"%r1", "%r2", "%rd1"}, {"%r1", "%rd1"}]


def test_a_guarded_write_keeps_the_old_value_alive():
    p = program("@%p1 mov.u32 %r1, 2;\nst.global.u32 [%rd1], %r1;\nret;")
    assert live_names(p) == [{"%p1", "%r1", "%rd1"}]


def test_register_estimate_counts_what_lives_at_once():
    lines = [f"ld.global.u32 %r{n}, [%rd1+{4 * n}];" for n in range(1, 17)]
    sums = [f"add.u32 %r17, %r17, %r{n};" for n in range(1, 17)]
    many = program("\n".join([*lines, "mov.u32 %r17, 0;", *sums, "st.global.u32 [%rd1], %r17;\nret;"]))
    assert 18 <= estimate_registers(many) <= 24
    assert estimate_registers(program("ret;")) == 8


@pytest.mark.parametrize(
    "directives,most",
    [
        (".maxnreg 24", 24),
        (".reqntid 384, 1, 1", 168),  # 65,536 registers for 12 warps, in units of 8 a thread
        (".maxntid 256, 4", 64),
        (".maxntid 500 .minnctapersm 2", 64),  # 16 warps each
        (".maxntid 128 .maxnreg 40", 40),
    ],
)
def test_register_estimate_keeps_to_directives(directives, most):
    loads = [f"ld.global.u32 %r{n}, [%rd1+{4 * n}];" for n in range(1, 250)]
    stores = [f"st.global.u32 [%rd1+{4 * n}], %r{n};" for n in range(1, 250)]
    text = program("\n".join([*loads, *stores, "ret;"]), directives=directives)
    assert estimate_registers(text) == most
    assert estimate_registers(program("ret;", directives=directives)) == 8
    given = program("setmaxnreg.dec.sync.aligned.u32 24; ret;", directives=".maxnreg 168")
    assert estimate_registers(given) == 168


def test_register_estimate_is_near_ptxas_on_the_suite():
    errors = [estimate_registers(p) - suite.registers(name)[p.name] for name, p in suite_programs()]
    assert sum(abs(e) for e in errors) / len(errors) < 6


def test_registers_say_where_they_come_from():
    p = program("ret;")
    assert registers_per_thread(p, "sm_80", {"k": 33}) == Registers(33, "resources.json")
    assert registers_per_thread(p, "sm_80", {}).source == "liveness estimate"  # its text is not a file
    report = (
        "ptxas info    : 0 bytes gmem\nptxas info    : Compiling entry function 'k' for 'sm_80'\n"
        "ptxas info    : Function properties for k\nptxas info    : Used 39 registers, used 1 barriers\n"
    )
    assert parse_ptxas(report) == {"k": 39}


@pytest.mark.skipif(shutil.which("ptxas") is None, reason="no ptxas")
def test_a_comment_that_is_no_ascii_changes_no_registers(tmp_path):
    """ptxas refuses it."""
    for name, comment in {"plain": "", "accent": "// na\u00efve\n", "mark": "\ufeff"}.items():
        text = f"{comment}{HEAD}.entry k() {{ ret; }}\n"
        (tmp_path / name).write_text(text, "utf-8")
        found = registers_per_thread(link(parse(tmp_path / name), "k"), "sm_80", {})
        assert found.source == "ptxas"


@pytest.mark.parametrize("before,source", [("", "ptxas"), ("while :; do :; done", "liveness estimate")])
def test_ptxas_on_the_path_is_used_unless_it_takes_too_long(before, source, tmp_path, monkeypatch):
    monkeypatch.setattr(registers, "_AT_MOST", registers._AT_MOST.replace("20", "1"))
    fake = tmp_path / "ptxas"
    report = "echo \"Compiling entry function 'k' for 'sm_80'\" >&2\necho 'Used 21 registers' >&2\n"
    fake.write_text(f"#!/bin/sh\n{before}\n{report}")
    fake.chmod(0o755)
    (tmp_path / "k.ptx").write_text(f"{HEAD}.entry k() {{ ret; }}\n")
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    found = registers_per_thread(link(parse(tmp_path / "k.ptx"), "k"), "sm_80", {})
    assert found.source == source and (found.count == 21) is (source == "ptxas")
