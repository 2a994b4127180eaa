"""Accel-Sim trace directories: every form in which one may come, and what is not one."""

from __future__ import annotations

import gzip
import lzma
import random
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sass_traces import EXIT, LOCAL, SHARED, directory, kernel

from abstim.models import run
from abstim.targets.resolve import opcodes, trace_case
from functional.accelsim.read import PageTable
from functional.accelsim.trace_files import format_addresses, parse_addresses
from functional.errors import InputError
from functional.traces.line_record import line_of, more_follow, sectors_of
from functional.traces.trace import LOCAL_WINDOW_LINE, PARAM_WINDOW_LINE, SHARED_WINDOW_LINE
from precharacterize.classify import Kind, kind_of

LOAD = "00a0 ffffffff 1 R4 LDG.E 1 R4 4 1 0x7fb0fc430e00 4 0 "


def only(folder, *lines, **header):
    """Launch and trace of a kernel with one warp."""
    case = trace_case(str(directory(folder, kernel([*lines, EXIT], **header))))
    return case.launches[0], case.traces[0]


def unpacked(records):
    return [(line_of(int(r)), sectors_of(int(r)), more_follow(int(r))) for r in records]


def test_a_line_of_a_real_trace(tmp_path):
    launch, trace = only(tmp_path, LOAD, "00b0 ffffffff 1 R5 FADD 2 R4 R7 0 0 ")
    load, add = launch.program.instructions[:2]
    assert (load.name, [r.name for r in load.writes()], [r.name for r in load.reads()]) == (
        "ld.global.b32",
        ["R4"],
        ["R4"],
    )
    assert (add.name, [r.name for r in add.reads()]) == ("add.f32", ["R4", "R7"])
    line, sectors, more = unpacked(trace.records)[0]
    assert (sectors, more, len(trace.records)) == (15, 0, 1)
    assert line % (2 << 20 >> 7) == 0x7FB0FC430E00 % (2 << 20) >> 7  # the place within a page stays
    assert trace.warp_instructions.tolist() == [3] and trace.thread_instructions.tolist() == [96]


@pytest.mark.parametrize("version", [2, 3, 4, 5, 7])
@pytest.mark.parametrize("line_numbers", [0, 1])
def test_tracer_versions(tmp_path, version, line_numbers):
    front = ("0 0 0 0 " if version < 3 else "") + ("17 " if line_numbers else "")
    extra = ["cluster id = 0,0,0", "cluster cta = 0,0,0", "cluster rank = 0"] if version == 7 else []
    header = {"accelsim_tracer_version": version, "enable_lineinfo": line_numbers}
    text = kernel([front + LOAD, front + EXIT], extra=extra, **header)
    case = trace_case(str(directory(tmp_path, text)))
    assert case.traces[0].warp_instructions.tolist() == [2]
    assert unpacked(case.traces[0].records)[0][1:] == (15, 0)


def test_both_namings_and_other_lines_of_the_list(tmp_path):
    names = ["kernel-1-ctx_0x6165bdd7ec90.traceg", "kernel-2-ctx_0x6165bdd7ec90.traceg"]
    texts = [kernel([LOAD, EXIT]), kernel([EXIT], kernel_id=2)]
    commands = ("MemcpyHtoD,0x0000000502000000,800000", "MemcpyDtoH,0x0,4", "")
    folder = directory(tmp_path, *texts, names=names, listed="kernelslist_ctx_0x6165bdd7ec90.g", commands=commands)
    counts = [[t.warp_instructions.tolist() for t in trace_case(str(p)).traces] for p in (folder, *folder.glob("*.g"))]
    assert counts == [[[2], [1]]] * 2


@pytest.mark.parametrize(("suffix", "compressed"), [("xz", lzma.compress), ("gz", gzip.compress)])
def test_compressed_is_the_same(tmp_path, suffix, compressed):
    plain = directory(tmp_path, kernel([LOAD, EXIT]))
    before = trace_case(str(plain)).traces[0]
    packed = tmp_path / "packed"
    packed.mkdir()
    directory(packed, "", names=[f"kernel-1.traceg.{suffix}"])
    (packed / f"kernel-1.traceg.{suffix}").write_bytes(compressed((plain / "kernel-1.traceg").read_bytes()))
    after = trace_case(str(packed)).traces[0]
    assert all(np.array_equal(getattr(before, n), getattr(after, n)) for n in ("blocks", "masks", "records"))


@pytest.mark.parametrize(
    ("mask", "written", "sectors"),
    [
        ("ffffffff", "1 0x1000 4 0", 15),
        ("0000000f", "1 0x1000 4 0", 1),
        ("00000003", "0 0x0000000000001000 0x0000000000001020 0", 3),
        ("00000005", "2 0x1000 64 0", 5),  # one difference for two active lanes, then the immediate
        ("00000007", "2 0x1000 32 32 0", 7),
        ("00000001", "2 0x1060 0", 8),  # no difference at all
        ("00000005", "2 0x1000 64", 5),  # no immediate
    ],
)
def test_address_modes(tmp_path, mask, written, sectors):
    _, trace = only(tmp_path, f"00a0 {mask} 1 R4 LDG.E 1 R4 4 {written} ")
    assert unpacked(trace.records) == [(0x1000 >> 7, sectors, 0)]


@given(st.integers(1, (1 << 32) - 1), st.data())
@settings(max_examples=200)
def test_addresses_survive_writing_and_reading(mask, data):
    lanes = [lane for lane in range(32) if mask >> lane & 1]
    if data.draw(st.booleans()):
        addresses = [
            data.draw(st.integers(0, 1 << 40)) + 4 * k * data.draw(st.integers(-1, 1)) + (1 << 41) for k in lanes
        ]
    else:
        addresses = [4096 + 8 * k for k in range(len(lanes))]
    base, offsets = parse_addresses(format_addresses(addresses, lanes) + " 77 ", len(lanes))
    assert (base + offsets[: len(lanes)]).tolist() == addresses


@pytest.mark.parametrize(
    ("opcode", "size"),
    [("LDG.E", 4), ("LDG.E.64", 8), ("LDG.E.128.STRONG.GPU", 16), ("LDG.E.U8", 1), ("LDG.E.S16", 2), ("LDS.U.128", 16)],
)
def test_access_width_is_that_of_the_opcode(tmp_path, opcode, size):
    launch, _ = only(tmp_path, f"00a0 ffffffff 1 R4 {opcode} 1 R2 4 1 0x1000 16 0 ")
    load = launch.program.instructions[0]
    assert load.type == f"b{8 * size}"
    assert [r.name for r in load.writes()] == [f"R{4 + i}" for i in range(max(1, size // 4))]


def test_generic_addresses_go_to_the_space_of_the_header(tmp_path):
    lines = [f"00{a}0 0000000f 1 R4 LD.E 1 R2 4 1 {base:#x} 4 0 " for a, base in ((1, SHARED), (2, LOCAL), (3, 0x2000))]
    launch, trace = only(tmp_path, *lines)
    found = unpacked(trace.records)
    assert found[0] == (SHARED_WINDOW_LINE, 15, 0)
    assert [r[0] for r in found[1:3]] == [LOCAL_WINDOW_LINE, LOCAL_WINDOW_LINE + 1]  # a word: its own line of the warp
    assert found[-1] == (0x2000 >> 7, 1, 0)
    assert kind_of(launch.program.instructions[0], True) == Kind.GLOBAL_LOAD


def test_shared_accesses_count_conflicts(tmp_path):
    lines = ["0010 ffffffff 0 STS 2 R2 R3 4 1 0x0 128 0 ", "0020 00000000 1 R4 LDS 1 R2 4 1 0x0 0 0 "]
    _, trace = only(tmp_path, *lines)
    assert trace.conflicts.tolist() == [32, 0] and not trace.records.size


def test_loads_without_addresses(tmp_path):
    lines = ["0010 ffffffff 1 R4 LDC 1 R2 0 0 ", "0020 ffffffff 1 R5 ULDC 0 0 0 ", "0030 ffffffff 1 R6 TEX 1 R2 0 0 "]
    launch, trace = only(tmp_path, *lines)
    assert unpacked(trace.records) == [(PARAM_WINDOW_LINE, 1, 0), (0, 0, 0)]
    assert [kind_of(i, True) for i in launch.program.instructions[:2]] == [Kind.CONST_LOAD, Kind.ALU]


def test_atomics_repeat_a_line_for_each_lane_on_one_word(tmp_path):
    _, trace = only(tmp_path, "0010 0000000f 0 RED.E.ADD.S32 2 R2 R4 4 1 0x1000 0 0 ")
    assert unpacked(trace.records) == [(32, 1, 1)] * 3 + [(32, 1, 0)]


def test_ldgsts_of_a_raw_trace_counts_once(tmp_path):
    doubled = ["0010 ffffffff 0 LDGSTS.E 2 R2 R4 4 1 0x40 4 0 ", "0010 ffffffff 0 LDGSTS.E 2 R2 R4 4 1 0x1000 4 0 "]
    _, trace = only(tmp_path, *doubled)
    assert trace.warp_instructions.tolist() == [2]
    assert unpacked(trace.records) == [(32, 15, 0)]  # the addresses in global memory


def sequence(trace, program, warp=0):
    """(program counter, mask) of every instruction a warp executed."""
    events = range(trace.block_offsets[warp], trace.block_offsets[warp + 1])
    blocks = [(program.blocks[trace.blocks[e]], int(trace.masks[e])) for e in events]
    return [(program.pcs[i], mask) for block, mask in blocks for i in range(block.start, block.stop)]


def test_blocks_begin_where_any_warp_jumps_or_leaves(tmp_path):
    def go(*pcs):
        return [f"{16 * pc:04x} ffffffff 1 R1 {'BRA' if pc == 2 else 'IADD3'} 1 R1 0 0 " for pc in pcs] + [EXIT]

    warps = [go(0, 1, 2, 3, 4, 5), go(0, 1, 2, 5), go(0, 1, 2, 1, 2, 5), go(0, 1, 2, 3)]
    case = trace_case(str(directory(tmp_path, kernel(*warps, block_dim="(128,1,1)"))))
    trace, program = case.traces[0], case.launches[0].program
    for number, lines in enumerate(warps):
        assert [pc for pc, _ in sequence(trace, program, number)] == [int(line[:4], 16) // 16 for line in lines]
    starts = [program.pcs[b.start] for b in program.blocks]
    assert {0, 1, 3, 4, 5, 15} <= set(starts)


OPCODES = [
    *("IADD3", "FFMA", "LDG.E", "STG.E.64", "LDS", "STS", "ATOMS", "RED", "LDC", "BAR.SYNC", "BRA", "EXIT", "MUFU"),
    *("LD.E", "LDL", "HMMA", "SHFL", "MEMBAR", "LDSM.16.M88.4"),
]
MEMORY = ("LDG", "STG", "LDS", "STS", "ATOMS", "RED", "LD", "LDL", "LDSM")


@st.composite
def warps(draw):
    """Lines of four warps that wander through one random program, by jumps from anywhere to anywhere."""
    count = draw(st.integers(1, 10))
    registers = st.lists(st.integers(0, 255), max_size=4)
    static = draw(
        st.lists(st.tuples(st.sampled_from(OPCODES), registers, st.booleans()), min_size=count, max_size=count)
    )

    def line(pc, mask):
        opcode, sources, result = static[pc]
        text = f"{16 * pc:04x} {mask:08x} {'1 R9' if result else '0'} {opcode} {len(sources)} "
        text += "".join(f"R{n} " for n in sources)
        if opcode.split(".")[0] not in MEMORY:
            return text + "0 0 "
        base = draw(st.sampled_from([0x100, SHARED + 64, LOCAL + 64, 0x7FB000000000]))
        deltas = "".join(f"{draw(st.sampled_from([0, 4, 128]))} " for _ in range(mask.bit_count() - 1))
        return text + f"4 2 {base:#x} {deltas}0 "

    masks = st.sampled_from([0xFFFFFFFF, 0xFFFF, 0x10, 0])
    walks = st.lists(st.integers(0, count - 1) | st.none(), min_size=1, max_size=20)
    found = []
    for walk in draw(st.lists(walks, min_size=4, max_size=4)):
        pcs = [0]
        for step in walk:  # None: go straight on
            pcs.append((pcs[-1] + 1) % count if step is None else step)
        found.append([line(pc, draw(masks)) for pc in pcs])
    return found


@given(warps())
@settings(max_examples=40)
def test_any_walk_through_a_program_comes_back(lines):
    """Blocks put together from the jumps give every warp its own instructions again, and the engine can time them."""
    with tempfile.TemporaryDirectory() as folder:
        blocks = {"0,0,0": lines[:2], "1,0,0": lines[2:]}
        case = trace_case(str(directory(Path(folder), kernel(blocks=blocks, grid_dim="(2,1,1)", block_dim="(64,1,1)"))))
    trace, program = case.traces[0], case.launches[0].program
    for number, warp in enumerate(lines):
        assert [pc for pc, _ in sequence(trace, program, number)] == [int(line[:4], 16) // 16 for line in warp]
        threads = sum(int(line.split()[1], 16).bit_count() for line in warp)
        assert (trace.warp_instructions[number], trace.thread_instructions[number]) == (len(warp), threads)
    assert run(case).totals["cycles"] > 0


def test_a_predicate_does_not_split_a_block_and_joining_lanes_do(tmp_path):
    def line(pc, mask):
        return f"{16 * pc:04x} {mask} 1 R1 IADD3 1 R1 0 0 "

    _, trace = only(tmp_path, line(0, "ffffffff"), line(1, "0000ffff"), line(2, "0000000f"), line(3, "0000ffff"))
    assert [f"{m:08x}" for m in trace.masks] == ["ffffffff", "0000ffff", "ffffffff"]
    assert trace.thread_instructions.tolist() == [32 + 16 + 4 + 16 + 32]


def test_thread_blocks_in_any_order(tmp_path):
    lines = {f"{x},0,0": [[f"00a0 ffffffff 1 R4 LDG.E 1 R4 4 1 {0x1000 + 128 * x:#x} 4 0 ", EXIT]] for x in (2, 0, 1)}
    case = trace_case(str(directory(tmp_path, kernel(blocks=lines, grid_dim="(3,1,1)"))))
    trace = case.traces[0]
    assert trace.thread_blocks.tolist() == [0, 1, 2]
    assert [line for line, _, _ in unpacked(trace.records)] == [32, 33, 34]


def test_memory_does_not_grow_with_the_text(tmp_path):
    """A loop of 60,000 instructions is 3 MB of text and some three hundred runs."""
    import tracemalloc

    body = [f"{16 * pc:04x} ffffffff 1 R{pc % 200} IADD3 3 R1 R2 R3 0 0                " for pc in range(200)]
    folder = directory(tmp_path, kernel([*body * 300, EXIT.replace("00f0", "ffff")]))
    trace_case(str(folder))
    tracemalloc.start()
    trace = trace_case(str(folder)).traces[0]
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert trace.warp_instructions.tolist() == [60_001] and len(trace.blocks) == 301
    assert peak < (folder / "kernel-1.traceg").stat().st_size / 3


def test_same_name_other_code(tmp_path):
    """Two launches of a kernel may have taken other paths: each has a latency table of its own."""
    texts = [kernel([LOAD, EXIT]), kernel(["0010 ffffffff 1 R1 DADD 1 R2 0 0 "] * 1 + [LOAD, EXIT], kernel_id=2)]
    result = run(str(directory(tmp_path, *texts)))
    assert [launch.warp_instructions for launch in result.launches] == [2, 3]
    assert result.launches[1].cycles > result.launches[0].cycles
    assert result.launches[0].registers_source == "trace header"


def test_pages_stay_apart_and_together():
    pages = PageTable()
    addresses = np.array([0x7FB0FC430E00, 0x1000, 0x7FB0FC430E80, 0x7FB0FC230E00, 0x200FFF])
    moved = pages.translate(addresses)
    assert (moved % (2 << 20) == addresses % (2 << 20)).all() and moved.max() < 1 << 33
    assert moved[1] == 0x1000 and moved[4] == 0x200FFF and moved[2] - moved[0] == 0x80
    assert len({int(m) >> 21 for m in moved}) == 4
    assert (pages.translate(addresses) == moved).all()
    with pytest.raises(InputError, match="8 GiB"):
        pages.translate(np.arange(5000) << 21)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("LDG.E", "LDXX.E"), "LDXX.E is not in the table of opcodes"),
        (("insts = 2", "insts = 3"), "not an instruction"),
        (("insts = 2", "insts = 1"), "more instructions than"),
        (("insts = 2", "insts = 0"), "needs instructions"),
        (("insts = 2", "insts = x"), "needs instructions"),
        (("warp = 0", "warp = 1"), "where warp 0 of 1"),
        (("0,0,0", "0,7,0"), "outside the grid"),
        (("0,0,0", "0,0"), "malformed thread block"),
        (("(1,1,1)", "(2,1,1)"), "1 of 2 are not there"),
        (("(1,1,1)", "(1,1)"), "malformed header"),
        (("(32,1,1)", "(64,1,1)"), "after 1 of 2 warps"),
        (("(32,1,1)", "(1025,1,1)"), r"where warp 1 of 33|after 1 of 33"),
        (("-nregs = 16\n", ""), "no line '-nregs"),
        (("-nregs = 16\n", "-nregs = 16\n-nregs = 32\n"), "'-nregs = ...' twice"),
        (("nregs = 16", "nregs = 300"), "nregs = 300"),
        (("version = 5", "version = 9"), "tracer version 9"),
        (("1 0x7fb0fc430e00 4", "3 0x7fb0fc430e00 4"), "address mode 3"),
        (("1 0x7fb0fc430e00 4", "2 0x7fb0fc430e00 4"), "addresses for 32 active lanes"),
        (("1 0x7fb0fc430e00 4", "1 0xzz 4"), "malformed addresses"),
        (("1 0x7fb0fc430e00 4", "1 0xfffffffffffffffffffff 4"), "malformed addresses|out of range"),
        (("1 R4 LDG", "2 R4 LDG"), "says 2 destinations"),
        (("ffffffff 1", "1ffffffff 1"), "not an instruction"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_said_in_one_line_with_its_place(tmp_path, change, message):
    text = kernel([LOAD, EXIT])
    assert change[0] in text
    with pytest.raises(InputError, match=message) as error:
        trace_case(str(directory(tmp_path, text.replace(*change, 1))))
    assert "kernel-1.traceg" in str(error.value) and "\n" not in str(error.value)


def test_lists_and_files_that_cannot_be_used(tmp_path):
    folder = directory(tmp_path, kernel([LOAD, EXIT]))
    (folder / "kernel-1.traceg").rename(folder / "kernel-1.other")
    with pytest.raises(InputError, match=r"kernel-1\.traceg, which is not there"):
        trace_case(str(folder))
    (folder / "kernelslist.g").write_text("MemcpyHtoD,0x0,4\n")
    with pytest.raises(InputError, match="names no kernels"):
        trace_case(str(folder))
    (folder / "kernelslist.g").unlink()
    for name in ("kernelslist_a.g", "kernelslist_b.g"):
        (folder / name).write_text("kernel-1.traceg\n")
    with pytest.raises(InputError, match="several lists"):
        trace_case(str(folder))


def test_kernels_of_a_list_written_by_hand(tmp_path):
    """A line that did not begin with `kernel` was passed over: launches were missing without a word."""
    folder = directory(tmp_path, kernel([LOAD, EXIT]))
    (folder / "kernelslist.g").write_text(
        "# kernel-7.traceg\n  kernel-1.traceg\r\n./kernel-1.traceg\nkernel-1.traceg\n"
    )
    assert len(trace_case(str(folder)).launches) == 3


@pytest.mark.parametrize(("suffix", "compressed"), [("xz", lzma.compress), ("gz", gzip.compress)])
def test_damaged_compression(tmp_path, suffix, compressed):
    folder = directory(tmp_path, "", names=[f"kernel-1.traceg.{suffix}"])
    whole = compressed(kernel([LOAD] * 1 + [EXIT]).encode())
    for damaged in (whole[: len(whole) // 2], whole[:30] + b"damaged" + whole[30:], b"not compressed", b""):
        (folder / f"kernel-1.traceg.{suffix}").write_bytes(damaged)
        with pytest.raises(InputError, match=r"damaged|header"):
            trace_case(str(folder))


def test_mutated_traces_are_refused_or_read(tmp_path):
    """Random damage never ends in anything but an InputError."""
    text = kernel(
        [LOAD, "00b0 0000000f 0 STS 2 R2 R3 4 2 0x0 4 4 8 0 ", "00c0 ffffffff 1 R4 LDG.E 1 R4 4 1 0x10 4 0 ", EXIT]
    )
    dice, refused = random.Random(1), 0
    for _ in range(400):
        damaged = list(text)
        for _ in range(dice.randint(1, 3)):
            at = dice.randrange(len(damaged))
            damaged[at : at + dice.randint(0, 2)] = dice.choice(["", "0", "f", " ", "\n", "-", "=", "R", "x", "9" * 12])
        try:
            trace_case(str(directory(tmp_path, "".join(damaged))))
        except InputError:
            refused += 1
    assert 100 < refused < 400


def test_every_group_of_the_table_is_an_operation_with_a_class():
    from functional.accelsim.static_code import StaticInstruction
    from precharacterize.classify import latency_class

    known = {"add", "max", "mul", "mad", "div"}
    for opcode, operation in opcodes().operations.items():
        instruction = StaticInstruction(0, opcode, operation, (4,), (5, 6)).instruction(0)
        family = latency_class(instruction).partition("_")[2] or latency_class(instruction)
        assert family in known | {"sfu", "shfl", "tensor", "other"}, opcode
        assert kind_of(instruction, True) in set(Kind)


def test_table_covers_what_accel_sim_knows_of_ampere():
    """The opcodes of Accel-Sim's Ampere map that NVBit traces of compute kernels hold."""
    common = (
        "FADD FFMA FMUL FMNMX FSETP FSEL MUFU HFMA2 HMMA IMMA DADD DFMA DMUL DSETP IADD3 IMAD IMNMX ISETP LEA LOP3 SHF"
    )
    common += (
        " POPC FLO I2F F2I F2F MOV PRMT SEL SHFL PLOP3 P2R R2P LD LDC LDG LDL LDS LDSM ST STG STL STS ATOM ATOMS ATOMG"
    )
    common += (
        " RED CCTL MEMBAR LDGDEPBAR LDGSTS R2UR S2UR UIADD3 UIMAD UISETP ULDC ULEA ULOP3 UMOV USEL USHF BMOV BRA BRX"
    )
    common += " BSSY BSYNC CALL EXIT RET WARPSYNC YIELD BAR CS2R DEPBAR NOP S2R VOTE TEX"
    assert [o for o in common.split() if o not in opcodes().operations] == []


def test_a_target_that_is_no_trace(tmp_path):
    with pytest.raises(InputError, match="no complete trace store"):
        run(str(Path(tmp_path)))
