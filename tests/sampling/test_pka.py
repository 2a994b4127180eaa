"""PKA: the twelve features from either profiler, the sweep over K, the classifiers, the projection."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from programs import program
from synthetic import SyntheticLaunch

from sampling import Pkp, Pks, Profile, SamplingError, TwoLevel
from sampling.nsight import METRICS, LightProfile, features, read_nsight_compute, read_nsight_systems, read_nsight_times
from sampling.pka import CLASSIFIERS, projection_error

VALUES = [f"{100 * k:,}" for k in range(1, 13)]


def test_paper_parameters_are_the_defaults() -> None:
    assert (Pks().error, Pks().most_clusters) == (0.05, 20)
    assert (Pkp().window_cycles, Pkp().s) == (3000, 0.25)
    assert len(METRICS) == 12


def nsight_wide(path) -> None:
    names = ["ID", "Kernel Name", "Block Size", *METRICS.values(), "gpu__time_duration.sum"]
    rows = [["", "", "", *[""] * 12, "ns"], *[[str(k), "fan1", "(16, 16, 1)", *VALUES, str(50 + k)] for k in range(3)]]
    text = "\n".join(",".join(f'"{cell}"' for cell in row) for row in [names, *rows])
    path.write_text(f"==PROF== Connected\n{text}\n")


def nsight_long(path) -> None:
    lines = ['"ID","Kernel Name","Block Size","Metric Name","Metric Value"']
    for launch in range(3):
        for metric, value in zip(METRICS.values(), VALUES, strict=True):
            lines.append(f'"{launch}","fan1","(16, 16, 1)","{metric}","{value}"')
    path.write_text("\n".join(lines))


@pytest.mark.parametrize("write", [nsight_wide, nsight_long])
def test_nsight_compute(write, tmp_path) -> None:
    write(tmp_path / "ncu.csv")
    profile = read_nsight_compute(tmp_path / "ncu.csv")
    assert profile.features is not None and profile.features.shape == (3, 12)
    assert profile.features[0].tolist() == [100.0 * k for k in range(1, 13)]
    assert profile.instructions.tolist() == [1000.0] * 3
    assert profile.threads_per_block is not None and profile.threads_per_block[0] == 256
    assert (profile.cycles is None) == (write is nsight_long)


def test_times_are_nanoseconds_whatever_a_profiler_wrote_them_in(tmp_path) -> None:
    """`ncu` chooses a unit for each number: 2 ms counted less than 950 us, and as 2 nanoseconds."""
    duration, path = "gpu__time_duration.sum", tmp_path / "ncu.csv"
    rows = ["0|nsecond|1,500", "1|usecond|2.5", "2|msecond|1,002", "3|second|3"]
    lines = [f'{launch},{duration},{unit},"{value}"' for launch, unit, value in (row.split("|") for row in rows)]
    path.write_text("\n".join(["ID,Metric Name,Metric Unit,Metric Value", *lines]))
    unit, found = read_nsight_times(path)
    assert unit == "nanoseconds" and found.tolist() == [1500, 2500, 1.002e9, 3e9]
    path.write_text(f"ID,{duration}\n,us\n0,7\n1,8\n")
    assert read_nsight_times(path)[1].tolist() == [7000, 8000]
    for unit, value, said in (("day", "7", "unit of time"), ("us", "7,5", "thousands"), ("us", "1.002,5", "thousands")):
        path.write_text(f'ID,{duration}\n,{unit}\n0,"{value}"\n')
        with pytest.raises(SamplingError, match=said):
            read_nsight_times(path)


def test_unusable_files_are_one_clear_line(tmp_path) -> None:
    path = tmp_path / "x.csv"
    path.write_text('"ID","Kernel Name"\n"0","k"\n')
    with pytest.raises(SamplingError, match="no metric"):
        read_nsight_compute(path)
    path.write_text("nothing")
    with pytest.raises(SamplingError, match="no launches"):
        read_nsight_compute(path)
    with pytest.raises(SamplingError, match="no kernels"):
        read_nsight_systems(path)
    with pytest.raises(SamplingError, match="cannot be read"):
        read_nsight_systems(tmp_path / "absent.csv")
    with pytest.raises(SamplingError, match="missing: coalesced"):
        features({"instructions": np.ones(2)})


def test_gaussian_elimination_is_one_launch() -> None:
    """PKA, Table 3: 414 launches that shrink slowly, one group (the kernels' times are launch overhead)."""
    rows = np.arange(414)
    matrix = np.stack([1e3 + (k + 1) * (414 - rows) for k in range(12)], axis=1).astype(float)
    profile = Profile(instructions=matrix[:, 9], features=matrix, cycles=3000 + 0.5 * (414 - rows))
    selection = Pks().select(profile)
    assert selection.units.tolist() == [0]
    assert projection_error(selection.strata, np.asarray(profile.cycles)[:, None]) <= 0.05


def test_sweep_stops_at_the_fewest_clusters() -> None:
    kinds = np.repeat([0, 1, 2], 30)
    matrix = np.random.default_rng(0).random((3, 12))[kinds] * 1e6
    cycles = np.array([100.0, 900.0, 5000.0])[kinds]
    selection = Pks(error=0.001).select(Profile(instructions=np.ones(90), features=matrix, cycles=cycles))
    assert selection.units.tolist() == [0, 30, 60]
    assert selection.estimate([100.0, 900.0, 5000.0]).total == pytest.approx(cycles.sum())


@pytest.mark.parametrize("classifier", [*CLASSIFIERS, "best"])
def test_classifiers_label_the_rest(classifier) -> None:
    rng = np.random.default_rng(1)
    kind = rng.integers(3, size=300)
    grid = np.array([[8, 1, 1], [64, 1, 1], [512, 4, 1]])[kind]
    light = LightProfile([f"kernel_{k}" for k in kind], np.hstack([grid, np.tile([256, 1, 1], (300, 1))]).astype(float))
    labels = TwoLevel(classifier=classifier).classify(light, kind[:100])
    assert np.mean(labels == kind[100:]) > 0.95


def test_two_levels_of_profiling(tmp_path) -> None:
    profile, true = program(3, launches=200, kernels=3, noise=0.0)
    first = {name: column[:80] for name, column in vars(profile).items() if column is not None}
    shape = np.stack([profile.thread_blocks, profile.threads_per_block], axis=1).astype(float)
    light = LightProfile([str(kernel) for kernel in profile.kernels], shape)
    selection = TwoLevel().select(Profile(**first), light, profile.instructions)
    assert len(selection.strata) == 200 and selection.units.max() < 80
    assert selection.estimate(list(true[selection.units])).relative_error(true.sum()) < 0.3
    with pytest.raises(SamplingError, match="no classifier"):
        TwoLevel(classifier="oracle").classify(light, np.array([0, 1]))


def test_nsight_systems(tmp_path) -> None:
    path = tmp_path / "nsys.csv"
    path.write_text(
        "Processing...\nStart (ns),Duration (ns),GrdX,GrdY,GrdZ,BlkX,BlkY,BlkZ,Name\n"
        "1,2000,64,1,1,256,1,1,fan1\n2,10,,,,,,,[CUDA memcpy HtoD]\n3,1500,8,8,1,16,16,1,fan2\n"
    )
    light = read_nsight_systems(path)
    assert light.names == ["fan1", "fan2"] and light.dimensions[1].tolist() == [8, 8, 1, 16, 16, 1]
    assert light.nanoseconds is not None and light.nanoseconds.tolist() == [2000, 1500]
    path.write_text(path.read_text().replace("Duration (ns)", "Duration (us)"))
    assert read_nsight_systems(path).nanoseconds.tolist() == [2e6, 1.5e6]


def test_projection() -> None:
    launch = SyntheticLaunch(thread_blocks=3000)
    estimate, true = Pkp().launch(launch), launch.total()
    assert estimate.detailed_fraction < 0.3 and estimate.relative_error(true) < 0.05
    whole = 128.0 * launch.requests.sum()
    assert estimate.counters["dram_bytes"] == pytest.approx(
        whole, rel=0.15
    )  # counted when a block retires, half a block late
    literal = Pkp(in_flight=False).launch(launch)
    assert literal.total > estimate.total  # what is in flight counts as not begun


def test_a_launch_below_one_wave_runs_to_its_end() -> None:
    launch = SyntheticLaunch(thread_blocks=20)
    estimate = Pkp().launch(launch)
    assert estimate.basis == "exact" and estimate.total == pytest.approx(launch.total())


def test_a_launch_below_one_wave_stops_early_by_the_text() -> None:
    """Warps of many iterations, those of one thread block half as long: it is over when IPC has settled."""
    launch = SyntheticLaunch(thread_blocks=20, wave_blocks=60, sequences=((1,) * 200,), noise=0.05, cold=0.0)
    launch.cycles[0] *= 0.5
    launch.block_cycles = launch.cycles.sum(2).max(1)
    text = Pkp(in_flight=False).launch(launch)
    assert text.basis == "sampled" and text.parts[1].how == "projection"
    assert text.counters.keys() == {"dram_bytes"}
    assert Pkp().launch(launch).basis == "exact"


def test_unstable_ipc_is_not_projected() -> None:
    ipc = np.tile([1.0, 5.0], 15)
    assert not Pkp().quasi_stable(ipc) and Pkp().quasi_stable(np.full(30, 2.0)) and not Pkp().quasi_stable(np.zeros(30))


def test_both_levels() -> None:
    profile, _ = program(0, launches=30, kernels=2)
    selection = Pks(most_clusters=4).select(profile)
    launches = [Pkp().launch(SyntheticLaunch(unit)) for unit in selection.units.tolist()]
    estimate = selection.estimate(launches)
    assert estimate.detailed_fraction < 0.5


def test_without_measured_cycles_every_characteristic_is_projected_and_kernels_stay_apart() -> None:
    profile, _ = program(3)
    strata = Pks(measured=False).select(profile).strata
    everything = np.column_stack([profile.cycles, profile.features])
    assert projection_error(strata, everything) <= projection_error(np.zeros(len(profile), int), everything)
    assert all(len(set(profile.kernels[strata == stratum])) == 1 for stratum in range(strata.max() + 1))


def test_two_level_of_launches_that_look_alike() -> None:
    profile, _ = program(0, launches=40)
    light = LightProfile(["same"] * 40, np.full((40, 6), 4.0))
    first = Profile(instructions=profile.instructions[:20], features=profile.features[:20], cycles=profile.cycles[:20])
    selection = TwoLevel().select(first, light, profile.instructions)
    assert len(selection.strata) == 40


def test_the_detailed_share_counts_instructions_not_thread_blocks() -> None:
    launch = SyntheticLaunch(thread_blocks=3000)
    grown = np.linspace(1.0, 9.0, launch.shape.thread_blocks)[:, None]
    launch.warp_instructions = (launch.warp_instructions * grown).astype(int)
    found = Pkp().launch(launch)
    blocks = int(found.parts[0].name.rpartition("-")[2]) + 1
    assert found.parts[0].instructions == float(launch.instructions[:blocks].sum())
    assert found.detailed_fraction == pytest.approx(blocks / 3000)  # it has seen no others


def test_ipc_of_cycles_that_were_not_counted_is_not_stable() -> None:
    """A simulator's windows end before the launch does."""

    class Ends(SyntheticLaunch):
        def _observe(self, state):
            seen = super()._observe(state)
            return replace(seen, window_instructions=seen.window_instructions[: 0 if state.clock > 100 else None])

    launch = Ends(thread_blocks=3000)
    assert Pkp().launch(launch).basis == "exact"
    assert Pkp().launch(SyntheticLaunch(thread_blocks=3000)).basis == "sampled"


def test_two_level_keeps_the_spread_of_its_groups() -> None:
    profile, _ = program(1, launches=60)
    light = LightProfile([f"k{kernel}" for kernel in profile.kernels], np.ones((60, 6)))
    columns = {name: None if column is None else column[:30] for name, column in vars(profile).items()}
    first = Profile(**columns)
    selection = TwoLevel().select(first, light, profile.instructions)
    assert np.array_equal(selection.spread, Pks().select(first).spread)


def test_tensor_sizes_are_dimensions(tmp_path) -> None:
    path = tmp_path / "nsys.csv"
    path.write_text(
        "Start (ns),Duration (ns),GrdX,GrdY,GrdZ,BlkX,BlkY,BlkZ,Name,Tensor sizes\n"
        '1,2000,64,1,1,256,1,1,gemm,"[8, 64]"\n3,1500,8,8,1,16,16,1,gemm,"[8, 64, 112]"\n4,1500,8,8,1,16,16,1,add,\n'
    )
    light = read_nsight_systems(path)
    assert light.dimensions[:, 6:].tolist() == [[8, 64, 0], [8, 64, 112], [0, 0, 0]]
