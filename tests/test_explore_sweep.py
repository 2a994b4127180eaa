"""Sweeps as a whole: tables, failures, files, and what a killed process or a killed worker leaves behind."""

from __future__ import annotations

import csv
import json
import os
import pickle
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from contextlib import closing
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from call_command import call
from nightly import NIGHTLY, of

import abstim
from abstim.gpu.config import load_gpu
from abstim.session.session import open_session
from abstim.study.explore import cluster as cluster_jobs
from abstim.study.explore import explore, sweep_of
from abstim.study.explore.jobs import OccupancyPlanner, Planner, Store, store_path
from abstim.study.explore.result import FORMATS, check_format
from functional.errors import InputError
from functional.keep.folder import cache_dir

ROOT = Path(__file__).parent.parent
GPU = load_gpu("gtx480_perfect")
COMMAND = [sys.executable, "-c", "from abstim.cli import main; main()", "explore"]


@pytest.fixture
def own_store(monkeypatch, tmp_path):
    """Results kept apart from those of other tests; everything else stays where it is."""
    monkeypatch.setattr("abstim.study.explore.jobs.store_path", lambda version: tmp_path / "store.sqlite")
    return tmp_path / "store.sqlite"


def swept(*vary, targets=("nn_euclid",), progress=lambda *_: None, **how):
    return explore(list(targets), sweep_of(GPU, vary, **how), progress=progress)


def test_the_table_has_what_run_says(own_store):
    found = swept("sm_count=4,15", "scheduler=gto,lrr", targets=("nn_euclid", "relu"))
    table = found.table()
    for k in range(4):
        overrides = [f"sm_count={table['sm_count'][k]}", f"scheduler={table['scheduler'][k]}"]
        expected = {name: abstim.run(name, GPU.name, overrides).totals for name in ("nn_euclid", "relu")}
        for name, totals in expected.items():
            assert table[f"cycles_{name}"][k] == totals["cycles"]
            assert table[f"seconds_{name}"][k] == pytest.approx(totals["seconds"], rel=1e-12)
        product = expected["nn_euclid"]["seconds"] * expected["relu"]["seconds"]
        assert table["seconds"][k] == pytest.approx(product**0.5, rel=1e-12)


@pytest.mark.parametrize("vary, reason", [("unit.int_add=sp,int", "needs int units"), ("l2_ways=8,4096", "memory")])
def test_what_the_engine_cannot_time_is_a_row_with_its_reason(own_store, vary, reason):
    gpu = load_gpu("gtx480", ["l2_sets=65536", "dram_channels=4"])
    found = explore(["nn_euclid"], sweep_of(gpu, [vary]))
    assert found.timed.tolist() == [True, False] and reason in found.reasons[1]


def test_everything_is_timed_once(own_store):
    first = swept("sm_count=4:12:4", "shared_kib=48,96")  # which the kernel has no use for
    assert (first.work.points, first.work.jobs, first.work.known) == (6, 3, 0)
    assert first.work.represented_thread_instructions == 2 * first.work.stepped_thread_instructions
    again = swept("sm_count=12,4,20", "schedulers_per_sm=2")
    assert (again.work.jobs, again.work.known) == (3, 2)
    assert again.cycles[0] == first.cycles[-1]


def test_a_point_that_fails_is_a_row_with_the_reason(own_store):
    """64 threads fit any block of nn_euclid's; sp_collectors below the port's width contradict it."""
    found = swept("max_threads_per_sm=128,1536", "sp_collectors=1,6", targets=("nn_euclid",))
    table = found.table()
    assert [bool(reason) for reason in table["error"]] == [True, True, True, False]
    assert table["cycles"][:3] == [None] * 3 and table["cycles"][3] > 0
    assert "sp_collectors = 1 is below" in table["error"][2]
    assert "does not fit" in table["error"][1] and "max_threads_per_sm = 128" in table["error"][1]


def test_a_target_that_fails_leaves_the_others_alone(own_store):
    table = swept("shared_kib=1,48", targets=("nn_euclid", "backprop_layerforward")).table()
    assert table["cycles_nn_euclid"][0] > 0 and table["cycles_backprop_layerforward"][0] is None
    assert table["seconds"][0] is None and "shared memory" in table["error"][0]
    assert table["error"][1] == ""


def test_if_no_point_can_be_timed_that_is_a_table_too(own_store):
    found = swept("max_threads_per_sm=32,64")
    assert not found.timed.any() and found.sensitivity == []
    assert found.to_json()["pareto"] == []


def test_front_and_objectives(own_store):
    found = swept("sm_count=4:16:4", "schedulers_per_sm=1,2", define=["area=sm_count*(2+schedulers_per_sm)"],
                  objective=["area", "time"])  # fmt: skip
    values, rows = found.objective_values(), found.pareto()
    assert (np.diff(values[rows, 0]) > 0).all() and (np.diff(values[rows, 1]) < 0).all()
    assert [k for k, on in enumerate(found.table()["pareto"]) if on] == sorted(rows)
    assert found.table()["area"] == [a * (2 + b) for a in (4, 8, 12, 16) for b in (1, 2)]


def test_an_objective_of_its_own_is_a_column(own_store):
    table = swept("sm_count=4,8", "max_threads_per_sm=128,1536", objective=["time * sm_count"]).table()
    assert table["time * sm_count"][0] is None
    assert table["time * sm_count"][1] == pytest.approx(table["seconds"][1] * 4)


def test_an_objective_that_means_nothing_is_refused_before_the_work():
    with pytest.raises(InputError, match=r"did you mean sm_count|unknown name"):
        swept("sm_count=4,8", objective=["sm_cnt"])


@pytest.mark.parametrize("suffix", FORMATS)
def test_files_hold_the_table(own_store, tmp_path, suffix):
    found = swept("max_threads_per_sm=128,1536", "scheduler=gto,lrr")
    path = tmp_path / f"out{suffix}"
    found.save(path)
    once = path.read_bytes()
    found.save(path)
    assert path.read_bytes() == once
    assert read(path)["cycles"] == found.table()["cycles"]
    assert list(read(path)) == list(found.table())


def read(path: Path) -> dict:
    if path.suffix == ".json":
        rows = json.loads(path.read_text())
        return {name: [row[name] for row in rows] for name in rows[0]}
    if path.suffix == ".parquet":
        from pyarrow import parquet

        return parquet.read_table(path).to_pydict()
    with path.open() as file:
        rows = list(csv.DictReader(file))
    return {name: [int(r[name]) if r[name].isdigit() else r[name] or None for r in rows] for name in rows[0]}


def test_an_ending_nobody_can_write_is_refused(tmp_path):
    for path in (tmp_path / "a.txt", tmp_path / "none" / "a.csv"):
        with pytest.raises(InputError):
            check_format(path)


def test_a_file_that_cannot_be_written_is_said_and_the_old_one_kept(own_store, tmp_path):
    found = swept("sm_count=4,8")
    (tmp_path / "out.csv").mkdir()
    with pytest.raises(InputError, match="cannot be written"):
        found.save(tmp_path / "out.csv")
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".out")] == []


def test_multi_fidelity_times_what_the_screen_finds(own_store, monkeypatch):
    asked = []

    def maker(workloads, gpu):
        def screen(columns):
            asked.append(len(columns["sm_count"]))
            return np.full((asked[-1], 1), 1e5) / columns["sm_count"][:, None]

        return screen

    monkeypatch.setattr("abstim.study.explore.sweep.analytic_screen", maker)
    found = swept(
        "sm_count=1:64:1", "shared_kib=48,96", strategy="multi-fidelity", count=12, objective=["sm_count", "time"]
    )
    assert asked == [128] and found.candidates == 128 and len(found.points) == 12
    assert found.table()["screened_seconds"][0] > 0
    full = swept("sm_count=1:64:1", "shared_kib=48,96")
    assert (full.cycles[found.points.positions] == found.cycles).all()


def test_a_damaged_store_costs_time_only(own_store, capsys):
    before = swept("sm_count=4,8").cycles
    own_store.write_bytes(b"not a database" * 100)
    assert (swept("sm_count=4,8").cycles == before).all()
    assert "damaged" in capsys.readouterr().err
    assert swept("sm_count=4,8").work.known == 0  # deleted, and begun again
    assert swept("sm_count=4,8").work.known == 2


def test_a_row_that_changed_is_no_answer(own_store, capsys):
    with closing(Store("version")) as store:
        store.add([(b"a", 1), (b"b", 2)])
    with sqlite3.connect(own_store) as database:
        database.execute("UPDATE checked SET cycles = 3 WHERE key = ?", [b"b"])
    with closing(Store("version")) as store:
        assert store.known([b"a", b"b"]) == {}
    assert "damaged" in capsys.readouterr().err and not own_store.exists()


def test_a_store_that_cannot_be_written_costs_time_only(monkeypatch, tmp_path, capsys):
    (tmp_path / "file").write_text("")
    monkeypatch.setattr("abstim.study.explore.jobs.store_path", lambda version: tmp_path / "file" / "store.sqlite")
    assert (swept("sm_count=4,8").cycles > 0).all()
    assert "cannot keep results" in capsys.readouterr().err


def test_a_batch_is_kept_whole_or_not_at_all(own_store):
    with closing(Store("version")) as store:
        store.add([(b"a", 1), (b"b", 2)])

        def breaks():
            yield b"c", 3
            raise RuntimeError

        with pytest.raises(RuntimeError):
            store.add(breaks())
        assert store.known([b"a", b"b", b"c"]) == {b"a": 1, b"b": 2}


def sweep_command(folder: Path, points: int) -> list[str]:
    return [*COMMAND, "nn_euclid", "relu", "--vary", f"sm_count=4:{3 + points}:1", "--vary", "scheduler=gto,lrr",
            "--define", "area=sm_count*4", "--objective", "area", "--objective", "time",
            "-o", str(folder / "out.csv")]  # fmt: skip


def with_cache(folder: Path) -> dict[str, str]:
    """The caches of the tests, the store excepted."""
    cache = folder / "cache"
    cache.mkdir(parents=True)
    for kind in ("grammar", "jax", "objects", "tables", "traces"):
        (Path(os.environ["ABSTIM_CACHE"]) / kind).mkdir(parents=True, exist_ok=True)
        (cache / kind).symlink_to(Path(os.environ["ABSTIM_CACHE"]) / kind)
    return os.environ | {"ABSTIM_CACHE": str(cache), "PYTHONPATH": str(ROOT)}


def store_of(folder: Path) -> Path:
    return folder / "cache" / "explore" / store_path(Planner.version()).name


def kept(path: Path) -> int:
    try:
        with sqlite3.connect(f"file:{path}?mode=ro", uri=True) as database:
            return database.execute("SELECT count(*) FROM checked").fetchone()[0]
    except sqlite3.OperationalError:
        return 0


def killed_and_resumed(folder: Path, points: int, kills: int) -> tuple[bytes, list[int]]:
    """The table after `kills` kills, each after some more results have come, and how many were kept each time."""
    environment, command, store, found = with_cache(folder), sweep_command(folder, points), store_of(folder), [0]
    generator = np.random.default_rng(kills)
    for _ in range(kills):
        process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        while kept(store) <= found[-1] and process.poll() is None:
            time.sleep(0.01)
        time.sleep(generator.uniform(0, 0.2))
        process.send_signal(signal.SIGKILL)
        process.wait()
        found.append(kept(store))
    subprocess.run(command, env=environment, check=True, stdout=subprocess.DEVNULL, timeout=600)
    return (folder / "out.csv").read_bytes(), found


def test_killed_and_run_again_gives_the_same_table(own_store, tmp_path):
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    undisturbed = call(*sweep_command(tmp_path / "one", points=16)[len(COMMAND) - 1 :])
    assert undisturbed.code == 0, undisturbed.err
    table, found = killed_and_resumed(tmp_path / "two", points=16, kills=1)
    assert table == (tmp_path / "one" / "out.csv").read_bytes()
    assert all(before < after for before, after in pairwise(found))  # nothing kept is ever lost
    assert found[-1] < kept(store_of(tmp_path / "two")) == kept(own_store)


def distributed():
    return pytest.importorskip("distributed")


@pytest.fixture(scope="module")
def cluster():
    """Two workers whose caches are empty, but for code that other tests have compiled."""
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        shutil.copytree(cache_dir("objects"), Path(folder) / "objects", dirs_exist_ok=True)
        patch.setenv("ABSTIM_CACHE", folder)
        with distributed().LocalCluster(
            n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None
        ) as cluster:
            patch.undo()
            yield cluster


EACH = ({}, {"model": "occupancy"}, {"model": "analytic"}, {"strategy": "multi-fidelity", "count": 4})
SPACE = of(("sm_count=4:32:4", "l1d_kib=8,16"), ("sm_count=4:28:1", "l1d_kib=8,16,24,32", "schedulers_per_sm=1,2"))


@pytest.mark.slow
@pytest.mark.parametrize("how", EACH)
def test_a_cluster_gives_the_same_table_and_a_killed_worker_is_not_missed(cluster, own_store, how):
    """One of two workers is killed (not asked to go) while the detailed model, at night each, has them work; it is
    another process later."""
    with distributed().Client(cluster) as client:
        client.wait_for_workers(2, timeout=60)
    pids, killed, said = [worker.pid for worker in cluster.workers.values()], [], set()

    def kill_one(what, done, total):
        said.add(what)
        if done and not killed and (NIGHTLY or not how):
            killed.append(pids[1])
            os.kill(pids[1], signal.SIGKILL)

    targets, address = ["relu", "nn_euclid"], cluster.scheduler_address
    found = explore(targets, sweep_of(GPU, SPACE, cluster=address, **how), progress=kill_one)
    own_store.unlink(missing_ok=True)
    assert bool(killed) == (NIGHTLY or not how) and found.work.known == 0 and "explore, points on 2 workers" in said
    assert found.table() == explore(targets, sweep_of(GPU, SPACE, **how)).table()


def test_a_cluster_nobody_answers_at_is_said_in_one_line(own_store, monkeypatch):
    monkeypatch.setattr("abstim.study.explore.cluster.CONNECT_SECONDS", 0.2)
    with pytest.raises(InputError, match="no scheduler answers"):
        swept("sm_count=4", cluster="tcp://127.0.0.1:9")


@pytest.mark.parametrize(("kind", "gpu"), [(Planner, "gtx480"), (OccupancyPlanner, "gtx480"), (Planner, "v100")])
def test_a_launch_that_was_sent_is_timed_as_here_and_by_no_other_version(kind, gpu):
    """Machine code is sent along: a worker need not have the tools that make it."""
    planner, point = kind([open_session("nn_euclid")]), load_gpu(gpu)
    (job,) = planner.jobs(0, point)
    session = pickle.loads(pickle.dumps(planner.sessions[0].alone(0)))
    arguments = (kind.version, kind.cycles, session, 0, [job.gpu], [job.blocks_per_sm])
    assert cluster_jobs.on_worker(planner.version(), *arguments) == planner.time((job,))
    assert {key[0] for key in session._made} >= ({"timed code"} if point.spec.timed_code == "machine" else {"table"})
    with pytest.raises(InputError, match="another version"):
        cluster_jobs.on_worker("other", *arguments)


def test_the_occupancy_model_times_points_of_equal_caches_side_by_side_and_the_largest_first():
    planner, sizes = OccupancyPlanner([open_session("nn_euclid")]), (16, 32, 64)
    gpus = [load_gpu("gtx480", [f"dram_sector_cycles={n}", f"l2_sets={size}"]) for n in (4, 5) for size in sizes]
    (chunk,) = planner.chunks([job for gpu in gpus for job in planner.jobs(0, gpu)], 1)
    assert [job.gpu.spec.l2_sets for job in chunk] == [64, 64, 32, 32, 16, 16]


def test_the_command_prints_points_front_and_what_matters(own_store):
    varied = f"explore nn_euclid --vary sm_count=4,8 --gpu {GPU.name}".split()
    code, out, _ = call(*varied, "--vary", "latency_cycles.fp64_div=300,330", "--set", "sp_units=1")
    assert code == 0 and "2 of 2 points ordered by seconds (of equal ones the first)" in out
    assert "No effect: latency_cycles.fp64_div" in out and "geometric means" not in out
    assert "time" in out.splitlines()[2] and "seconds" not in out.splitlines()[2]  # the same, said once
    assert max(map(len, out.splitlines())) <= 100
    assert "geometric means of nn_euclid, relu" in call(*varied[:2], "relu", *varied[2:]).out
    found = json.loads(call(*varied, "--objective", "sm_count", "--objective", "time", "--json").out)
    assert found["pareto"] == [0, 1] and found["rows"][1]["sm_count"] == 8
    assert found["sensitivity"][0]["key"] == "sm_count" and found["work"]["points"] == 2


def test_a_sweep_by_the_occupancy_model_has_what_run_says(own_store):
    found = swept("sm_count=4,15", "latency_cycles.int_add=4,9", model="occupancy")
    table = found.table()
    for k in range(4):
        overrides = [f"{key}={table[key][k]}" for key in ("sm_count", "latency_cycles.int_add")]
        assert table["cycles"][k] == abstim.run("nn_euclid", GPU.name, overrides, model="occupancy").totals["cycles"]
    assert swept("sm_count=4,15", "latency_cycles.int_add=4,9", model="occupancy").work.known == 4
    assert swept("sm_count=4,15", model="detailed").work.known == 0


def test_a_sweep_by_formula(own_store):
    found = swept("sm_count=4,15", model="analytic")
    table = found.table()
    assert found.work.represented_thread_instructions > 0 == found.work.stepped_thread_instructions == found.work.jobs
    assert table["cycles"][0] > table["cycles"][1] > 0


def test_a_point_of_a_sweep_by_formula_has_the_cycles_of_a_run():
    keys = {"sm_count": "4,15", "max_blocks_per_sm": "3,8", "scheduler": "gto,lrr"}
    table = swept(*(f"{key}={values}" for key, values in keys.items()), targets=("hotspot",), model="analytic").table()
    for k in range(8):
        overrides = [f"{key}={table[key][k]}" for key in keys]
        assert table["cycles"][k] == abstim.run("hotspot", GPU.name, overrides, model="analytic").totals["cycles"]
    assert len({*table["cycles"]}) > 4


@pytest.mark.parametrize("how", [{"model": "guess"}, {"model": "occupancy", "strategy": "multi-fidelity"}])
def test_a_model_that_a_sweep_cannot_use_is_refused(how):
    with pytest.raises(InputError, match="model"):
        swept("sm_count=4,8", **how)


def test_a_sweep_by_formula_says_what_cannot_run_and_refuses_what_it_does_not_know():
    found = swept("max_warps_per_sm=4,48", targets=("hotspot",), model="analytic")
    assert found.cycles[0, 0] < 0 < found.cycles[1, 0] and "warps" in found.reasons[0]
    with pytest.raises(InputError, match="--vary l1d_index: the analytic model does not look at it"):
        swept("l1d_index=linear,hash", model="analytic")
