"""Compiling to machine code, and loading what was compiled before."""
