"""The object files of parts (apart.py): from disk, or from a process each that makes them beside this one.

`python -m functional.jit.compiled_parts MODULE NAME` is such a process: the type of the part's reference comes in,
pickled, and the object file goes out.
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from importlib import import_module
from typing import Any

from functional.jit.llvm import target
from functional.keep.kept import Kept, key


class Part:
    """The part `name` of a module, which is imported only if there is no object file yet."""

    def __init__(self, module: str, name: str) -> None:
        self.module, self.name = module, name

    def key(self, kinds: tuple[str, ...]) -> str:
        """Of its object file; `kinds`: the types of the words that it has a reference to."""
        return key((self.module, "functional.jit.compiled_parts"), "part", self.module, self.name, *kinds, target())

    def make(self, to: Any) -> bytes:
        """An object file, for a reference to a tuple of Numba's type `to`."""
        from functional.jit.compile import part_object_code

        return part_object_code(getattr(import_module(self.module), self.name).function, to)


class Making:
    """Object files on their way, for a reference to `value`, a named tuple of arrays."""

    def __init__(self, parts: tuple[Part, ...], kinds: tuple[str, ...], value: Any) -> None:
        self._kept, self._value, self._names = Kept("objects"), value, {part: part.key(kinds) for part in parts}
        self._found = {part: self._kept.load(name, bytes) for part, name in self._names.items()}
        self._processes = {part: _start(part, self._type()) for part, code in self._found.items() if code is None}

    def _type(self) -> Any:
        from functional.jit.compile import type_of

        return type_of(self._value)

    def finish(self) -> list[bytes]:
        """All of them, once they are there."""
        for part, process in self._processes.items():
            code = _output(process) or part.make(self._type())
            self._kept.save(self._names[part], code)
            self._found[part] = code
        return [code for code in self._found.values() if code is not None]

    def stop(self) -> None:
        """End what has not ended."""
        for process in self._processes.values():
            if process and process.poll() is None:
                process.kill()
                process.wait()


def _start(part: Part, to: Any) -> subprocess.Popen[bytes] | None:
    """A process that makes a part's object file; None if there cannot be one."""
    # -P: what lies in the user's folder is none of its modules
    words = [sys.executable, "-P", "-m", "functional.jit.compiled_parts", part.module, part.name]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    pipe, nothing = subprocess.PIPE, subprocess.DEVNULL
    try:
        process = subprocess.Popen(words, stdin=pipe, stdout=pipe, stderr=nothing, env=environment)
    except OSError:
        return None
    assert process.stdin
    try:
        process.stdin.write(pickle.dumps(to))
        process.stdin.close()
    except OSError:  # it has ended
        pass
    return process


def _output(process: subprocess.Popen[bytes] | None) -> bytes:
    """What a process has written; nothing if it failed."""
    if process is None:
        return b""
    assert process.stdout
    with process.stdout as file:
        code = file.read()
    return b"" if process.wait() else code


if __name__ == "__main__":
    sys.stdout.buffer.write(Part(*sys.argv[1:]).make(pickle.load(sys.stdin.buffer)))
