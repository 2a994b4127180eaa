"""Files of the cache, damaged at random: whoever finds one makes the result again, and it is the same."""

from __future__ import annotations

import contextlib
import io
import json
import os
import shutil
from collections.abc import Callable
from functools import cache
from pathlib import Path
from random import Random

import numpy as np
from ptx_kernels import HEADER, REGISTERS

from abstim.engine.simulation import COUNTERS
from abstim.gpu.config import load_gpu
from abstim.study.explore.jobs import Store
from abstim.study.sample.sampled_program import Finished, InPart, kept_parts
from abstim.targets.execution import execute
from functional.launches.case import Case
from functional.launches.launch import Pointer, make_launch
from functional.launches.memory import Memory
from functional.llvm_executor import LlvmExecutor, object_code
from functional.programs.link import link
from functional.ptx import parser
from precharacterize import characterize
from precharacterize.table import encoded
from sampling import Part
from sampling.auto.iterations import Timed
from sampling.auto.segments import Batch, Beginning
from sampling.estimate import exact

TEXT = HEADER + (
    f".entry k(.param .u64 a) {{ {REGISTERS} ld.param.u64 %rd0, [a]; mov.u32 %r0, %tid.x; mul.wide.u32 %rd1, %r0, 4; "
    "add.u64 %rd1, %rd0, %rd1; ld.global.u32 %r1, [%rd1]; mad.lo.u32 %r1, %r1, 3, %r0; "
    "st.global.u32 [%rd1], %r1; ret; }"
)  # fmt: skip
WAYS = ("flip", "flip", "flip", "sixteen", "cut", "empty", "zero", "append", "folder", "mode")
KEYS = [bytes([number] * 32) for number in range(100)]


@cache
def _case() -> Case:
    module = parser.parse_bytes(TEXT.encode(), "k.ptx")
    memory = Memory(module.variables)
    memory.allocate("a", 256, np.arange(64, dtype=np.uint32))
    return Case("k", module, memory, (make_launch(link(module, "k"), 2, 32, [Pointer("a")], memory),))


def _grammar() -> object:
    parser._lark.cache_clear()
    return str(parser._lark().parse(TEXT))


def _objects() -> object:
    """A kernel's code, loaded and run."""
    memory = _case().memory.copy()
    LlvmExecutor(1).run(_case().launches[0], memory)
    return memory.read("a", np.uint32).tolist()


def _helpers() -> object:
    object_code.helpers.cache_clear()
    return sorted(object_code.helpers())


def _tables() -> object:
    return encoded(characterize(_case().launches[0].program, load_gpu("gtx480_perfect").pipeline))


def _traces() -> object:
    trace = execute(_case(), LlvmExecutor(1)).traces[0]
    return [getattr(trace, name).tolist() for name in ("blocks", "masks", "records", "block_offsets")]


def _parts() -> object:
    part = Part(name="0", how="detailed", instructions=7.0, cycles=100.0)
    whole = exact("full", 100.0, (part,), dict.fromkeys(COUNTERS, 5.0))
    with kept_parts(_case(), load_gpu("gtx480")) as found:
        made = InPart(
            segments=[Batch(beginning=Beginning(), segments=[1], wave_cycles=[[5.0]], stepped=7)],
            timed={"one SM": Timed(10.0, 4.0)},
            found={"full": Finished(estimate=whole, executed_instructions=7.0, time_seconds=0.25)},
        )
        found.setdefault(3, made)
        return dict(found)


def _explore() -> object:
    with contextlib.closing(Store("version")) as store:
        found = store.known(KEYS)
        store.add((key, 1000 + key[0]) for key in KEYS if key not in found)
        return found | {key: 1000 + key[0] for key in KEYS if key not in found}


# Kind of file -> what uses it, and what that yields; "objects" holds both kernels and the run time's helpers
USES: dict[str, Callable[[], object]] = {
    "grammar": _grammar, "objects": _objects, "helpers": _helpers, "tables": _tables, "traces": _traces,
    "parts": _parts, "explore": _explore,
}  # fmt: skip
FOLDERS = {"helpers": "objects"}


@cache
def _whole(folder: str) -> dict[str, object]:
    """A cache with every kind of file below `folder`; what each use yields with it."""
    os.environ["ABSTIM_CACHE"] = folder
    return {kind: use() for kind, use in USES.items()}


def make_kept(rng: Random) -> bytes:
    """Which file, and how it is damaged."""
    return json.dumps([rng.choice(list(USES)), rng.choice(WAYS), rng.randrange(1 << 40)]).encode()


def judge_kept(data: bytes, folder: Path) -> str:
    """What uses the damaged file yields what it did; "runs" if the damage did not show, else "refused"."""
    kind, way, seed = json.loads(data)
    before = os.environ.get("ABSTIM_CACHE")
    try:
        pristine = folder.parent / "pristine"
        expected = _whole(str(pristine))
        shutil.copytree(pristine, folder / "cache")
        os.environ["ABSTIM_CACHE"] = str(folder / "cache")
        files = sorted(path for path in (folder / "cache" / FOLDERS.get(kind, kind)).rglob("*") if path.is_file())
        damage(Random(seed).choice(files), way, Random(seed))
        with contextlib.redirect_stderr(io.StringIO()) as said:
            found = USES[kind]()
        assert found == expected[kind], (kind, way)
        return "refused" if said.getvalue() else "runs"
    finally:
        os.environ.pop("ABSTIM_CACHE", None)
        if before is not None:
            os.environ["ABSTIM_CACHE"] = before


def damage(path: Path, way: str, rng: Random) -> None:
    """Change a file, as disks and killed processes do."""
    data = bytearray(path.read_bytes())
    if way in ("flip", "sixteen"):
        for _ in range(1 if way == "flip" else 16):
            data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    elif way == "zero":
        at = rng.randrange(len(data))
        data[at : at + 512] = bytes(len(data[at : at + 512]))
    changed = {"cut": data[: rng.randrange(len(data))], "empty": b"", "append": data + bytes(rng.randrange(1, 64))}
    path.unlink()
    if way == "folder":
        path.mkdir()
        return
    path.write_bytes(changed.get(way, data))
    path.chmod(0o666 if way == "mode" else 0o600)
