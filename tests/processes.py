"""Commands in processes of their own: waiting until they are at work, and what of the processor they took."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
from pathlib import Path


def processor_seconds(process: int) -> float:
    """What a process and its children, those that have ended too, have used so far; 0 of one that has ended."""
    try:
        fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
        tasks = Path(f"/proc/{process}/task").glob("*/children")  # a child belongs to the thread that started it
        children = [child for task in tasks for child in task.read_text().split()]
    except OSError:
        return 0.0
    own = sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")
    return own + sum(processor_seconds(int(child)) for child in children)


def at_work(process: subprocess.Popen, seconds: float) -> None:
    """Wait until a process has used some processor time. Raises AssertionError if it ends before."""
    while processor_seconds(process.pid) < seconds:
        try:
            process.wait(0.05)
        except subprocess.TimeoutExpired:
            continue
        raise AssertionError(f"ended before it had used {seconds} s")


def interrupted(process: subprocess.Popen) -> tuple[str | bytes, str | bytes, float]:
    """What an interrupted process prints, and the processor time from the interrupt to its end."""
    before, used = _of_ended_children(), processor_seconds(process.pid)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=120)
    return out, err, _of_ended_children() - before - used


def _of_ended_children() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime
