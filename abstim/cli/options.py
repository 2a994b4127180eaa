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
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")]
Backend = Annotated[
    str, typer.Option(metavar="compiled|array", help="Which form of the timing engine; both give the same cycles.")
]
Model = Annotated[
    str,
    typer.Option(
        metavar="engine|analytic",
        help="Replay every instruction (engine), or estimate from hit-rate curves and bounds (analytic).",
    ),
]
