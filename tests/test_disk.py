"""What is kept on disk: found again, made again where damaged, named by the code that made it."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from call_command import call

from abstim.study.sample import sampled_program
from abstim.targets import execution as trace_cache
from functional.errors import InputError
from functional.keep import kept as digest
from functional.keep.folder import cache_dir, evict, make_folder
from functional.keep.kept import Kept, decode_arrays, encode_arrays, key
from functional.llvm_executor import object_code as executor_code
from functional.ptx import parser
from precharacterize.build import MODULES as TABLES

ROOT = Path(__file__).parent.parent
OBJECTS, TRACES = executor_code.MODULES, trace_cache.MODULES
EXECUTOR = sorted(f"functional/llvm_executor/{path.name}" for path in (ROOT / "functional/llvm_executor").glob("*.py"))


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("ABSTIM_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def copy(tmp_path, monkeypatch):
    """The sources in a folder of their own, where digests look for them."""
    for package in ("functional", "precharacterize", "abstim/targets"):
        shutil.copytree(ROOT / package, tmp_path / package, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "abstim/__init__.py", tmp_path / "abstim")
    find = digest._source.__wrapped__
    monkeypatch.setattr(digest, "_source", lambda name: tmp_path / find(name).relative_to(ROOT))
    forget()
    yield tmp_path
    forget()


def forget():
    digest._module.cache_clear()
    digest._is_module.cache_clear()
    digest.sources_digest.cache_clear()


def changes(modules, path: Path) -> bool:
    """Does an edit of a file change the key?"""
    before, text = key(modules), path.read_bytes()
    path.write_bytes(text + b"\n# edited\n")
    forget()
    after = key(modules)
    path.write_bytes(text)
    forget()
    return before != after


def test_an_edit_of_the_executor_changes_the_names_of_its_objects(copy):
    assert [name for name in EXECUTOR if not changes(OBJECTS, copy / name)] == []
    assert changes(TRACES, copy / EXECUTOR[-1])


@pytest.mark.parametrize("name", ["build", "classify", "synchronisation", "table", "tensor_work"])
def test_an_edit_of_the_rules_changes_the_names_of_tables(copy, name):
    assert changes(TABLES, copy / f"precharacterize/{name}.py")


def test_an_edit_of_the_grammar_changes_all_that_is_made_of_programs(copy):
    grammar = copy / Path(parser.__file__).relative_to(ROOT).with_name("grammar.lark")
    assert all(changes(modules, grammar) for modules in (OBJECTS, TABLES, TRACES, (parser.__name__,)))


def test_an_edit_elsewhere_changes_nothing(copy):
    assert not changes(OBJECTS, copy / "precharacterize/build.py")
    assert not changes(TABLES, copy / "functional/accelsim/read.py")


def test_a_library_is_part_of_the_key(monkeypatch):
    before = key(OBJECTS)
    digest.sources_digest.cache_clear()
    monkeypatch.setattr(digest, "_version", lambda name: "0.0" if name == "numpy" else "1.0")
    assert key(OBJECTS) != before
    digest.sources_digest.cache_clear()


def test_every_part_counts():
    parts = [(), ("a",), ("a", "b"), ("ab",), (b"ab", ""), (np.arange(3),), (np.arange(4),), (np.zeros(0),), (1, 2.5)]
    assert len({key((), *p) for p in parts}) == len(parts)


def test_kept_is_found_and_made_again_where_damaged(capsys):
    kept = Kept("things")
    assert kept.load("a", bytes) is None
    assert kept.load_or_make("a", lambda: b"content") == b"content"
    assert kept.load_or_make("a", lambda: pytest.fail("made again")) == b"content"
    assert list(kept.names()) == ["a"] and not capsys.readouterr().err
    kept.path("a").write_bytes(kept.path("a").read_bytes()[:-1])
    assert kept.load_or_make("a", lambda: b"other") == b"other"
    assert "damaged" in capsys.readouterr().err
    assert kept.load("a", bytes) == b"other"
    kept.forget("a")
    assert not list(kept.names())


def test_what_cannot_be_decoded_is_damaged(capsys):
    kept = Kept("things")
    kept.save("a", b"12x")
    assert kept.load("a", int) is None
    assert "damaged" in capsys.readouterr().err and not kept.path("a").exists()


@pytest.mark.parametrize(
    "content", [b"", b"\xc1", encode_arrays({"a": np.zeros(3)})[:-1], b"\x81\xa1a\x93\xa2|O\x91\x01\xc4\x08" + bytes(8)]
)
def test_what_holds_no_arrays_is_refused(content):
    """Nothing, no msgpack, fewer bytes than the shape says, an array of objects."""
    with pytest.raises(ValueError, match=r"arrays|objects"):
        decode_arrays(content)


def test_arrays_come_back_as_they_were():
    given = {
        "words": np.array("text"),
        "none": np.zeros((0, 2), np.int8),
        "rows": np.arange(6, dtype=np.int32).reshape(2, 3),
    }
    found = decode_arrays(encode_arrays(given))
    assert list(found) == list(given) and all(a.flags.writeable for a in found.values())
    for name, array in given.items():
        np.testing.assert_array_equal(found[name], array, strict=True)


def test_folders_are_their_owners_alone():
    make_folder(cache_dir("a/b"))
    for folder in (cache_dir("a/b"), cache_dir("a"), cache_dir("a").parent):
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def test_no_home_costs_only_time(monkeypatch, capsys):
    monkeypatch.delenv("ABSTIM_CACHE")
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(Path, "home", lambda: (_ for _ in ()).throw(RuntimeError("no home")))
    assert Kept("things").load_or_make("a", lambda: b"x") == b"x"
    assert "cannot write" in capsys.readouterr().err
    assert os.devnull in str(cache_dir("things"))


def test_a_cache_that_cannot_be_written_is_said_once(tmp_path, monkeypatch, capsys):
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("ABSTIM_CACHE", str(tmp_path / "file"))
    for name in "abc":
        assert Kept("things").load_or_make(name, lambda: b"x") == b"x"
    assert capsys.readouterr().err.count("cannot write") == 1


def test_every_kind_has_a_cap(tmp_path, monkeypatch):
    monkeypatch.setenv("ABSTIM_CACHE", str(tmp_path))
    monkeypatch.setattr("functional.keep.kept.KEPT_BYTES", 1000)
    monkeypatch.setattr(Kept.save, "__defaults__", (1000,))
    for number in range(10):
        Kept(f"analyses/{number}").save("a", b"." * 200)
        os.utime(Kept(f"analyses/{number}").path("a"), (number, number))
    left = [path.parent.name for path in (tmp_path / "analyses").rglob("a")]
    assert sorted(left) == ["6", "7", "8", "9"]
    Kept("other").save("a", b"." * 2000)
    assert Kept("other").load("a", bytes) is None


def test_what_a_killed_process_left_half_written_goes(tmp_path):
    for name, age in ((".old.tmp", 1e6), (".new.tmp", 0)):
        (tmp_path / name).write_bytes(b".")
        os.utime(tmp_path / name, (time.time() - age,) * 2)
    evict(tmp_path, 1000)
    assert [path.name for path in tmp_path.iterdir()] == [".new.tmp"]


def test_tables_of_the_grammar_are_plain_data_and_parse_the_same(capsys):
    text = (ROOT / "functional/suite/hotspot/kernel.ptx").read_text()
    read = []
    for _ in range(2):  # made, then read
        parser._lark.cache_clear()
        read.append(parser._lark().parse(text))
    assert read[0] == read[1]
    (file,) = cache_dir("grammar").iterdir()
    file.write_bytes(b"nonsense")
    parser._lark.cache_clear()
    assert parser._lark().parse(text) == read[0]
    assert "damaged" in capsys.readouterr().err


def test_what_others_may_have_written_is_not_used(tmp_path, monkeypatch, capsys):
    """Machine code is run as it is found: nobody else may put it there."""
    monkeypatch.setenv("ABSTIM_CACHE", str(tmp_path))
    kept = Kept("objects")
    kept.save("one", b"mine")
    assert kept.load("one", bytes) == b"mine" and kept.folder.stat().st_mode & 0o077 == 0
    kept.folder.chmod(0o777)
    assert kept.load("one", bytes) is None and "others may write" in capsys.readouterr().err
    kept.folder.chmod(0o700)
    kept.path("one").chmod(0o666)
    assert kept.load("one", bytes) is None
    kept.path("one").chmod(0o600)
    monkeypatch.setattr("os.getuid", lambda: 12345)
    assert kept.load("one", bytes) is None and "another user" in capsys.readouterr().err


# What makes each kind of result: the modules of its key, and a program that makes one
_PROGRAM = (
    "from functional.ptx.parser import parse; from functional.programs.link import link; "
    "m = parse('.version 7.0\\n.target sm_70\\n.entry k() { .reg .b32 %r<2>; mov.u32 %r1, 1; ret; }'); "
    "p = link(m, 'k'); "
)
_TRACE = _PROGRAM + (
    "import functional.execution.default_executor, abstim.targets.isolation.isolated_executor; "
    "from functional.launches.case import Case; from functional.launches.memory import Memory; "
    "from functional.launches.launch import make_launch; "
    "from functional.execution.default_executor import default_executor; "
    "from functional.traces.store import encode; "
    "launch = make_launch(p, 1, 32, [], Memory()); t = default_executor().run(launch, Memory()); encode(t)"
)
MADE = {
    "objects": (OBJECTS, _PROGRAM + "from functional.llvm_executor.object_code import load; load(p)"),
    "tables": (TABLES, _PROGRAM + "import precharacterize.build"),
    "traces": (TRACES, _TRACE),
    "engine": (
        ("abstim.engine.event_loop", "functional.jit.staged"),
        "import abstim.engine.event_loop, functional.jit.staged",
    ),
    "cycles": (("abstim.engine.simulation",), "import abstim.engine.simulation, abstim.engine.event_loop"),
    "samples": (  # the name of the execution is a part of theirs
        sampled_program.MADE_BY + TRACES,
        _TRACE + "; import abstim.engine.simulation, abstim.engine.event_loop, functional.jit.staged, precharacterize",
    ),
}


def loaded_by(program: str) -> list[Path]:
    """Sources of this project that a program loads, below ROOT."""
    end = "; import sys; files = [getattr(m, '__file__', None) for m in list(sys.modules.values())]; "
    end += "print(*filter(None, files), sep='\\n')"
    done = subprocess.run([sys.executable, "-c", program + end], capture_output=True, text=True, cwd=ROOT, check=True)
    files = (Path(line) for line in done.stdout.splitlines())
    packages = tuple(f"{ROOT}/{package}/" for package in digest.PACKAGES)
    return sorted(path.relative_to(ROOT) for path in files if str(path).startswith(packages))


@pytest.mark.slow
@pytest.mark.parametrize("kind", MADE)
def test_an_edit_of_any_source_that_makes_a_result_gives_it_another_name(kind, copy, monkeypatch):
    for package in ("abstim", "sampling", "configs"):
        shutil.copytree(
            ROOT / package, copy / package, ignore=shutil.ignore_patterns("__pycache__"), dirs_exist_ok=True
        )
    modules, program = MADE[kind]
    files = [file for file in loaded_by(program) if file.name != "__init__.py"]
    assert len(files) > 10
    with monkeypatch.context() as patch:
        known = {}  # each module is read once, and the edited one again
        read = digest._module.__wrapped__
        patch.setattr(
            digest, "_module", lambda name: known[name] if name in known else known.setdefault(name, read(name))
        )
        assert [str(file) for file in files if not _renames(modules, copy, file, known)] == []


def _renames(modules, root: Path, file: Path, known: dict) -> bool:
    """`changes`, without reading again what has not changed."""
    name, path = ".".join(file.with_suffix("").parts), root / file
    digest.sources_digest.cache_clear()
    before, text = key(modules), path.read_bytes()
    path.write_bytes(text + b"\n# edited\n")
    known.pop(name, None)
    digest.sources_digest.cache_clear()
    after = key(modules)
    path.write_bytes(text)
    known.pop(name, None)
    return before != after


def test_a_folder_that_holds_bytecode_alone_hides_no_module(tmp_path, monkeypatch):
    """As it is left where a package became a module."""
    (tmp_path / "moved" / "part" / "__pycache__").mkdir(parents=True)
    for name in ("__init__", "part"):
        (tmp_path / "moved" / f"{name}.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    assert digest._source.__wrapped__("moved.part") == tmp_path / "moved" / "part.py"


@pytest.mark.parametrize("command, written", [
    ("tune k.ptx --vary n=1 --grid n --block 32 --arg buf:u32:32 -o all.csv", "tune.Tuning.save"),
    ("validate --reference cycles.csv --plot x.svg", "validate.plot"),
    ("validate --silicon times.csv --plot x.svg", "silicon.plot"),
])  # fmt: skip
def test_a_full_disk_costs_no_result(command, written, tmp_path, monkeypatch):
    """Everything was written first: hours of variants were lost."""
    monkeypatch.chdir(tmp_path)
    body = ".entry k(.param .u64 a) { .reg .u32 %r; mov.u32 %r, %tid.x; ret; }"
    Path("k.ptx").write_text(".version 8.0\n.target sm_80\n.address_size 64\n" + body)
    Path("cycles.csv").write_text("benchmark,launch,variant,cycles\nrelu,0,GTX480_a,500\n")
    Path("times.csv").write_text("target,gpu,core_clock_hz,flush,time_ns,class\nrelu,gtx480,7e8,all,500,x\n")

    def full(*given):
        raise InputError("no space left")

    monkeypatch.setattr(f"abstim.study.{written}", full)
    said = call(*command.split())
    assert said.code == 2 and said.err.endswith("abstim: no space left\n") and "gtx480" in said.out.lower()
