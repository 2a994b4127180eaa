"""What a stranger could send, made at random: for each kind of input, `make(rng)` its bytes and `judge(data, folder)`
what becomes of them.

`judge` ends with a verdict, "runs" or "refused". Anything but an InputError of one line is a find, and so are executors
that differ, traces of our own that the engine's door refuses, and other cycles the second time.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from errno import ENOMEM
from pathlib import Path
from random import Random

from functional.errors import InputError
from fuzz_kinds.accelsim import judge_accelsim, make_accelsim
from fuzz_kinds.answer import judge_answer, make_answer
from fuzz_kinds.command import judge_command, make_command
from fuzz_kinds.gpu import judge_gpu, make_gpu
from fuzz_kinds.hopper import judge_hopper
from fuzz_kinds.kept import judge_kept, make_kept
from fuzz_kinds.kernel import judge_kernel, make_kernel
from fuzz_kinds.launches import PTX, judge_launches, make_launches
from fuzz_kinds.ptx import judge_ptx, make_ptx
from fuzz_kinds.small_launch import small_launch, timed
from fuzz_kinds.store import judge_store, make_store


def warm_up() -> None:
    """Compile and load what every kind needs: a child has it from the start."""
    _, launch, trace = small_launch()
    timed(launch, trace)
    judge_ptx(PTX.encode(), Path())


@dataclass(frozen=True)
class Kind:
    """A kind of input. `weight`: its share of the tries."""

    make: Callable[[Random], bytes]
    judge: Callable[[bytes, Path], str]
    weight: int


KINDS = {
    "ptx": Kind(make_ptx, judge_ptx, 30),
    "kernel": Kind(make_kernel, judge_kernel, 1),
    "hopper": Kind(make_kernel, judge_hopper, 1),
    "launches": Kind(make_launches, judge_launches, 15),
    "gpu": Kind(make_gpu, judge_gpu, 12),
    "store": Kind(make_store, judge_store, 25),
    "accelsim": Kind(make_accelsim, judge_accelsim, 12),
    "command": Kind(make_command, judge_command, 4),
    "kept": Kind(make_kept, judge_kept, 8),
    "answer": Kind(make_answer, judge_answer, 8),
}


def judged(kind: str, data: bytes, folder: Path) -> str:
    """The verdict on an input. Raises whatever is a find."""
    try:
        return KINDS[kind].judge(data, folder)
    except InputError as error:
        message = str(error)
        assert message and "\n" not in message, f"no line: {message[:200]!r}"
        return "refused"
    except (MemoryError, OSError) as error:  # the child has less than the computer; the command makes one line of it
        if getattr(error, "errno", ENOMEM) != ENOMEM:
            raise
        return "refused"
