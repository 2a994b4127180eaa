"""Arrays that launches are timed in, lent to one after the other: memory that is new costs time."""

from operator import gt
from threading import local
from typing import Any

import numpy as np

from functional.jit.machine_code import Held

MOST_FREE, MOST_BYTES = 4, 1 << 26  # of a kind, so many wait to be lent again, if they are no larger
_OF_THREAD = local()


class Lent:
    """A named tuple of flat arrays of some types, of which a part is used.

    Who holds it has it alone. When nobody does, it is lent again, unless somebody was shown its `value`; what is in it
    is what others left."""

    def __init__(self, kind: Any, types: tuple[Any, ...], sizes: tuple[int, ...]) -> None:
        self._free: list[Held] = vars(_OF_THREAD).setdefault(kind, [])
        self.held = self._free.pop() if self._free else Held(kind(*(np.empty(0, own) for own in types)))
        self.fit(sizes)

    def fit(self, sizes: tuple[int, ...]) -> None:
        """So much of each array is used; what is in those that are large enough stays."""
        there = self.held.value
        if any(map(gt, sizes, map(len, there))):
            self.held = Held(type(there)(*(
                a if n <= len(a) else np.empty(max(n, 2 * len(a)), a.dtype) for n, a in zip(sizes, there, strict=True)
            )))  # fmt: skip
            if sum(array.nbytes for array in self.held.value) > MOST_BYTES:
                self._free = []
        self.rows = self.held.words.reshape(-1, 2)  # address and size of each array
        self.rows[:, 1] = sizes

    @property
    def value(self) -> Any:
        """The parts that are used, to be kept."""
        self._free = []
        return type(self.held.value)(*(a[:n] for a, n in zip(self.held.value, self.rows[:, 1].tolist(), strict=True)))

    def __del__(self, most_free: int = MOST_FREE) -> None:  # modules have lost their names when the interpreter ends
        if len(self._free) < most_free:
            self._free.append(self.held)
