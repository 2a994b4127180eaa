"""What is installed only where it is asked for (`pip install 'abstim[all]'`): packages that no timing needs."""

from importlib.util import find_spec

from functional.errors import refuse

EXTRAS = {
    "sklearn": "sampling", "bokeh": "report", "jinja2": "report", "matplotlib": "report", "pyarrow": "report",
    "distributed": "cluster", "dask": "cluster",
}  # fmt: skip


def lacking(module: str) -> str:
    """What to say where a module cannot be imported; "" for one that is no extra."""
    package = module.partition(".")[0]
    if package not in EXTRAS:
        return ""
    return (
        f"this needs {package}, which is not installed: pip install 'abstim[{EXTRAS[package]}]', in a clone `make all`"
    )


def need(module: str) -> None:
    """Asked before the work whose result it is to draw or write. Raises InputError where it is not installed."""
    try:
        found = find_spec(module)
    except ValueError:  # as an import that was forbidden has it
        found = None
    refuse(found is None, lacking(module))
