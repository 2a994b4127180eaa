"""Files that have no end, or are too long, are refused before they are read."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from abstim.cli import main
from functional.files import read_bytes, read_text

pytestmark = pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs pipes with names")


@pytest.mark.parametrize("make", [os.mkfifo, lambda path: path.symlink_to("/dev/zero")])
@pytest.mark.parametrize(
    "line",
    [
        "run {0}/f.ptx --grid 1 --block 32",
        "run {0}/f.cu --grid 1 --block 32",
        "run {0}/f.json",
        "run {0}/store",
        "run relu --gpu {0}/f.toml",
        "import-config {0}/f.config",
        "report {0}/f.json",
        "validate --reference {0}/f.csv",
        "calibrate v100 --figures {0}/f.csv",
        "app {0}/program",
        "run {0}/buffer/launches.json",
    ],
)
def test_no_file_without_an_end_is_read(make, line, tmp_path: Path, capfd) -> None:
    (tmp_path / "store").mkdir()
    for name in ("f.ptx", "f.cu", "f.json", "f.toml", "f.config", "f.csv", "store/manifest.json", "program"):
        make(tmp_path / name)
    os.chmod(tmp_path / "program", 0o777) if make is os.mkfifo else None
    folder = tmp_path / "buffer"
    folder.mkdir()
    make(folder / "data.bin")
    (folder / "k.ptx").write_text(".version 8.0\n.target sm_80\n.address_size 64\n.entry k(.param .u64 a) { ret; }\n")
    (folder / "launches.json").write_text(
        '{"ptx": "k.ptx", "buffers": {"a": {"type": "u8", "file": "data.bin"}}, '
        '"launches": [{"kernel": "k", "grid": 1, "block": 32, "args": [{"buffer": "a"}]}]}'
    )
    with pytest.raises(SystemExit) as ended:
        main(line.format(tmp_path).split())
    said = capfd.readouterr().err
    assert ended.value.code == 2 and "Traceback" not in said and len(said.splitlines()) == 1, said


def test_files_that_are_too_long(tmp_path: Path) -> None:
    path = tmp_path / "long"
    with path.open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(OSError, match="at most"):
        read_bytes(path)
    path.write_bytes(b"\xef\xbb\xbfa\r\nb\rc\n")
    assert read_text(path) == "a\nb\nc\n"
