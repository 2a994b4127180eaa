"""How little is enough: what of a program to simulate, and how to extrapolate from it. Imports no other package of the house."""
