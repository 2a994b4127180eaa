"""What looks at other lanes of a warp, against rules written out on Python integers, on both executors."""

from __future__ import annotations

import numpy as np
import pytest
from both_executors import each_lane

LANES = range(32)


def shuffled(mode: str, lane: int, b: int, c: int) -> int | None:
    """The lane that a lane reads, by PTX's rule; None if it is outside of the segment."""
    clamp, segment = c & 31, c >> 8 & 31
    last = (lane & segment) | (clamp & ~segment & 31)
    first, b = lane & segment, b & 31
    source = {"up": lane - b, "down": lane + b, "bfly": lane ^ b, "idx": first | (b & ~segment & 31)}[mode]
    return source if (source >= last if mode == "up" else source <= last) else None


@pytest.mark.parametrize("mode", ["up", "down", "bfly", "idx"])
def test_shuffles(mode: str) -> None:
    rng = np.random.default_rng(len(mode))
    for width in (32, 16, 8, 1):
        words = rng.integers(0, 1 << 32, (32, 3), np.uint64).astype(np.uint32)
        words[:, 1] = rng.integers(0, 40, 32)
        words[:, 2] = (32 - width) << 8 | (0 if mode == "up" else 31)
        if width == 8:
            words[:, 2] = rng.integers(0, 1 << 13, 32)
        body = f"shfl.sync.{mode}.b32 %o0|%p1, %i0, %i1, %i2, -1; selp.u32 %o1, 1, 0, %p1;"
        found = each_lane(body, words, 2)
        for lane in LANES:
            source = shuffled(mode, lane, int(words[lane, 1]), int(words[lane, 2]))
            assert found[lane].tolist() == [int(words[lane if source is None else source, 0]), source is not None]


@pytest.mark.parametrize("active", [0xFFFFFFFF, 0x0F0F1234, 0x80000000])
def test_votes_matches_and_reductions_of_active_members(active: int) -> None:
    rng = np.random.default_rng(active % 1000)
    words = np.zeros((32, 3), np.uint32)
    words[:, 0] = rng.integers(0, 5, 32) * 0x40000001
    words[:, 1], words[:, 2] = int(rng.integers(0, 1 << 32)) | (active & -active), active
    body = (
        "shr.u32 %r1, %i2, %r0; and.b32 %r1, %r1, 1; setp.eq.u32 %p1, %r1, 0; setp.gt.u32 %p2, %i0, 0x50000000;\n"
        "mov.u32 %o0, 99; mov.u32 %o1, 99; mov.u32 %o2, 99; mov.u32 %o3, 99; mov.u32 %o4, 99; mov.u32 %o5, 99; "
        "mov.u32 %o6, 99; @%p1 bra E;\n"
        "vote.sync.ballot.b32 %o0, %p2, %i1; match.any.sync.b32 %o1, %i0, %i1; redux.sync.add.s32 %o2, %i0, %i1;\n"
        "redux.sync.max.u32 %o3, %i0, %i1; redux.sync.min.s32 %o4, %i0, %i1; redux.sync.xor.b32 %o5, %i0, %i1;\n"
        "activemask.b32 %o6;\nE:"
    )
    found = each_lane(body, words, 7)
    values = words[:, 0].tolist()
    members = [lane for lane in LANES if (active & int(words[0, 1])) >> lane & 1]
    own = [values[lane] for lane in members]
    signed = [v - (v >> 31 << 32) for v in own]
    mask = (1 << 32) - 1
    xor = 0
    for v in own:
        xor ^= v
    for lane in LANES:
        if not active >> lane & 1:
            assert found[lane].tolist() == [99] * 7
            continue
        ballot = sum(1 << m for m in members if values[m] > 0x50000000)
        alike = sum(1 << m for m in members if values[m] == values[lane])
        assert found[lane].tolist() == [ballot, alike, sum(own) & mask, max(own), min(signed) & mask, xor, active]
