"""Errors a user can cause. Each is one clear line: what, where, what to do; the CLI ends with exit code 2."""


class InputError(Exception):
    """Bad input. `str()` of it is the one line a user sees."""


def refuse(wrong: object, message: str, error: type[Exception] = InputError) -> None:
    """Raises an error with the message if something is wrong."""
    if wrong:
        raise error(message)


class PtxError(InputError):
    """PTX that does not parse or holds an unsupported instruction."""

    def __init__(self, path: str, line: int, message: str) -> None:
        super().__init__(f"{path}:{line}: {message}")
        self.path, self.line = path, line


class ExecutionError(InputError):
    """A kernel that faults: out of bounds, misaligned, deadlock, over its instruction budget."""


class BudgetSpent(ExecutionError):
    """A launch that runs more thread instructions than it may. `line`: of the PTX, where it was then."""

    def __init__(self, kernel: str, path: str, line: int, budget: int, cost: str = "") -> None:
        super().__init__(
            f"kernel '{kernel}', {path}:{line}: the launch exceeds its budget of {budget} thread instructions{cost}; "
            "if it does end, raise the instruction budget"
        )
        self.line = line
