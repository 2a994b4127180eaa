"""What `abstim run` says of a target before it executes anything."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from functional.launches.case import Case

MOST_NOTES = 5  # findings that are said of a target; the others are counted


def prechecked(opened: Callable[[], Case], check: bool, strict: bool) -> Callable[[], Case]:
    """`opened`, and what it opens looked at. It raises InputError if there are no expected outputs to `check`, and, if
    `strict`, for what is a note otherwise (`functional.execution.findings`), and where nothing will be executed."""

    def looked_at() -> Case:
        from functional.errors import InputError
        from functional.traces.store import StoredCase

        case = opened()
        if check and not (case.manifest.outputs if isinstance(case, StoredCase) else case.expected):
            raise InputError(f"--check: {case.name} has no expected outputs")
        if strict and (case.traces or isinstance(case, StoredCase)):
            raise InputError(f"--strict: {case.name} is a trace; what it did when it was made cannot be looked at")
        _tell(case, strict)
        return case

    return looked_at


def _tell(case: Case, strict: bool) -> None:
    from functional.errors import InputError
    from functional.execution.findings import findings
    from functional.terminal import note

    if case.module.target == "sass":  # another machine's code: what it leaves out was never read
        return
    programs = {launch.program.name: launch.program for launch in case.launches}
    found = [line for program in programs.values() for line in findings(program)]
    if found and strict:
        raise InputError(found[0] + (f" (and {len(found) - 1} findings more)" if len(found) > 1 else ""))
    for line in found[:MOST_NOTES]:
        note(f"abstim: {line}")
    if len(found) > MOST_NOTES:
        note(f"abstim: and {len(found) - MOST_NOTES} findings more")
