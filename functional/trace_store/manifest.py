"""What a store says of itself: `manifest.json`, written last."""

from __future__ import annotations

import hashlib
from pathlib import Path

import msgspec

from functional.errors import InputError

VERSION = 2
MANIFEST, PTX = "manifest.json", "program.ptx"


class LaunchEntry(msgspec.Struct, forbid_unknown_fields=True):
    """A launch and its file."""

    kernel: str
    label: str
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    dynamic_shared_bytes: int
    shared_bytes: int  # a thread block, static and dynamic
    registers: int  # a thread
    registers_source: str
    file: str
    file_bytes: int
    checksum: str
    thread_instructions: int
    warp_instructions: int
    trace_bytes: int  # of the streams in memory


class OutputEntry(msgspec.Struct, forbid_unknown_fields=True):
    """The verdict on an output buffer."""

    buffer: str
    elements: int
    mismatches: int
    message: str = ""  # the first mismatch, if any


class Manifest(msgspec.Struct, forbid_unknown_fields=True):
    """Everything but the traces."""

    name: str  # of the target
    ptx_sha256: str
    launches: tuple[LaunchEntry, ...]
    outputs: tuple[OutputEntry, ...]
    printed: str = ""  # what the kernels wrote with printf


class _Document(msgspec.Struct):
    version: int
    sha256: str  # of the text of `store`
    store: msgspec.Raw


def encode(manifest: Manifest) -> bytes:
    """The text of manifest.json."""
    store = msgspec.json.encode(manifest)
    return msgspec.json.encode(_Document(VERSION, hashlib.sha256(store).hexdigest(), msgspec.Raw(store))) + b"\n"


def read(folder: Path) -> Manifest:
    """The manifest of a store. Raises InputError if it is missing, damaged or of another version."""
    path = folder / MANIFEST
    try:
        text = path.read_bytes()
    except FileNotFoundError:
        raise _missing(folder) from None
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}") from None
    try:
        document = msgspec.json.decode(text, type=_Document)
        if document.version != VERSION:
            raise damaged(path, f"it is of version {document.version}, this program reads version {VERSION}")
        if hashlib.sha256(document.store).hexdigest() != document.sha256:
            raise damaged(path, "its checksum differs")
        return msgspec.json.decode(document.store, type=Manifest)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise damaged(path, f"it cannot be decoded: {error}") from None


def _missing(folder: Path) -> InputError:
    """A folder without a manifest: of stores, as a program's modules are recorded, or of one that was never ended."""
    inside = sorted(path.parent for path in folder.glob(f"*/{MANIFEST}"))
    if inside:
        several = f" to {inside[-1].name}" if len(inside) > 1 else ""
        return InputError(f"{folder}: is a folder of trace stores; name one of them: {inside[0]}{several}")
    return InputError(
        f"{folder}: is no complete trace store, {MANIFEST} is missing; if writing it was interrupted, write it "
        "again with `abstim trace TARGET -o DIR --overwrite`"
    )


def damaged(path: Path, why: str) -> InputError:
    """The error for a file that cannot be used."""
    return InputError(f"{path}: damaged ({why}); write the store again with `abstim trace TARGET -o DIR --overwrite`")
