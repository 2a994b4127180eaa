"""The documentation does what it says: every fenced example is run, in the order of its page.

The words after a fence say what to do: `sh` run, `sh accuracy` run in test_accuracy, `sh setup` nothing, `sh nvcc` and
`sh clang` run if there is such a compiler, `sh planned` must not work yet (when it does, the word goes); `python` run;
`LANGUAGE FILE` write.
"""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import pytest
from call_command import call

from abstim.gpu.config import gpu_names
from functional import suite
from functional.suite.workloads.networks import resnet_network

ROOT = Path(__file__).parent.parent
PAGES = ("README.md", "docs/tutorial.md", "docs/python-api.md", "docs/extending.md")
IN_THE_CLONE = ("README.md", "docs/extending.md")  # the other pages run in any directory, one after the other
LANGUAGES = {"sh", "python", "text", "cuda", "ptx", "toml", "json", "csv"}


class Example(NamedTuple):
    language: str
    mark: str  # the second word after the fence
    text: str
    line: int


def examples(page):
    text = (ROOT / page).read_text()
    for found in re.finditer(r"^```(\w+)(?: (\S+))?\n(.*?)^```$", text, re.M | re.S):
        yield Example(found[1], found[2] or "", found[3], text[: found.start()].count("\n") + 1)


def commands(example):
    """(arguments, file that stdout goes to) of every `abstim` line; `&&` separates commands."""
    for line in example.text.splitlines():
        words = shlex.split(line, comments=True)
        assert words[0] == "abstim", line
        target = words[words.index(">") + 1] if ">" in words else None
        yield words[1 : words.index(">") if target else None], target


def run_commands(example, folder):
    for words, target in commands(example):
        code, out, err = call(*words)
        assert code == 0 and "Traceback" not in err, (example, err)
        if target:
            (folder / target).write_text(out)
        else:
            assert out and max(map(len, out.splitlines())) <= 100, words


def compile_kernel(example, folder):
    if shutil.which(example.text.split()[0]):
        subprocess.run(["bash", "-c", example.text], cwd=folder, check=True, capture_output=True)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A place to run a page in."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(ROOT / "tests"))
    monkeypatch.setattr("abstim.study.bench.MIN_SECONDS", 0.01)
    short = resnet_network(18, stages=2, size=32)  # of every depth: what is shown is the command
    monkeypatch.setattr("functional.suite.workloads.networks.resnet_network", lambda depth: short)
    group, described = suite._benchmarks()["hotspot"]
    monkeypatch.setitem(suite._benchmarks(), "hotspot", (group, lambda: small(described())))
    return tmp_path


def small(recipe):
    """A benchmark on a ninth of its thread blocks."""
    recipe.launches = [replace(x, grid=tuple(-(-extent // 3) for extent in x.grid)) for x in recipe.launches]
    return recipe


def files_of_the_tutorial(folder):
    for example in examples("docs/tutorial.md"):
        if example.mark in ("relax.ptx", "cycles.csv"):
            (folder / example.mark).write_text(example.text)


@pytest.mark.parametrize("page", PAGES)
def test_examples_run(page, folder, capsys):
    names = {"__name__": "example"}
    files_of_the_tutorial(folder)
    if page in IN_THE_CLONE:
        (folder / "tests").symlink_to(ROOT / "tests")
    for example in examples(page):
        if example.language == "python":
            exec(compile(example.text, f"{page}:{example.line}", "exec"), names)
        elif example.mark in ("nvcc", "clang"):
            compile_kernel(example, folder)
        elif example.language == "sh" and not example.mark:
            run_commands(example, folder)
        elif example.language not in ("sh", "text"):
            (folder / example.mark).write_text(example.text)


@pytest.mark.parametrize("page", PAGES)
def test_planned_examples_do_not_work_yet(page, folder):
    for example in examples(page):
        if example.mark == "planned":
            code, _, _ = call(*next(commands(example))[0])
            assert code == 2, f"{page}:{example.line} works now: take `planned` away"


def pages():
    return [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


@pytest.mark.parametrize("path", pages(), ids=lambda p: p.name)
def test_fences_are_known_and_links_lead_somewhere(path):
    text = path.read_text()
    for found in re.finditer(r"^```(\w*)", text, re.M):
        assert found[1] in {*LANGUAGES, ""}, found[0]
    plain = re.sub(r"^```.*?^```$|`[^`\n]*`", "", text, flags=re.M | re.S)
    for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", plain):
        assert target.startswith("https://") or (path.parent / target).exists(), target
    for target in re.findall(r"\]\(([^)]*#[^)]+)\)", plain):
        page, _, anchor = target.partition("#")
        other = (path.parent / page).read_text() if page else text
        headings = re.findall(r"^#+ (.*)$", other, re.M)
        anchors = {re.sub(r"[^\w\- ]", "", h.lower()).replace(" ", "-") for h in headings}
        assert anchor in anchors | set(re.findall(r"<a id=([\w-]+)>", other)), target


def test_the_readme_shows_what_make_run_prints():
    shown = next(each.text for each in examples("README.md") if each.language == "text")
    _, printed, _ = call("run", "hotspot", "--gpu", "gtx480", "--gpu", "rtx3070")
    assert shown.split() == printed.split("Error")[0].split()


def test_the_readme_counts_the_gpus():
    (count,) = re.findall(r"(\d+) GPUs that come along", (ROOT / "README.md").read_text())
    assert int(count) == len(gpu_names())


@pytest.mark.parametrize("page", PAGES)
def test_every_page_is_in_the_index(page):
    index = (ROOT / "docs" / "README.md").read_text()
    assert page == "README.md" or f"({Path(page).name})" in index


@pytest.mark.parametrize("path", pages(), ids=lambda p: p.name)
def test_files_that_a_page_names_exist(path):
    """`a/b.py`, from the repository, from docs/, or the end of a path; of names without a folder only `.py`."""
    named = re.findall(r"`([\w.-]+\.py|[\w.-]+/[\w./-]+\.(?:py|c|cu|csv|toml))[: `]", path.read_text())
    folders = ("abstim", "configs", "docs", "functional", "precharacterize", "sampling", "tests")
    there = ["/" + str(p.relative_to(ROOT)) for folder in folders for p in (ROOT / folder).rglob("*.*")]
    assert not [name for name in named if not any(file.endswith("/" + name) for file in there)]
