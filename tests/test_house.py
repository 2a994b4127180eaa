"""The house itself: arrows go one way and in no circle, names say one thing, public things say what they are."""

from __future__ import annotations

import ast
import subprocess
import sys
from functools import cache
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


def sources(package=None):
    packages = [package] if package else MAY_IMPORT
    return [path for name in packages for path in sorted((ROOT / name).rglob("*.py"))]


@cache
def tree(path):
    return ast.parse(path.read_text())


@cache
def imports(path, of_types=False):
    """Import statements of a file, those within functions too; `of_types`: and those that only a type checker sees."""
    found, left = [], [tree(path)]
    while left:
        node = left.pop()
        if isinstance(node, ast.Import | ast.ImportFrom):
            found.append(node)
        elif isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            left += node.orelse + (node.body if of_types else [])
        elif not isinstance(node, ast.expr):
            left += ast.iter_child_nodes(node)
    return found


def module_of(path):
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imported_modules(path, modules):
    """Those of `modules` that a file imports by name, for their types alone too."""
    for node in imports(path, of_types=True):
        assert isinstance(node, ast.Import) or not node.level, f"{path}: a relative import"
        names = [alias.name for alias in node.names]
        for name in names if isinstance(node, ast.Import) else [f"{node.module}.{name}" for name in names]:
            whole = name if name in modules else name.rpartition(".")[0]
            if whole in modules:
                yield whole


def circles(graph):
    """One circle for each set of nodes that reach each other, as a list that ends where it began."""

    def path_back(start, reachable):
        paths, seen = [[start]], set()
        while paths:
            path = paths.pop(0)
            for following in sorted(graph[path[-1]] & reachable):
                if following == start:
                    return [*path, start]
                if following not in seen:
                    seen.add(following)
                    paths.append([*path, following])
        return None

    def reached(start):
        found, left = set(), [start]
        while left:
            new = graph[left.pop()] - found
            found |= new
            left += new
        return found

    reach, done = {node: reached(node) for node in graph}, set()
    for node in sorted(graph):
        if node in reach[node] and node not in done:
            group = {other for other in reach[node] if node in reach[other]}
            done |= group
            yield path_back(node, group)


def test_no_circles_of_imports():
    modules = {module_of(path): path for path in sources()}
    graph = {name: set(imported_modules(path, modules)) - {name} for name, path in modules.items()}
    assert not [" -> ".join(circle) for circle in circles(graph)]


def test_a_circle_is_found():
    graph = {"a": {"b"}, "b": {"c"}, "c": {"b", "d"}, "d": set()}
    assert list(circles(graph)) == [["b", "c", "b"]]
    assert list(circles({"a": {"b"}, "b": set()})) == []


@pytest.mark.parametrize("package", MAY_IMPORT)
def test_arrows_go_one_way(package):
    for path in sources(package):
        for node in imports(path):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else [node.module or ""]
            assert {name.partition(".")[0] for name in names} & set(MAY_IMPORT) <= MAY_IMPORT[package], path


@pytest.mark.parametrize("package", MAY_IMPORT)
def test_functions_stay_small(package):
    for path in sources(package):
        for node in ast.walk(tree(path)):
            if isinstance(node, ast.FunctionDef) and "suite" not in path.parts:  # a benchmark is one function
                # a command's signature declares its options, a line each
                first = node.body[0].lineno if "cli" in path.parts else node.lineno
                lines = node.end_lineno - first + 1
                assert lines <= 45, f"{path}: {node.name} has {lines} lines, its signature included"


# Fields of records that compiled code reads: their values have names (abstim/engine/state.py and others)
CODED = {"policy", "kind", "unit", "l1d_index", "l1d_write", "level"}


def compared_with_numbers(path):
    """Comparisons of a coded field with a bare number."""
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Compare):
            sides = [node.left, *node.comparators]
            coded = any(isinstance(side, ast.Attribute) and side.attr in CODED for side in sides)
            if coded and any(isinstance(side, ast.Constant) and type(side.value) is int for side in sides):
                yield f"{path.relative_to(ROOT)}:{node.lineno}: {ast.unparse(node)}"


@pytest.mark.parametrize("package", MAY_IMPORT)
def test_coded_fields_are_compared_with_names(package):
    assert not [found for path in sources(package) for found in compared_with_numbers(path)]


def public(path):
    """(name, node, names of the bases of its class) of a file's public functions, classes and methods."""
    for node in tree(path).body:
        if not isinstance(node, ast.FunctionDef | ast.ClassDef) or node.name.startswith("_"):
            continue
        yield node.name, node, []
        for inner in node.body if isinstance(node, ast.ClassDef) else []:
            if isinstance(inner, ast.FunctionDef) and not inner.name.startswith("_"):
                yield f"{node.name}.{inner.name}", inner, [ast.unparse(b).rpartition(".")[2] for b in node.bases]


def without_docstring(package):
    """Public things of a package that say nothing; a method that overrides a documented one need not."""
    said, missing = set(), []
    for path in sources(package):
        hidden = any(part.startswith("_") and part != "__init__.py" for part in path.relative_to(ROOT).parts)
        for name, node, bases in public(path):
            if ast.get_docstring(node):
                said.add(name)
            elif not hidden:
                missing.append((path, name, bases))
    return [
        f"{path.relative_to(ROOT)}: {name}"
        for path, name, bases in missing
        if not any(f"{base}.{name.partition('.')[2]}" in said for base in bases)
    ]


@pytest.mark.parametrize("package", MAY_IMPORT)
def test_public_things_have_docstrings(package):
    found = without_docstring(package)
    assert not found


def test_command_page_is_current():
    from command_page import PAGE, markdown

    assert PAGE.read_text() == markdown(), "run `make docs`"


def test_no_path_of_the_machine_that_wrote_it():
    for path in sources():
        text = path.read_text()
        assert "/work/" not in text and "../shared" not in text, path


def test_readme_names_only_commands_that_exist():
    from typer.main import get_command

    from abstim.cli.app import app_for

    commands = get_command(app_for([])).commands
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


LAYERS = (
    "brief",
    "extras",
    "progress",
    "gpu",
    "targets",
    "engine",
    "session",
    "analytic",
    "occupancy_vector",
    "gradient",
    "models",
    "application",
    "study",
    "show",
    "cli",
)


def test_layers_of_abstim_import_downwards_only():
    """docs/how-it-works.md has the table; a name imported for its type alone may come from above."""
    for path in (ROOT / "abstim").rglob("*.py"):
        inside = path.relative_to(ROOT / "abstim").parts
        if len(inside) == 1 and inside[0] in ("__init__.py", "__main__.py"):  # doors, open to all layers
            continue
        layer = LAYERS.index(inside[0].removesuffix(".py"))
        for module in runtime_imports(path):
            top, _, rest = module.partition(".")
            if top == "abstim" and rest:
                assert LAYERS.index(rest.partition(".")[0]) <= layer, f"{path} imports {module}"


def runtime_imports(path):
    """Modules a file imports from, anywhere, but for those under `if TYPE_CHECKING`."""
    return [node.module for node in imports(path) if isinstance(node, ast.ImportFrom) and node.module]


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
