"""Latency tables on disk: one file a (program, pipeline), made once and reused for every design point."""

from __future__ import annotations

from functional.disk.kept import Kept
from functional.program import Program
from precharacterize.characterize import build_table, table_key
from precharacterize.parameters import PipelineParameters
from precharacterize.table import LatencyTable


def characterize(program: Program, pipeline: PipelineParameters) -> LatencyTable:
    """The program's latency table, from the cache folder if it is there; else built, and kept."""
    tables, key = Kept("tables"), table_key(program, pipeline)
    table = tables.load(key, LatencyTable.decode)
    if table is None:
        table = build_table(program, pipeline)
        tables.save(key, table.encode())
    return table
