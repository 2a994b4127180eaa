"""Programs as they are: small ones, in C, that call CUDA's runtime as what nvcc makes does."""

from __future__ import annotations

import json
import shutil
import struct
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from types import SimpleNamespace

import numpy as np
import pytest
import zstandard
from nightly import of

import abstim
from abstim.application import call_server, runtime_environment
from abstim.application.device_memory import attributes
from abstim.application.launch_recorder import Selection
from abstim.application.loaded_modules import LoadedModules, best_ptx, images
from abstim.application.run_application import run_application
from abstim.application.runtime_environment import RUNTIMES, calls_of, library_folder
from abstim.cli import main
from abstim.cli.application import _names
from abstim.gpu.config import load_gpu
from abstim.session.result import NO_CLUSTERS
from abstim.study.sample import sampler
from abstim.study.sample.sampler import sample_application
from functional.errors import InputError
from functional.launches.launch import Dim3, Launch
from functional.launches.memory import Memory
from sampling import Estimate

SOURCES = Path(__file__).parent / "data" / "applications"
CAN = sys.platform == "linux" and shutil.which("cc") is not None
pytestmark = pytest.mark.skipif(not CAN, reason="needs Linux and a C compiler")
PERFECT = ("perfect_memory=true",)


def stub_of_the_driver(folder):
    """What programs are linked with where there is no driver, as CUDA's toolkit has it: names alone."""
    (folder / "stub.c").write_text(
        "".join(f"int {name}(void) {{ return 999; }}\n" for name in sorted(calls_of("driver")))
    )
    stub = folder / "libcuda.so"
    subprocess.run(
        ["cc", "-shared", "-fPIC", str(folder / "stub.c"), "-Wl,-soname,libcuda.so.1", "-o", stub], check=True
    )
    return stub


@pytest.fixture(scope="module")
def libraries():
    """What stands in place of CUDA's libraries; optimising it takes longer than the tests, and is done at night."""
    with pytest.MonkeyPatch.context() as patch:
        options = tuple(of("-O0", option) if option == "-O1" else option for option in runtime_environment._OPTIONS)
        patch.setattr(runtime_environment, "_OPTIONS", options)
        yield


@pytest.fixture(scope="module")
def build(libraries, tmp_path_factory):
    """A program of a source of `data/applications`, linked with the shared runtime or with one of its own."""
    folder = tmp_path_factory.mktemp("programs")

    def built(name, *options, static=False, driver=False):
        program = folder / f"{name}{'_static' * static}{len(options)}"
        runtime = [str(SOURCES / "static_runtime.c"), "-Wno-all"]
        shared = [f"-L{library_folder(set(RUNTIMES))}", "-l:libcudart.so.13"]
        if driver:
            shared = [str(stub_of_the_driver(folder))]
        command = ["cc", "-O1", "-w", str(SOURCES / f"{name}.c"), "-o", str(program), *(runtime if static else shared)]
        subprocess.run([*command, *options], check=True)
        return str(program)

    return built


def run(program, *arguments, gpus=("rtx3070",), **options):
    return run_application([program, *arguments], [load_gpu(gpu, PERFECT) for gpu in gpus], **options)


def test_everything_a_program_may_ask(build, capfd):
    result = run(build("everything"), "one", "two", gpus=("rtx3070", "gtx480"))
    said, notes = capfd.readouterr()
    assert notes.count("is given pinned memory") == 1 == notes.count("is given managed memory")
    assert "PASSED with 2 arguments" in said and "device NVIDIA GeForce RTX 3070 (Ampere), 46 SMs" in said
    assert result.status == 7 and not result.interrupted
    # device memory of 2^40 bytes is refused, and said
    assert [*result.problems.values()] == [1] and "full" in next(iter(result.problems))
    names = [timed.launch.program.name for timed in result.launches]
    assert names == ["add", "count", "add", "add", "add", "add", "add", "add", "look", "together", "together"]
    assert result.executed == 11
    first = result.launches[0].results
    elapsed = float(said.split("elapsed ")[1].split()[0])
    assert elapsed == pytest.approx(first[0].seconds * 1e3, rel=1e-6)
    assert first[0].cycles != first[1].cycles
    kernels = sum(timed.results[0].seconds for timed in result.launches)
    assert result.busy_seconds["kernels"] == pytest.approx(kernels) and result.seconds >= kernels


def test_the_same_launch_takes_what_it_takes_alone(build):
    result = run(build("everything"), flush="all")
    adds = [t.results[0] for t in result.launches if t.launch.program.name == "add"]
    assert len({launch.cycles for launch in adds}) == 1
    assert [launch.launch for launch in adds] == [0, 2, 3, 4, 5, 6, 7]
    kept = [t.results[0].cycles for t in run(build("everything")).launches if t.launch.program.name == "add"]
    assert kept[0] == adds[0].cycles and max(kept[1:]) < kept[0]  # code and data of the launch before are there


def test_a_selection_is_timed_and_everything_executed(build, capfd):
    result = run(build("everything"), selection=Selection("add", 2, 5))
    assert [timed.number for timed in result.launches] == [2, 3, 4] and result.executed == 11
    assert "PASSED" in capfd.readouterr().out


@pytest.mark.parametrize("chosen", ["--only no_such_kernel", "--launches 90:", "--only child --launches 0:1"])
def test_a_choice_that_no_launch_is_one_of(build, capfd, chosen):
    with pytest.raises(SystemExit) as end:
        main(["app", *chosen.split(), build("launching")])
    said = capfd.readouterr()
    assert end.value.code == 2 and "PASSED" in said.out
    assert f"none of 10 launches is one of {chosen}, so nothing was timed" in said.err


@pytest.mark.parametrize("static", [False, True])
def test_a_fault_lasts_and_is_told(build, capfd, static):
    result = run(build("faults", static=static))
    said = capfd.readouterr()
    assert "PASSED" in said.out and result.status == 0
    assert "out of bounds" in said.err and "beyond" in said.err
    assert not result.problems and not result.launches  # the program's own fault


def test_a_budget_that_is_spent_is_no_fault_of_the_program(build, capfd):
    result = run(build("faults"), instruction_budget=1)
    assert "exceeds its budget of 1 thread" in next(iter(result.problems)) and "702" in capfd.readouterr().out


def test_a_sample_of_a_program(build, tmp_path, capfd):
    """Everything is executed, launches that do the same are timed once, and the estimate is what all of them take."""
    program, gpu = build("everything"), load_gpu("rtx3070", PERFECT)
    whole = run(program)
    result, samples = sample_application([program], [gpu], "pks", record=tmp_path / "traces")
    assert result.executed == whole.executed and not result.launches and "PASSED" in capfd.readouterr().out
    cycles = sum(timed.results[0].cycles for timed in whole.launches)
    assert len(samples) == 1 and samples[0].estimate.total == pytest.approx(cycles, rel=0.02)
    assert samples[0].estimate.detailed_fraction < 1
    with pytest.raises(InputError, match="no_such"):
        sample_application(["true"], [gpu], "no_such")


@pytest.mark.parametrize(
    ("changes", "flush", "model", "warm_up", "said"),
    [
        ((), "", "detailed", "3", "counts as cold"), ((), "all", "detailed", "", ""), ((), "", "occupancy", "", ""),
        (PERFECT, "", "detailed", "", ""),
    ],
)  # fmt: skip
def test_a_sample_finds_in_the_caches_what_the_program_does(monkeypatch, changes, flush, model, warm_up, said):
    """Timed from empty caches it was half as much again as what the program itself is said to take."""
    monkeypatch.setattr(sampler, "sample", lambda *_, warm_up, **__: Sampled(warm_up))
    found = sampler._of_module("bfs", load_gpu("rtx3070", changes), "stem", model, flush == "all")
    assert found.warm_up == warm_up and said in " ".join(found.notes) and bool(found.notes) == bool(said)
    assert found.estimate.bounded != bool(said)  # all was simulated, and yet it is not exact


EXACT = Estimate(method="stem", total=9, low=9, high=9, basis="exact", detailed_fraction=1)


@dataclass(frozen=True)
class Sampled:
    warm_up: str
    notes: tuple[str, ...] = ()
    estimate: Estimate = EXACT


def test_what_is_not_timed_is_not_held():
    """A launch that is left out is a stream that nobody keeps; traces that wait are bounded in bytes."""
    from abstim.application.launch_recorder import LaunchRecorder

    streamed = iter([SimpleNamespace(thread_instructions=np.ones(2, int))] * 3)
    executor = SimpleNamespace(stream=lambda launch, memory, **_: streamed)
    program = SimpleNamespace(name="k", digest="", directives={})
    launch = Launch(program, Dim3(1), Dim3(1), b"")
    recorder = LaunchRecorder(executor, None, None, Selection("other"), print, None, 1)
    assert recorder.launch(launch, Memory())[0].result() == 0.0
    assert next(streamed, None) is None and recorder.count == 1


def test_pinned_pages_and_memory_of_a_graph(build, capfd):
    result = run(build("shared_pages"), selection=Selection("none"))
    assert result.status == 0 and "PASSED" in capfd.readouterr().out and not result.problems


def test_parts_that_were_compiled_apart(build, capfd, tmp_path):
    result = run(build("parts"))
    assert result.status == 0 and "PASSED" in capfd.readouterr().out and not result.problems
    assert [timed.launch.program.name for timed in result.launches] == ["caller"]
    recorded = run(build("parts"), record=tmp_path / "traces")
    assert not recorded.problems and "PASSED" in capfd.readouterr().out
    again = abstim.run(str(tmp_path / "traces" / "module-1"), "rtx3070", PERFECT)
    assert again.launches[0].cycles == result.launches[0].results[0].cycles


def test_kernels_that_launch_kernels(build, capfd):
    """Each grid when the one before it has ended, with what it launches in turn; what is launched for the end last."""
    result = run(build("launching"))
    assert result.status == 0 and "PASSED" in capfd.readouterr().out and not result.problems
    names = [timed.launch.program.name for timed in result.launches]
    assert names == ["parent", "child", "child", "child", "child"] * 2
    kernels = sum(t.results[0].seconds for t in result.launches)
    assert result.busy_seconds["kernels"] == pytest.approx(kernels)


def test_an_interrupt_keeps_what_is_done(build, monkeypatch, capfd):
    from abstim.application.call_server import CallServer

    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(CallServer, "_occupancy", interrupted)  # which the program asks for at its end
    result = run(build("everything"))
    assert result.interrupted and result.status < 0 and "PASSED" not in capfd.readouterr().out
    assert result.executed == 11 and result.launches[0].results[0].cycles > 0


def test_a_program_does_not_outlive_abstim(build):
    """However that ended: standard output, which both have, closes with the last of them."""
    options = f"runtime_environment._OPTIONS = {runtime_environment._OPTIONS}"
    started = f"from abstim.application import runtime_environment; {options}; from abstim.cli import main; main()"
    command = [sys.executable, "-c", started, "app", build("idle")]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout.readline() == b"idle\n"
        process.kill()
        assert process.communicate(timeout=60)[0] == b""


def test_machine_code_alone_is_named(tmp_path):
    """What is missing, of which kernel, for which GPU there is code."""
    source, code = tmp_path / "k.c", tmp_path / "k.o"
    source.write_text("void only_machine_code(void) {}\n")
    subprocess.run(["cc", "-c", "-ffunction-sections", str(source), "-o", str(code)], check=True)
    modules = LoadedModules(tmp_path)
    number = modules.load(True, fat((2, 90, 0, code.read_bytes(), 0)))
    with pytest.raises(InputError, match="no PTX of only_machine_code, only machine code for sm_90; compile with PTX"):
        _ = modules[number].module


def test_a_call_that_is_missing_is_named(build, capfd):
    result = run(build("faults"), "import")
    assert result.status == 0 and "cudaImportExternalMemory, which is not there" in capfd.readouterr().err
    assert result.problems == {"the program calls cudaImportExternalMemory, which is not there": 1}


def test_the_driver_api(build, capfd, tmp_path):
    result = run(build("driver_api", driver=True), str(tmp_path / "kernels.ptx"))
    said = capfd.readouterr()
    assert "PASSED" in said.out and "device NVIDIA GeForce RTX 3070 (Ampere), 46 SMs" in said.out, said
    assert [timed.launch.program.name for timed in result.launches] == ["scale", "scale", *["calls"] * 3, "rank"]
    elapsed = float(said.out.split("elapsed ")[1].split()[0])
    assert elapsed == pytest.approx(result.launches[0].results[0].seconds * 1e3, rel=1e-6)
    assert "beyond" in said.err and "out of bounds" in said.err
    assert "grid 4x1x1 is not made of whole clusters of 3x1x1" in said.err
    # damaged PTX, 2^44 bytes and an odd stride of a tensor map are said; names that a module does not have are the
    # program's own affair
    assert len(result.problems) == 3 and "absent" not in said.err


def test_a_driver_call_that_is_missing_is_named(build, capfd):
    result = run(build("driver_api", driver=True), "nowhere", "missing")
    assert result.status == 0
    assert result.problems == {"the program calls cuTensorMapEncodeIm2colWide, which is not there": 1}
    capfd.readouterr()


def test_nodes_of_graphs_that_run_if_while_or_where_a_value_says_so(build, capfd):
    result = run(build("conditions"))
    assert "PASSED" in capfd.readouterr().out and not result.problems
    names = [timed.launch.program.name for timed in result.launches]
    assert names == ["step", "mark"] * 5 + ["mark"] + ["step", "mark"] * 6 + ["mark"]


def test_branches_of_a_graph_and_streams_run_side_by_side_and_the_program_waits_for_events(build, tmp_path, capfd):
    program = build("branches")
    overlap = run(program, record=tmp_path / "traces").overlap
    said = capfd.readouterr()
    assert "PASSED" in said.out and "keeps no streams: abstim run times its launches one after the other" in said.err
    starts, ends = ([getattr(x, f"{what}_cycle") for x in overlap.launches] for what in ("start", "end"))
    for first in (0, 5):  # a launch of the graph
        before, beside, after = first, slice(first + 1, first + 4), first + 4
        assert ends[before] <= min(starts[beside]) and max(starts[beside]) < min(ends[beside])
        assert max(ends[beside]) <= starts[after]
    assert ends[4] <= starts[5] and ends[9] <= starts[10]
    assert ends[10] <= min(starts[11:13]) and max(starts[11:13]) < min(ends[11:13])  # after the event
    serial = run(program, serial=True)
    assert serial.overlap is None and serial.seconds > overlap.cycles / load_gpu("rtx3070").spec.core_clock_hz
    assert overlap.serial_cycles == round(serial.seconds * load_gpu("rtx3070").spec.core_clock_hz)


def test_events_that_a_captured_graph_records_and_a_graph_on_several_streams(build, capfd):
    result = run(build("graph_events"))
    launches, (one, other) = result.launches, result.overlap.launches[-2:]
    said = capfd.readouterr().out
    assert "PASSED" in said
    elapsed = [float(ms) for ms in said.split("elapsed ")[1].split()[:2]]
    times = [timed.results[0].seconds * 1e3 for timed in launches]
    assert len(times) == 8 and elapsed == pytest.approx(times[:2], rel=1e-6)
    assert one.stream != other.stream and other.start_cycle < one.end_cycle  # of two threads
    assert float(said.split("two launches ")[1].split()[0]) == pytest.approx(sum(times[2:4]), rel=0.01)


def test_clusters_by_attribute_and_grids_that_count_them(build, capfd):
    result = run(build("clusters"))
    said = capfd.readouterr()
    assert "PASSED" in said.out and "CUDA defines 1 and 0 alone" in said.err
    assert "launch attributes that record events" in said.err
    launches = [timed.launch for timed in result.launches]
    shapes = [(launch.grid.x, launch.block.x, launch.cluster.x) for launch in launches]
    assert shapes == [(6, 32, 2), (12, 64, 4), (16, 32, 16)]
    assert not any(NO_CLUSTERS in note for note in result.notes)
    assert NO_CLUSTERS in run(build("clusters"), model="analytic").notes[0]


def test_a_tensor_map_of_images(build, capfd):
    result = run(build("images", driver=True))
    said = capfd.readouterr()
    assert "PASSED" in said.out and result.status == 0, said
    assert "CU_TENSOR_MAP_INTERLEAVE_16B: where its boxes lie in shared memory is not published" in said.err
    assert len(result.problems) == 2 and "5000 pixels" in said.err


def test_a_library_that_is_not_there_is_named(build, tmp_path):
    stub = tmp_path / "libnvrtc.so.13"
    (tmp_path / "empty.c").write_text("int nvrtcVersion(void) { return 0; }\n")
    subprocess.run(["cc", "-shared", str(tmp_path / "empty.c"), f"-Wl,-soname,{stub.name}", "-o", stub], check=True)
    program = build("faults", "-Wl,--no-as-needed", str(stub))
    stub.unlink()
    with pytest.raises(InputError, match=r"faults\w* needs .* libnvrtc.so.13 .*pip install nvidia-cuda-nvrtc"):
        run(program)


def test_machine_code_of_nvrtc_is_its_ptx(build, tmp_path, monkeypatch, capfd):
    """A library with NVRTC's names, versions and all, and a program that asks it for machine code."""
    ptx = ".version 8.0\\n.target sm_80\\n.address_size 64\\n.visible .entry made() { ret; }\\n"
    (tmp_path / "nvrtc.c").write_text(
        f"""#include <stddef.h>
        #include <string.h>
        static const char ptx[] = "{ptx}";
        int nvrtcGetPTXSize(void *p, size_t *n) {{ *n = sizeof ptx; return 0; }}
        int nvrtcGetPTX(void *p, char *out) {{ memcpy(out, ptx, sizeof ptx); return 0; }}
        int nvrtcGetCUBINSize(void *p, size_t *n) {{ *n = 8; return 0; }}
        int nvrtcGetCUBIN(void *p, char *out) {{ memcpy(out, "\\177ELF...", 8); return 0; }}"""
    )
    (tmp_path / "names.map").write_text("libnvrtc.so.13 { global: *; };\n")
    library = tmp_path / "libnvrtc.so.13"
    versions = [f"-Wl,-soname,{library.name}", f"-Wl,--version-script={tmp_path / 'names.map'}"]
    subprocess.run(["cc", "-shared", "-fPIC", tmp_path / "nvrtc.c", *versions, "-o", library], check=True)
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path))
    result = run(build("compiled", str(library), driver=True))
    assert "PASSED" in capfd.readouterr().out and not result.problems
    assert [timed.launch.program.name for timed in result.launches] == ["made"]


def test_a_stripped_static_runtime_is_refused(build):
    with pytest.raises(InputError, match="no symbol table"):
        run(build("faults", "-s", static=True))


def test_no_such_program():
    with pytest.raises(InputError, match="there is no such program"):
        run("./nothing_of_this_name")


def test_the_command(build, capfd):
    with pytest.raises(SystemExit) as end:
        main(["app", build("everything"), "--gpu", "x"])  # it may not have been meant for the program
    said = capfd.readouterr()
    assert end.value.code == 2 and "--gpu stands behind the program's name" in said.err and not said.out
    with pytest.raises(SystemExit) as end:
        main(["app", "--json", "--set", "perfect_memory=true", "--launches", "0:2", "--pass-options",
              build("everything"), "--gpu", "x"])  # fmt: skip
    said = capfd.readouterr()
    found = json.loads(said.out)
    assert found["kind"] == "application" and found["status"] == 7 and found["executed"] == 11
    timed = found["runs"][0]["launches"]
    assert [(own["kernel"], own["warp_instructions"]) for own in timed] == [("add", 673), ("count", 8)]
    assert "PASSED with 2 arguments" in said.err  # the program's own options are the program's
    assert found["model"] == "detailed" and "with values changed" in found["runs"][0]["known_error"]
    assert end.value.code == 2  # memory was refused


def test_the_command_refuses_a_bad_stretch(capfd):
    with pytest.raises(SystemExit) as end:
        main(["app", "--launches", "3", "true"])
    assert end.value.code == 2 and "expected two numbers" in capfd.readouterr().err


def fat(*entries):
    """A fat binary of entries (kind, architecture, flags, contents, bytes once decompressed)."""
    body = b""
    for kind, architecture, flags, contents, plain in entries:
        padded = contents + b"\0" * (-len(contents) % 8)
        packed = len(contents) if flags else 0
        fields = (kind, 257, 64, len(padded), packed, 64, 0, 9, architecture, 0, 0, flags, 0, plain)
        body += struct.pack("<HHIQIIHHIIIQQQ", *fields)
        body += padded
    return struct.pack("<IHHQ", 0xBA55ED50, 1, 16, len(body)) + body


def test_fat_binaries():
    text = b".version 8.0\n.target sm_90\n" * 40
    small = zstandard.ZstdCompressor().compress(text)
    found = list(images(fat((2, 80, 0, b"\x7fELF", 0), (1, 80, 0, b"older\0", 0), (1, 90, 0x8011, small, len(text)))))
    assert [(i.is_ptx, i.architecture) for i in found] == [(False, 80), (True, 80), (True, 90)]
    assert (
        best_ptx(found) == text.rstrip() + b"\n" and best_ptx(found[:2]) == b"older\n" and best_ptx(found[:1]) is None
    )
    own = (1, 90, 0, text.replace(b"sm_90", b"sm_90a"), 0)
    plain = (1, 90, 0, text, 0)
    for both in ((own, plain), (plain, own)):
        assert b"sm_90a" in best_ptx(list(images(fat(*both))))
    with pytest.raises(InputError, match="damaged"):
        list(images(fat((1, 80, 0, text, 0))[:-100]))


def test_lz4():
    block = pytest.importorskip("lz4.block")
    text = b".version 8.0\n" * 50
    small = block.compress(text, store_size=False)
    assert best_ptx(list(images(fat((1, 80, 0x2011, small, len(text)))))) == text.rstrip() + b"\n"


def test_both_sides_of_the_protocol_agree(tmp_path):
    """The C compiler's sizes are those that are sent."""
    (tmp_path / "protocol.h").write_text(call_server.header())
    lines = [
        f'printf("{m.name} %zu %zu\\n", sizeof(struct {m.name}_request), '
        f"{f'sizeof(struct {m.name}_reply)' if m.reply is not None else '(size_t)0'});"
        for m in call_server.MESSAGES
    ]
    program = '#include <stdio.h>\n#include "protocol.h"\nint main(void) {' + "\n".join(lines) + "}\n"
    (tmp_path / "sizes.c").write_text(program)
    subprocess.run(["cc", "-w", str(tmp_path / "sizes.c"), "-o", str(tmp_path / "sizes")], check=True)
    said = subprocess.run([tmp_path / "sizes"], capture_output=True, text=True, check=True).stdout
    sizes = [f"{m.name} {m.request_layout.size} {m.reply_layout.size}" for m in call_server.MESSAGES]
    assert said.splitlines() == sizes


@pytest.mark.parametrize("flush", ["none", "data"])
def test_what_is_recorded_can_be_timed_again(build, tmp_path, flush):
    program, gpu = build("everything"), load_gpu("gtx480")
    result = run_application([program], [gpu], record=tmp_path / "traces", flush=flush)
    again = abstim.run(str(tmp_path / "traces" / "module-1"), gpu, flush=flush)
    assert [launch.cycles for launch in again.launches] == [timed.results[0].cycles for timed in result.launches]
    with pytest.raises(InputError, match="is there already"):
        run(program, record=tmp_path / "traces")


def misused(build, capfd, *arguments):
    """Exit code, what the program printed, and the lines of stderr."""
    with pytest.raises(SystemExit) as ended:
        main(["app", build("misuse"), *arguments])
    said = capfd.readouterr()
    return ended.value.code, said.out.partition("\n")[0], said.err


def test_copies_beyond_an_allocation_are_refused(build, capfd):
    assert misused(build, capfd, "copies")[:2] == (0, "1 1 1 1 1 1 1 1 1 ; 0 0 0 1")


def test_streams_and_events_that_are_not_there(build, capfd):
    assert misused(build, capfd, "handles")[:2] == (0, "400 400 400 400 400 400 400 ; 0 0 0 ; 400 400")


def test_arguments_are_looked_at_and_pools_count(build, capfd):
    assert misused(build, capfd, "arguments")[:2] == (0, "12 1 1 1 1 215 ; -5 6 ; 0 0 4096 0 4096 77 0 4096 0 0 ; 0 1")
    of_h100 = attributes(load_gpu("h100"), 80)
    assert (of_h100[111], of_h100[115], of_h100[120]) == (1024, 1, 1)  # kept of shared memory, pools, clusters


def test_what_a_capture_forbids_ends_it_and_graphs_of_another_shape_are_no_update(build, capfd):
    said = "904 0 900 901 906 901 900 901 ; 0 0 0 0 910 2"
    assert misused(build, capfd, "captures")[:2] == (0, said)


@pytest.mark.parametrize("first", [(), ("first",)])
def test_a_child_gets_an_error_and_its_parent_what_it_asked_for(build, capfd, first):
    code, out, err = misused(build, capfd, "children", *first)
    assert (code, out) == (0, "0 3 3 3" if first else "0 0 0 0")
    assert "forked asks for the GPU" in err or not first


@pytest.mark.parametrize(("way", "code", "said"), [("abort", 134, "SIGABRT"), ("kill", 137, "SIGKILL")])
def test_a_signal_that_ends_a_program_is_named(build, capfd, way, code, said):
    found, _, err = misused(build, capfd, way)
    assert found == code and f"the program was ended by signal {code - 128} ({said})" in err


def test_nobody_waits_for_what_a_program_leaves_behind(build, capfd):
    begun = monotonic()
    assert misused(build, capfd, "daemon")[0] == 0 and monotonic() - begun < 60


@pytest.mark.parametrize(
    ("way", "said"), [("closes", "closed a file that it did not open"), ("bytes", "wrote to the socket")]
)
def test_a_program_that_meddles_with_the_socket_is_told(build, capfd, way, said):
    found, _, err = misused(build, capfd, way)
    assert found == 2 and said in err


def test_many_small_allocations_fit(build, capfd):
    assert misused(build, capfd, "many")[:2] == (0, "0")


def test_kernels_that_would_look_alike_have_their_whole_names():
    assert _names(["_Z1fi", "_Z1ff", "_Z1gi"]) == {"_Z1fi": "_Z1fi", "_Z1ff": "_Z1ff", "_Z1gi": "g"}


def test_a_program_without_kernels_is_said(build, capfd):
    assert misused(build, capfd, "nothing")[:2] == (0, "misuse0 launched no kernel.")
