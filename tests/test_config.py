"""GPU descriptions: what is accepted, what is refused and how, and that every value has a source."""

from __future__ import annotations

from dataclasses import replace

import pytest

from abstim.gpu.config import gpu_names, load_gpu
from abstim.gpu.spec import SECTIONS
from functional.errors import InputError
from precharacterize.table import Operation


def write(tmp_path, text, name="mine.toml"):
    path = tmp_path / name
    path.write_text(text)
    return str(path)


def test_gtx480_is_the_references():
    gpu = load_gpu("gtx480_perfect")
    assert (gpu.spec.sm_count, gpu.spec.schedulers_per_sm, gpu.spec.scheduler) == (15, 2, "gto")
    assert gpu.pipeline.operation("int_div") == Operation(145, 8, "sfu")
    assert gpu.pipeline.operation("fp64_div") == Operation(330, 130, "sfu")
    assert (gpu.pipeline.shared_cycles, gpu.pipeline.const_hit_cycles, gpu.pipeline.global_hit_cycles) == (28, 1, 36)
    assert gpu.params.shared_latency_cycles == 26


@pytest.mark.parametrize("name", gpu_names())
def test_every_value_has_a_source(name):
    gpu = load_gpu(name)
    assert len(gpu.settings) == sum(map(len, SECTIONS.values()))
    for key, setting in gpu.settings.items():
        assert setting.source.split()[0] in gpu.labels, key


def test_delta_changes_one_value_and_no_pipeline():
    base, delta = load_gpu("gtx480_perfect"), load_gpu("gtx480_1sched")
    assert replace(base.spec, schedulers_per_sm=1) == delta.spec
    assert base.pipeline == delta.pipeline and base.pipeline.key == delta.pipeline.key


def test_override_is_typed_and_names_its_source():
    gpu = load_gpu("gtx480", ["schedulers_per_sm=4", "scheduler=lrr", "perfect_memory=true", "latency_cycles.sfu=20"])
    assert (gpu.spec.schedulers_per_sm, gpu.spec.scheduler, gpu.spec.perfect_memory) == (4, "lrr", True)
    assert gpu.pipeline.operation("sfu").latency_cycles == 20
    assert gpu.settings["scheduler"].source == "--set scheduler=lrr"
    assert gpu.name == "gtx480 schedulers_per_sm=4 scheduler=lrr perfect_memory=true latency_cycles.sfu=20"


def test_equal_values_are_one_compiled_engine():
    one, other = load_gpu("gtx480_1sched"), load_gpu("gtx480", ["schedulers_per_sm=1", "perfect_memory=true"])
    assert one == other and hash(one) == hash(other)


def test_memory_is_real_but_in_the_papers_settings():
    perfect = {name for name in gpu_names() if load_gpu(name).spec.perfect_memory}
    assert perfect == {"gtx480_perfect", "gtx480_1sched"}
    assert load_gpu("gtx480").memory_model == "L2 and DRAM" and load_gpu("gtx480_1sched").memory_model == "perfect"
    assert replace(load_gpu("gtx480").spec, perfect_memory=True) == load_gpu("gtx480_perfect").spec


def test_only_pipeline_settings_change_its_key():
    base = load_gpu("gtx480_perfect").pipeline.key
    for override in ("sm_count=30", "scheduler=lrr", "max_blocks_per_sm=4", "l1d_sets=64", "dram_reply_cycles=9"):
        assert load_gpu("gtx480", [override]).pipeline.key == base
    for override in ("latency_cycles.int_add=5", "initiation_cycles.sfu=4", "unit.int_div=sp", "register_banks=8"):
        assert load_gpu("gtx480", [override]).pipeline.key != base


def test_own_file_with_base_and_plain_values(tmp_path):
    path = write(tmp_path, 'base = "gtx480"\n[spec]\nsm_count = 30\n')
    write(tmp_path, 'base = "mine.toml"\n[params]\nl1d_latency_cycles = 20\n', "other.toml")
    gpu = load_gpu(str(tmp_path / "other.toml"))
    assert load_gpu(path).spec.sm_count == gpu.spec.sm_count == 30
    assert gpu.params.l1d_latency_cycles == 20
    assert gpu.settings["sm_count"].source == "mine.toml"


@pytest.mark.parametrize(
    "gpu, overrides, message",
    [
        ("gtx48", [], r"^unknown GPU 'gtx48'; did you mean gtx480\?$"),
        ("missing.toml", [], r"missing.toml: no such GPU description"),
        ("gtx480", ["schedulers_per_s=2"], r"unknown key 'schedulers_per_s'; did you mean schedulers_per_sm\?"),
        ("gtx480", ["spec.sm_cont=2"], r"unknown key 'sm_cont'; did you mean sm_count\?"),
        ("gtx480", ["sm_count"], r"write it as key=value"),
        ("gtx480", ["sm_count="], r"write it as key=value"),
        ("gtx480", ["sm_count=0"], r"--set sm_count=0: sm_count = 0 is not a whole number from 1 to 4096"),
        ("gtx480", ["sm_count=-3"], r"is not a whole number"),
        ("gtx480", ["sm_count=1.5"], r"is not a whole number"),
        ("gtx480", ["sm_count=true"], r"is not a whole number"),
        ("gtx480", ["perfect_memory=1"], r"is not true or false"),
        ("gtx480", ["scheduler=fifo"], r"scheduler = 'fifo' is not one of gto, lrr, oldest, two_level"),
        ("gtx480", ["register_banks=12"], r"is not a power of two"),
        ("gtx480", ["core_clock_hz=nan"], r"is not a number"),
        ("gtx480", ["sp_collectors=1"], r"sp_collectors = 1 is below sp_port_width = 2"),
    ],
)
def test_bad_input_is_one_line(gpu, overrides, message):
    with pytest.raises(InputError, match=message) as error:
        load_gpu(gpu, overrides)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    "text, message",
    [
        ("sm_count = ", r"not TOML"),
        ("sm_count = 3", r"unknown section or key 'sm_count'"),
        ("[spac]\nsm_count = 3", r"unknown section or key 'spac'; did you mean spec\?"),
        ("[spec]\nsm_cuont = 3", r"\[spec\]: unknown key 'sm_cuont'; did you mean sm_count\?"),
        ("[spec]\nsm_count = {value = 3}", r'sm_count needs exactly \{ value = ..., source = "..." \}'),
        ("[spec]\nsm_count = 3", r"no value for gpcs, core_clock_hz"),
        ('base = "gtx470"', r"unknown GPU 'gtx470'; did you mean gtx480\?"),
        ('base = "mine.toml"', r"leads back to this file"),
        ("base = 3", r"is not the name of a GPU"),
    ],
)
def test_bad_file_is_one_line(tmp_path, text, message):
    with pytest.raises(InputError, match=message) as error:
        load_gpu(write(tmp_path, text))
    assert "\n" not in str(error.value)


def test_a_label_of_the_base_keeps_its_meaning(tmp_path):
    """What an imported configuration does not say was not said by it."""
    own = 'sm_count = { value = 3, source = "config line 5" }'
    path = write(tmp_path, f'base = "gtx480"\n[sources]\nconfig = "my own file"\n[spec]\n{own}\n')
    gpu = load_gpu(path)
    assert gpu.settings["sm_count"].source == "config line 5" and gpu.labels["config"] == "my own file"
    word, _, rest = gpu.settings["scheduler"].source.partition(" ")
    assert (word, rest) == ("config-gtx480", "scheduler") and gpu.labels[word] == load_gpu("gtx480").labels["config"]


def test_a_hashed_l2_names_the_sizes_it_can_have():
    with pytest.raises(InputError, match=r"not 26; take 16 \(l2_kib=2560\) or 32 \(l2_kib=5120\)"):
        load_gpu("a100", ["l2_sets=26"])
    for sets in (16, 32):
        assert load_gpu("a100", [f"l2_sets={sets}"]).spec.l2_sets == sets
