"""`make fuzz TRIES=1000 SEED=0`: what strangers could send, made at random, seeded; see fuzz_kinds/ for the kinds.

Tries run in a child process, its storages between guard pages; a crash or a hang (20 s of processor time) is a
find, too. Each is kept as a file below `tests/data/fuzz/KIND/`, which test_fuzz.py replays; then the exit code is 1.
`python tests/fuzz.py COUNT FIRST [KIND]`
"""

from __future__ import annotations

import mmap
import os
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from hashlib import sha256
from pathlib import Path
from random import Random

from fuzz_kinds import KINDS, judged, warm_up
from processes import processor_seconds

from functional.errors import plain
from functional.llvm_executor.launch_state import GUARD

CORPUS = Path(__file__).parent / "data" / "fuzz"
SECONDS = 20  # of processor time, a try; and six times as much of the clock's
MEMORY_BYTES = 6 << 30  # of address space, of the child
RUNS, REFUSED, FIND = range(3)


def input_of(number: int, only: str = "") -> tuple[str, bytes]:
    """The kind and the bytes of a try."""
    rng = Random(f"try {number}")
    kinds = [only] if only else list(KINDS)
    kind = rng.choices(kinds, [KINDS[name].weight for name in kinds])[0]
    return kind, KINDS[kind].make(rng)


class Board:
    """What parent and child both see: the try under way, and the verdict on each."""

    def __init__(self, count: int) -> None:
        self._bytes = mmap.mmap(-1, 8 + count)

    @property
    def at(self) -> int:
        return int.from_bytes(self._bytes[:8], "little")

    @at.setter
    def at(self, place: int) -> None:
        self._bytes[:8] = place.to_bytes(8, "little")

    def set(self, place: int, verdict: int) -> None:
        self._bytes[8 + place] = verdict

    def count(self) -> Counter[int]:
        return Counter(self._bytes[8:])


def child(board: Board, start: int, count: int, first: int, only: str) -> None:
    """Tries until the end, or until one ends the process."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    with tempfile.TemporaryDirectory() as folder:
        os.environ["ABSTIM_CACHE"] = str(Path(folder) / "cache")
        os.environ["ABSTIM_ISOLATE"] = "0"  # a crash has to show
        for place in range(start, count):
            board.at = place
            kind, data = input_of(first + place, only)
            own = Path(folder) / "input"
            own.mkdir()
            try:
                board.set(place, RUNS if judged(kind, data, own) == "runs" else REFUSED)
            except BaseException:
                board.set(place, FIND)
                found(kind, data, first + place, traceback.format_exc().strip().splitlines()[-1])
            shutil.rmtree(own)
        board.at = count


def found(kind: str, data: bytes, number: int, what: str) -> None:
    """Keep and say a find."""
    path = CORPUS / kind / sha256(data).hexdigest()[:12]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    print(f"try {number}, {kind}: {plain(what)[:300]}; kept as {path}", flush=True)


def watched(board: Board, process: int) -> str:
    """Wait for the child; how it ended before its time, "" if it did not."""
    at, since, used = board.at, time.monotonic(), 0.0
    while True:
        ended, status = os.waitpid(process, os.WNOHANG)
        if ended:
            return f"signal {os.WTERMSIG(status)}" if os.WIFSIGNALED(status) else ""
        if board.at != at:
            at, since, used = board.at, time.monotonic(), processor_seconds(process)
        if processor_seconds(process) - used > SECONDS or time.monotonic() - since > 6 * SECONDS:
            os.kill(process, signal.SIGKILL)
            os.waitpid(process, 0)
            return f"no end within {SECONDS} s"
        time.sleep(0.05)


def main(count: int, first: int = 0, only: str = "") -> int:
    """`count` tries from number `first`; yields the exit code."""
    os.environ[GUARD] = "1"
    warm_up()
    board, start, begun, finds = Board(count), 0, time.monotonic(), 0
    while start < count:
        process = os.fork()
        if not process:
            child(board, start, count, first, only)
            os._exit(0)
        ended = watched(board, process)
        start = board.at
        if start < count:
            kind, data = input_of(first + start, only)
            found(kind, data, first + start, ended or "the process ended")
            finds, start = finds + 1, start + 1
    verdicts = board.count()
    finds += verdicts[FIND]
    print(f"{count} tries from {first}, {time.monotonic() - begun:.0f} s: {verdicts[REFUSED]} refused, {finds} finds")
    return int(finds > 0)


if __name__ == "__main__":
    sys.exit(main(*map(int, sys.argv[1:3]), *sys.argv[3:4]))
