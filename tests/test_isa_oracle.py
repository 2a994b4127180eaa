"""Both executors against PTX by definition (tests/oracle/isa.py), one random kernel of many instructions at a time."""

from __future__ import annotations

import math

import numpy as np
import pytest
from both_executors import run
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from nightly import of
from oracle.isa import FLOATS, INTEGERS, Form, pattern, value, width

LANES, OPERANDS, PER_KERNEL = 32, 4, 80
NANS = {"f16": 0x7FFF, "bf16": 0x7FFF, "f32": 0x7FFFFFFF, "f64": (1 << 63) - 1}
_FLOATS = tuple(NANS)


def kept(type_: str) -> str:
    """The register type that holds an operand; an 8-bit result is in 16 bits."""
    return f"b{max(16, width(type_))}"


def kernel(forms: list[Form]) -> str:
    """Lane l applies every form to operands 64 bits wide of row l, and leaves 64 bits a form."""
    lines = ["mov.u32 %r0, %tid.x;", f"mad.wide.u32 %rd0, %r0, {8 * OPERANDS}, %rd0;",
             f"mad.wide.u32 %rd1, %r0, {8 * len(forms)}, %rd1;"]  # fmt: skip
    for i in range(OPERANDS):
        lines.append(f"ld.global.u64 %x64_{i}, [%rd0+{8 * i}]; cvt.u32.u64 %x32_{i}, %x64_{i};")
        lines.append(f"cvt.u16.u64 %x16_{i}, %x64_{i};")
    for n, form in enumerate(forms):
        given_ = ", ".join(f"%x{kept(t)[1:]}_{i}" for i, t in enumerate(form.sources))
        if form.result == "pred":
            lines.append(f"{form.text} %p1, {given_}{form.more}; selp.u64 %o, 1, 0, %p1;")
        else:
            wide = kept(form.result)[1:]
            lines.append(f"{form.text} %y{wide}, {given_}{form.more};")
            if form.result in _FLOATS:  # payloads of NaNs are not specified
                lines.append(f"setp.nan.{form.result} %p1, %y{wide}, %y{wide};")
                lines.append(f"selp.b{wide} %y{wide}, {NANS[form.result]}, %y{wide}, %p1;")
            lines.append(f"mov.b64 %o, %y{wide};" if wide == "64" else f"cvt.u64.u{wide} %o, %y{wide};")
        lines.append(f"st.global.u64 [%rd1+{8 * n}], %o;")
    registers = "".join(f".reg .b{b} %x{b}_<{OPERANDS}>, %y{b};" for b in (16, 32, 64))
    registers += ".reg .b32 %r<2>; .reg .b64 %rd<2>, %o; .reg .pred %p<2>;"
    head = f".entry k(.param .u64 i, .param .u64 o) {{ {registers}"
    return "\n".join([head, "ld.param.u64 %rd0, [i]; ld.param.u64 %rd1, [o];", *lines, "ret; }"])


def expected(form: Form, operands: list[int]) -> int | None:
    """The pattern of the result; None for a NaN, whose payload is not specified."""
    result = form.give(*(x & ((1 << width(t)) - 1) for x, t in zip(operands, form.sources, strict=False)))
    if form.result in _FLOATS:
        return None if math.isnan(result) else pattern(result, form.result)
    return int(result) & 1 if form.result == "pred" else int(result) & ((1 << width(form.result)) - 1)


def check(forms: list[Form], words: np.ndarray) -> None:
    """Both executors agree (`run` sees to it), and with the definition."""
    buffers = {"i": words.reshape(-1), "o": np.zeros(LANES * len(forms), np.uint64)}
    found = run(kernel(forms), buffers)[0]["o"].reshape(LANES, len(forms))
    for lane in range(LANES):
        operands = [int(x) for x in words[lane]]
        for form, got in zip(forms, found[lane].tolist(), strict=True):
            want, bits = expected(form, operands), 1 if form.result == "pred" else width(form.result)
            got &= (1 << bits) - 1
            shown = f"{form.text} of {[hex(x) for x in operands]}: {got:#x}, not {want if want is None else hex(want)}"
            if want is None:
                assert math.isnan(value(got, form.result)), shown
            else:
                assert got == want, shown


_EDGES = [0, 1, 2, 31, 32, 33, 63, 64, 255, 2**15, 2**16 - 1, 2**31 - 1, 2**31, 2**32 - 1, 2**63, 2**64 - 1]
_WORDS = st.one_of(st.integers(0, 2**64 - 1), st.integers(0, 70), st.sampled_from(_EDGES))
_SETTINGS = settings(
    max_examples=of(4, 16),
    phases=(Phase.explicit, Phase.generate),
    deadline=None,
    derandomize=True,
    suppress_health_check=list(HealthCheck),
)


def rows(words: st.SearchStrategy[int]) -> st.SearchStrategy[np.ndarray]:
    """Operands [lane, operand]."""
    flat = st.lists(words, min_size=LANES * OPERANDS, max_size=LANES * OPERANDS)
    return flat.map(lambda found: np.array(found, np.uint64).reshape(LANES, OPERANDS))


def groups(forms: list[Form]) -> list[list[Form]]:
    """As many as one kernel takes."""
    return [forms[i : i + PER_KERNEL] for i in range(0, len(forms), PER_KERNEL)]


@pytest.mark.parametrize("forms", groups(INTEGERS), ids=lambda forms: forms[0].text)
def test_integers(forms: list[Form]) -> None:
    @_SETTINGS
    @given(rows(_WORDS))
    def compare(words: np.ndarray) -> None:
        check(forms, words)

    compare()


def _float_words(type_: str, moderate: bool) -> st.SearchStrategy[int]:
    """Patterns of a type: near powers of two, small integers; unless `moderate`, any, tiny and special ones, too."""
    wide = type_ in ("f32", "f64")
    near = st.builds(lambda m, e: pattern(m * 2.0**e if wide else float(m % 64), type_),
                     st.integers(-4096, 4096), st.integers(-40, 40))  # fmt: skip
    if moderate:
        return near
    special = st.sampled_from([0.0, -0.0, 1.0, -1.0, 0.5, 1.5, math.inf, -math.inf, math.nan])
    anything = st.integers(0, (1 << width(type_)) - 1)
    return st.one_of(anything, near, special.map(lambda x: pattern(x, type_)), st.integers(1, 300))


def _by_sources() -> list[tuple[str, bool, list[Form]]]:
    """(type, are operands moderate?, forms): errors of float64 products are known exactly away from the ends alone."""
    found: dict[tuple[str, bool, bool], list[Form]] = {}
    for form in FLOATS:
        name, mode, *_ = form.text.split(".")
        directed = form.sources[0] == "f64" and mode in ("rz", "rm", "rp") and name in ("mul", "div", "sqrt", "rcp")
        by_numpy = form.result == "f64" and name == "fma" and mode != "rn"
        found.setdefault((form.sources[0], directed, by_numpy), []).append(form)
    return [(type_, moderate, group) for (type_, moderate, _), forms in found.items() for group in groups(forms)]


@pytest.mark.parametrize(
    ("type_", "moderate", "forms"), _by_sources(), ids=lambda v: v[0].text if isinstance(v, list) else ""
)
def test_floats(type_: str, moderate: bool, forms: list[Form]) -> None:
    @_SETTINGS
    @given(rows(_float_words(type_, moderate) if type_ in _FLOATS else _WORDS))
    def compare(words: np.ndarray) -> None:
        check(forms, words)

    compare()
