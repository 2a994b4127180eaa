"""Landlock (Linux 5.13): a process that gives up opening files, all but those it may read. Manual page: landlock(7)."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterable
from pathlib import Path

_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446  # system calls, of every architecture
_ASK_VERSION, _PATH_BENEATH = 1, 1
_READ_FILE, _READ_FOLDER = 1 << 2, 1 << 3
_FILE_RIGHTS = {1: 13, 2: 14, 3: 15, 5: 16}  # version -> how many rights on files it knows: bits from 0
_CONNECT_RIGHTS = {4: 0b11}  # TCP
_SCOPES = {6: 0b11}  # sockets by name, signals: to processes within alone


class _Ruleset(ctypes.Structure):
    _fields_ = (("files", ctypes.c_uint64), ("connections", ctypes.c_uint64), ("scopes", ctypes.c_uint64))


class _Beneath(ctypes.Structure):
    _pack_ = 1
    _fields_ = (("rights", ctypes.c_uint64), ("folder", ctypes.c_int32))


def version() -> int:
    """Of the kernel's Landlock; 0 if it has none."""
    return max(0, _system_call(_CREATE_RULESET, None, 0, _ASK_VERSION))


def ruleset(readable: Iterable[Path]) -> int:
    """A file descriptor of rules: nothing of the file system but reading these folders, and what is in them, and, where
    this kernel knows of them, no connections and signals. Raises OSError."""
    files = (1 << _of_version(_FILE_RIGHTS)) - 1
    wanted = _Ruleset(files, _of_version(_CONNECT_RIGHTS), _of_version(_SCOPES))
    rules = _checked(_CREATE_RULESET, ctypes.byref(wanted), ctypes.sizeof(wanted), 0)
    for path in readable:
        folder = os.open(path, os.O_PATH | os.O_CLOEXEC)
        _checked(_ADD_RULE, rules, _PATH_BENEATH, ctypes.byref(_Beneath(_READ_FILE | _READ_FOLDER, folder)), 0)
        os.close(folder)
    return rules


def enter(rules: int) -> None:
    """Hold this thread, and all it starts, to the rules from now on. Raises OSError."""
    _checked(_RESTRICT_SELF, rules, 0)


def _of_version(known: dict[int, int]) -> int:
    return max((value for first, value in known.items() if first <= version()), default=0)


def _checked(number: int, *arguments: object) -> int:
    found = _system_call(number, *arguments)
    if found < 0:
        raise OSError(ctypes.get_errno(), f"Landlock: {os.strerror(ctypes.get_errno())}")
    return found


def _system_call(number: int, *arguments: object) -> int:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.syscall.restype = ctypes.c_long
    words = [ctypes.c_long(a) if isinstance(a, int) else a for a in arguments]
    return int(libc.syscall(ctypes.c_long(number), *words))
