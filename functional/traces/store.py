"""A store of traces: a folder with a manifest, the PTX and one file a launch. A file has its name when it is whole, and
the manifest comes last.

Every array of a trace is kept as differences of successive elements, their bytes sorted by significance, by zstd:
those of line records, and of offsets, repeat from access to access, and equal high bytes take almost nothing. A file is
`MAGIC`, then for each frame {u64 bytes, SHA-256, the bytes}, then a frame of no bytes, whose SHA-256 is that of the
checksums before it: the checksum of the file."""

import hashlib
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

import msgspec
import numpy as np

from functional.errors import InputError, refuse
from functional.files import read_bytes
from functional.keep.folder import replacing
from functional.launches.case import Case
from functional.launches.launch import Dim3, Launch, Order, check_after, check_shape
from functional.launches.memory import Memory
from functional.programs.link import link
from functional.programs.registers import MOST_REGISTERS, Registers
from functional.ptx.ir import Module
from functional.ptx.parser import parse_bytes
from functional.ptx.source import unchanged
from functional.traces.trace import COUNTS, DTYPES, OFFSETS, Trace, concatenate

MAGIC = b"abstrc03"  # the last two digits are the version


class DamagedError(ValueError):
    """A file is not what it was when it was written."""


class FrameWriter:
    """Writes frames to an open file."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file, self._all = file, hashlib.sha256()
        file.write(MAGIC)

    def write(self, data: bytes) -> None:
        """One frame, of at least a byte."""
        self._frame(data, hashlib.sha256(data).digest())

    def finish(self) -> str:
        """Write the mark; the checksum of the file, in hexadecimal."""
        checksum = self._all
        self._frame(b"", checksum.digest())
        return checksum.hexdigest()

    def _frame(self, data: bytes, digest: bytes) -> None:
        self._file.write(len(data).to_bytes(8, "little") + digest + data)
        if data:
            self._all.update(digest)


def read_frames(file: IO[bytes], checksum: str = "") -> Iterator[bytes]:
    """The frames of an open file, one at a time.

    Raises DamagedError where the file is cut, altered, of another version, or has not the `checksum` that is given."""
    magic = file.read(len(MAGIC))
    if magic != MAGIC:
        raise DamagedError(_wrong_start(magic))
    every = hashlib.sha256()
    number = 0
    while True:
        size, digest = int.from_bytes(_exactly(file, 8, number), "little"), _exactly(file, 32, number)
        if not size:
            break
        data = _exactly(file, size, number)
        refuse(hashlib.sha256(data).digest() != digest, f"the checksum of frame {number} differs", DamagedError)
        every.update(digest)
        number += 1
        yield data
    if digest != every.digest() or (checksum and every.hexdigest() != checksum):
        raise DamagedError("the checksum of the file differs")
    refuse(file.read(1), "there are bytes behind its end", DamagedError)


def _wrong_start(magic: bytes) -> str:
    if len(magic) == len(MAGIC) and magic[:6] == MAGIC[:6] and magic[6:].isdigit():
        return f"it is of version {int(magic[6:])}, this program reads version {int(MAGIC[6:])}"
    return "it does not start as a trace does"


def _exactly(file: IO[bytes], size: int, number: int) -> bytes:
    data = file.read(min(size, 1 << 62))
    refuse(len(data) != size, f"it ends within frame {number}", DamagedError)
    return data


_LEVEL = 3  # of zstd; 9 takes a seventh less space and three times as long


class _Head(msgspec.Struct, array_like=True):
    warps_per_block: int
    lengths: list[int]  # elements of each array, in the order of DTYPES
    sizes: list[int]  # bytes of each, compressed


def encode(trace: Trace) -> bytes:
    """The bytes that `decode` makes an equal trace of."""
    import zstandard

    compress = zstandard.ZstdCompressor(level=_LEVEL).compress
    arrays = [np.asarray(getattr(trace, name), dtype) for name, dtype in DTYPES.items()]
    parts = [compress(_planes(array)) for array in arrays]
    head = msgspec.msgpack.encode(_Head(trace.warps_per_block, [len(a) for a in arrays], [len(p) for p in parts]))
    return b"".join([len(head).to_bytes(4, "little"), head, *parts])


def decode(data: bytes, most_warps: int | None = None) -> Trace:
    """Raises DamagedError if `data` is not what `encode` makes, or of more than `most_warps`."""
    import zstandard

    try:
        return _decode(data, most_warps)
    except (msgspec.DecodeError, zstandard.ZstdError, ValueError) as error:
        raise DamagedError(f"it cannot be decoded: {error}") from None


def _decode(data: bytes, most_warps: int | None) -> Trace:
    start = 4 + int.from_bytes(data[:4], "little")
    head = msgspec.msgpack.decode(data[4:start], type=_Head)
    lengths = dict(zip(DTYPES, head.lengths, strict=True))
    _check_lengths(lengths, head.warps_per_block, most_warps)
    arrays = {}
    for (name, dtype), size in zip(DTYPES.items(), head.sizes, strict=True):
        refuse(size < 0, f"{size} bytes of {name}", ValueError)
        planes = _decompressed(data[start : start + size], lengths[name] * np.dtype(dtype).itemsize)
        arrays[name] = _from_planes(planes, np.dtype(dtype), lengths[name])
        start += size
    return Trace(warps_per_block=head.warps_per_block, **arrays)


def _check_lengths(lengths: dict[str, int], warps_per_block: int, most_warps: int | None) -> None:
    """Raise ValueError for lengths that do not fit together: what they say is room to be taken."""
    warps = lengths["thread_blocks"] * warps_per_block
    if warps_per_block < 1 or warps < 0 or (most_warps is not None and warps > most_warps):
        raise ValueError(f"{lengths['thread_blocks']} thread blocks of {warps_per_block} warps")
    wrong = [name for name in OFFSETS if lengths[name] != warps + 1] + [n for n in COUNTS if lengths[n] != warps]
    pairs = lengths["masks"] != lengths["blocks"] or lengths["partial_at"] != lengths["partial_words"]
    if wrong or pairs or min(lengths.values()) < 0:
        raise ValueError(f"not every array is as long as {warps} warps need")


def _decompressed(part: bytes, size: int) -> bytes:
    import zstandard

    said = zstandard.get_frame_parameters(part).content_size
    refuse(said != size, f"{said} bytes where {size} belong", ValueError)
    return zstandard.ZstdDecompressor().decompress(part)


def _planes(array: np.ndarray) -> bytes:
    """The differences' lowest bytes, then their second bytes, and so on."""
    differences = array.copy()
    differences[1:] -= array[:-1]
    return differences.view(np.uint8).reshape(-1, array.itemsize).T.tobytes()


def _from_planes(data: bytes, dtype: np.dtype, length: int) -> np.ndarray:
    planes = np.frombuffer(data, np.uint8).reshape(dtype.itemsize, length)
    differences = np.ascontiguousarray(planes.T).reshape(-1).view(dtype)
    return np.cumsum(differences, dtype=dtype)  # wraps around as the subtraction did


VERSION = 3
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
    order: Order = Order()
    cluster: tuple[int, int, int] | None = None  # as it was launched; None: as the kernel says


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputCheck:
    """One output buffer against what it should hold."""

    buffer: str
    elements: int
    mismatches: int
    message: str = ""  # the first mismatch, if any


class Manifest(msgspec.Struct, forbid_unknown_fields=True):
    """Everything but the traces."""

    name: str  # of the target
    ptx_sha256: str
    launches: tuple[LaunchEntry, ...]
    outputs: tuple[OutputCheck, ...]
    printed: str = ""  # what the kernels wrote with printf


class _Document(msgspec.Struct):
    version: int
    sha256: str  # of the text of `store`
    store: msgspec.Raw


def read_manifest(folder: Path) -> Manifest:
    """The manifest of a store. Raises InputError if it is missing, damaged or of another version."""
    path = folder / MANIFEST
    try:
        text = read_bytes(path)
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
    if inside := sorted(path.parent for path in folder.glob(f"*/{MANIFEST}")):
        several = f" to {inside[-1].name}" if len(inside) > 1 else ""
        return InputError(f"{folder}: is a folder of trace stores; name one of them: {inside[0]}{several}")
    return InputError(
        f"{folder}: is no complete trace store, {MANIFEST} is missing; if writing it was interrupted, write it "
        "again with `abstim trace TARGET -o DIR --overwrite`"
    )


def damaged(path: Path, why: str) -> InputError:
    """The error for a file that cannot be used."""
    return InputError(f"{path}: damaged ({why}); write the store again with `abstim trace TARGET -o DIR --overwrite`")


_OWN_FILES = re.compile(r"manifest\.json|program\.ptx|launch-\d+\.trace|\..+\.\d+\.\d+\.tmp")


class StoreWriter:
    """A store in the making. It holds the launches of one module; until `finish`, nobody takes it for whole."""

    def __init__(self, folder: Path, module: Module, overwrite: bool = False) -> None:
        """Begin a store in a new or empty folder, or with `overwrite` in place of another one.

        Raises InputError if the folder holds anything else or cannot be written, or if the PTX is no longer there."""
        self.folder, self._launches = folder, list[LaunchEntry]()
        if (ptx := unchanged(module.path, module.digest)) is None:
            raise InputError(f"{module.path}: the PTX file has changed since it was read, or is gone")
        with _writing(folder):
            folder.mkdir(parents=True, exist_ok=True)
            _clear(folder, overwrite)
        self._ptx_sha256 = module.digest
        with self._file(PTX) as file:
            file.write(ptx)

    def launch(self, launch: Launch, registers: Registers, chunks: Iterable[Trace]) -> None:
        """The next launch: traces of successive thread blocks, together all of them."""
        name = f"launch-{len(self._launches):05d}.trace"
        threads = warps = trace_bytes = 0
        with self._file(name) as file:
            frames = FrameWriter(file)
            for trace in chunks:
                frames.write(encode(trace))
                threads += int(trace.thread_instructions.sum())
                warps += int(trace.warp_instructions.sum())
                trace_bytes += trace.nbytes
            checksum, size = frames.finish(), file.tell()
        entry = LaunchEntry(
            kernel=launch.program.name, label=launch.label, grid=launch.grid[:], block=launch.block[:],
            dynamic_shared_bytes=launch.dynamic_shared_bytes, shared_bytes=launch.shared_bytes,
            registers=registers.count, registers_source=registers.source, file=name, file_bytes=size,
            checksum=checksum, thread_instructions=threads, warp_instructions=warps, trace_bytes=trace_bytes,
            order=launch.order, cluster=launch.requested_cluster[:] if launch.requested_cluster else None,
        )  # fmt: skip
        self._launches.append(entry)

    def finish(self, name: str, outputs: Sequence[OutputCheck], printed: str = "") -> Manifest:
        """Make it a store: `name` is that of the target, `outputs` the verdict on what it computed, `printed` what its
        kernels wrote with `printf`."""
        whole = Manifest(name, self._ptx_sha256, tuple(self._launches), tuple(outputs), printed)
        store = msgspec.json.encode(whole)
        document = _Document(VERSION, hashlib.sha256(store).hexdigest(), msgspec.Raw(store))
        with self._file(MANIFEST) as file:
            file.write(msgspec.json.encode(document) + b"\n")
        return whole

    @contextmanager
    def _file(self, name: str) -> Iterator[IO[bytes]]:
        """A file of the store, under another name until it is on the disk."""
        with _writing(self.folder / name), replacing(self.folder / name) as partial, partial.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())


@contextmanager
def _writing(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise InputError(f"{path}: cannot be written: {error.strerror}") from None


def _clear(folder: Path, overwrite: bool) -> None:
    found = sorted(folder.iterdir())
    foreign = [path.name for path in found if not _OWN_FILES.fullmatch(path.name)]
    if foreign:
        raise InputError(f"{folder}: holds {foreign[0]}, which is no part of a trace store; choose another folder")
    refuse(found and not overwrite, f"{folder}: is there already; choose another folder, or --overwrite")
    for path in sorted(found, key=lambda p: p.name != MANIFEST):  # without it the rest counts as unfinished
        path.unlink()


@dataclass
class StoredCase(Case):
    """A case that has been executed elsewhere: no contents of memory, but the trace of every launch."""

    folder: Path = field(default_factory=Path)
    manifest: Manifest = field(default_factory=lambda: Manifest("", "", (), ()))

    def registers(self, launch: Launch) -> Registers:
        """Registers a thread, as they were found when the store was written."""
        entry = next(e for e in self.manifest.launches if e.kernel == launch.program.name)
        return Registers(entry.registers, entry.registers_source)

    def to_execute_on(self) -> Memory:
        """Raises InputError."""
        raise InputError(f"{self.folder}: a trace store holds no data to execute on; name what it was made from")

    def stream(self, number: int) -> Iterator[Trace]:
        """The chunks of a launch. Raises InputError for a file that is damaged."""
        entry, launch = self.manifest.launches[number], self.launches[number]
        path = self.folder / entry.file
        try:
            with path.open("rb") as file:
                for frame in read_frames(file, entry.checksum):
                    yield decode(frame, launch.thread_blocks * launch.warps_per_block)
        except DamagedError as error:
            raise damaged(path, str(error)) from None
        except OSError as error:
            raise InputError(f"{path}: cannot be read: {error.strerror}") from None

    def trace(self, number: int) -> Trace:
        """The trace of a launch. Raises InputError for a file that is damaged."""
        launch = self.launches[number]
        chunks = list(self.stream(number))
        try:
            trace = concatenate(chunks, launch.warps_per_block)
        except (ValueError, IndexError, TypeError, OverflowError, MemoryError) as error:
            path = self.folder / self.manifest.launches[number].file
            raise damaged(path, f"its chunks do not fit together: {error}") from None
        if len(trace.thread_blocks) != launch.thread_blocks:
            path = self.folder / self.manifest.launches[number].file
            raise damaged(path, f"{len(trace.thread_blocks)} thread blocks of {launch.thread_blocks}")
        return trace


def open_store(folder: str | Path) -> StoredCase:
    """The case in a store. Raises InputError if a file is missing, cut or damaged, as far as that shows at once."""
    folder = Path(folder)
    whole = read_manifest(folder)
    for entry in whole.launches:
        if Path(entry.file).name != entry.file or entry.file in ("", ".", ".."):
            raise damaged(folder, f"its manifest names {entry.file!r}, which is no file of the store")
        _check_size(folder / entry.file, entry.file_bytes)
    path = folder / PTX
    _check_size(path, None)
    ptx = read_bytes(path)
    if hashlib.sha256(ptx).hexdigest() != whole.ptx_sha256:
        raise damaged(path, "its checksum differs")
    module = parse_bytes(ptx, str(path))
    programs = {kernel: link(module, kernel) for kernel in dict.fromkeys(e.kernel for e in whole.launches)}
    launches: list[Launch] = []
    for entry in whole.launches:
        program, grid, block = programs[entry.kernel], Dim3(*entry.grid), Dim3(*entry.block)
        cluster = None if entry.cluster is None else Dim3(*entry.cluster)
        check_shape(program, grid, block, entry.dynamic_shared_bytes, cluster)
        check_after(entry.order.after, len(launches))
        launch = Launch(
            program, grid, block, b"", entry.dynamic_shared_bytes, entry.label, (), 0, cluster, order=entry.order
        )
        if entry.shared_bytes != launch.shared_bytes or not 0 < entry.registers <= MOST_REGISTERS:
            said = f"{entry.shared_bytes} B of shared memory, {entry.registers} registers"
            raise damaged(folder, f"launch {len(launches)} of its manifest has {said}")
        launches.append(launch)
    return StoredCase(whole.name, module, Memory(), tuple(launches), folder=folder, manifest=whole)


def _check_size(path: Path, size_bytes: int | None) -> None:
    """Raise InputError for a file that is not there, or has not the size it had."""
    if not path.is_file():
        raise damaged(path, "it is missing")
    found = path.stat().st_size
    if size_bytes is not None and found != size_bytes:
        raise damaged(path, f"it has {found} bytes of {size_bytes}")
