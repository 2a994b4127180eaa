"""What an isolated process answers."""

from __future__ import annotations

import io
from dataclasses import fields, replace
from pathlib import Path
from random import Random

import numpy as np

from abstim.targets.check_trace import block_counts, problem
from abstim.targets.isolation.isolated_executor import Done, Failed, receive, send, send_trace
from functional.errors import InputError
from functional.traces.trace import Trace
from fuzz_kinds.small_launch import small_launch, timed
from fuzz_kinds.store import altered_array


def make_answer(rng: Random) -> bytes:
    """A trace and the end, of which some bytes or arrays were altered."""
    _, _, trace = small_launch()
    if rng.random() < 0.5:
        name = rng.choice([f.name for f in fields(Trace) if f.name != "warps_per_block"])
        trace = replace(trace, **{name: altered_array(getattr(trace, name), rng)})
    file = io.BytesIO()
    send_trace(file, trace)
    send(file, Done(["x"], (0, 0), []) if rng.random() < 0.8 else Failed("InputError", "x", ["\x1b[2J"]))
    data = bytearray(file.getvalue())
    for _ in range(rng.choice([0, 1, 1, 3])):
        data[rng.randrange(rng.choice([40, len(data)]))] = rng.randrange(256)
    return bytes(data[: rng.randrange(1, len(data))] if rng.random() < 0.1 else data)


def judge_answer(data: bytes, _: Path) -> str:
    """Received, held against its launch, and timed if nothing shows."""
    _, launch, _ = small_launch()
    file = io.BytesIO(data)
    try:
        while isinstance(message := receive(file), Trace):
            if wrong := problem(message, launch, block_counts(launch.program), np.arange(launch.thread_blocks)):
                raise InputError(wrong)
            timed(launch, message)
    except (EOFError, ValueError) as error:
        raise InputError(f"no message: {error}") from None
    return "runs" if isinstance(message, Done) else "refused"
