"""The notebook: every cell runs, in order, in one place, and what a cell ends in can show itself."""

from __future__ import annotations

import ast
import json
import logging
from pathlib import Path

import pytest

NOTEBOOKS = sorted((Path(__file__).parent.parent / "docs").glob("*.ipynb"))


def last_value(source, names):
    """Run a cell; the value of its last expression, None if it ends in none."""
    tree = ast.parse(source)
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, "cell", "exec"), names)
    return eval(compile(ast.Expression(last.value), "cell", "eval"), names) if last else None


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.name)
def test_every_cell_runs(path, tmp_path, monkeypatch, capsys, caplog):
    monkeypatch.chdir(tmp_path)
    caplog.set_level(logging.INFO, logger="abstim")
    notebook = json.loads(path.read_text())
    assert notebook["nbformat"] == 4 and len({cell["id"] for cell in notebook["cells"]}) == len(notebook["cells"])
    names, shown = {}, []
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            assert cell["outputs"] == [] and cell["execution_count"] is None  # what it shows is made when it is read
            shown.append(last_value("".join(cell["source"]), names))
    tables = [value._repr_html_() for value in shown if hasattr(value, "_repr_html_")]
    assert len(tables) >= 3 and all("<table" in table for table in tables)
    assert "unknown GPU 'gtx481'; did you mean gtx480?" in capsys.readouterr().out
    assert any("reduction" in record.message for record in caplog.records)
    assert not list(tmp_path.iterdir())  # it lies in docs/, and is run there


def test_there_is_one():
    assert NOTEBOOKS
