"""Executions on disk: they come back equal, damage is noticed, the folder stays under its cap."""

from __future__ import annotations

import os
from dataclasses import fields

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from abstim.targets import execution as trace_cache
from abstim.targets.execution import Execution
from functional.errors import InputError
from functional.keep.folder import evict, trace_cache_bytes, write_atomic
from functional.traces.store import OutputCheck
from functional.traces.trace import Trace


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("ABSTIM_CACHE", str(tmp_path))


def trace(seed: int, warps: int) -> Trace:
    random = np.random.default_rng(seed)

    def stream(dtype):
        counts = random.integers(0, 20, warps)
        offsets = np.concatenate([[0], counts.cumsum()]).astype(np.int64)
        return random.integers(0, np.iinfo(dtype).max, offsets[-1], dtype), offsets

    blocks, block_offsets = stream(np.uint16)
    records, record_offsets = stream(np.uint32)
    conflicts, conflict_offsets = stream(np.uint8)
    counts = random.integers(0, 1000, (2, warps))
    return Trace(
        thread_blocks=np.arange(warps, dtype=np.int64),
        warps_per_block=1,
        blocks=blocks,
        masks=random.integers(0, 1 << 32, len(blocks), np.uint32),
        records=records,
        conflicts=conflicts,
        block_offsets=block_offsets,
        record_offsets=record_offsets,
        conflict_offsets=conflict_offsets,
        warp_instructions=counts[0],
        thread_instructions=counts[1],
    )


@given(st.lists(st.integers(0, 5), max_size=4))
def test_what_is_written_is_read(warps):
    execution = Execution(
        tuple(trace(i, n) for i, n in enumerate(warps)), (OutputCheck(buffer="a", elements=3, mismatches=0),)
    )
    trace_cache.save("key", execution)
    read = trace_cache.load("key")
    assert read is not None and read.outputs == execution.outputs and len(read.traces) == len(warps)
    for got, want in zip(read.traces, execution.traces, strict=True):
        for f in fields(Trace):
            np.testing.assert_array_equal(getattr(got, f.name), getattr(want, f.name))
            assert np.asarray(getattr(got, f.name)).dtype == np.asarray(getattr(want, f.name)).dtype


@pytest.mark.parametrize(
    "damage", [lambda c: c[:-1], lambda c: b"", lambda c: c[:100] + b"x" + c[101:], lambda c: b"PK"]
)
def test_damage_is_said_and_the_file_goes(damage, tmp_path, capsys):
    trace_cache.save("key", Execution((trace(1, 3),), ()))
    path = tmp_path / "traces" / "key"
    path.write_bytes(damage(path.read_bytes()))
    assert trace_cache.load("key") is None
    assert "damaged" in capsys.readouterr().err and not path.exists()


def test_longest_unused_goes_first(tmp_path):
    for number, name in enumerate("abc"):
        write_atomic(tmp_path / "x" / name, lambda file: file.write(b"." * 100))
        os.utime(tmp_path / "x" / name, (number, number))
    os.utime(tmp_path / "x" / "a")
    assert [path.name for path in evict(tmp_path / "x", 250)] == ["b"]
    assert sorted(path.name for path in (tmp_path / "x").iterdir()) == ["a", "c"]


def test_cap_is_kept(tmp_path, monkeypatch):
    execution = Execution((trace(1, 50),), ())
    trace_cache.save("a", execution)
    size = (tmp_path / "traces" / "a").stat().st_size
    monkeypatch.setenv("ABSTIM_TRACE_CACHE_BYTES", str(2 * size + 1))
    for key in "abcd":
        trace_cache.save(key, execution)
    assert len(list((tmp_path / "traces").iterdir())) == 2
    monkeypatch.setenv("ABSTIM_TRACE_CACHE_BYTES", "10")
    trace_cache.save("e", execution)
    assert trace_cache.load("e") is None


def test_bad_cap_is_bad_input(monkeypatch):
    monkeypatch.setenv("ABSTIM_TRACE_CACHE_BYTES", "1 GB")
    with pytest.raises(InputError, match="not a whole number"):
        trace_cache_bytes()


def test_cache_that_cannot_be_written_costs_only_time(tmp_path, capsys):
    (tmp_path / "file").write_text("in the way")
    write_atomic(tmp_path / "file" / "x", lambda file: file.write(b"."))
    assert "cannot write" in capsys.readouterr().err


def test_failed_write_leaves_nothing(tmp_path):
    def fail(file):
        file.write(b"half")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_atomic(tmp_path / "x" / "y", fail)
    assert list((tmp_path / "x").iterdir()) == []
