"""Kernel time as a function of a GPU's latencies, with derivatives, by each of the models."""
