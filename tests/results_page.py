"""Writes docs/results.md from the records in docs/results: `python tests/results_page.py`."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

DOCS = Path(__file__).parent.parent / "docs"
NAMED = ("README.md", "docs/*.md", "abstim/**/*.py", "precharacterize/**/*.py", "sampling/**/*.py", "tests/*.py")
REQUIRED = {"id", "what", "value", "command", "commit", "date", "machine", "load"}
FIELDS = REQUIRED | {"bar", "met", "older", "note"}
_HEAD = """# Results

Made by `make docs` from the records in [results/](results/), which also have commands, commits, dates, machines and
limits. Bar: was what we had set ourselves met? † older code. What was [tried](tried.md) and not kept.
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


def linked() -> set[str]:
    """The places on the page that other pages and sources name."""
    files = (path for pattern in NAMED for path in DOCS.parent.glob(pattern))
    return {name for path in files for name in re.findall(r"results\.md#([\w-]+)", path.read_text())}


def page() -> str:
    """The whole page. Rows have an anchor where something links to them."""
    parts, anchors = [_HEAD], linked()
    for subject in subjects():
        parts.append(f"## {subject['title']}\n")
        if about := subject.get("about"):
            parts.append(about + "\n")
        parts.append("| | measured | bar |\n|---|---|---|")
        parts += [_row(record, record["id"] in anchors) for record in subject["records"]]
        parts.append("")
    return "\n".join(parts).rstrip() + "\n"


def _row(record: dict[str, Any], linked_to: bool) -> str:
    verdict = {True: "met", False: f"**missed**: {record.get('bar')}", None: ""}[record.get("met")]
    older = " †" if record.get("older") else ""
    what = f"<a id={record['id']}></a>{record['what']}" if linked_to else record["what"]
    return f"| {what} | {record['value']}{older} | {verdict} |"


if __name__ == "__main__":
    (DOCS / "results.md").write_text(page())
