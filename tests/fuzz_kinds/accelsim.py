"""Trace directories of Accel-Sim with other words."""

from __future__ import annotations

from pathlib import Path
from random import Random

from sass_traces import EXIT
from sass_traces import kernel as sass_kernel

from abstim.gpu.config import load_gpu
from abstim.models import run
from fuzz_kinds.small_launch import NUMBERS

WARP = (
    "0000 ffffffff 1 R1 IMAD 2 R2 R3 0 ", "0010 ffffffff 1 R2 LDG.E 1 R4 4 1 0x7f0000000000 4 ",
    "0020 0000ffff 0 STG.E 2 R4 R2 4 1 0x7f0000000100 4 ", "0030 ffffffff 0 BAR.SYNC 0 0 ", EXIT,
)  # fmt: skip
TOKENS = [
    *NUMBERS,
    *["R1", "R255", "R300", "R-1", "(1,1,1)", "(0,0,0)", "LDG.E.64", "EXIT", "BAR.SYNC", "FOO", "0x"],
    "",
    *["="],
]


def make_accelsim(rng: Random) -> bytes:
    """A trace of one warp with other words."""
    lines = sass_kernel(WARP, WARP, block_dim="(64,1,1)").split("\n")
    for _ in range(rng.choice([1, 1, 2, 4])):
        at = rng.randrange(len(lines))
        words = lines[at].split(" ")
        place = rng.randrange(len(words))
        match rng.randrange(5):
            case 0:
                del lines[at]
            case 1:
                lines.insert(at, rng.choice(lines))
            case 2:
                words[place] = rng.choice(TOKENS)
            case 3:
                words.insert(place, rng.choice(TOKENS))
            case 4:
                del words[place]
        if at < len(lines) and words:
            lines[at] = " ".join(words)
        lines = lines or [""]
    return "\n".join(lines).encode()


def judge_accelsim(data: bytes, folder: Path) -> str:
    """Read and timed."""
    (folder / "kernelslist.g").write_text("kernel-1.traceg\n")
    (folder / "kernel-1.traceg").write_bytes(data)
    from abstim.targets.resolve import trace_case

    case = trace_case(str(folder))
    if case.launches[0].thread_blocks > 1 << 12:
        return "runs"
    run(case, load_gpu("gtx480_perfect"))
    return "runs"
