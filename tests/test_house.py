"""The house itself: arrows go one way, generated pages are current, files stay small."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
MAY_IMPORT = {
    "functional": {"functional"},
    "precharacterize": {"precharacterize", "functional"},
    "sampling": {"sampling"},
    "configs": set(),
    "abstim": {"abstim", "precharacterize", "functional", "sampling", "configs"},
}


def sources():
    return [path for package in MAY_IMPORT for path in sorted((ROOT / package).rglob("*.py"))]


def imported(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module.partition(".")[0]


@pytest.mark.parametrize("package", MAY_IMPORT)
def test_arrows_go_one_way(package):
    for path in (ROOT / package).rglob("*.py"):
        assert set(imported(path)) & set(MAY_IMPORT) <= MAY_IMPORT[package], path


@pytest.mark.parametrize("path", sources(), ids=lambda p: str(p.relative_to(ROOT)))
def test_files_and_functions_stay_small(path):
    text = path.read_text()
    assert len(text.splitlines()) <= 300
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef) and "suite" not in path.parts:  # a benchmark is one function
            body = node.end_lineno - node.body[0].lineno + 1
            assert body <= 45, f"{path}: {node.name} has {body} lines"


def test_command_page_is_current():
    from abstim.cli.reference import markdown

    assert (ROOT / "docs" / "cli.md").read_text() == markdown(), "run `make docs`"


def test_no_path_of_the_machine_that_wrote_it():
    for path in sources():
        text = path.read_text()
        assert "/work/" not in text and "../shared" not in text, path


def test_readme_names_only_commands_that_exist():
    from typer.main import get_command

    from abstim.cli.app import app

    commands = get_command(app).commands
    for line in (ROOT / "README.md").read_text().splitlines():
        words = line.split()
        if words[:1] == ["abstim"] and len(words) > 1:
            assert words[1] in commands, line


def test_the_package_is_found_from_the_folder_above_the_clone(tmp_path):
    """There a clone called abstim, which is no package itself, lies on the path before the installed one."""
    (tmp_path / "abstim").mkdir()
    done = subprocess.run(
        [sys.executable, "-c", "import abstim; print(abstim.run)"], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


LAYERS = ("progress", "gpu", "target", "engine", "session", "analytic", "gradient", "models", "study", "show", "cli")


def test_layers_of_abstim_import_downwards_only():
    """docs/how-it-works.md has the table; a name imported for its type alone may come from above."""
    for path in (ROOT / "abstim").rglob("*.py"):
        inside = path.relative_to(ROOT / "abstim").parts
        if len(inside) == 1 and inside[0] == "__init__.py":
            continue
        layer = LAYERS.index(inside[0].removesuffix(".py"))
        for module in runtime_imports(path):
            top, _, rest = module.partition(".")
            if top == "abstim" and rest:
                assert LAYERS.index(rest.partition(".")[0]) <= layer, f"{path} imports {module}"


def runtime_imports(path):
    """Modules a file imports anywhere, but for those under `if TYPE_CHECKING`."""
    tree = ast.parse(path.read_text())
    for_types = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and getattr(node.test, "id", "") == "TYPE_CHECKING"
        for inner in ast.walk(node)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module and id(node) not in for_types:
            yield node.module


def test_readme_counts_the_gpus():
    count = len(list((ROOT / "configs").glob("*.toml")))
    assert f"{count} GPUs that come along" in (ROOT / "README.md").read_text()


@pytest.mark.parametrize("package", MAY_IMPORT)
def test_every_module_that_is_imported_is_there(package):
    """Imports inside functions too: nothing else looks at those before they run."""
    for path in (ROOT / package).rglob("*.py"):
        for module in runtime_imports(path):
            if module.partition(".")[0] in MAY_IMPORT:
                file = ROOT.joinpath(*module.split("."))
                assert file.with_suffix(".py").is_file() or (file / "__init__.py").is_file(), f"{path} imports {module}"
