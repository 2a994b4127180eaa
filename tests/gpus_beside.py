"""GPUs that differ from one in a single key."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from abstim.gpu.config import Gpu, domains, load_gpu
from abstim.gpu.spec import Domain
from functional.errors import InputError


def gpus_beside(gpu: Gpu, key: str, most: int | None = None) -> Iterator[Gpu]:
    """With near values of a key and far ones, where they go with the rest. `most`: values that are tried."""
    for value in _values_beside(domains()[key], gpu.settings[key].value)[:most]:
        text = str(value).lower() if isinstance(value, bool) else f'"{value}"' if value == "" else str(value)
        try:
            yield load_gpu(gpu.name, [f"{key}={text}"])
        except InputError:
            continue


def _values_beside(domain: Domain, value: Any) -> list[Any]:
    """Values beside the one a GPU has, near ones and far ones."""
    if domain.type is bool:
        return [not value]
    if domain.type is str:
        names = domain.text.removeprefix("one of ").split(", ") if domain.text.startswith("one of") else ["", "0,16"]
        return [name for name in names if name != value]
    near = [2 * value, value // 2, value + 4, value - 4, value + 1, value - 1, 1, 2, 4, 8, 64, 4096]
    near += [value * 16, value / 2]
    whole = [v for v in near if domain.type is float or v == int(v)]
    return [domain.type(v) for v in dict.fromkeys(whole) if v != value and domain.accepts(v)]
