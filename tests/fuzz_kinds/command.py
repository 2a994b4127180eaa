"""Command lines, of which few make sense."""

from __future__ import annotations

import contextlib
import io
from pathlib import Path
from random import Random

from abstim.cli import main
from fuzz_kinds.launches import PTX
from fuzz_kinds.small_launch import NUMBERS

COMMANDS = [
    "run", "explore", "fit", "sample", "report", "gpus", "suite", "trace", "characterize", "validate",
    "import-config", "coldstart", "bench",
]  # fmt: skip
OPTIONS = [
    "--gpu", "--set", "--kernel", "--grid", "--block", "--arg", "--dynamic-shared", "--instruction-budget", "--flush",
    "--check", "--strict", "--model", "--vary", "--define", "--constraint", "--strategy", "--points", "--seed",
    "--objective", "--top", "--params", "--split", "--rounds", "--method", "--inside", "--warm-up", "--reference",
    "--benchmark", "--group", "--title", "--listing", "--help", "--json", "--version",
]  # fmt: skip
VALUES = [
    "gtx480", "sm_count=2", "sm_count=0", "perfect_memory=false", "x=1", "=", "64", "8x8x8", "1x1x1x1", "buf:f32:64",
    "u32:-1", "npy:/etc/passwd", "all", "none", "sm_count=1,2", "sm_count=1:1e9:1", "a=1/0", "time<1", "grid",
    "latin", "full", "pks", "photon", "first", "micro", "nothing", "\x1b[2J", "{}",
]  # fmt: skip


def make_command(rng: Random) -> bytes:
    """Words of a command line, of which few make sense together."""
    words = [rng.choice(COMMANDS), rng.choice(["nosuch", "k.ptx", "nn_euclid", ".", "/", "a" * 300])]
    if rng.random() < 0.2:
        words = rng.choice([["gpus", "gtx480"], ["suite"], ["characterize", "nn_euclid"], ["gpus"]])
    for _ in range(rng.choice([0, 1, 1, 2, 3, 4])):
        words.append(rng.choice(OPTIONS))
        if rng.random() < 0.8:
            words.append(rng.choice([*VALUES, *NUMBERS]))
    if len(words) > 1 and words[0] in ("bench", "fit", "coldstart", "sample", "validate"):
        words[1] = "nosuch"  # others take minutes
    return "\0".join(words).encode("utf-8", "surrogateescape")


def judge_command(data: bytes, folder: Path) -> str:
    """One line on stderr, or none."""
    (folder / "k.ptx").write_text(PTX)
    words = data.decode("utf-8", "surrogateescape").split("\0")
    words = [str(folder / word) if word == "k.ptx" else word for word in words]
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), contextlib.chdir(folder):
        try:
            main(words)
            code: object = 0
        except SystemExit as end:
            code = end.code
    said = err.getvalue()
    assert code in (0, 1, 2), (code, said)
    assert "Traceback" not in said and not (code == 2 and said.count("\n") != 1), said
    return "runs" if code == 0 else "refused"
