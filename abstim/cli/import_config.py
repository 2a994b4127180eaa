"""`abstim import-config`: an Accel-Sim configuration as the description of a GPU."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from abstim.cli.options import Json

if TYPE_CHECKING:
    from abstim.gpu.import_config import Imported


def import_config(
    files: Annotated[
        list[Path],
        typer.Argument(metavar="FILE...", help="gpgpusim.config, and trace.config for latencies of SASS instructions."),
    ],
    output: Annotated[Path | None, typer.Option("-o", "--output", metavar="TOML", help="Write the GPU here.")] = None,
    base: Annotated[str, typer.Option(metavar="GPU", help="Where values come from that no option says.")] = "gtx480",
    as_json: Json = False,
) -> None:
    """Turn an Accel-Sim configuration into a GPU for `--gpu`, and list every option that was not used.

    Without `-o` the TOML goes to stdout and the list to stderr. Of an option given twice the last one counts.

    Example: `abstim import-config gpgpusim.config trace.config -o mine.toml`
    """
    from dataclasses import asdict

    from abstim.gpu.import_config import import_config as imported_from
    from abstim.show.tables import print_json

    imported = imported_from(files, base)
    if output:
        _write(output, imported.toml)
    if as_json:
        values = {key: {"value": s.value, "source": s.source} for key, s in imported.settings.items()}
        unused = [asdict(u) for u in imported.unused]
        print_json({"values": values, "unused": unused, "from_base": imported.from_base, "toml": imported.toml})
    elif output:
        _print_report(imported, output, base)
    else:
        _print_toml(imported)


def _write(path: Path, text: str) -> None:
    import os

    from functional.errors import InputError

    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        temporary.write_text(text, encoding="utf-8")
        temporary.replace(path)
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}") from None


def _print_report(imported: Imported, output: Path, base: str) -> None:
    from abstim.show.tables import print_table

    rows = [(u.option, u.value if len(u.value) <= 30 else u.value[:27] + "...", u.why) for u in imported.unused]
    print_table(f"Options not used ({len(rows)})", ("option", "value", "why"), rows, left=3)
    print(f"{output}: {len(imported.settings)} values, {len(imported.from_base)} more from {base}")


def _print_toml(imported: Imported) -> None:
    from functional.terminal import note

    print(imported.toml, end="")
    for unused in imported.unused:
        note(f"not used: {unused.option} {unused.value}: {unused.why}")
