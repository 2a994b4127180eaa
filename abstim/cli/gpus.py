"""`abstim gpus`: the GPUs there are, and every value of one with its source."""

from __future__ import annotations

from typing import Annotated

import typer

from abstim.cli.options import Json, Overrides


def gpus(
    name: Annotated[str | None, typer.Argument(metavar="[GPU]", help="Show every value of this GPU.")] = None,
    overrides: Overrides = None,
    as_json: Json = False,
) -> None:
    """List the GPUs, or every value of one with its unit and its source.

    Examples: `abstim gpus`, `abstim gpus gtx480`, `abstim gpus mine.toml --set sm_count=30`
    """
    from abstim.gpu.config import gpu_names, load_gpu
    from abstim.show.tables import print_json

    chosen = [load_gpu(each, overrides or ()) for each in (gpu_names() if name is None else [name])]
    if as_json:
        print_json({gpu.name: _as_json(gpu) for gpu in chosen})
    elif name is None:
        _print_list(chosen)
    else:
        _print_one(chosen[0])


def _as_json(gpu) -> dict:
    values = {key: {"value": s.value, "source": s.source} for key, s in gpu.settings.items()}
    return {
        "title": gpu.title,
        "memory_model": gpu.memory_model,
        "known_error": gpu.known_error,
        "sources": gpu.labels,
        "values": values,
    }


def _print_list(gpus) -> None:
    from abstim.show.tables import print_table

    rows = [
        (
            g.name,
            g.title,
            g.spec.sm_count,
            g.spec.schedulers_per_sm,
            g.spec.scheduler,
            g.spec.core_clock_hz / 1e6,
            g.memory_model,
        )
        for g in gpus
    ]
    print_table("", ("GPU", "what", "SMs", "schedulers", "policy", "MHz", "memory"), rows, left=2)


def _print_one(gpu) -> None:
    from abstim.show.tables import print_table

    rows = [(key, str(s.value), s.source) for key, s in gpu.settings.items()]
    print_table(f"{gpu.name}: {gpu.title}", ("key", "value", "source"), rows, left=3)
    print_table("Sources", ("", ""), gpu.labels.items(), left=2)
