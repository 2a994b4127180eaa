"""What strangers send and no program writes: each is refused in one line, or works as ptxas has it."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys

import msgspec
import numpy as np
import pytest
import zstandard
from call_command import call
from nightly import of
from ptx_kernels import HEADER, entry, launch, module

from abstim.gpu.config import load_gpu
from abstim.targets import execution as trace_cache
from functional import suite
from functional.errors import ExecutionError, InputError
from functional.execution.findings import findings
from functional.launches.case import Case
from functional.launches.launch import Pointer, make_launch
from functional.launches.memory import Memory
from functional.llvm_executor import LlvmExecutor
from functional.programs.link import link
from functional.ptx.parser import parse
from functional.traces import store as stores
from functional.traces.store import open_store

U32 = np.uint32


@pytest.mark.parametrize("key", ["sm_count", "l1d_latency_cycles", "latency_cycles.sfu"])
def test_a_number_of_thousands_of_digits(key) -> None:
    with pytest.raises(InputError, match=key):
        load_gpu("gtx480", [f"{key}={'9' * 5000}"])


@pytest.mark.parametrize(
    "text",
    ["sources = 5", "sources = [1]", 'sources = "x"', "[sources]\nx = 5", "[spec]\nsm_count = " + "9" * 5000,
     "x = " + "[" * 3000],
)  # fmt: skip
def test_descriptions_of_gpus_of_the_wrong_form(tmp_path, text) -> None:
    path = tmp_path / "g.toml"
    path.write_text('base = "gtx480"\n' + text + "\n")
    with pytest.raises(InputError):
        load_gpu(str(path))


@pytest.mark.parametrize("instruction", ["trap %r1, %ctaid.x;", "exit %r1;", "ret %ctaid.x;"])
def test_ends_of_a_kernel_take_no_operands(instruction) -> None:
    with pytest.raises(InputError, match="is not supported"):
        launch(entry(instruction), {"a": np.zeros(1, U32)})


def test_an_instruction_without_effect_may_name_anything() -> None:
    launch(entry("nanosleep.u32 %ctaid.x;"), {"a": np.zeros(1, U32)})


@pytest.mark.parametrize("space", ["global", "const"])
def test_variables_of_the_module_inside_functions(space) -> None:
    """Each function has its own of a name; they live as long as the module, in both executors."""
    text = entry(
        f".{space} .align 4 .b32 g[4] = {{1, 2, 3, 4}}; {{ .{space} .b32 g = 50; ld.{space}.u32 %r3, [g]; }} "
        f"ld.{space}.u32 %r1, [g+4]; add.u32 %r1, %r1, %r3; st.global.u32 [%rd0], %r1;",
        before=f".{space} .b32 g = 7;\n.entry other() {{ .{space} .b32 g = 9; ret; }}",
    )
    assert launch(text, {"a": np.zeros(1, U32)}).memory.read("a", U32)[0] == 52
    parsed = module(text)
    memory = Memory(parsed.variables)
    memory.allocate("a", 4)
    LlvmExecutor(1).run(make_launch(link(parsed, "k"), 1, 32, [Pointer("a")], memory), memory)
    assert memory.read("a", U32)[0] == 52


@pytest.mark.parametrize(
    "body,grid,message",
    [
        (".local .align 16 .b8 l[2147483648]; st.local.u32 [l], 1;", 1, "2,147,483,648 bytes of local memory"),
        ("", 2**31 - 1, "2,147,483,647 warps"),
        ("", (2**31 - 1, 65535, 65535), "warps"),
    ],
)
def test_launches_that_nothing_can_hold(body, grid, message) -> None:
    with pytest.raises(InputError, match=message):
        launch(entry(body), {"a": np.zeros(1, U32)}, grid=grid)


@pytest.mark.parametrize("align", [0, 3, 1 << 17, 1 << 30, (1 << 64) - 1])
def test_alignments_that_no_memory_has(align) -> None:
    with pytest.raises(InputError, match=f"alignment {align} of 'g' is"):
        module(entry("", before=f".global .align {align} .b8 g[16];"))


def printed(field: str, *words: int) -> str:
    """What a thread prints with a format and arguments of 32 bits."""
    data = ", ".join(str(b) for b in field.encode() + b"\0")
    stored = "".join(f"st.local.u32 [l + {4 * n}], {word}; " for n, word in enumerate(words))
    body = (
        "{ .param .b64 f; .param .b64 v; .param .b32 r; mov.u64 %rd1, text; cvta.global.u64 %rd1, %rd1; "
        "st.param.b64 [f], %rd1; mov.u64 %rd2, l; cvta.local.u64 %rd2, %rd2; st.param.b64 [v], %rd2; "
        f"{stored}call.uni (r), vprintf, (f, v); }}"
    )
    before = ".extern .func (.param .b32 r) vprintf (.param .b64 a, .param .b64 b);\n"
    before += f".global .align 1 .b8 text[{len(field.encode()) + 1}] = {{{data}}};"
    return launch(entry(".local .align 8 .b8 l[16];" + body, before=before), {"a": np.zeros(1, U32)})


@pytest.mark.parametrize("field", ["%999999999999d", "%99999999d", "%.99999999d", "%*d"])
def test_fields_of_printf_have_a_width(field) -> None:
    with pytest.raises(ExecutionError, match="printf: a field of '%"):
        printed(field, 99999999)


@pytest.mark.parametrize(
    ("field", "words"), [("%\u0663d", (5,)), ("%*.*d|", (5, (1 << 32) - 3, 7)), ("%*d", ((1 << 32) - 3, 7))]
)
def test_fields_of_printf_that_python_does_not_know(field, words) -> None:
    printed(field, *words)


@pytest.mark.parametrize(
    ("size", "elements"),
    [(4, "0xFF(g), 0xFF00(g), 0xFF0000(g), 0xFF000000(g)"), (16, "0xFF(g), 0xFF00(g), 7, 8"), (1, "0xFF(g)")],
)
def test_an_address_given_byte_by_byte_has_all_its_bytes(size, elements) -> None:
    with pytest.raises(InputError, match="lacks some of its 8 bytes"):
        module(entry("", before=f".global .align 4 .b32 g; .global .align 1 .b8 q[{size}] = {{{elements}}};"))


def case_of(**sizes: int) -> Case:
    """A kernel that adds to 64 words of 'a', with these buffers."""
    parsed = module(entry("mul.wide.u32 %rd1, %r0, 4; add.u64 %rd1, %rd0, %rd1; st.global.u32 [%rd1], %r0;"))
    memory = Memory(parsed.variables)
    for name, size in sizes.items():
        memory.allocate(name, size)
    return Case("case", parsed, memory, (make_launch(link(parsed, "k"), 1, 64, [Pointer("a")], memory),))


def test_the_key_of_an_execution_has_where_buffers_begin_and_end() -> None:
    cases = [dict(a=256, b=256), dict(a=512), dict(a=128, b=384), dict(a=256, c=256), dict(a=256, b=0, c=256)]
    assert len({trace_cache.execution_key(case_of(**sizes), "x") for sizes in cases}) == len(cases)


def test_a_launch_that_must_fault_does_so_after_one_that_does_not(tmp_path, monkeypatch) -> None:
    from abstim.targets.execution import execute

    monkeypatch.setenv("ABSTIM_CACHE", str(tmp_path))
    execute(case_of(a=256, b=256))
    with pytest.raises(ExecutionError, match="out of bounds"):
        execute(case_of(a=128, b=384))


# -- trace stores -----------------------------------------------------------------------------------------------------


@pytest.fixture
def store(tmp_path):
    """A store of one launch, as `abstim trace` writes it."""
    from abstim.targets.execution import write_store
    from functional.execution.default_executor import default_executor

    path = tmp_path / "k.ptx"
    path.write_text(HEADER + entry("mul.wide.u32 %rd1, %r0, 4; add.u64 %rd1, %rd0, %rd1; st.global.u32 [%rd1], %r0;"))
    parsed = parse(path)
    memory = Memory(parsed.variables)
    memory.allocate("a", 256)
    made = Case("case", parsed, memory, (make_launch(link(parsed, "k"), 1, 64, [Pointer("a")], memory),))
    write_store(made, tmp_path / "store", default_executor())
    return tmp_path / "store"


def write_manifest(store, whole) -> None:
    """As the manifest of a store, its checksum right."""
    text = msgspec.json.encode(whole)
    document = {"version": stores.VERSION, "sha256": hashlib.sha256(text).hexdigest(), "store": msgspec.Raw(text)}
    (store / stores.MANIFEST).write_bytes(msgspec.json.encode(document))


def forge(store, **changes) -> None:
    """Other entries in the manifest of a store."""
    whole = stores.read_manifest(store)
    first = msgspec.structs.replace(whole.launches[0], **changes)
    write_manifest(store, msgspec.structs.replace(whole, launches=(first,)))


@pytest.mark.parametrize("changes", [{"registers": 0}, {"registers": -3}, {"registers": 256}, {"shared_bytes": -5}])
def test_manifests_say_what_the_program_does(store, changes) -> None:
    forge(store, **changes)
    with pytest.raises(InputError, match="damaged"):
        open_store(store)


def test_outputs_of_another_form(store) -> None:
    whole = msgspec.json.decode((store / stores.MANIFEST).read_bytes())["store"]
    for outputs in ([{"nope": 1}], [{"buffer": 1, "elements": "x", "mismatches": 0}], 5):
        write_manifest(store, whole | {"outputs": outputs})
        with pytest.raises(InputError, match="damaged"):
            open_store(store)


def frame_of(lengths: list[int], parts: list[bytes], warps_per_block: int = 1) -> bytes:
    """A frame that says to hold arrays of these lengths."""
    head = msgspec.msgpack.encode([warps_per_block, lengths, [len(part) for part in parts]])
    return b"".join([len(head).to_bytes(4, "little"), head, *parts])


@pytest.mark.parametrize("said", [1 << 50, 1 << 27, -1])
def test_frames_that_say_to_be_larger_than_their_launch(said) -> None:
    names = len(stores.DTYPES)
    part = zstandard.ZstdCompressor().compress(b"\0" * 64)
    with pytest.raises(stores.DamagedError):
        stores.decode(frame_of([said] * names, [part] * names), most_warps=4)


def test_parts_that_decompress_to_more_than_they_should() -> None:
    bomb = zstandard.ZstdCompressor().compress(b"\0" * (1 << 30))
    lengths = [1 if name == "thread_blocks" else 2 if "offsets" in name else 1 for name in stores.DTYPES]
    with pytest.raises(stores.DamagedError, match=r"1073741824 bytes where 8 belong"):
        stores.decode(frame_of(lengths, [bomb] * len(lengths)))


# -- the command ------------------------------------------------------------------------------------------------------


def shell(line: str) -> subprocess.CompletedProcess[str]:
    """A line of the shell in which $ABSTIM is the command."""
    code = "import sys; from abstim.cli import main; main(sys.argv[1:])"
    environment = {**os.environ, "PYTHON": sys.executable, "CODE": code}
    text = 'abstim() { "$PYTHON" -c "$CODE" "$@"; }; ' + line
    return subprocess.run(["bash", "-c", text], env=environment, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    "line, code", [("gpus nosuch", 2), ("run nn_euclid", 0), *of([], [("gpus gtx480", 0), ("run nosuch", 2)])]
)
@pytest.mark.parametrize("way", ["&-", "/dev/full"])
def test_a_closed_standard_error_changes_nothing_else(line, code, way) -> None:
    done = shell(f"abstim {line} 2>{way}")
    assert done.returncode == code and bool(done.stdout) == (code == 0)


def test_points_have_a_limit() -> None:
    done = call("validate", "--points", 99999999999, "--benchmark", "nn_euclid")
    assert done.code == 2 and done.err.count("\n") == 1


# -- what is said, and what --strict refuses --------------------------------------------------------------------------


def findings_of(body: str, before: str = "") -> list[str]:
    """What is found in a kernel, without the place."""
    found = findings(link(module(entry(body, before=before)), "k"))
    return [line.partition(": ")[2] for line in found]


@pytest.mark.parametrize(
    "body, found",
    [
        ("add.u32 %r1, %r2, 1; add.u32 %r2, %r2, 1;", ["'%r2' is read, and nothing has written it"]),
        ("@%p1 mov.u32 %r2, 1;", ["'%p1' is read, and nothing has written it"]),
        ("st.global.u32 [%rd9], %r0;", ["'%rd9' is read, and nothing has written it"]),
        # a write reaches the read: on another path, in an earlier round, under a guard
        ("setp.eq.u32 %p1, %r0, 0; @%p1 bra A; mov.u32 %r2, 1; A: add.u32 %r1, %r2, 1;", []),
        ("A: setp.eq.u32 %p1, %r0, 0; @%p1 add.u32 %r1, %r2, 1; mov.u32 %r2, 1; @%p1 bra A;", []),
        ("setp.eq.u32 %p1, %r0, 0; @%p1 mov.u32 %r2, 1; add.u32 %r1, %r2, 1;", []),
        ("bra END; A: add.u32 %r1, %r2, 1; END:", []),  # never runs
    ],
)
def test_registers_that_nothing_has_written(body, found) -> None:
    assert findings_of(body) == found


@pytest.mark.parametrize(
    "values, found", [("", ["the constant 'c' has no values; it is read as zeros"]), (" = {1}", [])]
)
def test_constants_that_nobody_sets(values, found) -> None:
    assert findings_of("ld.const.u32 %r1, [c];", f".const .align 4 .b32 c[2]{values};\n.const .b32 unread;") == found


def test_findings_are_notes_and_errors_if_one_asks(tmp_path) -> None:
    (tmp_path / "k.ptx").write_text(HEADER + entry("add.u32 %r1, %r2, 1; st.global.u32 [%rd0], %r1;"))
    line = f"run {tmp_path}/k.ptx --grid 1 --block 32 --arg buf:u32:64"
    said = f"abstim: kernel 'k', {tmp_path}/k.ptx:9: '%r2' is read, and nothing has written it\n"
    noted, refused, unchecked = (call(*f"{line}{more}".split()) for more in ("", " --strict", " --check"))
    assert (noted.code, noted.err) == (0, said) and "Total:" in noted.out
    assert refused == (2, "", said)
    assert unchecked.code == 2 and "--check: k has no expected outputs" in unchecked.err


def test_the_suite_has_no_findings() -> None:
    for name in suite.names():
        parsed = parse(suite.ptx_path(name))
        for kernel in (k.name for k in parsed.kernels.values() if k.is_entry):
            assert findings(link(parsed, kernel)) == []


def test_a_budget_with_a_trace_that_is_there_is_refused(store) -> None:
    done = call("run", store, "--instruction-budget", 5)
    assert done.code == 2 and "nothing is executed" in done.err


def test_a_budget_holds_for_what_was_executed_with_another(tmp_path, monkeypatch) -> None:
    from abstim.targets.execution import execute

    monkeypatch.setenv("ABSTIM_CACHE", str(tmp_path))
    execute(case_of(a=256))
    with pytest.raises(ExecutionError, match="budget of 10 thread instructions"):
        execute(case_of(a=256), instruction_budget=10)


def test_a_name_that_is_no_text_is_shown() -> None:
    done = shell("abstim suite $'\\xe9'")
    assert done.returncode == 2 and "\\xe9" in done.stderr and done.stderr.count("\n") == 1
