"""Whatever bytes are given as PTX: a program, or one clear error. Never another exception, never a hang."""

from __future__ import annotations

import time
from collections.abc import Callable
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from nightly import examples, of
from oracle.array_executor import ArrayExecutor
from ptx_kernels import HEADER
from random_kernels import KernelText

from functional.errors import InputError
from functional.llvm_executor.by_piece import PieceCode
from functional.llvm_executor.generate import generate
from functional.llvm_executor.pieces import Care, needs_care
from functional.programs.link import link
from functional.programs.program import Program
from functional.ptx.parser import parse_bytes

SECONDS = 20  # for one text; a hang would take longer on any machine
WORDS = (
    b"; , . { } ( ) [ ] < > @ ! | + - _ %r1 %p1 %f1 %rd1 %tid.x 0 1 -1 4294967296 0f3F800000 0x .u32 .f16x2 .global "
    b".shared ld.global.u32 st bra call ret mma.sync brx.idx cp.async .reg .param .entry .func .b32 L1 L1: // "
    b'/* */ " \\ \n '
    b"{%r1,%r2} [%rd1+4] [%rd1 99999999999999999999 1e400 .pragma .branchtargets .visible .extern .align 3 "
    b"tex.2d.v4.f32.f32 "
    b"wmma.load.a.sync.aligned.row.m16n16k16.f16 mbarrier.init.shared.b64 cvt.rn.f32 setp.lt.and.s32 .version "
    b"7.0 \xc3\xa9 \x00"
).split(b" ")
SIZES = (1, 2, 3, 4, 5, 6, 8, 12)  # most are short, so that a change hits something that matters, and soon
SAMPLES = [(HEADER + KernelText(seed, size, 64).text).encode() for seed, size in enumerate(SIZES)]


def judge(data: bytes) -> bool:
    """Parse, link, decode and generate; is it a program?"""
    begun = time.process_time()
    try:
        module = parse_bytes(data, "fuzz.ptx")
        for kernel in module.kernels.values():
            if kernel.is_entry:
                program = link(module, kernel.name)
                refusal = refusal_of(program)
                assert refusal == refusal_of(program, ArrayExecutor().decode)
                if refusal:
                    raise InputError(refusal)
        return True
    except InputError as error:
        message = str(error)
        assert message and "\n" not in message and len(message) < 2000
        return False
    finally:
        assert time.process_time() - begun < SECONDS


def generated(program: Program) -> None:
    """The machine code of a program, but for LLVM, and its steps."""
    made = generate(program, False, Care(needs_care(program)))
    PieceCode(SimpleNamespace(program=program, generated=made))


def refusal_of(program: Program, make: Callable[[Program], object] = generated) -> str:
    """What the error says; nothing if there is none."""
    try:
        make(program)
    except InputError as error:
        return str(error)
    return ""


def mutated(seed: int) -> bytes:
    """A valid text with a few bytes or tokens changed, taken away, doubled or put elsewhere."""
    rng = np.random.default_rng(seed)
    data = SAMPLES[rng.integers(len(SAMPLES))]
    for _ in range(rng.integers(1, 5)):
        at = int(rng.integers(len(data)))
        length = int(rng.choice([1, 2, 5, 20, 200]))
        other = int(rng.integers(len(data)))
        word = WORDS[rng.integers(len(WORDS))]
        tokens = data.split(b" ")
        a, b = (int(x) for x in rng.integers(len(tokens), size=2))
        tokens[a] = tokens[b]
        data = [
            data[:at] + bytes([int(rng.integers(256))]) + data[at + 1 :], data[:at] + data[at + length :],
            data[:at] + b" " + word + b" " + data[at:], data[:at] + data[other : other + length] + data[at:],
            b" ".join(tokens), data[: at + 1],
        ][rng.integers(6)]  # fmt: skip
    return data


@examples(60, 600)
@given(data=st.binary(max_size=300))
def test_random_bytes(data: bytes) -> None:
    judge(data)
    judge(HEADER.encode() + data)


@examples(60, 600)
@given(words=st.lists(st.sampled_from(WORDS), max_size=60))
def test_random_words(words: list[bytes]) -> None:
    judge(
        HEADER.encode()
        + b".entry k(.param .u64 a) { .reg .b32 %r<4>; .reg .pred %p<3>;"
        + b" ".join(words)
        + b"; ret; }"
    )


@pytest.mark.parametrize("first", [0, pytest.param(1000, marks=pytest.mark.slow)])
def test_mutated_programs(first: int) -> None:
    assert all(judge(sample) for sample in SAMPLES)
    found = [judge(mutated(seed)) for seed in range(first, first + (60 if not first else of(250, 4000)))]
    assert not all(found)
