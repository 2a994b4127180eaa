"""What kernels write with `printf`, as much as a GPU's buffer holds."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

MOST_BYTES = 1 << 20  # CUDA's default for cudaLimitPrintfFifoSize


@dataclass
class Printed:
    """Calls of `printf` in order of launch, thread block, and warp. Behind the first MOST_BYTES nothing is kept."""

    calls: list[str] = field(default_factory=list)
    bytes: int = 0  # of the calls
    dropped_calls: int = 0
    dropped_bytes: int = 0

    def add(self, calls: Iterable[str]) -> None:
        """Keep the texts of more calls, as long as there is room."""
        for text in calls:
            size = len(text.encode())
            if self.dropped_calls or self.bytes + size > MOST_BYTES:
                self.dropped_calls += 1
                self.dropped_bytes += size
            else:
                self.calls.append(text)
                self.bytes += size

    def text(self) -> str:
        """All of it, and a line that says how much is missing."""
        kept = "".join(self.calls)
        if not self.dropped_calls:
            return kept
        new_line = "" if kept.endswith("\n") else "\n"
        dropped = f"{self.dropped_calls:,} more calls of printf, {self.dropped_bytes:,} bytes"
        return f"{kept}{new_line}[{dropped}, are not shown: the buffer holds {MOST_BYTES:,} bytes]\n"

    def copy(self) -> Printed:
        """An independent copy."""
        return Printed(list(self.calls), self.bytes, self.dropped_calls, self.dropped_bytes)
