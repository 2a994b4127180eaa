"""Errors a user can cause. Each is one clear line: what, where, what to do; the CLI ends with exit code 2."""


class InputError(Exception):
    """Bad input. `str()` of it is the one line a user sees."""


class PtxError(InputError):
    """PTX that does not parse or holds an unsupported instruction."""

    def __init__(self, path: str, line: int, message: str) -> None:
        super().__init__(f"{path}:{line}: {message}")
        self.path, self.line = path, line


class ExecutionError(InputError):
    """A kernel that faults: out of bounds, misaligned, deadlock, over its instruction budget."""
