"""What the rest of the package calls of the compiled engine. Importing it imports no compiler."""

from __future__ import annotations

from functional.disk.machine_code import Native

run_grid = Native("abstim.engine.grid", "run_grid", "compiling the timing engine for this CPU: some 20 s, this once")
walk = Native("abstim.engine.walk", "walk")
controllers = Native("abstim.engine.walk", "controllers")
