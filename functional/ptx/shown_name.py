"""A kernel's name as people wrote it: that of the C++ function, demangled, without what it returns and takes."""

from __future__ import annotations

import re
from functools import lru_cache

_CAST = re.compile(r"\((?:unsigned )?(?:int|long long|long|short|char)\)(?=-?\d)")  # of a template's number: (int)4


@lru_cache(maxsize=1024)
def shown_name(kernel: str) -> str:
    """`fwt<float>` of `_Z3fwtIfEvPT_i`; a name that is not mangled, or that nobody can read, as it is."""
    if not kernel.startswith("_Z"):
        return kernel
    import itanium_demangler

    try:
        found = itanium_demangler.parse(kernel)
    except (ValueError, NotImplementedError, RecursionError, IndexError, KeyError, AttributeError):
        return kernel
    if found is None:
        return kernel
    return _CAST.sub("", str(found.name if found.kind == "func" else found))
