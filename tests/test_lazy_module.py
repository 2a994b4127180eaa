"""Modules that are parsed function by function are those that are parsed as a whole."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from functional import suite
from functional.errors import InputError, PtxError
from functional.keep.kept import Kept
from functional.programs.link import link
from functional.ptx import parser
from functional.ptx.parser import index, open_bytes, open_module, parse_bytes, parse_with

FILES = [*sorted(Path(suite.__file__).parent.glob("*/kernel.ptx")), Path(__file__).parent / "data" / "calls.ptx"]
HEAD = ".version 8.0\n.target sm_80\n.address_size 64\n"


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.parent.name)
def test_a_lazy_module_is_the_module(path):
    data = path.read_bytes()
    whole, lazy = parse_bytes(data, str(path)), open_module(path)
    assert index(data.decode()) is not None
    assert lazy.variables == whole.variables and lazy.entries == whole.entries
    assert list(lazy.kernels) == list(whole.kernels)
    for name in whole.kernels:
        assert lazy.kernels[name] == whole.kernels[name]
    for name in whole.entries:
        assert link(lazy, name) == link(whole, name)


@pytest.mark.parametrize(
    "text",
    [
        ".entry a() { ret; }\n.entry b() { @%p bra E; ret; E: }\n.entry c() { ret; }",
        '.entry a() { .reg .pred %p; // } comment {\n /* } */ @!%p exit; }\n.func f() ;\n.entry b() { ret; }',
        ".global .u32 x = 5;\n.entry a() { .global .u32 y; mov.u32 %r, 1; }\n"
        ".const .b8 s[2] = {1,\n2};\n.entry b() { trap; }",
        ".visible .func (.param .b32 r) g(.param .b32 a)\n{ st.param.b32 [r], 0; ret; }\n"
        ".entry b() { { .reg .b32 q; mov.b32 q, 1; } }",
        ".extern .func (.param .b32 r) out(.param .b64 a);\n"
        ".entry a() { .param .b64 p; .param .b32 q; call (q), out, (p); }",
        ".entry a() { L: bra L; }\n.section .debug_str { .b8 1, 2 }\n.entry b() { .loc 1 2 3\n nop; }",
    ],
)  # fmt: skip
def test_irregular_texts(text):
    data = (HEAD + text.replace("%p bra", "%p bra").replace("{ @%p", "{ .reg .pred %p; @%p")).encode()
    data = data.replace(b"mov.u32 %r", b".reg .u32 %r; mov.u32 %r")
    whole, lazy = parse_bytes(data, "t"), open_bytes(data, "t")
    assert {n: lazy.kernels[n] for n in lazy.kernels} == dict(whole.kernels) and lazy.variables == whole.variables


def test_an_error_names_its_line_when_the_function_is_used():
    data = (HEAD + ".entry a() { ret; }\n.entry b()\n{\n  mov.u32 %nothing, 1;\n}\n").encode()
    module = open_bytes(data, "k.ptx")
    assert len(module.kernels["a"].instructions) == 1
    with pytest.raises(PtxError, match=r"k\.ptx:7: .*%nothing"):
        _ = module.kernels["b"]


@pytest.fixture
def text(tmp_path, monkeypatch):
    """A file, and an empty cache."""
    monkeypatch.setenv("ABSTIM_CACHE", str(tmp_path / "cache"))
    path = tmp_path / "k.ptx"
    path.write_text(HEAD + "".join(f".entry k{n}() {{ bra L; L: ret; }}\n" for n in range(50)))
    return path


def test_only_what_is_asked_for_is_parsed(text, monkeypatch):
    seen = []

    def spying(text, *rest):
        seen.append(text)
        return parse_with(text, *rest)

    monkeypatch.setattr("functional.ptx.parser.parse_with", spying)
    link(open_module(text), "k7")
    assert len(seen) == 2 and seen[1].count(".entry") == 1 and "k7" in seen[1]


def test_an_unknown_kernel_is_refused_by_name():
    with pytest.raises(InputError, match="no kernel 'k'; it has a, b"):
        link(open_bytes((HEAD + ".entry a() { ret; }\n.entry b() { ret; }").encode(), "t"), "k")


def test_what_was_parsed_is_read_back(text, monkeypatch, capfd):
    first = open_module(text).kernels["k7"]
    monkeypatch.setattr(parser, "parse_with", None)  # is not needed again
    assert open_module(text).kernels["k7"] == first
    assert capfd.readouterr().err == ""


def test_what_is_kept_cannot_run_code(text, tmp_path, monkeypatch, capfd):
    class Command:
        def __reduce__(self):
            return Path.touch, (tmp_path / "touched",)

    expected = open_module(text).kernels["k7"]
    monkeypatch.setattr(Kept, "load", lambda kept, name, decode: decode_or_none(decode, pickle.dumps(Command())))
    assert open_module(text).kernels["k7"] == expected
    assert not (tmp_path / "touched").exists()


def decode_or_none(decode, content):
    with pytest.raises(pickle.UnpicklingError, match="no record of a parsed program"):
        decode(content)
