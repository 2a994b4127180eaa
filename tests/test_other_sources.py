"""The examples of docs/other-sources.md, run as they are printed."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

PAGE = Path(__file__).parent.parent / "docs" / "other-sources.md"


def example(name):
    return re.search(rf"```python {name}\n(.*?)```", PAGE.read_text(), re.DOTALL)[1]


@pytest.fixture
def nvvm():
    cuda = pytest.importorskip("numba.cuda")
    try:
        cuda.compile_ptx(lambda: None, (), cc=(7, 5))
    except Exception as error:  # whatever its toolchain lacks
        pytest.skip(f"Numba cannot compile for CUDA here: {str(error).splitlines()[0][:120]}")


@pytest.mark.filterwarnings("ignore")  # Numba's own
def test_numba(nvvm, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    names = {"__name__": "example"}
    exec(compile(example("numba"), str(PAGE), "exec"), names)
    result, launch, x = names["result"], names["launch"], names["x"]
    assert result.totals["thread_instructions"] > 0 and tuple(result.launches[0].grid) == (4, 1, 1)
    x_after, y_after = launch.outputs()
    assert (x_after == x).all() and (y_after == 2 * x + 1).all()


def test_cupy():
    """`compile_using_nvrtc`, as the page had it, asks for a device: cudaErrorInsufficientDriver."""
    assert "compile_using_nvrtc" not in example("cupy")
    pytest.importorskip("cupy_backends.cuda.libs.nvrtc")
    names = {"__name__": "example"}
    exec(compile(example("cupy"), str(PAGE), "exec"), names)
    assert ".entry scale" in names["ptx"]


@pytest.mark.filterwarnings("ignore")
def test_numba_with_shared_memory_and_barriers(nvvm, tmp_path):
    import numpy as np
    from numba import cuda, float32

    import abstim

    def total(x, y):
        tile = cuda.shared.array(64, float32)
        t = cuda.threadIdx.x
        tile[t] = x[cuda.grid(1)]
        cuda.syncthreads()
        step = 32
        while step:
            if t < step:
                tile[t] += tile[t + step]
            cuda.syncthreads()
            step //= 2
        if t == 0:
            cuda.atomic.add(y, 0, tile[0])

    ptx, _ = cuda.compile_ptx(total, (float32[::1], float32[::1]), cc=(7, 5))
    (tmp_path / "total.ptx").write_text(ptx)
    x, y = np.arange(256, dtype=np.float32), np.zeros(1, np.float32)
    arguments = [v for a in (x, y) for v in (0, 0, a.size, a.itemsize, a, *a.shape, *a.strides)]
    launch = abstim.load(str(tmp_path / "total.ptx")).kernel().launch(grid=4, block=64, args=arguments)
    result = abstim.run(launch)
    assert launch.outputs()[1][0] == x.sum()
    assert result.launches[0].shared_bytes == 256
