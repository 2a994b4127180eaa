"""What the computer has that this runs on."""

from __future__ import annotations

import os
from functools import cache


@cache
def memory_bytes() -> int:
    """Main memory."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 1 << 34
