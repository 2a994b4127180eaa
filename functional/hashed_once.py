"""Frozen values of many parts, which are keys of much: their hash is worked out once."""

from dataclasses import fields
from typing import Any


class HashedOnce:
    """A base of frozen dataclasses, which say `__hash__ = HashedOnce.__hash__`: else each has one of its own."""

    __slots__ = ("_hash",)
    _hash: int

    def __hash__(self) -> int:
        try:
            return self._hash
        except AttributeError:
            compared = (getattr(self, f.name) for f in fields(self) if f.compare)  # type: ignore[arg-type]
            object.__setattr__(self, "_hash", hash(tuple(compared)))
            return self._hash

    def __getstate__(self) -> dict[str, Any]:
        return vars(self)  # another process hashes texts otherwise
