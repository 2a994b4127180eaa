"""How results show themselves in Python: a screen at most; and results put into groups."""

from collections.abc import Callable, Hashable, Iterable
from dataclasses import fields
from reprlib import Repr
from typing import Any, TypeVar

Item = TypeVar("Item")
Key = TypeVar("Key", bound=Hashable)

SCREEN_CHARACTERS = 1800  # a little less than 24 lines of 80
_LEAST = 8  # characters that are shown of a value


def brief(result: Any) -> str:
    """The `__repr__` of a dataclass with much in it: every field by name, long values cut.

    class Result:
        __repr__ = brief"""
    own = [field for field in fields(result) if field.repr]
    room = (SCREEN_CHARACTERS - sum(len(field.name) + 3 for field in own)) // max(1, len(own))
    room = max(_LEAST, room)
    values = Repr()
    values.maxlevel, values.maxdict, values.maxlist, values.maxtuple = 2, 3, 3, 3
    values.maxstring = values.maxother = values.maxlong = room
    texts = ((field.name, " ".join(values.repr(getattr(result, field.name)).split())) for field in own)
    shown = ", ".join(f"{name}={text if len(text) <= room else text[: room - 1] + '…'}" for name, text in texts)
    return f"{type(result).__name__}({shown})"


def grouped(items: Iterable[Item], key: Callable[[Item], Key]) -> dict[Key, list[Item]]:
    """Items by what `key` says of each, in the order of the first of each group."""
    groups: dict[Key, list[Item]] = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    return groups
