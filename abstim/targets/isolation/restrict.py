"""The rights that a process gives up before it executes a stranger's kernel: privileges, files, system calls, memory.

Landlock (Linux 5.13, landlock(7)) leaves it no files but those it may read, seccomp (seccomp(2)) no system calls but
those that computing takes: its memory, its threads, the files it has, opening files to read, the time. No file is made
or changed, no program or process started, no socket opened, no other process touched; such calls fail with EPERM."""

import ctypes
import errno
import os
import platform
import struct
import sys
from collections.abc import Iterator
from functools import cache, partial
from pathlib import Path
from typing import NamedTuple

from functional.errors import InputError
from functional.execution.computer import memory_bytes
from functional.files import rows_beside

_LIBC = ctypes.CDLL(None, use_errno=True)
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


def landlock_version() -> int:
    """Of the kernel's Landlock; 0 if it has none."""
    return max(0, _system_call(_CREATE_RULESET, None, 0, _ASK_VERSION))


@cache
def rules() -> int:
    """A file descriptor of Landlock's rules: nothing of the file system but reading Python, its packages and the
    system's libraries, and, where this kernel knows of them, no connections and signals. Raises OSError."""
    wanted = _Ruleset((1 << _of_version(_FILE_RIGHTS)) - 1, _of_version(_CONNECT_RIGHTS), _of_version(_SCOPES))
    found = _landlock(_CREATE_RULESET, ctypes.byref(wanted), ctypes.sizeof(wanted), 0)
    for path in readable():
        folder = os.open(path, os.O_PATH | os.O_CLOEXEC)
        _landlock(_ADD_RULE, found, _PATH_BENEATH, ctypes.byref(_Beneath(_READ_FILE | _READ_FOLDER, folder)), 0)
        os.close(folder)
    return found


def _of_version(known: dict[int, int]) -> int:
    return max((value for first, value in known.items() if first <= landlock_version()), default=0)


def _landlock(number: int, *arguments: object) -> int:
    return _checked("Landlock", _system_call(number, *arguments))


def _checked(what: str, found: int) -> int:
    if found < 0:
        raise OSError(ctypes.get_errno(), f"{what}: {os.strerror(ctypes.get_errno())}")
    return found


def _system_call(number: int, *arguments: object) -> int:
    _LIBC.syscall.restype = ctypes.c_long
    words = [ctypes.c_long(a) if isinstance(a, int) else a for a in arguments]
    return int(_LIBC.syscall(ctypes.c_long(number), *words))


_SET_SECCOMP, _GET_SECCOMP, _FILTER = 22, 21, 2  # of prctl
_AUDIT_ARCHITECTURE = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
_ALLOWED = rows_beside(__file__, "system_calls.csv")  # the numbers of each on both
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


def _program() -> Iterator[bytes]:
    """Instructions of the filter, in classic BPF."""
    column = list(_AUDIT_ARCHITECTURE).index(platform.machine())
    yield _load(4)
    yield _jump_if_equal(_AUDIT_ARCHITECTURE[platform.machine()], 1, 0)
    yield _answer(_ERROR | errno.EPERM)
    yield _load(0)
    for row in _ALLOWED:
        number = row[platform.machine()]
        yield from _if_it_is(int(number) if number else None, [_answer(_ALLOW)])
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


def _step(code: int, value: int, there: int = 0, otherwise: int = 0) -> bytes:
    """An instruction; jumps go so many instructions further."""
    return struct.pack("=HBBI", code, there, otherwise, value)


_load, _and, _jump_if_equal, _answer = (partial(_step, code) for code in (0x20, 0x54, 0x15, 0x06))


PACKAGES = ("functional", "precharacterize", "abstim", "sampling", "configs")
_NO_NEW_PRIVILEGES = 38  # of prctl
_CAPABILITIES_VERSION = 0x2008_0522
_MOST_FILES = 64


def missing() -> str:
    """What this system has not that holding a process to it takes; "" if it can."""
    if sys.platform != "linux":
        return "Linux"
    if not landlock_version():
        return "Landlock (Linux 5.13 or newer, switched on)"
    known = platform.machine() in _AUDIT_ARCHITECTURE and _LIBC.prctl(_GET_SECCOMP, 0, 0, 0, 0) >= 0
    return "" if known else "seccomp filters, on x86_64 or aarch64"


def refuse_where_impossible() -> None:
    """Raises InputError, saying why, where this system cannot hold a process to it."""
    if lacks := missing():
        raise InputError(f"isolation needs {lacks}; run foreign kernels as a user without privileges instead")


def readable() -> list[Path]:
    """Folders of code."""
    from sysconfig import get_paths

    paths = get_paths()
    root = Path(__file__).parents[3]
    found = [Path(paths[name]) for name in ("stdlib", "platstdlib", "purelib", "platlib")]
    found += [root / name for name in PACKAGES] + [Path(path) for path in ("/usr/lib", "/usr/lib64", "/lib", "/lib64")]
    return [path for path in dict.fromkeys(found) if path.is_dir()]


def restrict(rules: int) -> None:
    """Hold this process, which has one thread, to computing: it gains no privileges, keeps the files that are open, and
    opens others only to read what `rules` allow. Raises OSError where the system does not allow that."""
    _limit()
    _checked("no_new_privs", _LIBC.prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0))
    _landlock(_RESTRICT_SELF, rules, 0)
    header = (ctypes.c_uint32 * 2)(_CAPABILITIES_VERSION, 0)
    _checked("capset", _LIBC.capset(header, (ctypes.c_uint32 * 6)()))  # a process of root's has some
    program = b"".join(_program())
    code = ctypes.create_string_buffer(program)
    packed = ctypes.create_string_buffer(struct.pack("@HP", len(program) // 8, ctypes.addressof(code)))
    # all other system calls are given up, for good, by this thread and all that it starts
    _checked("seccomp", _LIBC.prctl(_SET_SECCOMP, _FILTER, packed, 0, 0))


def _limit() -> None:
    import resource

    now = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    limits = {resource.RLIMIT_NOFILE: _MOST_FILES, resource.RLIMIT_CORE: 0, resource.RLIMIT_FSIZE: 0}
    limits[resource.RLIMIT_AS] = now + 2 * memory_bytes()  # much of it is never touched
    for what, most in limits.items():
        hard = resource.getrlimit(what)[1]
        most = most if hard == resource.RLIM_INFINITY else min(most, hard)
        resource.setrlimit(what, (most, most))
