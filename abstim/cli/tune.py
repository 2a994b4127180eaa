"""`abstim tune`: variants of a kernel on a GPU, the quickest first."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from abstim.cli.options import Json, Model, TimedGpuOptions, expanded, refuse_options
from abstim.cli.sample import aim_of
from abstim.show.tables import cells as cells_of
from abstim.show.tables import counted, on_gpu, print_json, print_table, progress, say
from functional.errors import note

if TYPE_CHECKING:
    from collections.abc import Sequence

    from abstim.study.tune import Tuning


_POINTS = "Variants to time, with any strategy but grid. Default of multi-fidelity: a tenth."


@dataclass(kw_only=True)
class TuneOptions:
    """Options of `abstim tune`.

    Which variants:
    --vary NAME=VALUES  A macro of the source (`nvcc -DNAME=VALUE`), or a name of the launch alone, and its values:
        `1,2,4`, `32:256:32` (first:last:step), `1:64:log2`; repeatable.
    --constraint EXPRESSION  Only variants that keep it: `block_x * block_y <= 1024`; repeatable.
    --strategy grid|random|multi-fidelity  All variants, some drawn, or those that the formula finds quickest.
    --seed NUMBER  Of random.

    How a variant is launched; varied names stand for their values:
    --kernel NAME  Entry to launch, if there are several.
    --grid EXPRESSIONS  Thread blocks: `64`, `ceil(4096 / tile), 16`.
    --block EXPRESSIONS  Threads a block, likewise.
    --arg ARG  The next argument, as of `abstim run`; expressions stand in braces: `buf:f32:{n * tile}`; repeatable.
    --dynamic-shared EXPRESSION  Bytes of dynamic shared memory a block.

    How it is timed:
    --error PERCENT  Simulate a part of each launch, as `abstim sample` does, until the interval is within this.
    -o, --output FILE  All variants: .csv, .json or .parquet."""

    vary: list[str]
    constraint: list[str] | None = None
    strategy: str = "grid"
    points: Annotated[int | None, typer.Option(metavar="COUNT", min=1, help=_POINTS)] = None
    seed: int = 0
    kernel: str = ""
    grid: str
    block: str
    arg: list[str] | None = None
    dynamic_shared: str = "0"
    model: Model = "detailed"
    error: str = ""
    output: Path | None = None
    top: Annotated[int, typer.Option(metavar="COUNT", min=1, help="Rows to print.")] = 10


@expanded
def tune(*, source: str, options: TuneOptions, gpu: TimedGpuOptions, as_json: Json = False) -> None:
    """Time variants of a kernel: compiled with other macros, or launched in another shape; the quickest first.

    SOURCE  A .cu file, which nvcc compiles for each variant, or a .ptx file, whose launch alone varies.

    Examples:
    `abstim tune conv.cu --vary bx=16:128:16 --vary tile=1,2,4 --grid "ceil(4096 / (bx * tile)), 64" --block bx --arg
    buf:f32:4194304 --arg buf:f32:4194304 --gpu a100`
    `abstim tune conv.cu --vary bx=16:128:16 --vary tile=1,2,4 --grid "ceil(4096 / (bx * tile)), 64" --block bx --arg
    buf:f32:4194304 --arg buf:f32:4194304 --strategy multi-fidelity --points 5`
    `abstim tune k.ptx --vary block=64,128,256 --grid "ceil(16384 / block)" --block block --arg buf:f32:16384`"""
    from abstim.study.explore.result import check_format
    from abstim.study.tune import Space
    from abstim.study.tune import tune as run

    o = options
    refuse_options("with --strategy grid", points=o.strategy == "grid" and o.points)
    refuse_options("without --strategy random", seed=o.strategy != "random" and o.seed)
    if o.output is not None:
        check_format(o.output)
    launched: dict[str, Any] = {name: getattr(o, name) for name in ("grid", "block", "kernel", "dynamic_shared")}
    space = Space(source, o.vary, o.constraint or (), arguments=o.arg or (), **launched)
    chosen: dict[str, Any] = {"strategy": o.strategy, "count": o.points, "seed": o.seed, "model": o.model}
    with progress(quiet=as_json, shorter="--strategy multi-fidelity, or --error 5%") as report:
        found = run(space, gpu.load(), aim=aim_of(o.error, ""), progress=report, **chosen)
    varied = [name for name, values in space.axes.items() if len(values) > 1]
    print_json(found.to_json()) if as_json else _print(found, varied, o.top)
    if o.output is not None:  # after what is said, which is not lost if the disk is full
        found.save(o.output)
    if found.interrupted:
        raise KeyboardInterrupt


def _print(found: Tuning, names: Sequence[str], top: int) -> None:
    if best := found.best():
        rows = best[:top]
        last = "blocks an SM: {blocks_per_sm} | registers" if best[0].half_width is None else "+-: {half_width:.2%}"
        shown = f"cycles | time: {{seconds:time}} | of the best: {{ratio:.2f}}x | {last}"
        heads, cells = cells_of(shown, rows, ratio=lambda one: one.cycles / (best[0].cycles or 1))
        whole = [[*(one.values[name] for name in names), *own] for one, own in zip(rows, cells, strict=True)]
        print_table(f"Quickest variants of {found.source} on {on_gpu(found)}", [*names, *heads], whole, left=0)
    failed = [one for one in found.variants if one.reason]
    for one in failed[:1]:
        named = ", ".join(f"{name}={value}" for name, value in one.values.items())
        count = counted(len(failed), "variant", "variants")
        note(f"abstim: {count} could not be timed; the first ({named}): {one.reason}")
    timed = counted(len(best), "variant", "variants")
    say(f"{timed} timed by the {found.model} model, of {found.candidates:,} that keep the constraints")
    for text in found.notes:
        say(f"Note: {text}")
    if found.known_error:
        say(f"Error on this GPU: {found.known_error}")
