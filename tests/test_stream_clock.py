"""The clock of a program's streams against what CUDA's rules say by hand."""

from __future__ import annotations

from concurrent.futures import Future

import pytest

from abstim.application.device_memory import attributes
from abstim.application.stream_clock import COPY_SECONDS, LINK_BYTES_PER_SECOND, StreamClock, dram_seconds
from abstim.gpu.config import load_gpu
from abstim.session.limits import peaks

MS = 10**9  # picoseconds


def taking(seconds):
    future = Future()
    future.set_result(seconds)
    return future


@pytest.fixture
def clock():
    return StreamClock(load_gpu("rtx3070"))


def test_kernels_of_a_stream_follow_each_other(clock):
    clock.record(100, 0)
    clock.kernel(0, taking(1e-3))
    clock.record(101, 0)
    clock.kernel(0, taking(2e-3))
    clock.record(102, 0)
    assert clock.elapsed(100, 101) == MS and clock.elapsed(101, 102) == 2 * MS and clock.elapsed(102, 100) == -3 * MS
    assert clock.settle() == 3 * MS and clock.busy == {"kernels": 3 * MS} and not clock.kernels_waited


def test_kernels_of_two_streams_run_one_at_a_time(clock):
    for stream in (1, 2):
        clock.stream(stream, True)
        clock.kernel(stream, taking(1e-3))
        clock.record(stream, stream)
    assert clock.elapsed(1, 2) == MS and clock.kernels_waited == MS


def test_copies_run_beside_kernels_of_another_stream(clock):
    clock.stream(1, False)
    clock.stream(2, False)
    clock.kernel(1, taking(1e-3))
    clock.transfer(2, 1000, 1)
    clock.transfer(2, 1000, 2)
    one = round((COPY_SECONDS + 1000 / LINK_BYTES_PER_SECOND) * 10**12)
    clock.record(9, 2)
    clock.record(8, 1)
    assert clock.elapsed(9, 8) == MS - 2 * one and clock.busy == {"kernels": MS, "to device": one, "from device": one}


def test_the_default_stream_waits_for_others_and_they_for_it(clock):
    clock.stream(1, False)
    clock.stream(2, True)
    clock.kernel(1, taking(1e-3))
    clock.transfer(0, 0, 1)  # after stream 1
    clock.record(10, 0)
    clock.record(11, 1)
    clock.record(12, 2)  # the host has waited for the copy
    copy = round(COPY_SECONDS * 10**12)
    assert clock.elapsed(10, 11) == 0 and clock.elapsed(10, 12) == 0 and clock.settle() == MS + copy


def test_an_independent_stream_does_not_wait_for_the_default_one(clock):
    clock.stream(2, True)
    clock.record(1, 2)
    clock.kernel(0, taking(1e-3))
    clock.record(2, 2)
    clock.record(3, 0)
    assert clock.elapsed(1, 2) == 0 and clock.elapsed(1, 3) == MS


def test_a_stream_waits_for_an_event_of_another(clock):
    for stream in (1, 2):
        clock.stream(stream, True)
    clock.kernel(1, taking(1e-3))
    clock.record(5, 1)
    clock.wait(5, 2)
    clock.record(6, 2)
    assert clock.elapsed(5, 6) == 0


def test_the_program_waits_and_goes_on_afterwards(clock):
    for stream in (1, 2):
        clock.stream(stream, True)
    clock.kernel(1, taking(1e-3))
    clock.record(4, 2)
    clock.synchronize(1, False)
    clock.record(5, 2)
    clock.synchronize(0, True)
    assert clock.elapsed(4, 5) == MS


def test_fills_and_copies_within_the_device_take_its_memory(clock):
    clock.transfer(0, 10**6, 3)
    clock.record(1, 0)
    clock.transfer(0, 10**6, 4)
    clock.transfer(0, 10**6, 0)  # within the host: no time of the GPU
    clock.record(2, 0)
    assert clock.elapsed(1, 2) == round(dram_seconds(clock.gpu, 0, 1e6) * 1e12)
    assert clock.busy == {"within device": 3 * clock.elapsed(1, 2)}


@pytest.mark.parametrize("name", ["gtx480", "rtx3070", "h100"])
def test_a_program_computes_the_most_that_dram_carries(name):
    """From the attributes, as bandwidth benchmarks do: no share of it is above 100 %."""
    gpu = load_gpu(name)
    found = attributes(gpu, 80)
    clock_khz, bits = found[36], found[37]
    assert 2 * clock_khz * 1e3 * bits / 8 == pytest.approx(peaks(gpu)["dram_bytes"], rel=1e-5)
    assert dram_seconds(gpu, 0, 1e9) == pytest.approx(1e9 / peaks(gpu)["dram_bytes"])  # of a fill


def test_fills_of_two_streams_share_the_device_memory(clock):
    clock.beside = lambda operations: False  # kernels may run side by side
    for stream in (1, 2):
        clock.stream(stream, True)
        clock.transfer(stream, 10**6, 4)
        clock.record(stream, stream)
    clock.kernel(1, taking(1e-3))
    clock.record(3, 1)
    one = round(dram_seconds(clock.gpu, 0, 1e6) * 1e12)
    assert clock.elapsed(1, 2) == one  # twice as many bytes
    assert clock.elapsed(1, 3) == MS  # a kernel waits for what is before it on its stream alone


@pytest.mark.parametrize("known", [True, False])
def test_only_launches_whose_times_are_awaited_are_handed_over(clock, known):
    handed: list[object] = []
    clock.run = lambda task: handed.append(task) or Future()
    clock.kernel(0, taking(1e-3) if known else Future())
    clock.kernel(0, taking(1e-3))  # in order
    assert len(handed) == (0 if known else 2) and clock.busy == ({"kernels": 2 * MS} if known else {})
