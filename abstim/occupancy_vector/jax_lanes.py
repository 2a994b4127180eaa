"""Lanes as part of a JAX program: on the CPU the compiled code, by XLA's foreign function interface; else arrays."""

from __future__ import annotations

import ctypes
import os
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from abstim.occupancy_vector import records as rec
from abstim.occupancy_vector.array_lanes import Machine, Sizes, run_words
from abstim.occupancy_vector.lanes import lane_of, run_lanes, shape_of
from functional.arrays import Int64, UInt8
from functional.jit.xla_handler import handler, words_of

if TYPE_CHECKING:
    from jax import Array

TARGET = "abstim_lanes"
ENDS = len(rec.Lane._fields) + len(rec.Streams._fields) + 3  # which array of run_lanes' they are; `issued` is the next
RESULTS = (*range(len(rec.Lane._fields)), ENDS, ENDS + 1)  # the state of a lane is one: XLA finds room for it


class Cut(NamedTuple):
    """What of a launch's lanes follows from latencies, as bytes."""

    machine: UInt8[Array, "*point lane byte"]  # NUMBERS
    items: UInt8[Array, "item byte"]  # LANE_ITEM
    terms: UInt8[Array, " byte"]  # TERMS
    starts: UInt8[Array, " byte"]  # Streams.starts


def bytes_of(array: np.ndarray) -> UInt8[np.ndarray, "row byte"]:
    """An array as JAX can hold it, a row an element of the first axis."""
    return np.frombuffer(array.tobytes(), np.uint8).reshape(len(array), array.nbytes // max(1, len(array)))


def ends_of(part: rec.Lanes, cut: Cut) -> Int64[Array, "point lane"]:
    """When the lanes of a launch end, in ticks, at points that share all but their machine's numbers: by the compiled
    lanes on the CPU, by the array program on what else JAX computes on. -1: later than arrays can tell."""
    return lax.platform_dependent(*cut, cpu=partial(_compiled, part), default=partial(_as_arrays, part))


def _compiled(part: rec.Lanes, *rows: Array) -> Int64[Array, "point lane"]:
    cut = Cut(*rows)
    points, lanes = cut.machine.shape[:2]
    own = np.zeros((points, lanes), rec.OWN)
    own["first"], own["stop"], own["point"] = part.first, part.stop, np.arange(points)[:, None]
    machine, places = cut.machine.reshape(points * lanes, -1), own.ravel()
    size = -(-len(places) // (os.cpu_count() or 1))  # XLA runs calls side by side that do not need each other
    places["machine"] = np.arange(len(places)) % size
    shares = [slice(first, first + size) for first in range(0, len(places), size)]
    found = [_called(part, cut._replace(machine=machine[share]), places[share]) for share in shares]
    return jnp.concatenate(found).reshape(points, lanes)


def _as_arrays(part: rec.Lanes, *rows: Array) -> Int64[Array, "point lane"]:
    cut, streams = Cut(*map(_int32, rows)), part.streams
    points, lanes = cut.machine.shape[:2]
    items, terms = cut.items.reshape(len(rows[1]), -1), cut.terms.reshape(len(rows[1]), -1)
    own: dict[str, Any] = {"items": jnp.concatenate([items, terms], 1), "starts": cut.starts.reshape(-1, 2)[:, 0]}
    own |= dict.fromkeys(("lane_items", "terms"), np.zeros(0, np.int32))
    numbers = cut.machine.reshape(points * lanes, len(rec.NUMBERS), 2)[..., 0]
    fills, none = len(streams.fill_words), np.zeros(points * lanes, np.int32)
    first, stop = (np.tile(places, points).astype(np.int32) for places in (part.first, part.stop))
    machine = Machine(
        rec.Numbers(*numbers.T), residents=none + part.residents, first=first, stop=stop,
        fill_base=np.repeat(np.arange(points, dtype=np.int32) * fills, lanes),
    )  # fmt: skip
    with jax.enable_x64(False):
        words = jax.tree.map(lambda column: jnp.asarray(column).astype(jnp.int32), streams._replace(**own))
        machine = jax.tree.map(jnp.asarray, machine)
        end, _, near = run_words(machine, words, Sizes(points * fills), part.layout)
        ends = jnp.where(near, end, -1)
    return ends.reshape(points, lanes).astype(np.int64)


def _int32(rows: Array) -> Array:
    """Bytes as 32-bit words, those of a row one after the other."""
    return lax.bitcast_convert_type(rows.reshape(*rows.shape[:-1], -1, 4), np.int32)


def _called(part: rec.Lanes, cut: Cut, own: np.ndarray) -> Int64[Array, " lane"]:
    """The ends of some lanes, by one call."""
    count, none = len(own), np.zeros(0, rec.ITEM)
    shapes = part.streams._replace(
        items=none,
        lane_items=np.empty(len(cut.items), rec.LANE_ITEM),
        terms=np.empty(len(cut.items) * len(rec.TERMS), np.int32),
    )
    ends = np.empty(count, np.int64)
    call = (
        lane_of(part), shapes, shape_of(part), np.empty((count, len(rec.NUMBERS)), np.int64), own, ends, ends,
        np.zeros(1, np.int64),
    )  # fmt: skip
    _register(call)
    given = {"lane_items": cut.items, "terms": cut.terms, "starts": cut.starts}
    streams = [given.get(name, array) for name, array in shapes._asdict().items()]
    operands = [words_of(call), *streams, call[2], cut.machine, own, call[-1]]
    results = [*call[0], ends, ends]
    types = [jax.ShapeDtypeStruct((array.nbytes,), np.uint8) for array in results[:-2]]
    types += [jax.ShapeDtypeStruct(ends.shape, ends.dtype)] * 2
    found = jax.ffi.ffi_call(TARGET, types)(*map(_operand, operands))
    return found[-2]


def _operand(array: Any) -> Any:
    return bytes_of(array) if isinstance(array, np.ndarray) else array


_registered = False


def _register(call: tuple[Any, ...]) -> None:
    """XLA knows the compiled lanes by the name TARGET."""
    global _registered
    if not _registered:
        pointer = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64)(handler(run_lanes, call, RESULTS))
        jax.ffi.register_ffi_target(TARGET, jax.ffi.pycapsule(pointer), platform="cpu")
        _registered = True
