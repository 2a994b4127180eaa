"""Trace stores: what is written is read, it times like the target itself, and damage is named."""

from __future__ import annotations

import dataclasses
import io
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

import functional.suite as suite
from abstim.cli import main
from abstim.cli.app import app_for
from abstim.models import run
from abstim.targets.execution import execute, execute_case, write_store
from abstim.targets.resolve import open_target
from functional.errors import InputError
from functional.execution.default_executor import default_executor
from functional.ptx.parser import parse
from functional.traces import store as stores
from functional.traces.store import StoreWriter, decode, encode, open_store
from functional.traces.trace import COUNTS, OFFSETS, STREAMS, Trace


@st.composite
def traces(draw: st.DrawFn) -> Trace:
    """Any streams at all: extremes wrap around in the differences."""
    warps = draw(st.integers(0, 6))
    rng = np.random.default_rng(draw(st.integers(0, 1 << 32)))
    spread = draw(st.sampled_from([1, 200, 1 << 16, 1 << 32]))
    dtypes = dict(zip(STREAMS, (np.uint16, np.uint32, np.uint32, np.uint8), strict=True))
    lengths = {name: rng.integers(0, 20, warps) for name in OFFSETS}
    offsets = {name: np.concatenate([[0], lengths[name].cumsum()]).astype(np.int64) for name in OFFSETS}
    of = dict(zip(STREAMS, (OFFSETS[0], *OFFSETS), strict=True))
    streams = {
        name: rng.integers(0, min(spread, np.iinfo(dtype).max + 1), offsets[of[name]][-1]).astype(dtype)
        for name, dtype in dtypes.items()
    }
    counts = {name: rng.integers(0, 1 << 62, warps) for name in COUNTS}
    at = np.flatnonzero(rng.random(len(streams["records"])) < 0.3)
    partial = {"partial_at": at, "partial_words": rng.integers(0, 1 << 32, len(at), np.uint32)}
    return Trace(thread_blocks=rng.permutation(warps), warps_per_block=1, **streams, **offsets, **counts, **partial)


def assert_same(got: Trace, want: Trace) -> None:
    for field in dataclasses.fields(Trace):
        a, b = np.asarray(getattr(got, field.name)), np.asarray(getattr(want, field.name))
        assert np.array_equal(a, b) and a.dtype == b.dtype, field.name


@given(traces())
def test_coding_round_trip(trace: Trace) -> None:
    assert_same(decode(encode(trace)), trace)


@given(st.lists(st.binary(min_size=1, max_size=60), max_size=5), st.data())
def test_any_change_to_a_file_of_frames_is_noticed(pieces: list[bytes], data: st.DataObject) -> None:
    file = io.BytesIO()
    writer = stores.FrameWriter(file)
    for piece in pieces:
        writer.write(piece)
    checksum, whole = writer.finish(), file.getvalue()
    assert list(stores.read_frames(io.BytesIO(whole), checksum)) == pieces
    at = data.draw(st.integers(0, len(whole) - 1))
    bit = data.draw(st.integers(0, 7))
    flipped = whole[:at] + bytes([whole[at] ^ 1 << bit]) + whole[at + 1 :]
    for damaged in (flipped, whole[:at], whole + b"\0"):
        with pytest.raises(stores.DamagedError):
            list(stores.read_frames(io.BytesIO(damaged), checksum))


def test_a_file_of_another_store_is_noticed() -> None:
    files = []
    for content in (b"a", b"b"):
        files.append(io.BytesIO())
        writer = stores.FrameWriter(files[-1])
        writer.write(content)
        checksum = writer.finish()
    with pytest.raises(stores.DamagedError, match="checksum of the file"):
        list(stores.read_frames(io.BytesIO(files[0].getvalue()), checksum))


@pytest.fixture(scope="module")
def hotspot(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("stores") / "hotspot"
    write_store(suite.case("hotspot"), folder, default_executor())
    return folder


@pytest.fixture
def store(hotspot: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(hotspot, tmp_path / "store"))


@pytest.mark.parametrize("name", ["hotspot", "bfs", "gemm_mma"])
def test_traces_come_back(name: str, tmp_path: Path) -> None:
    case = suite.case(name)
    write_store(case, tmp_path / "s", default_executor())
    stored, executed = open_store(tmp_path / "s"), execute_case(case, default_executor())
    assert len(stored.launches) == len(case.launches)
    for number, (launch, want) in enumerate(zip(case.launches, executed.traces, strict=True)):
        assert_same(stored.trace(number), want)
        assert stored.launches[number].grid == launch.grid and stored.launches[number].block == launch.block
        assert stored.launches[number].shared_bytes == launch.shared_bytes
        assert stored.registers(stored.launches[number]) == case.registers(launch)
    assert execute(stored).outputs == executed.outputs


def test_it_times_like_its_target_without_its_files(store: Path, tmp_path: Path) -> None:
    moved = store.rename(tmp_path / "elsewhere")
    timed, original = run(str(moved)), run("hotspot")
    assert dataclasses.replace(timed, wall_seconds={}) == dataclasses.replace(original, wall_seconds={})


def test_what_is_stored_cannot_be_executed(store: Path) -> None:
    with pytest.raises(InputError, match="holds no data to execute on"):
        execute_case(open_store(store), default_executor())
    with pytest.raises(InputError, match="holds no data to execute on"):
        write_store(open_store(store), store.with_name("other"), default_executor())


def _flip(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 4
    path.write_bytes(data)


DAMAGES = {
    "no manifest": (lambda s: (s / "manifest.json").unlink(), "manifest.json is missing"),
    "manifest cut": (lambda s: _cut(s / "manifest.json"), r"manifest.json: damaged \(it cannot be decoded"),
    "manifest altered": (lambda s: _flip(s / "manifest.json", -20), r"manifest.json: damaged"),
    "manifest of another version": (
        lambda s: _replace(s / "manifest.json", b'"version":3', b'"version":9'),
        r"manifest.json: damaged \(it is of version 9, this program reads version 3",
    ),
    "PTX altered": (lambda s: _flip(s / "program.ptx", 100), r"program.ptx: damaged \(its checksum differs"),
    "PTX missing": (lambda s: (s / "program.ptx").unlink(), r"program.ptx: damaged \(it is missing"),
    "launch missing": (lambda s: (s / "launch-00001.trace").unlink(), r"launch-00001.trace: damaged \(it is missing"),
    "launch cut": (lambda s: _cut(s / "launch-00001.trace"), r"launch-00001.trace: damaged \(it has \d+ bytes of \d+"),
    "launch altered": (
        lambda s: _flip(s / "launch-00001.trace", 5000), r"launch-00001.trace: damaged \(the checksum of frame 0"
    ),
    "launch of another version": (
        lambda s: _replace(s / "launch-00000.trace", b"abstrc03", b"abstrc02"),
        r"launch-00000.trace: damaged \(it is of version 2, this program reads version 3",
    ),
    "launches swapped": (lambda s: _swap(s), r"launch-0000[01].trace: damaged"),
}  # fmt: skip


def _cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-7])


def _replace(path: Path, old: bytes, new: bytes) -> None:
    data = path.read_bytes()
    assert old in data
    path.write_bytes(data.replace(old, new))


def _swap(store: Path) -> None:
    (store / "launch-00000.trace").rename(store / "x")
    (store / "launch-00001.trace").rename(store / "launch-00000.trace")
    (store / "x").rename(store / "launch-00001.trace")


@pytest.mark.parametrize("name", DAMAGES)
def test_damage_is_named(name: str, store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    damage, message = DAMAGES[name]
    damage(store)
    with pytest.raises(InputError, match=message) as found:
        execute(open_target(str(store)))
    assert str(store) in str(found.value) and "abstim trace TARGET -o DIR" in str(found.value)
    with pytest.raises(SystemExit) as stopped:
        main(["run", str(store)])
    assert stopped.value.code == 2
    assert capsys.readouterr().err == f"abstim: {found.value}\n"


def test_an_interrupted_store_is_named_and_can_be_replaced(tmp_path: Path) -> None:
    case, folder = suite.case("hotspot"), tmp_path / "s"

    class Interrupted:
        def stream(self, launch, memory, **options):
            if launch is case.launches[1]:
                raise KeyboardInterrupt
            return default_executor().stream(launch, memory, **options)

    with pytest.raises(KeyboardInterrupt):
        write_store(case, folder, Interrupted())
    with pytest.raises(InputError, match=r"no complete trace store, manifest\.json is missing; if writing it was"):
        open_target(str(folder))
    with pytest.raises(InputError, match="is there already; choose another folder, or --overwrite"):
        write_store(case, folder, default_executor())
    write_store(case, folder, default_executor(), overwrite=True)
    assert len(open_store(folder).launches) == 2


def test_a_folder_of_stores_names_them(store: Path) -> None:
    with pytest.raises(InputError, match=rf"is a folder of trace stores; name one of them: {store}$"):
        open_target(str(store.parent))


def test_nothing_foreign_is_deleted(store: Path) -> None:
    (store / "thesis.tex").write_text("")
    with pytest.raises(InputError, match=r"holds thesis.tex, which is no part of a trace store"):
        write_store(suite.case("relu"), store, default_executor(), overwrite=True)
    assert (store / "thesis.tex").exists() and (store / "manifest.json").exists()


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="cannot be written"):
        write_store(suite.case("relu"), tmp_path / "file" / "s", default_executor())


def test_ptx_that_changed_since(tmp_path: Path) -> None:
    path = tmp_path / "k.ptx"
    path.write_text(suite.ptx_path("relu").read_text())
    module = parse(path)
    path.write_text(path.read_text() + "\n")
    with pytest.raises(InputError, match="has changed since it was read"):
        StoreWriter(tmp_path / "s", module)


def test_manifest_with_an_unknown_key(store: Path) -> None:
    document = json.loads((store / "manifest.json").read_text())
    document["store"]["colour"] = "red"
    (store / "manifest.json").write_text(json.dumps(document))
    with pytest.raises(InputError, match="its checksum differs"):
        stores.read_manifest(store)


def test_command(tmp_path: Path) -> None:
    folder = str(tmp_path / "s")
    made = CliRunner().invoke(app_for([]), ["trace", "relu", "-o", folder, "--json"])
    assert made.exit_code == 0, made.output
    found = json.loads(made.stdout)
    assert found["target"] == "relu" and found["warp_instructions"] == found["launches"][0]["warp_instructions"] > 0
    assert found["file_bytes"] < found["warp_instructions"]  # less than a byte a warp instruction
    plain = CliRunner().invoke(app_for([]), ["trace", "relu", "-o", folder, "--overwrite"])
    assert plain.exit_code == 0 and "1 launch of relu" in plain.stdout
    assert f"abstim run {folder}" in " ".join(plain.stdout.split())
    timed = CliRunner().invoke(app_for([]), ["run", folder, "--json"])
    assert json.loads(timed.stdout)["totals"]["cycles"] == run("relu").totals["cycles"]
