"""Write a benchmark of the suite as files, in the `launches.json` schema (README.md), for other simulators."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from functional import suite
from functional.launches.launch import Pointer
from functional.suite._recipe import Buffer, RecipeLaunch


def export(name: str, folder: str | Path) -> Path:
    """Write `NAME` or `NAME:LABEL` into `folder` (made if needed); the path of its launches.json.

    Raises InputError for an unknown name.
    """
    recipe, base, folder = suite.recipe(name), name.partition(":")[0], Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    shutil.copy(suite.ptx_path(base), folder / "kernel.ptx")
    document = {
        "ptx": "kernel.ptx",
        "buffers": {b.name: _write_buffer(b, folder) for b in recipe.buffers.values()},
        "launches": [_launch(launch) for launch in recipe.launches],
    }
    _write_json(folder / "launches.json", document)
    _write_json(folder / "resources.json", {k: {"registers": n} for k, n in suite.registers(base).items()})
    if any(launch.label for launch in recipe.launches):
        _write_json(folder / "labels.json", [launch.label for launch in recipe.launches])
    return folder / "launches.json"


def _write_buffer(buffer: Buffer, folder: Path) -> dict:
    entry = {
        "bytes": buffer.bytes, "init": None, "expect": None, "rtol": buffer.rtol, "atol": buffer.atol,
        "dtype": f"{buffer.dtype.kind}{8 * buffer.dtype.itemsize}",
    }  # fmt: skip
    for key, array, suffix in (("init", buffer.init, ".bin"), ("expect", buffer.expect, ".expect.bin")):
        if array is not None:
            entry[key] = buffer.name + suffix
            array.tofile(folder / (buffer.name + suffix))
    return entry


def _launch(launch: RecipeLaunch) -> dict:
    arguments = [
        {"buf": a.buffer, "offset": a.offset} if isinstance(a, Pointer) else {a.type: a.value} for a in launch.args
    ]
    return {
        "kernel": launch.kernel, "grid": list(launch.grid), "block": list(launch.block),
        "dynamic_smem": launch.dynamic_shared_bytes, "args": arguments,
    }  # fmt: skip


def _write_json(path: Path, document: object) -> None:
    path.write_text(json.dumps(document, indent=1) + "\n")
