"""PTX texts that were compiled apart, as one."""

from __future__ import annotations

import numpy as np
import pytest
from both_executors import run

from functional.errors import InputError
from functional.ptx.joined_parts import joined_parts
from functional.ptx.parser import parse_bytes
from functional.ptx.source import source_lines

HEAD = ".version {}\n.target {}\n.address_size 64\n"
MAIN = """.file 1 "main.cu"
.extern .func (.param .b32 r) twice(.param .b32 x);
.extern .global .align 4 .b8 table[];
.extern .shared .align 16 .b8 room[];
.global .align 4 .b8 text[4] = {1, 0, 0, 0};  // "text" is nobody else's
.visible .entry k(.param .u64 o) .maxntid 32 { .reg .b64 %d<3>; .reg .b32 %r<6>; ld.param.u64 %d1, [o];
.loc 1 7 0
 ld.global.u32 %r1, [text]; ld.global.u32 %r2, [table+4]; add.u32 %r1, %r1, %r2;
 { .param .b32 x; .param .b32 r; st.param.b32 [x], %r1; call (r), twice, (x); ld.param.b32 %r3, [r]; }
 st.global.u32 [%d1], %r3; ret; }
"""
OTHER = """.file 1 "other.cu"
.extern .shared .align 16 .b8 room[];
.global .align 4 .b8 text[4] = {100, 0, 0, 0};
.visible .global .align 4 .u32 table[2] = {0, 20};
.weak .func (.param .b32 r) same() { st.param.b32 [r], 1; ret; }
.visible .func (.param .b32 r) twice(.param .b32 x) { .reg .b32 %r<4>; ld.param.b32 %r1, [x];
.loc 1 9 0
 add.u32 %r1, %r1, %r1; ld.global.u32 %r2, [text]; add.u32 %r1, %r1, %r2; st.param.b32 [r], %r1; ret; }
"""


def parts(*texts, targets=("sm_80", "sm_75", "sm_80")):
    return [HEAD.format(f"8.{n}", target) + text for n, (text, target) in enumerate(zip(texts, targets, strict=False))]


def test_each_part_keeps_what_is_its_own():
    joined = joined_parts(parts(MAIN, OTHER))
    head, _, body = joined.partition(".address_size 64\n")
    assert head == ".version 8.1\n.target sm_80\n"
    found, _ = run(body, {"o": np.zeros(1, np.uint32)}, block=1)
    assert found["o"][0] == 2 * (1 + 20) + 100
    assert {line.file: line.line for line in source_lines(joined).values()} == {"main.cu": 7, "other.cu": 9}
    assert joined.count(".extern") == 1  # the room that a launch gives


def test_a_single_text_is_left_alone():
    assert joined_parts(parts(MAIN)) == parts(MAIN)[0]


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (".visible .entry k() { ret; }", "two parts of the program define 'k'"),
        (".entry k() { ret; }", "have a kernel 'k'"),
        (".visible .global .u32 table; .visible .global .u32 table;", "define 'table'"),
    ],
)
def test_what_two_parts_define(other, message):
    with pytest.raises(InputError, match=message):
        joined_parts(parts(MAIN, OTHER, other))


def test_of_the_library_only_what_is_reached():
    """What CUDA adds for kernels that launch kernels is for its newest GPU, and long."""
    library = """.extern .func (.param .b32 r) system(.param .b64 p);
.global .u32 unused;
.global .u32 used;
.entry never() { ret; }
.entry inner() { .reg .b32 %r; ld.global.u32 %r, [used]; ret; }
.visible .func (.param .b32 r) __cudaCDP2LaunchDeviceV2(.param .b64 p) { .reg .b64 %d; mov.u64 %d, inner; ret; }
"""
    user = ".extern .func (.param .b32 r) __cudaCDP2LaunchDeviceV2(.param .b64 p);\n.entry k() { .param .b64 p;\n"
    user += " .param .b32 r; call (r), __cudaCDP2LaunchDeviceV2, (p); ret; }\n"
    joined = joined_parts(parts(user, library, targets=("sm_80", "sm_121")))
    module = parse_bytes(joined.encode(), "joined.ptx")
    assert module.target == "sm_80" and [v.name for v in module.variables] == ["used"]
    assert set(module.kernels) == {"k", "inner", "__cudaCDP2LaunchDeviceV2"}


def test_addresses_of_different_sizes():
    with pytest.raises(InputError, match="different sizes"):
        joined_parts([MAIN, HEAD.format("8.0", "sm_80").replace("64", "32")])
