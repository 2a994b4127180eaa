"""What fuzzing found stays mended, and a few tries of every kind hold."""

from __future__ import annotations

import pytest
from fuzz import CORPUS, input_of
from fuzz_kinds import KINDS, judged
from nightly import of


@pytest.mark.parametrize("path", sorted(CORPUS.glob("*/*")), ids=lambda path: f"{path.parent.name}-{path.name}")
def test_what_was_found(path, tmp_path) -> None:
    judged(path.parent.name, path.read_bytes(), tmp_path)


@pytest.mark.parametrize("kind", KINDS)
def test_some_tries(kind, tmp_path) -> None:
    verdicts = set()
    for number in range({"kernel": 4, "hopper": 3, "kept": 8}.get(kind, of(20, 40))):
        folder = tmp_path / str(number)
        folder.mkdir()
        verdicts.add(judged(kind, input_of(number, kind)[1], folder))
    assert kind == "kept" or "runs" in verdicts
    assert kind in ("kernel", "hopper") or "refused" in verdicts


def test_the_seed_decides() -> None:
    assert [input_of(n) for n in range(40)] == [input_of(n) for n in range(40)]
