"""Options that several subcommands share."""

from __future__ import annotations

from typing import Annotated

import typer

GpuNames = Annotated[
    list[str],
    typer.Option(
        "--gpu", metavar="GPU", help="A GPU's name (`abstim gpus`) or TOML file; repeat it to compare several."
    ),
]
GpuName = Annotated[str, typer.Option("--gpu", metavar="GPU", help="A GPU's name (`abstim gpus`) or TOML file.")]
Overrides = Annotated[
    list[str] | None,
    typer.Option(
        "--set", metavar="KEY=VALUE", help="Change a value of the GPU (keys: `abstim gpus gtx480`); repeatable."
    ),
]
_PTX = "A .ptx target"
Kernel = Annotated[str, typer.Option(help="Entry to launch, if there are several.", rich_help_panel=_PTX)]
Grid = Annotated[str, typer.Option(help="Thread blocks: `64`, `64x64`, `8x8x8`.", rich_help_panel=_PTX)]
Block = Annotated[str, typer.Option(help="Threads a block, likewise.", rich_help_panel=_PTX)]
Arguments = Annotated[
    list[str] | None,
    typer.Option(
        metavar="ARG",
        help="One argument, in order: `5`, `0.5`, `u32:7`, `npy:data.npy`, `buf:f32:1024` (zeros), "
        "`buf:f32:1024:random`; repeatable.",
        rich_help_panel=_PTX,
    ),
]
DynamicShared = Annotated[
    int, typer.Option(metavar="BYTES", help="Dynamic shared memory a block.", rich_help_panel=_PTX)
]
InstructionBudget = Annotated[
    int | None,
    typer.Option(
        min=1,
        metavar="COUNT",
        help="Thread instructions after which a launch counts as endless; else 2^18 a thread.",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")]
Model = Annotated[
    str,
    typer.Option(
        metavar="detailed|occupancy|analytic",
        help="Every stage of the GPU (detailed), what warps wait for (occupancy), or a formula (analytic).",
    ),
]
