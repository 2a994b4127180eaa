"""The micro-benchmarks: what they run on, what is launched for each, what its time says, and their kernels as PTX text.

Each repeats what it measures `rounds` times, so that the time of one more round is the difference of two launches,
whatever a launch costs. `operations.csv` has a row an arithmetic operation, on a chain: {a} its register, {b} and {c}
ones that no chain changes; `registers` is the letter of what holds its type, `instructions` how many it is, and results
of each a thread. A float converted to an integer is not converted back: that is no work of the XU on sm_86 (I2FP).
`atomics.csv` has a row an atomic, `returned` where the old value is used. Files that end in .ptx.txt are parts of
kernels with places to fill."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path

import numpy as np

from functional.files import rows_beside

CHAIN = 8  # dependent loads, or atomics, a round
CHAINS, LENGTH = 4, 16  # independent chains of an arithmetic round, and operations in each
# Of the kernels in memory_kernels.ptx, a round
LOADS = 8  # independent loads of shared memory
CHUNK_LOADS = 8  # of global memory: 1,024 threads read 64 KiB
# Written and read buffers of each stream: A = c, (B), A = c B, A = B C + D, one element of 8 bytes a thread
STREAMS = {"init": 1, "read": 1, "scale": 2, "triad": 4}
OPERATIONS = {row["name"]: row for row in rows_beside(__file__, "operations.csv")}
TENSOR = "tensor_fp16_16x8x16"
ATOMICS = {row["name"]: row for row in rows_beside(__file__, "atomics.csv")}
ADDRESSES = {"one_address": 0, "one_a_lane": 1}  # of a warp's lanes; the stride in elements
_LETTERS = {"u32": "r", "b32": "r", "f32": "f", "f64": "d"}  # of the registers that hold a type
_TYPES = {"f": "f32", "d": "f64", "r": "u32"}


def _file(name: str, /, **places: str) -> str:
    """A file beside this module, its places filled."""
    text = Path(__file__).with_name(name).read_text()
    return text.format(**places).rstrip("\n") if places else text


def _entry(name: str, numbers: int, body: str, before: str = "") -> str:
    """A kernel with two buffers (%rd0, %rd1) and `numbers` 32-bit values (%r20, ...)."""
    names = ["p0", "p1", *(f"n{k}" for k in range(numbers))]
    parameters = ", ".join(f".param .{'u64' if each[0] == 'p' else 'u32'} {each}" for each in names)
    loads = [f"ld.param.u64 %rd{k}, [p{k}];\ncvta.to.global.u64 %rd{k}, %rd{k};" for k in range(2)]
    loads += [f"ld.param.u32 %r{20 + k}, [n{k}];" for k in range(numbers)]
    return _file("kernel.ptx.txt", name=name, parameters=parameters, lines="\n".join([before, *loads, body])) + "\n"


def _rounds(body: Iterable[str]) -> str:
    """`body`, as often as %r20 says."""
    return "\n".join(["AGAIN:", *body, "add.s32 %r20, %r20, -1;", "setp.gt.s32 %p0, %r20, 0;", "@%p0 bra AGAIN;"])


def arithmetic(name: str, chains: int) -> str:
    """`chains` independent chains of LENGTH operations a round. Their operands come from memory, each lane's own: what
    all have alike is made once a warp. Of TENSOR, products of matrices of 16 x 16 and 16 x 8, fp16, into fp32:
    registers %f0 to %f3 are chain 0's, and so on."""
    letter, code = OPERATIONS[name]["registers"], OPERATIONS[name]["code"]
    kind, size, first, count = _TYPES[letter], 8 if letter == "d" else 4, 12, chains
    operands = [f"ld.global.{kind} %{letter}{10 + j}, [%rd0+{size * j}];" for j in range(2 + chains)]
    steps = [
        code.format(a=f"%{letter}{12 + k}", b=f"%{letter}10", c=f"%{letter}11").replace("19", str(16 + k))
        for k in range(chains)
    ]
    if name == TENSOR:
        first, count = 0, 4 * chains
        operands = [f"ld.global.u32 %r{k}, [%rd0+{4 * k}];" for k in range(6)]
        operands += [f"ld.global.f32 %f{k}, [%rd0+{4 * k}];" for k in range(count)]
        own = [", ".join(f"%f{4 * k + j}" for j in range(4)) for k in range(chains)]
        product = "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
        steps = [f"{product}{{{c}}}, {{%r0, %r1, %r2, %r3}}, {{%r4, %r5}}, {{{c}}};" for c in own]
    ends = "\n".join(f"st.global.{kind} [%rd1+{size * k}], %{letter}{first + k};" for k in range(count))
    rounds = _rounds(steps * LENGTH)
    return _entry(name, 1, _file("arithmetic.ptx.txt", operands="\n".join(operands), rounds=rounds, ends=ends))


def atomic(name: str) -> str:
    """CHAIN atomics a round, of every thread, at lane x %r21 bytes from the buffer's begin (every warp the same)."""
    space, operation = ATOMICS[name]["space"], ATOMICS[name]["operation"]
    letter, shared = _LETTERS[operation.rpartition(".")[2]], space == "shared"
    value = f"%{letter}10" + (f", %{letter}11" if operation.startswith("cas") else "")
    returned = ATOMICS[name]["returned"] == "yes"
    before = f"atom.{space}.{operation} %{letter}10," if returned else f"red.{space}.{operation}"
    rounds = _rounds([f"{before} [{'%r8' if shared else '%rd6'}], {value};"] * CHAIN)
    zero = "st.shared.u32 [%r8], %r3;\nbar.sync 0;" if shared else ""
    body = _file("atomic.ptx.txt", kind=_TYPES[letter], letter=letter, rounds=rounds, zero=zero)
    return _entry(f"atomic_{name}", 2, body, before=".shared .align 8 .b8 cell[256];")


def ticks() -> str:
    """How many ticks of its SM's clock a loop of %r20 rounds takes."""
    return _file("ticks.ptx")


@cache
def module(target: int) -> str:
    """All kernels that GPUs of an architecture (70: sm_70) can run, as one PTX file."""
    found = [_file("memory_kernels.ptx").replace(".target sm_70", f".target sm_{min(target, 80)}")]
    for name in operations(target):
        found += [arithmetic(name, CHAINS), arithmetic(name, 1).replace(f"entry {name}(", f"entry {name}_latency(")]
    return "\n".join([*found, *map(atomic, ATOMICS)])


def operations(target: int) -> list[str]:
    """Names of what an architecture has units for."""
    return [name for name in OPERATIONS if name != TENSOR or target >= 80]


@dataclass(frozen=True, slots=True)
class Facts:
    """What experiments are laid out by. Clock in Hz, sizes in bytes; `target`: 80 of sm_80."""

    name: str
    core_clock_hz: float
    sm_count: int
    target: int
    shared_bytes_per_sm: int
    threads_per_sm: int
    l2_bytes: int

    def cycles(self, count: int, seconds: float) -> float:
        """Of one of so many that follow each other."""
        return seconds * self.core_clock_hz / count

    def rate(self, count: int, seconds: float) -> float:
        """Of so many together, a cycle."""
        return count / (seconds * self.core_clock_hz)


@dataclass(frozen=True, slots=True)
class KernelCall:
    """A launch of a kernel of `module`: names of buffers, then 32-bit numbers, as its parameters go."""

    kernel: str
    grid: int
    block: int
    buffers: tuple[str, ...] = ()
    numbers: tuple[int, ...] = ()
    shared_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Experiment:
    """A launch to time, after others that leave the caches as it shall find them; with none before it they are
    flushed. `buffers`: initial contents, or a size in bytes of zeros."""

    timed: KernelCall
    before: tuple[KernelCall, ...] = ()
    buffers: Mapping[str, np.ndarray | int] | None = None


class Device:
    """A description's model, or a GPU."""

    facts: Facts
    effort: int  # how often to repeat what need be done once only if time is exact

    def seconds(self, experiment: Experiment) -> float:
        """How long the timed launch takes."""
        raise NotImplementedError


KIB, MIB = 1 << 10, 1 << 20
LINE, ELEMENT = 128, 8
GROUPS = ("latency", "stream", "bandwidth", "throughput", "operation_latency", "atomics", "launch")


@dataclass(frozen=True, slots=True)
class Measurement:
    """One number: from the seconds that the longer of two experiments takes beyond the shorter (or all it takes). `at`:
    footprint in KiB, or threads an SM; 0 where there is no such axis. `experiment`: of a number of rounds. `value`: of
    the seconds of one more round."""

    group: str
    quantity: str
    at: int
    unit: str
    experiment: Callable[[int], Experiment]
    rounds: tuple[int, int]  # 0: the shorter one is not needed
    value: Callable[[float], float]


def measurements(facts: Facts, effort: int = 1) -> Iterator[Measurement]:
    """All of them, for a GPU. `effort`: how often what could be done once is repeated."""
    yield from _latencies(facts, effort)
    yield from _streams(facts, effort)
    yield from _bandwidths(facts, effort)
    yield from _throughputs(facts, effort)
    yield from _atomics(facts, effort)
    empty = Experiment(KernelCall("empty", 1, 32))
    yield Measurement("launch", "empty_kernel", 0, "ns", lambda rounds: empty, (0, 1), lambda seconds: 1e9 * seconds)


# Latency: dependent loads -------------------------------------------------------------------------------------------

FOOTPRINTS_KIB = (16, 64, 1024, 4096, 12288, 32768, 46080, 262144)


def _latencies(facts: Facts, effort: int) -> Iterator[Measurement]:
    rounds, cycles = (8 * effort, 72 * effort), partial(facts.cycles, CHAIN)
    for kib in FOOTPRINTS_KIB:
        yield Measurement("latency", "global", kib, "cycles", partial(_chase, kib * KIB, facts), rounds, cycles)
    for space in ("shared", "constant"):
        yield Measurement("latency", space, 0, "cycles", partial(_alone, f"chase_{space}", 1, 1), rounds, cycles)


def _chase(footprint: int, facts: Facts, rounds: int) -> Experiment:
    """From line to line in random order, after one way through all of them, or as many as push the first out."""
    lines = footprint // LINE
    before = min(lines, 2 * facts.l2_bytes // LINE) // CHAIN
    chase = partial(KernelCall, "chase_global", 1, 1, ("chain", "out"))
    calls = (KernelCall("link_chain", lines // 128, 128, ("chain",)), chase((before,)))
    order, chain = np.random.default_rng(0).permutation(lines), np.zeros(footprint // 8, np.int64)
    # at the begin of each line the offset of the next, in one cycle through all of them
    chain[order * (LINE // 8)] = np.roll(order, -1) * LINE
    return Experiment(chase((rounds,)), calls, {"chain": chain, "out": 64})


def _alone(kernel: str, grid: int, block: int, rounds: int) -> Experiment:
    """A kernel that asks for nothing but a place to write."""
    return Experiment(KernelCall(kernel, grid, block, ("out", "out"), (rounds,)), buffers={"out": 64})


# DRAM: streams against occupancy ------------------------------------------------------------------------------------

SHAPES = ((32, 1), (64, 1), (64, 2), (128, 2), (256, 2), (384, 2), (512, 2), (768, 2), (1024, 2))  # threads, blocks


def _streams(facts: Facts, effort: int) -> Iterator[Measurement]:
    for name, moved in STREAMS.items():
        for threads, blocks in SHAPES:
            if threads * blocks > facts.threads_per_sm:
                continue
            wave = threads * blocks * facts.sm_count
            waves = effort * max(1, (1 << 20) // wave)
            run, rate = partial(_stream, name, threads, blocks, facts, 3 * waves), _gigabytes(moved * ELEMENT * wave)
            yield Measurement("stream", name, threads * blocks, "GB/s", run, (waves, 3 * waves), rate)


def _stream(name: str, threads: int, blocks: int, facts: Facts, most: int, waves: int) -> Experiment:
    """`waves` x all thread blocks that are resident at once; L2 is full of what the same kernel left before."""
    pointers = ("a", "b", "c", "d")
    shared = facts.shared_bytes_per_sm * 3 // (4 * blocks) // 128 * 128  # so many blocks an SM, no more
    filling = max(1, facts.l2_bytes // (STREAMS[name] * ELEMENT * 1024))
    before = (KernelCall(name, filling, 1024, pointers, (0,)),)
    timed = KernelCall(name, facts.sm_count * blocks * waves, threads, pointers, (filling * 1024,), shared)
    elements = filling * 1024 + facts.sm_count * blocks * most * threads
    return Experiment(timed, before, dict.fromkeys(pointers, ELEMENT * elements))


def _gigabytes(moved: int) -> Callable[[float], float]:
    """A second, of so many bytes in some seconds."""
    return lambda seconds: moved / seconds / 1e9


# L1, L2 and shared memory: bandwidth against footprint --------------------------------------------------------------

SAME_KIB = (16, 64, 512)  # that every SM reads
ROUND_BYTES = CHUNK_LOADS * 1024 * ELEMENT
CHUNK_KIB, TOTALS_KIB = 128, (6144, 12288, 28160)  # that one thread block reads, and all of them together


def _bandwidths(facts: Facts, effort: int) -> Iterator[Measurement]:
    for kib in SAME_KIB:
        rounds = effort * max(2, kib * KIB // ROUND_BYTES)
        run, rate = partial(_read_same, kib * KIB, facts), _gigabytes(ROUND_BYTES * facts.sm_count)
        yield Measurement("bandwidth", "same_buffer", kib, "GB/s", run, (rounds, 2 * rounds), rate)
    for kib in TOTALS_KIB:
        if kib * KIB <= facts.l2_bytes:
            run, rate = partial(_read_chunks, kib // CHUNK_KIB, facts), _gigabytes(2 * facts.sm_count * CHUNK_KIB * KIB)
            yield Measurement("bandwidth", "chunks", kib, "GB/s", run, (effort, 2 * effort), rate)
    # 8 bytes a lane: LOADS of 256 bytes a warp and round
    run = partial(_alone, "read_shared", facts.sm_count, 1024)
    rate = _gigabytes(LOADS * 1024 * ELEMENT * facts.sm_count)
    yield Measurement("bandwidth", "shared", 0, "GB/s", run, (16 * effort, 80 * effort), rate)


def _read_same(footprint: int, facts: Facts, rounds: int) -> Experiment:
    """Every SM reads the whole buffer, `rounds` x ROUND_BYTES, after one way through it."""
    read = partial(KernelCall, "read_chunks", facts.sm_count, 1024, ("chain", "out"))
    once = max(1, footprint // ROUND_BYTES)
    return Experiment(read((rounds, footprint, 1)), (read((once, footprint, 1)),), {"chain": footprint, "out": 64})


def _read_chunks(chunks: int, facts: Facts, rounds: int) -> Experiment:
    """Each thread block reads its chunk once; `rounds` x as many blocks as are resident."""
    chunk = CHUNK_KIB * KIB
    numbers = (chunk // ROUND_BYTES, chunk, chunks)
    fill = KernelCall("read_chunks", chunks, 1024, ("chain", "out"), numbers)
    read = KernelCall("read_chunks", 2 * facts.sm_count * rounds, 1024, ("chain", "out"), numbers)
    return Experiment(read, (fill,), {"chain": chunk * chunks, "out": 64})


# Arithmetic ---------------------------------------------------------------------------------------------------------


def _throughputs(facts: Facts, effort: int) -> Iterator[Measurement]:
    rounds, warps = (8 * effort, 24 * effort), 32  # of fewer than eight an assembler makes other code
    for name in operations(facts.target):
        chain = LENGTH * int(OPERATIONS[name]["instructions"])
        many, one = partial(_arithmetic, name, 32 * warps), partial(_arithmetic, f"{name}_latency", 32)
        rate = partial(facts.rate, CHAINS * chain * warps * 32)
        yield Measurement("throughput", name, 0, "per cycle and SM", many, rounds, rate)
        yield Measurement("operation_latency", name, 0, "cycles", one, rounds, partial(facts.cycles, chain))


def _arithmetic(kernel: str, threads: int, rounds: int) -> Experiment:
    """After one that fetches the code: what is hidden of its way from memory depends on the rounds."""
    call = KernelCall(kernel, 1, threads, ("in", "out"), (rounds,))
    return Experiment(call, (call,), {"in": np.ones(64, np.float64), "out": 512})


# Atomics ------------------------------------------------------------------------------------------------------------


def _atomics(facts: Facts, effort: int) -> Iterator[Measurement]:
    """Of one SM in shared memory, of all of them in global memory: updates (of a lane) a cycle."""
    for name, row in ATOMICS.items():
        for addresses, stride in ADDRESSES.items():
            blocks = 1 if row["space"] == "shared" else facts.sm_count
            run = partial(_atomic, name, blocks, stride * (8 if row["operation"].endswith("64") else 4))
            rate = partial(facts.rate, CHAIN * blocks * 256)
            yield Measurement("atomics", f"{name}_{addresses}", 0, "per cycle", run, (effort, 3 * effort), rate)


def _atomic(name: str, blocks: int, stride: int, rounds: int) -> Experiment:
    call = KernelCall(f"atomic_{name}", blocks, 256, ("cells", "out"), (rounds, stride))
    return Experiment(call, buffers={"cells": 512, "out": 128})
