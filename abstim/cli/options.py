"""Options that several subcommands share."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from functional.launches.case import Case

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
_PTX = "A .ptx or .cu target"
Kernel = Annotated[str, typer.Option(help="Entry to launch, if there are several.", rich_help_panel=_PTX)]
Grid = Annotated[str, typer.Option(help="Thread blocks: `64`, `64x64`, `8,8,8`.", rich_help_panel=_PTX)]
Block = Annotated[str, typer.Option(help="Threads a block, likewise.", rich_help_panel=_PTX)]
Arguments = Annotated[
    list[str] | None,
    typer.Option(
        metavar="ARG",
        help="One argument, in order: `5`, `0.5`, `u32:7`, `npy:data.npy`, `buf:f32:1024` (zeros), "
        "`buf:f32:1024:random`, `struct(f32:1,f32:2)`; repeatable.",
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
_LANGUAGE_MODEL = "gpt and llama"
Prompt = Annotated[
    int | None,
    typer.Option(metavar="N", help="Tokens that are known at the start (16).", rich_help_panel=_LANGUAGE_MODEL),
]
Steps = Annotated[
    int | None,
    typer.Option(metavar="N", help="Tokens after these, one at a time (64).", rich_help_panel=_LANGUAGE_MODEL),
]
Batch = Annotated[
    int | None,
    typer.Option(metavar="N", help="Sequences at once, 1 to 8 (1).", rich_help_panel=_LANGUAGE_MODEL),
]


def launched(
    target: str, kernel: str, grid: str, block: str, arguments: list[str] | None, dynamic_shared_bytes: int,
    **sizes: int | None,
) -> Callable[[], Case]:  # fmt: skip
    """A target with the launch that the options say, opened when it is asked for (`resolve`). `sizes`: of a workload
    (`workloads.SIZED`), None where the option was not given."""

    def opened() -> Case:
        from abstim.targets.resolve import resolve

        return resolve(
            target, kernel=kernel, grid=grid, block=block, arguments=arguments or (),
            dynamic_shared_bytes=dynamic_shared_bytes,
            sizes={name: size for name, size in sizes.items() if size is not None},
        )  # fmt: skip

    return opened


def refuse_options(why: str, **given: object) -> None:
    """Raises InputError for options that were given and would have no effect; a default is falsy."""
    from functional.errors import InputError

    if named := [f"--{name.replace('_', '-')}" for name, value in given.items() if value]:
        raise InputError(f"{', '.join(named)}: no effect {why}")
