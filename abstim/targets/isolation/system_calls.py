"""seccomp: a process that gives up all system calls but those that computing takes. Manual page: seccomp(2).

What is left: its memory, its threads, the files it has, opening files to read, the time. No file is made or changed, no
program or process started, no socket opened, no other process touched; such calls fail with EPERM.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import struct
from collections.abc import Iterator
from typing import NamedTuple

_SET_SECCOMP, _GET_SECCOMP, _FILTER = 22, 21, 2  # of prctl
_AUDIT_ARCHITECTURE = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
# System call -> its numbers on x86_64 and on aarch64
_ALLOWED = {
    "read": (0, 63), "write": (1, 64), "readv": (19, 65), "writev": (20, 66), "pread64": (17, 67), "lseek": (8, 62),
    "close": (3, 57), "stat": (4, None), "lstat": (6, None), "fstat": (5, 80), "newfstatat": (262, 79),
    "statx": (332, 291), "access": (21, None), "faccessat": (269, 48), "readlink": (89, None), "readlinkat": (267, 78),
    "getcwd": (79, 17), "getdents64": (217, 61), "poll": (7, None), "ppoll": (271, 73),
    "mmap": (9, 222), "munmap": (11, 215), "mremap": (25, 216), "mprotect": (10, 226), "madvise": (28, 233),
    "brk": (12, 214), "get_mempolicy": (239, 236),
    "futex": (202, 98), "set_robust_list": (273, 99), "set_tid_address": (218, 96), "rseq": (334, 293),
    "sched_yield": (24, 124), "sched_getaffinity": (204, 123), "getcpu": (309, 168), "membarrier": (324, 283),
    "rt_sigaction": (13, 134), "rt_sigprocmask": (14, 135), "rt_sigreturn": (15, 139), "sigaltstack": (131, 132),
    "restart_syscall": (219, 128), "exit": (60, 93), "exit_group": (231, 94),
    "getpid": (39, 172), "getppid": (110, 173), "gettid": (186, 178), "getuid": (102, 174), "geteuid": (107, 175),
    "getgid": (104, 176), "getegid": (108, 177), "uname": (63, 160), "sysinfo": (99, 179), "getrlimit": (97, 163),
    "getrandom": (318, 278), "gettimeofday": (96, 169), "clock_gettime": (228, 113), "clock_getres": (229, 114),
    "nanosleep": (35, 101), "clock_nanosleep": (230, 115),
}  # fmt: skip
_MISSING = {"clone3": (435, 435)}  # "not there": its flags are in memory, and libraries then ask `clone`
_THREAD, _CHANGES = 0x10000, os.O_ACCMODE | os.O_CREAT | os.O_TRUNC  # CLONE_THREAD; flags to open with


class _Only(NamedTuple):
    """A call is allowed if an argument (its low or high half) has these bits of a mask."""

    argument: int
    mask: int
    bits: int
    half: int = 0

    @property
    def offset(self) -> int:
        """Of the half argument in `struct seccomp_data`; both architectures are little-endian."""
        return 16 + 8 * self.argument + 4 * self.half


def _restricted() -> dict[str, tuple[tuple[int, int], tuple[_Only, ...]]]:
    every = 0xFFFF_FFFF
    return {
        "clone": ((56, 220), (_Only(0, _THREAD, _THREAD),)),
        "openat": ((257, 56), (_Only(2, _CHANGES, 0),)),
        "fcntl": ((72, 25), (_Only(1, every & ~3, 0),)),  # F_DUPFD to F_GETFL
        "prlimit64": ((302, 261), (_Only(2, every, 0), _Only(2, every, 0, half=1))),  # asking, not setting
        "tgkill": ((234, 131), (_Only(0, every, os.getpid()),)),  # abort
    }


def available() -> bool:
    """Does this system know filters, and this file the numbers of its system calls?"""
    return platform.machine() in _AUDIT_ARCHITECTURE and ctypes.CDLL(None).prctl(_GET_SECCOMP, 0, 0, 0, 0) >= 0


def give_up() -> None:
    """Give up all other system calls, for good, for this thread and all it starts. Raises OSError."""
    program = b"".join(_program())
    count, code = len(program) // 8, ctypes.create_string_buffer(program)
    packed = ctypes.create_string_buffer(struct.pack("@HP", count, ctypes.addressof(code)))
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_SET_SECCOMP, _FILTER, packed, 0, 0):
        raise OSError(ctypes.get_errno(), f"seccomp: {os.strerror(ctypes.get_errno())}")


def _program() -> Iterator[bytes]:
    """Instructions of the filter, in classic BPF."""
    column = list(_AUDIT_ARCHITECTURE).index(platform.machine())
    yield _load(4)
    yield _jump_if_equal(_AUDIT_ARCHITECTURE[platform.machine()], 1, 0)
    yield _answer(_ERROR | errno.EPERM)
    yield _load(0)
    for numbers in _ALLOWED.values():
        yield from _if_it_is(numbers[column], [_answer(_ALLOW)])
    for numbers in _MISSING.values():
        yield from _if_it_is(numbers[column], [_answer(_ERROR | errno.ENOSYS)])
    for numbers, conditions in _restricted().values():
        yield from _if_it_is(numbers[column], _under(conditions))
    yield _answer(_ERROR | errno.EPERM)


def _if_it_is(number: int | None, then: list[bytes]) -> list[bytes]:
    """`then` if the call has this number; it ends with an answer."""
    return [] if number is None else [_jump_if_equal(number, 0, len(then)), *then]


def _under(conditions: tuple[_Only, ...]) -> list[bytes]:
    checks: list[bytes] = []
    for place, one in enumerate(conditions):
        left = 3 * (len(conditions) - place - 1) + 1  # instructions up to the refusal
        checks += [_load(one.offset), _and(one.mask), _jump_if_equal(one.bits, 0, left)]
    return [*checks, _answer(_ALLOW), _answer(_ERROR | errno.EPERM)]


_ALLOW, _ERROR = 0x7FFF_0000, 0x0005_0000


def _load(offset: int) -> bytes:
    return struct.pack("=HBBI", 0x20, 0, 0, offset)


def _and(mask: int) -> bytes:
    return struct.pack("=HBBI", 0x54, 0, 0, mask)


def _jump_if_equal(value: int, there: int, otherwise: int) -> bytes:
    return struct.pack("=HBBI", 0x15, there, otherwise, value)


def _answer(what: int) -> bytes:
    return struct.pack("=HBBI", 0x06, 0, 0, what)
