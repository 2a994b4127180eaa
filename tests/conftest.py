"""Tests keep their caches apart from the user's; compiled engines outlive a test run."""

from __future__ import annotations

import os
from pathlib import Path

os.environ["ABSTIM_CACHE"] = str(Path(__file__).parent.parent / ".pytest_cache" / "abstim")
