"""Traces on disk: a folder with a manifest, the PTX and one file a launch, enough to time it without executing."""

from functional.trace_store.store import StoredCase, StoreWriter, open_store

__all__ = ["StoreWriter", "StoredCase", "open_store"]
