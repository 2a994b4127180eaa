"""What the device tells a program about itself: CUDA's attributes, by their numbers, of a GPU's description."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from abstim.gpu.config import Gpu

_NAME_BYTES = 256
_LIMIT = 2**31 - 1
_ACCESS_WINDOW_BYTES = 128 << 20


def compute_capability(gpu: Gpu, of_program: int) -> tuple[int, int]:
    """Major and minor. A GPU whose description names no architecture has that of the program's newest PTX."""
    named = gpu.spec.architecture
    number = of_program if named == "none" else int(named.removeprefix("sm_"))
    return number // 10, number % 10


def most_shared_bytes(gpu: Gpu) -> int:
    """Shared memory that a thread block can have where it asks for more than the usual 48 KiB."""
    spec = gpu.spec
    reserved = 1024 if spec.shared_bytes_per_sm > 64 << 10 else 0  # an SM keeps it for a block from 8.0 on
    return max(48 << 10, spec.shared_bytes_per_sm - reserved) if spec.shared_bytes_per_sm > 48 << 10 else 48 << 10


def attributes(gpu: Gpu, of_program: int) -> dict[int, int]:
    """Number (cudaDeviceAttr) -> value. What a description does not have is what every GPU since 7.0 has."""
    spec = gpu.spec
    major, minor = compute_capability(gpu, of_program)
    l2_bytes = spec.l2_sets * spec.l2_ways * 128 * spec.l2_slices_per_channel * spec.dram_channels
    fixed = {
        1: 1024, 2: 1024, 3: 1024, 4: 64, 5: _LIMIT, 6: 65535, 7: 65535, 8: 48 << 10, 9: 64 << 10, 10: 32, 11: _LIMIT,
        14: 512, 15: 1, 19: 1, 21: 131072, 22: 131072, 23: 65536, 24: 16384, 25: 16384, 26: 16384, 27: 32768,
        28: 32768, 29: 2048, 30: 512, 31: 1, 40: 2, 41: 1, 42: 32768, 43: 2048, 51: 32, 69: 268435456, 70: 131072,
        71: 65000, 72: 2097120, 78: 1, 79: 1, 80: 1, 83: 1, 89: 1, 90: 1, 95: 1, 99: 1, 115: 1,
    }  # fmt: skip
    own = {
        12: min(65536, spec.registers_per_sm), 13: round(spec.core_clock_hz / 1000), 16: spec.sm_count,
        36: round(spec.core_clock_hz / 1000), 37: 64 * spec.dram_channels, 38: min(l2_bytes, _LIMIT),
        39: spec.max_threads_per_sm, 75: major, 76: minor, 81: spec.shared_bytes_per_sm, 82: spec.registers_per_sm,
        87: 32, 97: most_shared_bytes(gpu), 106: spec.max_blocks_per_sm,
    }  # fmt: skip
    # Parts of L2 that can be set aside: three quarters, from 8.0 on (CUDA's programming guide). They are not modelled
    persisting = {108: min(l2_bytes, _LIMIT) * 3 // 4, 109: _ACCESS_WINDOW_BYTES} if major >= 8 else {}
    clusters = {120: 1} if major >= 9 else {}
    return fixed | own | persisting | clusters


def described(gpu: Gpu, of_program: int) -> bytes:
    """Name and attributes, as the shim wants them."""
    name = gpu.title.partition(",")[0].encode()[: _NAME_BYTES - 1].ljust(_NAME_BYTES, b"\0")
    return name + b"".join(struct.pack("<ii", *pair) for pair in attributes(gpu, of_program).items())
