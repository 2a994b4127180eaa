"""Keeping the results of slow stages on disk, under keys that hold all they depend on."""
