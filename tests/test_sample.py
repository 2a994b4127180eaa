"""`sample` and `compare` on the real engine, and the command."""

from __future__ import annotations

import json
import os
from dataclasses import fields, replace

import numpy as np
import pytest
from call_command import call
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace as changed

import abstim
from abstim.cli.sample import print_sample
from abstim.gpu.config import load_gpu
from abstim.study.sample.inside import analysis_share
from abstim.study.sample.methods import METHODS, Known
from abstim.study.sample.sample_result import MOST_WAYS, SampleResult, by_way, thinned
from abstim.study.sample.sampled_program import kept_analyses, name_of
from abstim.study.sample.sampler import compare, opened, sample
from abstim.targets.execution import execute, write_store
from abstim.targets.resolve import open_target
from functional.errors import InputError
from functional.execution.default_executor import default_executor
from functional.keep.kept import Kept
from functional.suite import case_of, ptx_path
from functional.suite._table1_networks import bfs
from sampling import Estimate, Part, Profile
from sampling.photon import Analysis

REAL = load_gpu("gtx480")


def streaming(blocks: int):
    """nn_euclid on many thread blocks: two loads and a store a thread, more than L2 holds."""
    n = 256 * blocks
    record = np.random.default_rng(1).uniform(0, 90, (n, 2)).astype(np.float32)
    case = (
        abstim.load(ptx_path("nn_euclid"))
        .kernel()
        .launch(blocks, 256, [record, np.zeros(n, np.float32), n, 30.0, 90.0])
    )
    case.resources = {"nn_euclid": 10}
    return case


@pytest.fixture(scope="module")
def streamed():
    return compare(streaming(3000), REAL, ["photon", "pkp", "tbpoint"])


def test_methods_inside_a_launch_skip_most_of_it_and_come_close(streamed) -> None:
    for result in streamed.results:
        estimate = result.estimate
        # pkp waits until the rate of instructions is steady: 52 % of this stream
        assert estimate.detailed_fraction < (0.55 if result.method == "pkp" else 0.5), result.method
        if result.method == "pkp":  # stops before dirty lines leave L2 as fast as they will: docs/sampling.md
            continue
        assert estimate.relative_error(streamed.true_cycles) < 0.05, result.method
        assert estimate.covers(streamed.true_cycles), result.method


def test_what_photon_skips_is_not_executed(streamed) -> None:
    photon, _, tbpoint = (result.estimate for result in streamed.results)
    assert photon.detailed_fraction < photon.functional_fraction < 0.6
    assert tbpoint.functional_fraction == 1.0


def test_rows_compare_with_the_full_simulation(streamed) -> None:
    full, *others = streamed.rows()
    assert (full.method, full.error, full.speed_up, full.detailed_fraction) == ("full", 0.0, 1.0, 1.0)
    assert full.cycles == abstim.run(streaming(3000), REAL).totals["cycles"]
    for row in others:
        assert row.instruction_speed_up == pytest.approx(1 / row.detailed_fraction)


def test_equal_launches_cost_one_of_each_kind() -> None:
    found = compare("pagerank", REAL, ["photon", "pks", "sieve", "simpoint"])
    assert len(found.cycles) == 8
    for result in found.results:
        assert result.estimate.total == pytest.approx(found.true_cycles), result.method
        assert result.estimate.detailed_fraction == pytest.approx(0.25), result.method


@pytest.mark.parametrize("method", METHODS)
def test_every_method_states_an_interval_that_holds_its_estimate(method) -> None:
    result = sample("fdtd2d", REAL, method)
    estimate = result.estimate
    assert estimate.low <= estimate.total <= estimate.high
    assert 0 < estimate.detailed_fraction <= 1 and estimate.detailed_fraction <= estimate.functional_fraction + 1e-9
    assert sum(part.cycles for part in estimate.parts) == pytest.approx(estimate.total)
    assert json.loads(json.dumps(result.to_json()))["kind"] == "sample"


def test_where_everything_is_executed_anyway_photon_analyses_every_thread_block() -> None:
    """bfs decides what later launches do; nn_euclid nothing."""
    for target, share in (("bfs", 1.0), ("nn_euclid", 0.01)):
        program = opened(open_target(target), REAL, online=True)
        assert analysis_share(program) == share
    with kept_analyses(open_target("bfs"), 0.5) as first:
        first[0] = Analysis.of_columns({field.name: np.array(3.0) for field in fields(Analysis)})
    with kept_analyses(open_target("bfs"), 0.5) as again, kept_analyses(open_target("bfs"), 0.25) as other:
        assert again[0].warps == 3 and not other


def test_the_same_sample_twice_is_the_same() -> None:
    first, second = (sample("bfs", REAL, "photon").estimate for _ in range(2))
    assert first == second


@pytest.mark.parametrize("method", ["photon", "full"])
def test_what_was_executed_in_an_earlier_run_counts_too(method, monkeypatch, tmp_path) -> None:
    """The second run finds analyses, or launches, that the first has kept on disk."""

    def empty_at_first(kind: str) -> Kept:
        kept = Kept(kind)
        kept.folder = tmp_path / kind
        return kept

    monkeypatch.setattr("abstim.study.sample.sampled_program.Kept", empty_at_first)
    first, second = (sample("pagerank", REAL, method).estimate for _ in range(2))
    assert list(tmp_path.rglob("*")) and first.total == second.total
    assert first.functional_fraction == pytest.approx(second.functional_fraction, abs=0.02)
    if method == "photon":
        assert first.detailed_fraction <= first.functional_fraction < 0.5


def test_contributions_of_kernels_sum_to_the_whole() -> None:
    exact_run = abstim.run("pagerank", REAL)
    for method in ("full", "photon", "stem", "pka", "tbpoint", "random"):
        found = sample("pagerank", REAL, method)
        assert sum(kernel.launches for kernel in found.kernels) == 8, method
        assert sum(kernel.cycles for kernel in found.kernels) == pytest.approx(found.estimate.total), method
        assert sum(kernel.share for kernel in found.kernels) == pytest.approx(1.0)
    full = {kernel.kernel: kernel.cycles for kernel in sample("pagerank", REAL, "full").kernels}
    for name, cycles in full.items():
        assert cycles == sum(launch.cycles for launch in exact_run.launches if launch.kernel == name)
    assert "By kernel" in call("sample", "pagerank", "--gpu", "gtx480").out


def test_thread_blocks_that_may_race_and_ran_in_another_order_are_named() -> None:
    """bfs reads the frontier that it writes; nn_euclid writes what nobody reads."""
    small = case_of("bfs_small", "bfs", bfs(3_000 + os.getpid() % 500))  # whose execution no run before has kept
    notes = sample(small, REAL, "photon", partial=True).notes
    assert [note for note in notes if "bfs_expand" in note and "another order" in note]
    (note,) = sample("nn_euclid", REAL, "photon").notes
    assert "everything was simulated" in note
    assert sample("bfs", REAL, "full").notes == ()


def test_what_is_chosen_at_random_is_so_by_a_seed() -> None:
    first, again, other = (sample("bfs", REAL, "random", seed=seed).estimate.total for seed in (1, 1, 2))
    assert first == again != other
    assert "leave out --seed" in call("sample", "bfs", "--method", "sieve", "--seed", "1").err
    found = sample("bfs", REAL, "random", seed=1)
    assert "launches drawn" in found.assumes and not found.to_json()["estimate"]["bounded"]
    shown = call("sample", "bfs", "--method", "random").out
    assert "no bound on its error" in next(line for line in shown.splitlines() if "cycles" in line)


def test_what_is_kept_is_of_the_traces_and_registers_it_was_found_for(tmp_path) -> None:
    """Stores of one kernel on other data were taken for each other's: neither memory nor parameters are in them."""
    case, gpu = open_target("micro_divergence"), load_gpu("gtx480")
    write_store(case, tmp_path / "store", default_executor())
    stored = open_target(str(tmp_path / "store"))
    first, *rest = stored.manifest.launches
    traces = execute(case).traces
    entries = changed(first, checksum="another's"), changed(first, registers=99)
    recorded = traces, (replace(traces[0], masks=traces[0].masks ^ 1), *traces[1:])
    others = [replace(stored, manifest=changed(stored.manifest, launches=(entry, *rest))) for entry in entries]
    others += [replace(case, traces=each) for each in recorded]
    assert len({name_of((), each, gpu) for each in (case, stored, *others)}) == 6


def test_an_interrupted_sample_goes_on_where_it_was(monkeypatch) -> None:
    from abstim.study.sample.sampled_program import MADE_BY, SampledProgram, kept_parts
    from functional import suite

    overrides = ["perfect_memory=false", "l1d_ways=2"]  # a point no other test keeps launches of
    gpu, original, left = load_gpu("gtx480", overrides), SampledProgram.simulated, [3]
    path = Kept("parts").path(name_of(MADE_BY, suite.case("pathfinder"), gpu))
    path.unlink(missing_ok=True)

    def kept() -> list[int]:
        with kept_parts(suite.case("pathfinder"), gpu) as found:
            return sorted(number for number, part in found.items() if part.found)

    def interrupted(self, number):
        left[0] -= 1
        if left[0] == 0:
            raise KeyboardInterrupt
        return original(self, number)

    monkeypatch.setattr(SampledProgram, "simulated", interrupted)
    with pytest.raises(KeyboardInterrupt):
        sample("pathfinder", gpu, "full")
    monkeypatch.undo()
    assert kept() == [0, 1]
    whole = sample("pathfinder", gpu, "full")
    assert whole.estimate.total == abstim.run("pathfinder", gpu).totals["cycles"]
    assert kept() == [0, 1, 2]
    path.write_bytes(b"damaged")
    assert sample("pathfinder", gpu, "full").estimate == whole.estimate


def test_unknown_method() -> None:
    with pytest.raises(InputError, match="did you mean photon"):
        sample("hotspot", REAL, "foton")


def test_a_profile_for_a_method_that_uses_none() -> None:
    with pytest.raises(InputError, match="leave out the profile"):
        sample("hotspot", REAL, "photon", known=Known(Profile(instructions=np.ones(2))))


def nsight(path, launches: int) -> None:
    from sampling.nsight import METRICS

    rows = [["ID", "Kernel Name", "Block Size", "Grid Size", "Metric Name", "Metric Value"]]
    for n in range(launches):
        for metric in [*METRICS.values(), "gpc__cycles_elapsed.max"]:
            rows.append([str(n), "k", "(256, 1, 1)", "(64, 1, 1)", metric, "1,000"])
    path.write_text("==PROF== connected\n" + "".join(",".join(f'"{cell}"' for cell in row) + "\n" for row in rows))


def test_command_selects_from_nsights_profile_for_another_simulator(tmp_path) -> None:
    nsight(tmp_path / "ncu.csv", 5)
    (tmp_path / "kernelslist.g").write_text("MemcpyHtoD,0x0,4\n" + "".join(f"kernel-{n}.traceg\n" for n in range(1, 6)))
    arguments = ["sample", str(tmp_path / "kernelslist.g"), "--profile", str(tmp_path / "ncu.csv"), "--method", "pks"]
    code, out, _ = call(*arguments, "--select-only", "-o", str(tmp_path / "out"), "--json")
    assert code == 0
    assert json.loads(out)["selected"] == 1
    assert (tmp_path / "out" / "kernelslist.g").read_text() == "MemcpyHtoD,0x0,4\nkernel-1.traceg\n"
    assert (tmp_path / "out" / "launches.weights").read_text() == "1 0\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["hotspot", "--plot", "x.svg"], "--plot needs --compare"),
        (["hotspot", "--method", "pks", "--method", "stem"], "several methods need --compare"),
        (["hotspot", "--select-only", "--method", "pks"], "needs a folder"),
        (["hotspot", "--select-only", "--method", "photon", "-o", "x"], "does not select launches beforehand"),
        (["hotspot", "--compare", "--plot", "x.txt"], "the name must end in .svg"),
        (["list.g", "--select-only", "-o", "x"], "has no profile"),
        (["hotspot", "--compare", "--profile", "x.csv"], "--compare makes its own profile"),
        (["hotspot", "--profile", "missing.csv"], "missing.csv: cannot be read"),
        (["hotspot", "--control", "luck"], "--control luck: there are photon"),
        (["hotspot", "--control", "pkp", "--method", "stem"], "stem aims at no error"),
    ],
)
def test_command_refuses_in_one_line(arguments, message) -> None:
    code, _, err = call("sample", *arguments)
    assert code == 2 and message in err and err.count("\n") == 1


def test_command_prints_how_each_part_was_found(tmp_path) -> None:
    code, text, _ = call("sample", "pagerank", "--method", "photon", "--set", "perfect_memory=false")
    assert code == 0 and "95 % interval" in text and "kernel (as 0 pagerank_share)" in text
    assert max(map(len, text.splitlines())) <= 100
    text = call("sample", "hotspot", "--compare", "--method", "pks", "--plot", str(tmp_path / "out.svg")).out
    assert "faster" in text and max(map(len, text.splitlines())) <= 100
    assert (tmp_path / "out.svg").read_text().startswith("<?xml")


def test_other_statistics_are_projected_too() -> None:
    run = abstim.run("pagerank", REAL)
    whole = sum(launch.caches["dram_reads"] for launch in run.launches)
    for method in ("full", "pks", "pka"):
        found = sample("pagerank", REAL, method)
        assert found.estimate.counters["dram_reads"] == pytest.approx(whole), method
        assert 0 < found.memory["dram_use"] < 1 and 0 < found.memory["l2_hit_rate"] < 1
    assert sample("pagerank", REAL, "photon").memory == {}


def test_an_analysis_made_for_one_gpu_serves_another(monkeypatch, tmp_path) -> None:
    monkeypatch.setenv("ABSTIM_CACHE", str(tmp_path))
    case = streaming(200)
    first = sample(case, REAL, "photon").estimate
    again = sample(case, REAL, "photon").estimate
    assert again.total == first.total and again.functional_fraction <= first.functional_fraction
    (file,) = (tmp_path / "analyses").iterdir()
    made = file.stat().st_ino
    wider = load_gpu("gtx480", ["sm_count=30"])
    assert sample(case, wider, "photon").estimate.total < first.total
    assert file.stat().st_ino == made  # it is not written again
    file.write_bytes(b"damaged")
    assert sample(case, REAL, "photon").estimate.total == first.total


NAMES = [f"{n} of 919 launches" for n in range(40)]
WAYS = st.tuples(st.sampled_from(NAMES), st.integers(1, 9), st.floats(0, 1e6), st.floats(0, 1e6))


@given(st.lists(WAYS, max_size=80))
def test_ways_hold_all_parts_and_the_largest_are_told_apart(parts) -> None:
    ways = by_way(parts)
    assert len(ways) <= MOST_WAYS + 1
    for place, name in ((1, "parts"), (2, "instructions"), (3, "cycles")):
        assert sum(getattr(way, name) for way in ways) == pytest.approx(sum(part[place] for part in parts))
    alone = {way.how: way for way in by_way(parts, most=len(parts))}
    shown = [way for way in ways if not way.how.endswith(" other ways")]
    assert all(alone[way.how] == way for way in shown)
    left = [way.cycles for how, way in alone.items() if how not in {way.how for way in shown}]
    assert not left or min(way.cycles for way in shown) >= max(left)


def test_a_hundred_ways_and_long_names_fit_on_a_page(capsys) -> None:
    kernel = "_ZN2at6native29vectorized_elementwise_kernel" + "ILi4ENS0_15CUDAFunctor_addIfEESt5arrayIPcLm3EEEE" * 3
    parts = tuple(Part(name=str(n), how=f"kernel (as {n} {kernel})", instructions=1e9, cycles=1e9 + n)
                  for n in range(100))  # fmt: skip
    estimate = Estimate(method="x", total=1e11, low=9e10, high=2e11, basis="model", detailed_fraction=0.1, parts=parts)
    seconds = {"execute": 1.0, "time": 2.0, "analyse": 3.0}
    print_sample(
        SampleResult(
            target=kernel,
            gpu="gtx480",
            method="photon",
            model="detailed",
            known_error="",
            estimate=estimate,
            seconds=seconds,
        )
    )
    text = capsys.readouterr().out
    assert max(map(len, text.splitlines())) <= 100
    assert text.count("kernel (as") == MOST_WAYS and "88 other ways" in text and "88,000,003,828" in text


def test_a_thinned_history_ends_where_the_whole_one_does() -> None:
    for length in (1, 199, 200, 201, 399, 1000):
        history = [(float(k), 1.0) for k in range(length)]
        found = thinned(history)
        assert found[-1] == history[-1] and min(length, 100) <= len(found) <= 200
        assert len(set(np.diff([cycle for cycle, _ in found]))) <= 1  # evenly spaced


@pytest.mark.parametrize("command", ["trace", "export-trace"])
def test_what_was_executed_elsewhere_is_sampled_too(command, tmp_path) -> None:
    folder = tmp_path / "traces"
    assert call(command, "reduction", "-o", str(folder)).code == 0
    whole = abstim.run(str(folder), REAL).totals["cycles"]
    for method in ("photon", "stem", "pka"):
        assert sample(str(folder), REAL, method).estimate.relative_error(whole) < 0.05, method
    found = compare(str(folder), REAL, ["photon", "pks"])
    assert found.true_cycles == whole and [row.error < 0.05 for row in found.rows()] == [True] * 3


@pytest.mark.parametrize("model", ["occupancy", "analytic"])
def test_other_models_time_what_a_method_chooses(model):
    whole = abstim.run("bitonic_sort", "gtx480", model=model)
    full = sample("bitonic_sort", "gtx480", "full", model=model)
    assert full.estimate.total == whole.totals["cycles"] and full.model == model
    assert full.known_error == whole.known_error
    chosen = sample("bitonic_sort", "gtx480", model=model)
    assert chosen.method == "stem" and chosen.estimate.detailed_fraction < 0.5
    assert chosen.estimate.total == pytest.approx(full.estimate.total, rel=0.05)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"method": "photon"}, "looks into launches"),
        ({"method": "tbpoint"}, "looks into launches"),
        ({"method": "pks", "inside": "pkp"}, "looks into launches"),
        ({"method": "ideal-random"}, "looks into launches"),
        ({"method": "stem", "warm_up": "all", "gpu": REAL}, "empty caches"),
    ],
)
def test_other_models_refuse_what_they_cannot_do(options, message):
    with pytest.raises(InputError, match=message):
        sample("gaussian_elimination", model="occupancy", **options)


@pytest.fixture(scope="module")
def selected(tmp_path_factory):
    """A folder with the launches of pagerank that pks selects, and what each launch takes."""
    folder = tmp_path_factory.mktemp("selected")
    call("sample", "pagerank", "--method", "pks", "--select-only", "--traces", "-o", str(folder))
    return folder, [launch.cycles for launch in abstim.run("pagerank", REAL).launches]


def test_times_from_elsewhere_give_the_estimate_of_our_own(selected, tmp_path) -> None:
    folder, cycles = selected
    own = sample("pagerank", REAL, "pks").estimate
    units = [int(row.partition(",")[0]) for row in (folder / "selection.csv").read_text().splitlines()[1:]]
    table = tmp_path / "times.csv"
    table.write_text("launch,kernel,cycles\n" + "".join(f"{n},k,{cycles[n]}\n" for n in reversed(units)))
    profile = tmp_path / "ncu.csv"
    rows = [f'"{k}","k","(1, 1, 1)","gpc__cycles_elapsed.max","{cycles[n]:,}"' for k, n in enumerate(units)]
    profile.write_text("ID,Kernel Name,Block Size,Metric Name,Metric Value\n" + "\n".join(rows) + "\n")
    for target, times in ((folder, table), (folder / "selection.json", profile)):
        code, out, _ = call("sample", target, "--times", times, "--json")
        data = json.loads(out)
        found = data["estimate"]
        assert code == 0 and (data["unit"], data["selected"], data["launches"]) == ("cycles", len(units), 8)
        ends = (own.low, own.high) if own.bounded else (None, None)
        assert [found[end] for end in ("total", "low", "high")] == [own.total, *ends]
    code, out, _ = call("sample", folder, "--times", table)
    assert code == 0 and "pagerank, pks, timed elsewhere" in out and "no bound" in out


def test_selected_launches_for_accel_sim_and_nsight_compute(selected) -> None:
    folder, _ = selected
    units = [int(row.partition(",")[0]) for row in (folder / "selection.csv").read_text().splitlines()[1:]]
    listed = [line for line in (folder / "traces" / "kernelslist.g").read_text().split() if line.startswith("kernel")]
    assert listed == [f"kernel-{n + 1}.traceg" for n in units] and 0 < len(units) < 8
    traced = abstim.run(str(folder / "traces"), REAL).launches
    alone = abstim.run("pagerank", REAL).launches
    assert [launch.warp_instructions for launch in traced] == [alone[n].warp_instructions for n in units]
    names = [launch.kernel for launch in alone]
    expected = [f"--kernel-id ::{names[n]}:{names[: n + 1].count(names[n])}" for n in units]
    assert (folder / "ncu-kernel-ids.txt").read_text().splitlines() == expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("launch,cycles\n0,5\n", "no time of launch"),
        ("launch,meters\n0,5\n", "no column of times"),
        ("launch,cycles\n0,five\n", "could not convert"),
        ("ID,Kernel Name\n0,k\n", "no times of launches"),
        ("", "no times of launches"),
    ],
)
def test_times_that_do_not_fit_are_refused(selected, tmp_path, text, message) -> None:
    (tmp_path / "times.csv").write_text(text)
    code, _, err = call("sample", selected[0], "--times", tmp_path / "times.csv")
    assert code == 2 and message in err and err.count("\n") == 1


@pytest.mark.parametrize(
    "change",
    [{"units": [5, 1]}, {"size": [1.0]}, {"bias": -1}, {"spread": ["x"]}, {"strata": None}, {"units": [99]},
     {"instructions": [0.0] * 8}, {"spread": [float("nan")] * 3}],
)  # fmt: skip
def test_a_selection_that_was_changed_is_refused(selected, tmp_path, change) -> None:
    data = json.loads((selected[0] / "selection.json").read_text()) | change
    (tmp_path / "selection.json").write_text(json.dumps(data))
    (tmp_path / "times.csv").write_text("launch,cycles\n" + "".join(f"{n},5\n" for n in range(8)))
    code, _, err = call("sample", tmp_path, "--times", tmp_path / "times.csv")
    assert code == 2 and "selection.json" in err and err.count("\n") == 1


def test_a_selection_takes_times_alone() -> None:
    code, _, err = call("sample", "selection.json", "--times", "x.csv", "--method", "pks")
    assert code == 2 and "--method: no effect with --times" in err


def test_pkp_over_single_cycles_stops_within_a_launch_and_is_near_its_time() -> None:
    case = streaming(600)
    whole, cycles = sample(case, REAL, "full"), sample(case, REAL, "full", inside="pkp-cycles")
    assert cycles.method == "full+pkp-cycles" and cycles.estimate.detailed_fraction < 0.9
    assert cycles.estimate.total == pytest.approx(whole.estimate.total, rel=0.05)
