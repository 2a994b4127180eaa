"""How results show themselves in Python: a screen at most; and results put into groups."""

from collections.abc import Callable, Hashable, Iterable
from dataclasses import asdict, fields
from reprlib import Repr
from typing import Any, ClassVar, TypeVar

Item = TypeVar("Item")
Key = TypeVar("Key", bound=Hashable)

SCREEN_CHARACTERS = 1800  # a little less than 24 lines of 80
_LEAST = 8  # characters that are shown of a value


class Brief:
    """A base of dataclasses with much in them (`repr=False`): shown by name, long values cut."""

    __slots__ = ()

    def __repr__(self) -> str:
        own = [field for field in fields(self) if field.repr]  # type: ignore[arg-type]
        room = (SCREEN_CHARACTERS - sum(len(field.name) + 3 for field in own)) // max(1, len(own))
        room = max(_LEAST, room)
        values = Repr()
        values.maxlevel, values.maxdict, values.maxlist, values.maxtuple = 2, 3, 3, 3
        values.maxstring = values.maxother = values.maxlong = room
        texts = ((field.name, " ".join(values.repr(getattr(self, field.name)).split())) for field in own)
        shown = ", ".join(f"{name}={text if len(text) <= room else text[: room - 1] + '…'}" for name, text in texts)
        return f"{type(self).__name__}({shown})"


class Told(Brief):
    """The same of results that are printed as JSON."""

    __slots__ = ()
    kind: ClassVar[str]

    def to_json(self) -> dict[str, Any]:
        """Everything, as what `json.dumps` takes."""
        return {"kind": self.kind} | asdict(self)  # type: ignore[call-overload]


def grouped(items: Iterable[Item], key: Callable[[Item], Key]) -> dict[Key, list[Item]]:
    """Items by what `key` says of each, in the order of the first of each group."""
    groups: dict[Key, list[Item]] = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    return groups
