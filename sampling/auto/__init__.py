"""Sampling that chooses for the user: how much to simulate follows from the error that is asked for."""
