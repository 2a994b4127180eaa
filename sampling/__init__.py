"""How little is enough: which part of a run to simulate, and how to extrapolate from it. Imports none of the others."""
