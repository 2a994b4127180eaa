"""Latency tables on disk: one file a (program, pipeline), made once and reused for every design point."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from functional.program import Program
from precharacterize.characterize import build_table, table_key
from precharacterize.parameters import PipelineParameters
from precharacterize.table import LatencyTable


def characterize(
    program: Program,
    pipeline: PipelineParameters,
    cache: Path | None = None,
    warn: Callable[[str], None] = lambda message: None,
) -> LatencyTable:
    """The program's latency table, from `cache` (a directory) if it is there, built and kept otherwise.

    A damaged file is rebuilt, and `warn` is told in one line.
    """
    if cache is None:
        return build_table(program, pipeline)
    key = table_key(program, pipeline)
    path = cache / f"{key}.table"
    try:
        return LatencyTable.load(path, key)
    except FileNotFoundError:
        pass
    except Exception as error:  # any damage at all: the table can always be rebuilt
        warn(f"{path}: damaged latency table ({error}); rebuilt")
    table = build_table(program, pipeline)
    table.save(path)
    return table
