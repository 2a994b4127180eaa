"""`abstim import-config`: configurations of Accel-Sim as GPUs."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from abstim.cli import main
from abstim.gpu.config import load_gpu
from abstim.gpu.import_config import Option, cache_of, import_config, read_options, timing_of
from functional.errors import InputError

DATA = Path(__file__).parent / "data" / "accelsim"


def written(folder, text):
    path = folder / "some.config"
    path.write_text(text)
    return path


def test_gtx480_is_the_gtx480():
    ours, imported = load_gpu("gtx480_perfect"), import_config([DATA / "gtx480.config"])
    wrong = {
        k: (s.value, ours.settings[k].value) for k, s in imported.settings.items() if s.value != ours.settings[k].value
    }
    assert wrong == {}
    assert {"sm_count", "dram_sector_cycles", "dram_activate_cycles", "latency_cycles.int_shfl"} <= set(
        imported.settings
    )
    assert len(imported.settings) > 80
    assert [u.option for u in imported.unused if "in part" not in u.why] == ["inter_config_file"]
    assert {"cache:dl1", "dram_timing_opt"} <= {u.option for u in imported.unused if "in part" in u.why}


def test_imported_gpu_loads_and_differs_from_its_base(tmp_path, capsys):
    path = tmp_path / "mine.toml"
    with pytest.raises(SystemExit) as end:
        main(["import-config", str(DATA / "rtx3070.config"), "-o", str(path)])
    assert end.value.code == 0
    gpu = load_gpu(str(path))
    spec = gpu.spec
    assert (spec.sm_count, spec.schedulers_per_sm, spec.scheduler) == (46, 4, "lrr")
    assert (spec.core_clock_hz, spec.dram_channels, spec.l2_ways) == (1132e6, 16, 16)
    assert (spec.l1d_sets, spec.l1d_ways, spec.coalescing, spec.mem_collectors) == (4, 256, "sector", 2)
    assert gpu.params.dram_activate_cycles == round(48 * 1132 / 3500.5, 2)
    assert gpu.params.dram_sector_cycles == pytest.approx(4 * 1132 / 3500.5, abs=1e-3)  # 32 B: a burst of 16 x 2 B
    assert gpu.params.launch_latency_cycles == 5000
    output = capsys.readouterr().out
    for option in ("cache:dl2", "icnt_arbiter_algo"):
        assert option in output
    assert gpu.settings["sm_count"].source == "config n_clusters 46, n_cores_per_cluster 1"


def test_rtx3070_is_the_rtx3070():
    """But for what the project itself adds to two latencies."""
    ours, imported = load_gpu("rtx3070"), import_config([DATA / "rtx3070.config"])
    wrong = {k for k, s in imported.settings.items() if s.value != ours.settings[k].value}
    assert wrong <= {"dram_latency_cycles"} and len(imported.settings) > 90
    assert {"sub_cores", "l1d_write", "shared_options_kib", "l2_slice_index", "dram_row_bytes"} <= set(
        imported.settings
    )


def test_every_option_is_used_or_listed():
    path = DATA / "rtx3070.config"
    imported = import_config([path])
    sources = " ".join(s.source for s in imported.settings.values())
    unused = {u.option for u in imported.unused}
    assert [
        o.name for o in read_options(path).values() if f"{o.name} {o.value}" not in sources and o.name not in unused
    ] == []


def test_trace_config_sets_the_latencies_of_sass():
    imported = import_config([DATA / "rtx3070.config", DATA / "rtx3070_trace.config"])
    values = {key: s.value for key, s in imported.settings.items()}
    assert [values[f"latency_cycles.{c}"] for c in ("int_mad", "other", "fp32_mad", "fp64_add", "sfu")] == [
        2,
        2,
        2,
        64,
        21,
    ]
    assert values["initiation_cycles.fp32_add"] == 1 and values["latency_cycles.tensor"] == 32
    assert values["instruction_bytes"] == 16  # of SASS
    assert {"specialized_unit_1", "trace_opcode_latency_initiation_spec_op_1"} <= {u.option for u in imported.unused}


def test_timings_by_name_and_by_position_are_the_same():
    named = "nbk=16:CCD=4:RRD=12:RCD=24:RAS=55:RP=24:RC=78:CL=24:WL=8:CDLR=10:WR=24:nbkgrp=4:CCDL=6:RTPL=4"
    bare = "16:4:12:24:55:24:78:24:8:10:24:4:6:4"
    assert timing_of(Option("t", named, "")) == timing_of(Option("t", bare, ""))


def test_cache_strings_of_versions_3_and_4():
    old = cache_of(Option("c", "64:128:8,L:B:m:W:L,A:32:4,4", ""))
    new = cache_of(Option("c", "S:64:128:8,L:B:m:W:L,A:32:4,4:0,32", ""))
    names = ("sets", "line_bytes", "ways", "merges", "miss_queue")
    assert [old[name] for name in names] == [new[name] for name in names] == [64, 128, 8, 4, 4]
    assert (old["sectored"], new["sectored"]) == (False, True)
    letters = ("replacement", "write", "allocate", "write_allocate", "index", "mshr_type")
    assert "".join(old[name] for name in letters) == "".join(new[name] for name in letters) == "LBmWLA"
    assert cache_of(Option("c", "none", "")) is None


def test_older_pipeline_widths(tmp_path):
    imported = import_config([written(tmp_path, "-gpgpu_pipeline_widths 2,1,1,2,1,1,2\n")])
    assert {k: s.value for k, s in imported.settings.items()} == {
        "sp_port_width": 2, "sfu_port_width": 1, "mem_port_width": 1, "result_bus_width": 2,
        "perfect_memory": False,
    }  # fmt: skip


def test_two_level_scheduler(tmp_path):
    imported = import_config([written(tmp_path, "-gpgpu_scheduler two_level_active:8:0:1\n")])
    assert {k: s.value for k, s in imported.settings.items()} == {
        "scheduler": "two_level", "two_level_active_warps": 8, "perfect_memory": False,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "no options"),
        ("<<<<<<< HEAD\n-gpgpu_n_mem 6\n", ":1: expected an option"),
        ("\n-gpgpu_n_clusters\n-gpgpu_n_mem 6\n", ":2: option n_clusters has no value"),
        ("-gpgpu_n_clusters 15 16\n", "has 2 values"),
        ("-gpgpu_n_clusters fifteen\n", "expected 1 number"),
        ("-gpgpu_n_clusters 1.5\n", "expected a whole number"),
        ("-gpgpu_clock_domains 700:700\n", "expected 4 numbers"),
        ("-gpgpu_cache:dl1 64:128\n", "expected a cache"),
        ("-gpgpu_scheduler random\n", "expected one of gto"),
        ("-ptx_opcode_latency_fp 4,13\n", "expected 5 numbers"),
        ('-gpgpu_dram_timing_opt "nbk=16:CCD=2\n', "never closed"),
        ("-gpgpu_clock_domains 1:1:1:1\n-gpgpu_dram_timing_opt nbk=x\n", "expected DRAM timings"),
        ("-gpgpu_dram_timing_opt nbk=16\n", "no -gpgpu_clock_domains"),
        ("-gpgpu_mem_addr_mapping 0000RRRR\n", "expected a mapping"),
        ("-gpgpu_shader_core_pipeline 100:32\n", "multiple"),
        ("-unknown_option 1\n", "none of its 1 options"),
        ("-gpgpu_pipeline_widths 8,0,0,1,1,8,0,0,1,1,2\n", "sp_collectors = 6 is below"),
    ],
)
def test_malformed_input_is_one_clear_line(tmp_path, text, message):
    with pytest.raises(InputError, match=message) as error:
        import_config([written(tmp_path, text)])
    assert "some.config" in str(error.value) or "clock_domains" in str(error.value)


def test_mutated_configurations_are_refused_or_imported(tmp_path):
    """Random damage never ends in anything but an InputError."""
    text, dice, refused = (DATA / "gtx480.config").read_text(), random.Random(2), 0
    for _ in range(300):
        damaged = list(text)
        for _ in range(dice.randint(1, 6)):
            at = dice.randrange(len(damaged))
            damaged[at] = dice.choice(["", "0", "-", " ", ":", ",", '"', "#", "x", "nan", "inf", "1e99", "9" * 30])
        try:
            import_config([written(tmp_path, "".join(damaged))])
        except InputError as error:
            assert "\n" not in str(error)
            refused += 1
    assert 30 < refused < 300


def test_missing_and_binary_files(tmp_path):
    with pytest.raises(InputError, match="No such file"):
        import_config([tmp_path / "none.config"])
    binary = tmp_path / "binary.config"
    binary.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InputError, match="not a text file"):
        import_config([binary])


def test_json_has_values_sources_and_what_was_not_used(capsys):
    with pytest.raises(SystemExit):
        main(["import-config", str(DATA / "gtx480.config"), "--json"])
    found = json.loads(capsys.readouterr().out)
    assert found["values"]["shared_bytes_per_sm"] == {"value": 49152, "source": "config shmem_size 49152"}
    assert "inter_config_file" in [u["option"] for u in found["unused"]] and 'base = "gtx480"' in found["toml"]


def test_memory_is_real_unless_the_configuration_says_perfect(tmp_path):
    """The base has perfect memory; GPGPU-Sim's default is real memory."""
    assert load_gpu("gtx480_perfect").spec.perfect_memory
    text = "-gpgpu_n_clusters 4\n-gpgpu_clock_domains 700:700:700:924\n"
    for line, perfect in (("", False), ("-gpgpu_perfect_mem 0\n", False), ("-gpgpu_perfect_mem 1\n", True)):
        setting = import_config([written(tmp_path, text + line)], "gtx480_perfect").settings["perfect_memory"]
        assert setting.value is perfect
        assert ("default" in setting.source) == (line == "")


def test_units_with_collectors_of_their_own(tmp_path):
    """Kepler's: no generic collectors, which units for float64 need here; their instructions are the SFU's then."""
    text = "-gpgpu_n_clusters 14\n-gpgpu_clock_domains 837:837:837:1502\n-gpgpu_num_dp_units 4\n"
    text += "-gpgpu_operand_collector_num_units_dp 6\n"
    imported = import_config([written(tmp_path, text)])
    assert imported.settings["dp_units"].value == 0 and imported.settings["unit.fp64_add"].value == "sfu"
    assert any(u.option == "num_dp_units" and "collectors of their own" in u.why for u in imported.unused)
    generic = "-gpgpu_operand_collector_num_units_gen 8\n-gpgpu_enable_specialized_operand_collector 0\n"
    assert import_config([written(tmp_path, text + generic)]).settings["dp_units"].value == 4
