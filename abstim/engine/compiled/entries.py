"""What the rest of the package calls of the compiled engine. Importing it imports no compiler."""

from __future__ import annotations

from abstim.engine.compiled.native import Native

run_grid = Native(
    "abstim.engine.compiled.grid", "run_grid", "compiling the timing engine for this CPU: some 20 s, this once"
)
walk = Native("abstim.engine.compiled.warm", "walk")
controllers = Native("abstim.engine.compiled.warm", "controllers")
