"""The records in docs/results are complete, and docs/results.md shows what they say."""

from __future__ import annotations

import datetime
import re

import pytest
from results_page import DOCS, FIELDS, REQUIRED, linked, machines, page, subjects

RECORDS = [record for subject in subjects() for record in subject["records"]]


def test_the_page_is_current_and_short():
    assert (DOCS / "results.md").read_text() == page(), "run `make docs`"
    assert len(page().encode()) <= 20_000


def test_ids_are_unique():
    ids = [record["id"] for record in RECORDS]
    assert len(set(ids)) == len(ids)
    assert all(re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", name) for name in ids)


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: record["id"])
def test_records_are_complete(record):
    assert REQUIRED <= set(record) <= FIELDS
    assert all(value != "" for value in record.values())
    assert isinstance(record["date"], datetime.date) and re.fullmatch("[0-9a-f]{7}", record["commit"])
    assert record["machine"] in machines()
    assert ("met" in record) == ("bar" in record)


@pytest.mark.parametrize("record", [r for r in RECORDS if r.get("met") is False], ids=lambda record: record["id"])
def test_what_was_missed_is_shown_as_missed(record):
    (row,) = [line for line in page().splitlines() if f"{record['what']} | {record['value']}" in line]
    assert row.endswith(f"| **missed**: {record['bar']} |")


def test_results_that_sources_and_pages_name_are_there():
    headings = {re.sub(r"[^\w\- ]", "", s["title"].lower()).replace(" ", "-") for s in subjects()}
    assert linked() <= {record["id"] for record in RECORDS} | headings


def test_files_that_commands_name_exist():
    named = {name for record in RECORDS for name in re.findall(r"tests/[\w./]+", record["command"])}
    assert not [name for name in sorted(named) if not (DOCS.parent / name).exists()]
