"""Where the state spaces lie among generic addresses."""

from __future__ import annotations

from functional.launches.memory import CONST_LIMIT_BYTES, CONST_WINDOW
from functional.ptx.ir import CLUSTER_SHARED

# Generic addresses of shared address 0, of local address 0 of the executing thread, and of the parameter block.
SHARED_WINDOW, LOCAL_WINDOW, PARAM_WINDOW = 0x1000_0000, 0x2000_0000, 0x3000_0000
WINDOW_BYTES, _MOST_BLOCKS = 1 << 24, 16
RANK_BYTES = 1 << 24  # of shared addresses that each thread block of a cluster has
WINDOWS: dict[str, tuple[int, int]] = {  # space -> first generic address, and the first behind
    "shared": (SHARED_WINDOW, SHARED_WINDOW + WINDOW_BYTES),
    CLUSTER_SHARED: (SHARED_WINDOW, SHARED_WINDOW + _MOST_BLOCKS * RANK_BYTES),
    "local": (LOCAL_WINDOW, LOCAL_WINDOW + WINDOW_BYTES),
    "param": (PARAM_WINDOW, PARAM_WINDOW + WINDOW_BYTES),
    "const": (CONST_WINDOW, CONST_WINDOW + CONST_LIMIT_BYTES),
}
GENERIC = {space: first for space, (first, _) in WINDOWS.items()}  # space -> generic address of its address 0
SHARED = frozenset({"shared", CLUSTER_SHARED})  # spaces whose addresses have 32 bits
