"""Writes docs/results.md from the records in docs/results: `python tests/results_page.py`."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

DOCS = Path(__file__).parent.parent / "docs"
REQUIRED = {"id", "what", "value", "command", "commit", "date", "machine", "load"}
FIELDS = REQUIRED | {"bar", "aim", "met", "older", "note"}
_HEAD = """# Results

Made by `make docs` from the records in [results/](results/), which also have aims, commands, commits, machines and
limits. A commit is the code measured or, where that was not noted, what recorded the figure. † older code. What was
[tried](tried.md) and not kept.
"""


def subjects(folder: Path = DOCS / "results") -> list[dict[str, Any]]:
    """Every subject by title: what its [page] says, and `records`, with the file's defaults filled in."""
    files = [tomllib.loads(p.read_text()) for p in folder.glob("*.toml") if p.name != "machines.toml"]
    found = []
    for tables in files:
        page, defaults = tables.pop("page"), tables.pop("defaults")
        found.append(page | {"records": [{"id": name} | defaults | record for name, record in tables.items()]})
    return sorted(found, key=lambda subject: subject["title"])


def machines(folder: Path = DOCS / "results") -> dict[str, Any]:
    """The machines that records name."""
    return tomllib.loads((folder / "machines.toml").read_text())


def page() -> str:
    """The whole page."""
    parts = [_HEAD]
    for subject in subjects():
        parts.append(f"## {subject['title']}\n")
        if about := subject.get("about"):
            parts.append(about + "\n")
        parts.append("| | measured | bar | |\n|---|---|---|---|")
        parts += [_row(record) for record in subject["records"]]
        parts.append("")
    return "\n".join(parts).rstrip() + "\n"


def _row(record: dict[str, Any]) -> str:
    verdict = {True: "met", False: "**missed**", None: ""}[record.get("met")]
    older = " †" if record.get("older") else ""
    what = f"<a id={record['id']}></a>{record['what']}"
    return f"| {what} | {record['value']}{older} | {record.get('bar', '')} | {verdict} |"


if __name__ == "__main__":
    (DOCS / "results.md").write_text(page())
