"""Workloads: published sizes, layers against numpy, lazy execution equal to the ordinary one, provably equal traces."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from nightly import of

from abstim.models import run as run_target
from abstim.targets.execution import execute
from abstim.targets.resolve import open_target
from functional import suite
from functional.errors import InputError
from functional.execution.default_executor import default_executor
from functional.launches.case import Case, LazyLaunches, execute_launch
from functional.launches.memory import Contents, Memory, sparse_zeros
from functional.programs.dependence import signatures, trace_inputs
from functional.programs.link import link
from functional.ptx.parser import parse
from functional.suite import workloads
from functional.suite.workloads.long_programs import kernel_stream
from functional.suite.workloads.networks import DEPTHS, Network, resnet_network, vgg_network
from functional.suite.workloads.transformer import SMALL, Model, transformer
from functional.traces.line_record import more_follow, sectors_of

# Learnt parameters and multiply-accumulates (10^9) of the published models (torchvision's table of classifiers)
PUBLISHED = {
    "resnet18": (11_689_512, 1.81), "resnet34": (21_797_672, 3.66), "resnet50": (25_557_032, 4.09),
    "resnet101": (44_549_160, 7.80), "resnet152": (60_192_808, 11.51), "vgg16": (138_357_544, 15.47),
    "vgg19": (143_667_240, 19.63),
}  # fmt: skip


@pytest.mark.parametrize("name", PUBLISHED)
def test_networks_have_their_published_sizes(name):
    make = vgg_network if name.startswith("vgg") else resnet_network
    net = make(int("".join(filter(str.isdigit, name))))
    parameters, macs = PUBLISHED[name]
    assert net.parameters == parameters
    assert net.macs / 1e9 == pytest.approx(macs, abs=0.006)


def test_resnet_has_one_launch_an_operation():
    for depth, (blocks, bottleneck) in DEPTHS.items():
        convolutions = 1 + sum(blocks) * (3 if bottleneck else 2) + (4 if bottleneck else 3)  # downsampling shortcuts
        launches = [launch.program.name for launch in resnet_network(depth).launches]
        assert sum(name.startswith("conv") for name in launches) == convolutions
        assert sum(name.startswith("batchnorm") for name in launches) == convolutions
        assert len(launches) == 2 * convolutions + sum(blocks) + 3


def run_all(case):
    memory, executor = case.memory.copy(), default_executor()
    traces = [execute_launch(executor, launch, memory, 1 << 32) for launch in case.launches]
    return traces, lambda name: case.buffer(name, memory)


def conv_reference(x, weight, stride):
    """Direct sum over taps in double precision."""
    window = weight.shape[2]
    pad = window // 2
    padded = np.pad(x.astype(float), ((0, 0), (pad, pad), (pad, pad)))
    height, width = ((n + 2 * pad - window) // stride + 1 for n in x.shape[1:])
    out = np.zeros((weight.shape[0], height, width))
    for i in range(window):
        for j in range(window):
            part = padded[:, i : i + stride * height : stride, j : j + stride * width : stride]
            out += np.einsum("chw,oc->ohw", part, weight[:, :, i, j].astype(float))
    return out


@pytest.mark.parametrize(
    ("size", "outputs", "window", "stride"),
    [(16, 32, 3, 1), (14, 20, 3, 1), (15, 16, 7, 2), (14, 24, 1, 2), (7, 16, 3, 2)],
)
def test_convolutions_against_numpy(size, outputs, window, stride):
    net = Network("one", seed=1, size=size, channels=5)
    net.conv(net.image, outputs, window, "conv", stride)
    case = net.case()
    traces, buffer = run_all(case)
    weight = buffer("conv.weight").reshape(outputs, 5, window, window)
    expected = conv_reference(buffer("image").reshape(5, size, size), weight, stride)
    assert len(traces) == 1
    np.testing.assert_allclose(buffer("conv").reshape(expected.shape), expected, rtol=1e-4, atol=1e-4)


def test_other_layers_against_numpy():
    net = Network("some", seed=2, size=12, channels=40)
    x = net.batchnorm(net.image, "bn", relu=False)
    y = net.batchnorm(x, "bn_relu")
    z = net.maxpool(net.add_relu(x, y, "sum"), 2, "pool2")
    net.fully_connected(net.average_pool(z, "average"), 50, "fc", relu=True)
    net.maxpool(y, 3, "pool3")
    net.bias_relu(z, "bias")
    _, buffer = run_all(net.case())
    image = buffer("image").reshape(40, 12, 12).astype(float)

    def normalised(values, name):
        mean, var, gamma, beta = buffer(f"{name}.statistics").reshape(4, 40, 1, 1).astype(float)
        return (values - mean) / np.sqrt(var + 1e-5) * gamma + beta

    first = normalised(image, "bn")
    second = np.maximum(normalised(first, "bn_relu"), 0)
    summed = np.maximum(first + second, 0)
    pooled = summed.reshape(40, 6, 2, 6, 2).max((2, 4))
    fc = np.maximum(buffer("fc.weight").reshape(50, 40) @ pooled.mean((1, 2)) + buffer("fc.bias"), 0)
    padded = np.pad(second, ((0, 0), (1, 1), (1, 1)))
    three = np.max([padded[:, i : i + 12 : 2, j : j + 12 : 2] for i in range(3) for j in range(3)], axis=0)
    biased = np.maximum(pooled + buffer("bias.bias").reshape(40, 1, 1), 0)
    for name, expected in {
        "sum": summed,
        "average": pooled.mean((1, 2)),
        "fc": fc,
        "pool3": three,
        "pool2": biased,
    }.items():
        np.testing.assert_allclose(buffer(name), expected.ravel(), rtol=1e-4, atol=1e-5, err_msg=name)


def test_streamed_run_equals_the_ordinary_one():
    net = resnet_network(18, stages=1, size=16)
    case = net.case()
    ordinary = Case(case.name, case.module, case.memory, case.launches, resources=case.resources)
    for flush in ("all", "none"):
        lazily = run_target(case, flush=flush)
        whole = run_target(ordinary, flush=flush)
        same = [(a.cycles, a.thread_instructions, a.caches) for a in lazily.launches]
        assert same == [(b.cycles, b.thread_instructions, b.caches) for b in whole.launches]


def test_stream_is_made_launch_by_launch():
    stream = kernel_stream(100_000)
    assert isinstance(stream.launches, LazyLaunches) and len(stream.launches) == 100_000
    ends = stream.launches[0], stream.launches[99_999]
    assert ends[0] == kernel_stream(100_000).launches[0]
    assert len({launch.program.name for launch in stream.launches[:60]}) == 10
    with pytest.raises(IndexError):
        stream.launches[100_000]


def test_stream_runs_in_bounds():
    stream = kernel_stream(100_000)
    chosen = replace(stream, launches=tuple(stream.launches[k] for k in range(0, 100_000, 4_001)))
    result = run_target(chosen)
    assert all(launch.cycles > 0 for launch in result.launches)


def relative_streams(trace):
    """Streams without where buffers lie: line numbers as distances from the lowest of their buffer's 1 MiB region."""
    return (
        trace.blocks.tolist(),
        trace.masks.tolist(),
        sectors_of(trace.records).tolist(),
        more_follow(trace.records).tolist(),
        trace.conflicts.tolist(),
    )


def test_equal_signatures_have_equal_traces():
    case = resnet_network(18, stages=1, size=32).case()
    traces, _ = run_all(case)
    keys = signatures(case)
    first = {}
    for key, trace in zip(keys, traces, strict=True):
        assert relative_streams(trace) == relative_streams(first.setdefault(key, trace))
    assert len(first) < len(keys)


@pytest.mark.parametrize("name", ["pagerank", "gaussian_elimination", "dct8x8", "fdtd2d", "srad", "hotspot3d"])
def test_traces_with_signatures_need_no_earlier_launch(name):
    """Executed each on the initial memory, in reverse, launches leave the traces they leave in order."""
    case = suite.case(name)
    assert signatures(case) is not None
    inside = execute(case).traces
    executor = default_executor()
    for number in list(range(len(inside)))[::-7]:
        alone = executor.run(case.launches[number], case.memory.copy())
        assert np.array_equal(alone.records, inside[number].records)
        count = len(case.launches[number].program.code_blocks)
        alone, own = (trace.without_slow_paths(count) for trace in (alone, inside[number]))
        assert np.array_equal(alone.blocks, own.blocks)


def test_data_decide_slow_paths():
    """Coefficients that launches before a quantisation left are divided by it, some of them zeros."""
    case = suite.case("dct8x8")
    assert signatures(case) is not None and signatures(case, slow_paths=True) is None


def test_data_that_decide_are_found():
    def inputs(benchmark, kernel):
        return trace_inputs(link(parse(suite.ptx_path(benchmark)), kernel))

    assert inputs("pagerank", "pagerank_gather").contents == {0, 1}  # in_ptr, in_node; not share, not rank
    assert inputs("relu", "relu").contents == frozenset()
    assert inputs("bfs", "bfs_expand").contents >= {0, 1, 2, 4}
    assert signatures(suite.case("bfs")) is None  # the frontier decides, and changes
    assert signatures(suite.case("bitonic_sort")) is None


def test_workloads_are_targets():
    assert set(workloads.names()) & set(suite.names()) == set()
    case = open_target("mandelbrot_16x")
    assert case.launches[0].grid[:2] == (32, 31) and case.memory.buffers["count"].bytes == 16 * 125 * 123 * 4


def test_every_workload_is_in_one_group():
    assert sorted(name for group in workloads.GROUPS for name in workloads.names(group)) == sorted(workloads.names())
    assert "relu_256x" in workloads.names("256x") and "resnet18" in workloads.names("programs")


@pytest.mark.parametrize("name", workloads.ENLARGED[16])
def test_enlarged_benchmarks_have_as_many_times_the_thread_blocks(name):
    small, large = (open_target(target).launches[0].thread_blocks for target in (name, f"{name}_16x"))
    assert large == pytest.approx(16 * small, rel=0.04)


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    of(
        ["bfs_16x", "relu_16x", "matmul_tiled_16x", "histogram_atomics_16x"],
        ["pagerank_converged", *workloads.names("16x"), "nn_euclid_256x", "histogram_atomics_256x"],
    ),
)
def test_enlarged_benchmarks_compute_what_they_should(name):
    case = open_target(name)
    memory, executor = case.memory.copy(), default_executor()
    for launch in case.launches:
        executor.run(launch, memory)
    assert case.expected and case.compare(memory) == []


def test_a_part_of_memory_shares_its_bytes():
    case = resnet_network(18, stages=1, size=32)
    memory = case.memory
    part = memory.part(["conv1", "image"])
    assert set(part.buffers) == {"conv1", "image"}
    part.bytes_of(part.buffers["conv1"])[:4] = (1, 2, 3, 4)
    assert memory.read("conv1", np.uint8)[:4].tolist() == [1, 2, 3, 4]
    copied = part.copy()
    assert copied.read("conv1", np.uint8)[:4].tolist() == [1, 2, 3, 4]
    assert not part.valid(np.array([memory.buffers["bn1"].address]), 4)[0]


def test_there_are_readable_bytes_in_front_of_the_first_buffer():
    """A vector load takes idle lanes along: up to 31 elements of 16 bytes in front of an active one."""
    memory = Memory()
    for size in (64, 1 << 22):
        memory.allocate(f"buffer{size}", size)
        arena = memory.arena
        whole = arena.base if arena.base is not None else arena
        assert arena.ctypes.data - whole.ctypes.data >= 31 * 16 + 16


# Learnt parameters of the published models: GPT-2's are those of its released checkpoints with tied output weights,
# Llama's those of theirs
PARAMETERS = {
    "gpt2": 124_439_808, "gpt2-medium": 354_823_168, "gpt2-xl": 1_557_611_200, "tinyllama-1.1b": 1_100_048_384,
    "llama-2-7b": 6_738_415_616, "llama-3-8b": 8_030_261_248,
}  # fmt: skip
LANGUAGE_MODELS = {
    "gpt2": Model(layers=12, width=768, heads=12, kv_heads=12, inner=3072, vocabulary=50257, positions=1024,
                  rotary=False),
    "gpt2-medium": Model(layers=24, width=1024, heads=16, kv_heads=16, inner=4096, vocabulary=50257, positions=1024,
                         rotary=False),
    "gpt2-xl": Model(layers=48, width=1600, heads=25, kv_heads=25, inner=6400, vocabulary=50257, positions=1024,
                     rotary=False),
    "tinyllama-1.1b": Model(layers=22, width=2048, heads=32, kv_heads=4, inner=5632, vocabulary=32000, positions=2048,
                            rotary=True),
    "llama-2-7b": Model(layers=32, width=4096, heads=32, kv_heads=32, inner=11008, vocabulary=32000, positions=4096,
                        rotary=True),
    "llama-3-8b": Model(layers=32, width=4096, heads=32, kv_heads=8, inner=14336, vocabulary=128256, positions=8192,
                        rotary=True),
}  # fmt: skip


def parameters_of(model):
    """Learnt numbers."""
    qkv = (model.heads + 2 * model.kv_heads) * model.head_size
    if model.rotary:
        layer = model.width * (qkv + model.width + 3 * model.inner) + 2 * model.width
        return 2 * model.vocabulary * model.width + model.layers * layer + model.width
    layer = model.width * (qkv + model.width + 2 * model.inner) + qkv + model.inner + 2 * model.width + 4 * model.width
    return (model.vocabulary + model.positions) * model.width + model.layers * layer + 2 * model.width


TINY = {
    name: replace(model, layers=2, width=128, heads=4, kv_heads=model.kv_heads // 2 or 1, inner=96, vocabulary=50)
    for name, model in (("gpt", replace(SMALL["gpt"], kv_heads=8)), ("llama", SMALL["llama"]))
}


def test_language_models_have_their_published_sizes():
    assert {name: parameters_of(model) for name, model in LANGUAGE_MODELS.items()} == PARAMETERS
    for name, model in (SMALL | TINY).items():
        assert transformer(name, model, 2, 1, 1).parameters == parameters_of(model)


def normalised(x, gain, bias, rms):
    centred = x if rms else x - x.mean(-1, keepdims=True)
    return centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-5) * gain + bias


def turned(x):
    """Rotary embedding of [position][head][feature]: halves of a head are the two parts of a complex number."""
    half = x.shape[-1] // 2
    angle = np.arange(len(x))[:, None] * 10_000.0 ** (-np.arange(half) / half)
    pairs = (x[..., :half] + 1j * x[..., half:]) * np.exp(1j * angle)[:, None]
    return np.concatenate([pairs.real, pairs.imag], -1)


def logits_reference(model, weights, tokens):
    """Of the last token, without any cache, in double precision."""
    rms, size = model.rotary, model.head_size

    def of(name):
        return weights(name).astype(float)

    def linear(x, name):
        bias = 0.0 if rms else of(f"{name}.bias")
        return x @ of(name).reshape(-1, x.shape[-1]).T + bias

    def norm(x, name):
        return normalised(x, of(f"{name}.gain"), 0.0 if rms else of(f"{name}.bias"), rms)

    x = of("embedding").reshape(-1, model.width)[tokens]
    if not rms:
        x = x + of("positions").reshape(-1, model.width)[: len(tokens)]
    future = np.triu(np.full((len(tokens), len(tokens)), -np.inf), 1)
    for layer in range(model.layers):
        qkv = linear(norm(x, f"layer{layer}.norm1"), f"layer{layer}.qkv").reshape(len(tokens), -1, size)
        query, key, value = np.split(qkv, [model.heads, model.heads + model.kv_heads], axis=1)
        if rms:
            query, key = turned(query), turned(key)
        key, value = (np.repeat(each, model.heads // model.kv_heads, axis=1) for each in (key, value))
        score = np.einsum("qhd,khd->hqk", query, key) / np.sqrt(size) + future
        share = np.exp(score - score.max(-1, keepdims=True))
        share /= share.sum(-1, keepdims=True)
        x = x + linear(np.einsum("hqk,khd->qhd", share, value).reshape(len(tokens), -1), f"layer{layer}.out")
        inner = linear(norm(x, f"layer{layer}.norm2"), f"layer{layer}.up")
        if rms:
            gate, up = np.split(inner, 2, axis=1)
            inner = gate / (1 + np.exp(-gate)) * up
        else:
            inner = 0.5 * inner * (1 + np.tanh(np.sqrt(2 / np.pi) * (inner + 0.044715 * inner**3)))
        x = x + linear(inner, f"layer{layer}.down")
    output = of("output" if rms else "embedding").reshape(-1, model.width)
    return norm(x, "norm")[-1] @ output.T


@pytest.mark.parametrize(("name", "prompt", "steps", "batch"), [
    ("gpt", 3, 2, 1), ("gpt", 0, 2, 3), ("llama", 5, 0, 2), ("llama", 17, 2, 8),
])  # fmt: skip
def test_language_models_compute_what_they_should(name, prompt, steps, batch):
    """Prompt and steps through the cache against a whole pass without one."""
    case = transformer(name, TINY[name], prompt, steps, batch).case()
    _, buffer = run_all(case)
    tokens = buffer("tokens").reshape(batch, prompt + steps)
    found = buffer("logits").reshape(batch, -1)
    for sequence in range(batch):
        expected = logits_reference(TINY[name], buffer, tokens[sequence])
        np.testing.assert_allclose(found[sequence], expected, rtol=2e-3, atol=2e-4)
    assert buffer("chosen").tolist() == found.argmax(1).tolist()


def test_a_step_reads_more_of_the_cache_than_the_one_before():
    case = transformer("llama", TINY["llama"], 0, 40, 1).case()
    traces, _ = run_all(case)
    pairs = zip(case.launches, traces, strict=True)
    read = [len(trace.records) for launch, trace in pairs if launch.program.name == "attention"][::2]
    assert len(read) == 40 and read == sorted(read) and read[-1] > 3 * read[0]


def test_launches_of_a_language_model_decide_nothing_for_each_other():
    case = transformer("llama", TINY["llama"], 2, 3, 1).case()
    keys = signatures(case)
    assert keys is not None and len(set(keys)) < len(keys)


@pytest.mark.parametrize(
    ("target", "sizes", "message"),
    [
        ("llama", {"batch": 9}, "1 to 8 sequences"),
        ("gpt", {"prompt": 0, "steps": 0}, "together 1 to 1024"),
        ("gpt", {"steps": 2000}, "together 1 to 1024"),
        ("llama", {"prompt": -1}, "together 1 to 1024"),
        ("resnet18", {"steps": 3, "batch": 2}, "--steps, --batch: of gpt and llama alone, not of resnet18"),
    ],
)
def test_sizes_that_cannot_be(target, sizes, message):
    with pytest.raises(InputError, match=message):
        workloads.sized(target, sizes)


def test_sizes_make_the_program():
    one, two = (workloads.sized("llama", {"prompt": 2, "steps": steps}) for steps in (1, 2))
    per_step = len(two.launches) - len(one.launches)
    assert per_step == len(one.launches) / 2 == 4 + 11 * SMALL["llama"].layers


def test_weights_that_nobody_looks_at_are_never_made():
    net = resnet_network(18, stages=1, size=32)
    case, made = net.case(), []
    unmade = case.memory.store.unmade
    weights = {address: contents for address, contents in unmade.items() if contents.make is not None}
    for address, contents in weights.items():
        unmade[address] = replace(contents, make=lambda into, at=address: made.append(at))
    names = [launch.label for launch in case.launches]
    execute_launch(default_executor(), case.launches[names.index("conv1")], case.memory, 1 << 32)
    assert sorted(made) == sorted(case.memory.buffers[name].address for name in ("image", "conv1.weight"))
    copied = case.memory.copy()
    assert set(copied.store.unmade) == set(unmade) and len(unmade) > 20


def test_what_is_made_later_is_what_is_made_now():
    def filled(*, early: bool):
        memory = Memory()
        for n in range(40):
            memory.allocate(f"b{n}", 4096 + n, Contents(f"{n}", lambda into, n=n: into.fill(n + 1)) if n % 3 else None)
            if early:
                memory.bytes_of(memory.buffers[f"b{n}"])
        return memory

    now, later = filled(early=True), filled(early=False)
    assert not now.store.unmade and len(later.store.unmade) == 40
    copied, shared = later.copy(), later.copy()
    shared.share()
    assert not shared.store.unmade
    for memory in (later, copied, shared, later.part([f"b{n}" for n in range(40)])):
        for n in range(40):
            assert np.array_equal(memory.read(f"b{n}", np.uint8), now.read(f"b{n}", np.uint8)), n
    copied.bytes_of(copied.buffers["b3"])[:] = 9  # of its own
    assert not later.read("b3", np.uint8).any() and (copied.copy().read("b3", np.uint8) == 9).all()


def test_a_buffer_in_place_of_a_released_one_is_made_at_once():
    memory = Memory()
    memory.allocate("a", 64, np.full(64, 7, np.uint8))
    memory.allocate("b", 64)
    memory.release("a")
    region = memory.allocate("c", 64, Contents("nines", lambda into: into.fill(9)))
    assert region.address == memory.buffers["c"].address < memory.buffers["b"].address
    assert (memory.read("c", np.uint8) == 9).all()


def test_zeros_take_memory_where_they_are_touched():
    found = sparse_zeros(1 << 28)
    before = resident_bytes()
    found[:: 1 << 20] = 1  # 256 pages of 4 KiB; huge ones would be all of it
    assert found.sum() == 256 and resident_bytes() - before < 1 << 26


def resident_bytes() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096
