"""Traces on disk: a folder with a manifest, the PTX and one file a launch, enough to time it without executing."""

from functional.trace_store.read import StoredCase, open_store
from functional.trace_store.write import StoreWriter

__all__ = ["StoreWriter", "StoredCase", "open_store"]
