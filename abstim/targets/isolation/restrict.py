"""What a process gives up before it executes a stranger's kernel: privileges, files, system calls, endless memory."""

from __future__ import annotations

import ctypes
import os
import sys
import sysconfig
from functools import cache
from pathlib import Path

from abstim.targets.isolation import landlock, system_calls
from functional.errors import InputError
from functional.execution.computer import memory_bytes

PACKAGES = ("functional", "precharacterize", "abstim", "sampling", "configs")
_NO_NEW_PRIVILEGES = 38  # of prctl
_CAPABILITIES_VERSION = 0x2008_0522
_MOST_FILES = 64


def missing() -> str:
    """What this system has not that holding a process to it takes; "" if it can."""
    if sys.platform != "linux":
        return "Linux"
    if not landlock.version():
        return "Landlock (Linux 5.13 or newer, switched on)"
    return "" if system_calls.available() else "seccomp filters, on x86_64 or aarch64"


def refuse_where_impossible() -> None:
    """Raises InputError, saying why, where this system cannot hold a process to it."""
    if lacks := missing():
        raise InputError(f"isolation needs {lacks}; run foreign kernels as a user without privileges instead")


@cache
def rules() -> int:
    """Of Landlock: Python, its packages and the system's libraries can be read; nothing else."""
    return landlock.ruleset(readable())


def readable() -> list[Path]:
    """Folders of code."""
    paths = sysconfig.get_paths()
    root = Path(__file__).parents[3]
    found = [Path(paths[name]) for name in ("stdlib", "platstdlib", "purelib", "platlib")]
    found += [root / name for name in PACKAGES] + [Path(path) for path in ("/usr/lib", "/usr/lib64", "/lib", "/lib64")]
    return [path for path in dict.fromkeys(found) if path.is_dir()]


def restrict(rules: int) -> None:
    """Hold this process, which has one thread, to computing: it gains no privileges, keeps the files that are open, and
    opens others only to read what `rules` allow. Raises OSError where the system does not allow that."""
    libc = ctypes.CDLL(None, use_errno=True)
    _limit()
    if libc.prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "no_new_privs")
    landlock.enter(rules)
    _drop_capabilities(libc)
    system_calls.give_up()


def _limit() -> None:
    import resource

    now = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    limits = {
        resource.RLIMIT_AS: now + 2 * memory_bytes(),  # much of it is never touched
        resource.RLIMIT_NOFILE: _MOST_FILES,
        resource.RLIMIT_CORE: 0,
        resource.RLIMIT_FSIZE: 0,
    }
    for what, most in limits.items():
        hard = resource.getrlimit(what)[1]
        most = most if hard == resource.RLIM_INFINITY else min(most, hard)
        resource.setrlimit(what, (most, most))


def _drop_capabilities(libc: ctypes.CDLL) -> None:
    """A process of root's has them."""
    header = (ctypes.c_uint32 * 2)(_CAPABILITIES_VERSION, 0)
    if libc.capset(header, (ctypes.c_uint32 * 6)()):
        raise OSError(ctypes.get_errno(), "capset")
