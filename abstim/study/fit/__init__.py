"""Latencies of a GPU from measured cycles."""
