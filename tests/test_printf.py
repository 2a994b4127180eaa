"""What kernels print: in order, from the cache and from a store too, and no more than a GPU's buffer holds."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from ptx_kernels import HEADER
from typer.testing import CliRunner

from abstim.cli.app import app_for
from abstim.targets import execution as trace_cache
from functional.keep.kept import Kept
from functional.launches.memory import MOST_BYTES, Memory
from functional.steps.device_runtime import hexadecimal

# printf("%d %d %d\n", block, warp, round) by the first lane of each warp, twice, with a barrier in between
_ROUND = """
 st.local.u32 [args+8], ROUND;
 { .param .b64 p0; .param .b64 p1; .param .b32 r0; st.param.b64 [p0], %rd2; st.param.b64 [p1], %rd4;
   @%p1 call (r0), vprintf, (p0, p1); }
"""
_KERNEL = (
    HEADER
    + ".extern .func (.param .b32 r) vprintf(.param .b64 f, .param .b64 a);\n"
    + f".global .align 1 .b8 text[10] = {{{', '.join(str(b) for b in b'%d %d %d' + bytes([10, 0]))}}};\n"
    + """.entry k() { .local .align 8 .b8 args[16]; .reg .pred %p<2>; .reg .b32 %r<6>; .reg .b64 %rd<5>;
 mov.u64 %rd1, text; cvta.global.u64 %rd2, %rd1; mov.u64 %rd3, args; cvta.local.u64 %rd4, %rd3;
 mov.u32 %r0, %ctaid.x; mov.u32 %r1, %tid.x; shr.u32 %r2, %r1, 5; and.b32 %r3, %r1, 31; setp.eq.u32 %p1, %r3, 0;
 st.local.u32 [args], %r0; st.local.u32 [args+4], %r2;
"""
    + _ROUND.replace("ROUND", "0")
    + "bar.sync 0;"
    + _ROUND.replace("ROUND", "1")
    + "ret; }\n"
)
WANTED = "".join(f"{block} {warp} {turn}\n" for block in range(3) for warp in range(2) for turn in range(2))


@pytest.fixture
def ptx(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "traces").mkdir()
    kept = Kept("traces")
    kept.folder = tmp_path / "traces"
    monkeypatch.setattr(trace_cache, "Kept", lambda kind: kept)
    (tmp_path / "k.ptx").write_text(_KERNEL)
    return str(tmp_path / "k.ptx")


def command(*arguments: str) -> str:
    result = CliRunner().invoke(app_for(arguments), list(arguments))
    assert result.exit_code == 0, result.output
    return result.stdout


def test_hexadecimal_numbers_are_as_c_writes_them() -> None:
    numbers = (1.5, -0.0, 1e-310, float("inf"), 1 / 3)
    assert [hexadecimal(x, "a") for x in numbers] == [
        "0x1.8p+0",
        "-0x0p+0",
        "0x0.012688b70e62bp-1022",
        "inf",
        (1 / 3).hex(),
    ]
    assert hexadecimal(1024.0, "A") == "0X1P+10"


def test_run_shows_it_also_from_the_cache(ptx: str, tmp_path: Path) -> None:
    for kept in (0, 1):
        assert len(list((tmp_path / "traces").iterdir())) == kept
        shown = command("run", ptx, "--grid", "3", "--block", "64")
        assert shown.startswith(WANTED) and "Total:" in shown
        assert json.loads(command("run", ptx, "--grid", "3", "--block", "64", "--json"))["printf"] == WANTED


def test_a_store_keeps_it(ptx: str, tmp_path: Path) -> None:
    folder = str(tmp_path / "store")
    made = command("trace", ptx, "-o", folder, "--grid", "3", "--block", "64")
    assert made.startswith(WANTED)
    assert command("run", folder).startswith(WANTED)
    assert json.loads(command("run", folder, "--json"))["printf"] == WANTED


def test_a_kernel_that_prints_nothing() -> None:
    assert json.loads(command("run", "relu", "--json"))["printf"] == ""


def test_the_buffer_is_bounded() -> None:
    memory = Memory()
    printed = memory.printed
    printed.add(["x" * (MOST_BYTES - 1)])
    printed.add(["é", "y"])  # two bytes do not fit; what is behind them is not shown out of order
    assert printed.bytes == MOST_BYTES - 1 and (printed.dropped_calls, printed.dropped_bytes) == (2, 3)
    kept, note = printed.text().split("\n", 1)
    assert kept == "x" * (MOST_BYTES - 1) and note.startswith("[2 more calls of printf, 3 bytes, are not shown")
    again = memory.copy().printed
    again.add(["z"])
    assert again.dropped_calls == 3 and printed.dropped_calls == 2
