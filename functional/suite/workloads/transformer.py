"""Language models as launches: a prompt (prefill), then a token a step (decode), keys and values kept in a cache."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from functional.arrays import UInt8
from functional.errors import InputError
from functional.launches.launch import Pointer, Scalar
from functional.launches.memory import Contents
from functional.suite.workloads.launched_program import TRANSFORMER, LaunchedProgram

TILE, THREADS, WARP = 16, 128, 32
MOST_BATCH = 8  # sequences: rows of gemv_batch
EPSILON = 1e-5
TURN_BASE = 10_000.0  # of the rotary embedding
SEED = 11


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """Dimensions. GPT: learnt positions, layer normalisation, biases, GELU, output weights tied to the embedding.
    Llama (`rotary`): rotary positions, RMS normalisation, no biases, SwiGLU, output weights of their own."""

    layers: int
    width: int
    heads: int
    kv_heads: int
    inner: int
    vocabulary: int
    positions: int  # most a sequence has
    rotary: bool

    @property
    def head_size(self) -> int:
        """Features of a head."""
        return self.width // self.heads


# The shapes of published models, so small that a full simulation of many steps takes minutes
SMALL = {
    "gpt": Model(layers=4, width=384, heads=6, kv_heads=6, inner=1536, vocabulary=4096, positions=1024, rotary=False),
    "llama": Model(layers=4, width=512, heads=8, kv_heads=2, inner=1376, vocabulary=4096, positions=1024, rotary=True),
}


class Transformer(LaunchedProgram):
    """Tokens are drawn beforehand, as where a text is scored: what `argmax` chooses is not read again. So no launch
    decides what another does, and each can be executed alone."""

    threads, spread, integers = THREADS, 3.0, ("tokens", "chosen")

    def __init__(self, name: str, model: Model, batch: int, length: int) -> None:
        super().__init__(name, SEED, (), TRANSFORMER)
        self.model, self.batch, self.length = model, batch, length
        self._tokens = Contents(f"{batch} x {length} tokens below {model.vocabulary}, seed {SEED}", self._draw_tokens)
        self._allocate_inputs()

    def run(self, first: int, count: int) -> None:
        """`count` tokens of each sequence from position `first` on go through the model; the last one's successor is
        chosen."""
        rows, width, model = self.batch * count, self.model.width, self.model
        label = f"prompt of {count}" if count > 1 else f"position {first}"
        shape = [width, count, first, self.length, int(not model.rotary)]
        self.launch("embed", rows, THREADS, ["tokens", "embedding", "positions", "x", *shape], label)
        for layer in range(model.layers):
            self._attend(layer, first, count, f"{label}, layer {layer}")
            self._feed_forward(layer, rows, f"{label}, layer {layer}")
        self._norm("norm", rows, label)
        self._choose(count, label)

    def _attend(self, layer: int, first: int, count: int, label: str) -> None:
        model, rows, name = self.model, self.batch * count, f"layer{layer}"
        place = [count, first, model.heads, model.kv_heads]
        self._norm(f"{name}.norm1", rows, label)
        self._linear("normed", f"{name}.qkv", "qkv", rows, label)
        caches = [f"{name}.keys", f"{name}.values"]
        arguments = ["qkv", "turns", *caches, *place, self.length, int(model.rotary)]
        self.launch("append_cache", (model.heads + 2 * model.kv_heads, rows), model.head_size // 2, arguments, label)
        scale = Scalar("f32", 1.0 / math.sqrt(model.head_size))
        arguments = ["qkv", *caches, "mixed", *place, model.head_size, self.length, scale]
        self.launch("attention", (model.heads, rows), THREADS, arguments, label, 4 * (first + count))
        self._linear("mixed", f"{name}.out", "branch", rows, label)
        self._add(rows, label)

    def _feed_forward(self, layer: int, rows: int, label: str) -> None:
        name, size = f"layer{layer}", rows * self.model.inner
        self._norm(f"{name}.norm2", rows, label)
        self._linear("normed", f"{name}.up", "inner", rows, label)
        if self.model.rotary:
            self.elementwise("swiglu", size, ["inner", "gated", size, self.model.inner], label)
        else:
            self.elementwise("gelu", size, ["inner", size], label)
        self._linear("gated" if self.model.rotary else "inner", f"{name}.down", "branch", rows, label)
        self._add(rows, label)

    def _choose(self, count: int, label: str) -> None:
        """Logits of the last token of each sequence, and the greatest of them."""
        model = self.model
        weight = "output" if model.rotary else "embedding"
        last = Pointer("normed", 4 * (count - 1) * model.width)
        shape = [model.width, model.vocabulary, 0]
        self._gemv([last, weight, weight, "logits"], shape, self.batch, count * model.width, label)
        self.launch("argmax", self.batch, WARP, ["logits", "chosen", model.vocabulary], label)

    def _norm(self, name: str, rows: int, label: str) -> None:
        gain = [f"{name}.gain"] if self.model.rotary else [f"{name}.gain", f"{name}.bias"]
        kernel = "rmsnorm" if self.model.rotary else "layernorm"
        arguments = ["x", *gain, "normed", self.model.width, Scalar("f32", EPSILON)]
        self.launch(kernel, rows, THREADS, arguments, label)

    def _linear(self, x: str, name: str, y: str, rows: int, label: str) -> None:
        outputs, inputs = self._shapes[name]
        biased = not self.model.rotary
        buffers: list[str | Pointer] = [x, name, f"{name}.bias" if biased else name, y]
        if rows <= self.batch:
            self._gemv(buffers, [inputs, outputs, int(biased)], rows, inputs, label)
            return
        grid = -(-outputs // TILE), -(-rows // TILE)
        self.launch("gemm", grid, (TILE, TILE), [*buffers, rows, inputs, outputs, int(biased)], label)

    def _gemv(self, buffers: list[str | Pointer], shape: list[int], rows: int, stride: int, label: str) -> None:
        grid = -(-shape[1] * WARP // THREADS)
        kernel, more = ("gemv", []) if rows == 1 else ("gemv_batch", [rows, stride])
        self.launch(kernel, grid, THREADS, [*buffers, *shape, *more], label)

    def _add(self, rows: int, label: str) -> None:
        size = rows * self.model.width
        self.elementwise("add", size, ["x", "branch", size], label)

    def _allocate_inputs(self) -> None:
        model, rows = self.model, self.batch * self.length
        qkv = (model.heads + 2 * model.kv_heads) * model.head_size
        up = 2 * model.inner if model.rotary else model.inner
        shapes = {"qkv": (qkv, model.width), "out": (model.width, model.width), "up": (up, model.width)}
        shapes["down"] = (model.width, model.inner)
        self._shapes = {f"layer{n}.{name}": shape for n in range(model.layers) for name, shape in shapes.items()}
        self.memory.allocate("tokens", 4 * rows, self._tokens)
        self.weight("embedding", model.vocabulary * model.width, model.width)
        if model.rotary:
            self.weight("output", model.vocabulary * model.width, model.width)
        self._positions()
        self._weights()
        kept = 4 * self.batch * model.kv_heads * self.length * model.head_size
        for layer in range(model.layers):
            self.memory.allocate(f"layer{layer}.keys", kept)
            self.memory.allocate(f"layer{layer}.values", kept)
        widths = {"x": model.width, "normed": model.width, "qkv": qkv, "mixed": model.width, "branch": model.width,
                  "inner": up, "gated": model.inner}  # fmt: skip
        for name, width in widths.items():
            self.memory.allocate(name, 4 * rows * width)
        self.memory.allocate("logits", 4 * self.batch * model.vocabulary)
        self.memory.allocate("chosen", 4 * self.batch)

    def _positions(self) -> None:
        """Learnt embeddings of positions, or the turns of the rotary one; a model has one of both."""
        model = self.model
        if model.rotary:
            turns = Contents(f"turns of {self.length} positions, heads of {model.head_size}", self._fill_turns)
            self.memory.allocate("turns", 4 * self.length * model.head_size, turns)
            self.memory.allocate("positions", 4)
        else:
            self.weight("positions", model.positions * model.width, model.width)
            self.memory.allocate("turns", 4)

    def _weights(self) -> None:
        model = self.model
        for name, (outputs, inputs) in self._shapes.items():
            self.weight(name, outputs * inputs, inputs)
            if not model.rotary:
                self.weight(f"{name}.bias", outputs, inputs)
        norms = [f"layer{layer}.norm{k}" for layer in range(model.layers) for k in (1, 2)]
        for name in (*norms, "norm"):
            self.drawn(f"{name}.gain", model.width, 0.5, 1.5)
            self.parameters += model.width
            if not model.rotary:
                self.weight(f"{name}.bias", model.width, model.width)

    def _draw_tokens(self, into: UInt8[np.ndarray, " byte"]) -> None:
        tokens = into.view(np.int32)
        tokens[:] = np.random.default_rng(SEED).integers(0, self.model.vocabulary, len(tokens))

    def _fill_turns(self, into: UInt8[np.ndarray, " byte"]) -> None:
        half = self.model.head_size // 2
        angle = np.arange(self.length)[:, None] * TURN_BASE ** (-np.arange(half) / half)
        into.view(np.float32)[:] = np.hstack([np.cos(angle), np.sin(angle)]).astype(np.float32).ravel()


def transformer(name: str, model: Model, prompt: int, steps: int, batch: int) -> Transformer:
    """A prompt of `prompt` tokens, then `steps` tokens one by one, of `batch` sequences at once. Raises InputError
    for what the kernels or the model have no room for."""
    if not 1 <= batch <= MOST_BATCH:
        raise InputError(f"a batch of {batch}: 1 to {MOST_BATCH} sequences")
    if min(prompt, steps) < 0 or not 1 <= prompt + steps <= model.positions:
        raise InputError(f"a prompt of {prompt} and {steps} steps: together 1 to {model.positions} tokens")
    found = Transformer(name, model, batch, prompt + steps)
    if prompt:
        found.run(0, prompt)
    for step in range(steps):
        found.run(prompt + step, 1)
    return found
