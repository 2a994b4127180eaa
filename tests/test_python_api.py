"""abstim in a notebook: what a name completes to, what a result looks like, what may be given."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from test_first_hour import ADD

import abstim


@pytest.fixture
def add(tmp_path):
    (tmp_path / "add.ptx").write_text(ADD)
    return abstim.load(tmp_path / "add.ptx").kernel("add_one")


@pytest.fixture(scope="module")
def result():
    return abstim.run("relu")


def test_names_complete_and_types_are_there():
    assert set(abstim.__all__) <= set(dir(abstim))
    for name in abstim.__all__:
        assert getattr(abstim, name) is not None
    assert (Path(abstim.__file__).parent / "py.typed").is_file()


def test_a_result_is_short_to_look_at_and_a_table_to_work_with(result):
    assert len(repr(result)) < 120 and "relu on gtx480" in repr(result)
    frame = result.to_frame()
    assert frame["cycles"].sum() == result.totals["cycles"] and len(frame) == len(result.launches)
    assert {"kernel", "ipc", "occupancy", "limit"} <= set(frame.columns)
    html = result._repr_html_()
    assert "<table" in html and "L2 and DRAM" in html and "GPGPU-Sim" in html


def test_overrides_are_texts_or_a_dict():
    by_dict = abstim.run("relu", overrides={"sm_count": 3, "perfect_memory": True, "scheduler": "lrr"})
    by_text = abstim.run("relu", overrides=["sm_count=3", "perfect_memory=true", "scheduler=lrr"])
    assert by_dict.totals == by_text.totals and by_dict.gpu == by_text.gpu
    assert abstim.load_gpu("gtx480", (text for text in ["sm_count=3"])).spec.sm_count == 3  # it was read twice


class Tensor:
    """What a library's array looks like from outside."""

    def __init__(self, array):
        self.array = array

    def __array__(self, dtype=None, copy=None):
        return self.array


class OnlyDlpack:
    """An array that numpy knows by DLPack alone."""

    def __init__(self, array):
        self.array = array

    def __dlpack__(self, **options):
        return self.array.__dlpack__(**options)

    def __dlpack_device__(self):
        return self.array.__dlpack_device__()


class ElsewhereInMemory:
    """One that lies on a GPU."""

    def __array__(self, dtype=None, copy=None):
        raise TypeError("can't convert cuda:0 device type tensor to numpy")


@pytest.mark.parametrize("wrapped", [np.asarray, Tensor, OnlyDlpack, lambda a: memoryview(a) and a])
def test_what_looks_like_an_array_is_one(add, wrapped):
    data = np.arange(256, dtype=np.float32)
    launch = add.launch(2, 128, [wrapped(data), 256])
    assert np.array_equal(launch.outputs()[0], data + 1)


def test_jax_arrays_too(add):
    jnp = pytest.importorskip("jax.numpy")
    data = jnp.arange(256, dtype=jnp.float32)
    assert np.array_equal(add.launch(2, 128, [data, 256]).outputs()[0], np.arange(256) + 1)


def expecting(add, values, **options):
    data = np.zeros(256, np.float32)
    add.launch(2, 128, [data, 256]).expect(data, values, **options)


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda add: abstim.run(5), "a target is a name"),
        (lambda add: abstim.run(["relu"]), "a target is a name"),
        (lambda add: abstim.run("relu", gpu=480), "a GPU is given by its name"),
        (lambda add: abstim.run("relu", overrides="sm_count=3"), "overrides are a list"),
        (lambda add: abstim.run("relu", overrides=[3]), "overrides are a list"),
        (lambda add: abstim.run("relu", overrides={"sm_cuont": 3}), "did you mean sm_count"),
        (lambda add: add.launch(2, 128, [ElsewhereInMemory(), 256]), "cannot be read as an array"),
        (lambda add: add.launch(2, 128, [np.zeros(256, object), 256]), "cannot be passed to a kernel"),
        (lambda add: add.launch(2, 128, [np.zeros(256, np.float32), "many"]), "a str cannot be passed"),
        (lambda add: add.launch(2, 128, [None, 256]), "cannot be passed|None"),
        (lambda add: add.launch("two", 128, [np.zeros(256, np.float32), 256]), "two"),
        (lambda add: add.launch(2, 128, [np.zeros(256, ">f4"), 256]), "an order that no GPU reads"),
        (lambda add: add.launch(2, 128, [np.zeros((16, 16), np.float32, "F"), 256]), "column by column"),
        (lambda add: add.launch(2, 128, [np.ma.zeros(256, np.float32), 256]), "a kernel sees no mask"),
        (lambda add: expecting(add, np.ma.zeros(256)), "which values count, not a mask"),
        (lambda add: expecting(add, np.zeros(256), compared=np.arange(256)), "True or False for each value"),
        (lambda add: expecting(add, np.zeros(256), rtol=float("nan")), "a tolerance is a number from 0 on"),
        (lambda add: abstim.run_many("relu", 3), "a GPU is given by its name"),
        (lambda add: abstim.capture(gpu=[]), "no GPU is given"),
        (lambda add: add.launch(2, 128, [np.zeros(256, np.float32), 256], 1.5), "1.5 bytes of dynamic shared memory"),
    ],
)
def test_wrong_types_are_an_input_error(add, call, said):
    with pytest.raises(abstim.InputError, match=said):
        call(add)
