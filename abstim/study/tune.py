"""Variants of a kernel, compiled with other definitions or launched in another shape, side by side on a GPU.

found = tune(Space("conv.cu", ["tile=1,2,4"], grid="ceil(4096 / tile), 64", block="64"), "a100")
found.best()[0].values"""

import ast
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, product
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from abstim.brief import Told
from abstim.gpu.config import Gpu, gpu_of, nearest
from abstim.models import DETAILED, model_named, run
from abstim.progress import Progress, silent
from abstim.study.explore.expressions import Expression
from abstim.study.explore.points import expand
from abstim.study.explore.result import save_table
from abstim.study.sample.automatic import Aim
from abstim.study.sample.sampler import sample
from abstim.targets.resolve import ptx_case
from functional.errors import InputError, refuse
from functional.files import read_text
from functional.launches.case import Case

FORMULA = "analytic"
STRATEGIES = ("grid", "random", "multi-fidelity")
MOST_VARIANTS = 100_000
_BRACES = re.compile(r"\{([^{}]*)\}")  # an expression in an argument
Values = Mapping[str, Any]


class Space:
    """A kernel's source, what is varied of it, and how a variant is launched: texts as `abstim tune` takes them, in
    which the names that are varied stand for their values. Raises InputError for a text that cannot be read."""

    def __init__(
        self, source: str, vary: Sequence[str], constraints: Sequence[str] = (), *, grid: str, block: str,
        kernel: str = "", arguments: Sequence[str] = (), dynamic_shared: str = "0",
    ) -> None:  # fmt: skip
        self.source, self.kernel, self.arguments = source, kernel, arguments
        if not source.lower().endswith((".cu", ".ptx")):
            raise InputError(f"{source}: variants are of a .cu file, or, in their launch alone, of a .ptx file")
        self.axes = dict(map(_axis, vary))
        if not self.axes or len(self.axes) < len(vary):
            raise InputError("give every name that is varied once, as in --vary block_size=64,128,256")
        if (count := prod(map(len, self.axes.values()))) > MOST_VARIANTS:
            raise InputError(f"{count:,} combinations of the varied values; {MOST_VARIANTS:,} is the most")
        self.constraints = [Expression(text, f"--constraint {text}") for text in constraints]
        self.extents = {option: _extents(option, text) for option, text in (("--grid", grid), ("--block", block))}
        self.dynamic_shared = Expression(dynamic_shared, f"--dynamic-shared {dynamic_shared}")
        inside = [Expression(part, f"--arg {{{part}}}") for text in arguments for part in _BRACES.findall(text)]
        named = set[str]().union(*(e.names for e in [*chain(*self.extents.values()), self.dynamic_shared, *inside]))
        self.is_compiled = source.lower().endswith(".cu")  # for each variant
        idle = {name for name in self.axes.keys() - named if not self._may_use(name)}
        refuse(idle, f"--vary {min(idle, default='')}: neither the launch nor {source} names it")

    def _may_use(self, macro: str) -> bool:
        """Can a macro change what is compiled? Whoever includes files of his own may use it there."""
        if not self.is_compiled:
            return False
        try:
            text = read_text(Path(self.source))
        except (OSError, UnicodeDecodeError):  # said where it is compiled
            return True
        return re.search(rf'\b{macro}\b|#\s*include\s*"', text) is not None

    def variants(self) -> list[Values]:
        """Those that keep all constraints, the last name's values running fastest. Raises InputError if none does."""
        every: list[Values] = [dict(zip(self.axes, own, strict=True)) for own in product(*self.axes.values())]
        kept = [values for values in every if all(rule(_lookup(values)) for rule in self.constraints)]
        refuse(not kept, f"none of {len(every):,} variants keeps every --constraint")
        return kept

    def case(self, values: Values) -> Case:
        """A variant's launch. Raises InputError for one that cannot be compiled or launched."""
        shape = {option: [_whole(part, values) for part in parts] for option, parts in self.extents.items()}

        def filled(part: re.Match[str]) -> str:  # an expression in braces
            return f"{float(Expression(part[1], f'--arg {part[0]}')(_lookup(values))):.17g}"

        arguments = [_BRACES.sub(filled, text) for text in self.arguments]
        shared = _whole(self.dynamic_shared, values)
        defined = values if self.is_compiled else {}
        return ptx_case(self.source, self.kernel, shape["--grid"], shape["--block"], arguments, shared, defined)


def _axis(text: str) -> tuple[str, tuple[Any, ...]]:
    name, _, values = (part.strip() for part in text.partition("="))
    where = f"--vary {text}"
    if not name.isidentifier() or not values:
        raise InputError(f"{where}: write it as name=values, as in tile=1,2,4 or block_size=32:256:32")
    return name, tuple(dict.fromkeys([value for part in values.split(",") for value in expand(part.strip(), where)]))


def _extents(option: str, text: str) -> list[Expression]:
    """`64`, `64x64`, or up to three expressions: `ceil(n / tile), 16`."""
    plain = text.replace("x", ",") if re.fullmatch(r"[\dx\s]+", text) else text
    try:
        node = ast.parse(plain.strip(), mode="eval").body
    except SyntaxError:
        raise InputError(f"{option} {text}: write one to three expressions, as in ceil(4096 / tile), 16") from None
    parts = node.elts if isinstance(node, ast.Tuple) else [node]
    refuse(not 1 <= len(parts) <= 3, f"{option} {text}: write one to three expressions, not {len(parts)}")
    return [Expression(ast.unparse(part), f"{option} {text}") for part in parts]


def _lookup(values: Values) -> Callable[[str], Any]:
    def value(name: str) -> Any:
        if name not in values:
            raise InputError(f"unknown name {name!r}{nearest(name, values)}")
        return np.asarray(values[name])

    return value


def _whole(expression: Expression, values: Values) -> int:
    found = float(expression(_lookup(values)))
    refuse(not found.is_integer(), f"{expression.where}: is {found:g}; round it, as in ceil(n / tile)")
    return int(found)


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """A variant's time, or the `reason` why it has none. `half_width`: of its 95 % interval, a share of the cycles,
    where it is an estimate; `screened_seconds`: what the formula said."""

    values: Values
    cycles: int | None = None
    seconds: float | None = None
    half_width: float | None = None
    screened_seconds: float | None = None
    blocks_per_sm: int | None = None
    registers: int | None = None
    limit: str = ""
    reason: str = ""


@dataclass(frozen=True, kw_only=True, repr=False)
class Tuning(Told):
    """What `tune` found. `candidates`: variants that keep the constraints."""

    kind = "tune"
    source: str
    gpu: str
    memory_model: str
    model: str
    candidates: int
    known_error: str
    notes: tuple[str, ...]
    variants: list[Variant]
    interrupted: bool

    def best(self) -> list[Variant]:
        """Variants that were timed, the quickest first."""
        return sorted((one for one in self.variants if one.cycles), key=lambda one: one.cycles or 0)

    def columns(self) -> dict[str, np.ndarray]:
        """A value a variant: of what is varied, then of what was found; NaN where there is nothing."""
        names = self.variants[0].values if self.variants else {}
        found = {name: np.array([one.values[name] for one in self.variants]) for name in names}
        for name in ("cycles", "seconds", "half_width", "screened_seconds", "blocks_per_sm", "registers"):
            found[name] = np.array([getattr(one, name) for one in self.variants], float)
        for name in ("limit", "reason"):
            found[name] = np.array([getattr(one, name) for one in self.variants], object)
        return found

    def save(self, path: Path) -> None:
        """Write the columns as .csv, .json or .parquet. Raises InputError if the file cannot be written."""
        save_table(path, self.columns(), ("cycles", "blocks_per_sm", "registers"))


def tune(
    space: Space, gpu: str | Gpu = "gtx480", *, model: str = DETAILED, strategy: str = "grid", count: int | None = None,
    seed: int = 0, aim: Aim | None = None, progress: Progress = silent,
) -> Tuning:  # fmt: skip
    """Every variant of a space on a GPU, or `count` of them: drawn (`random`), or those that the formula finds quickest
    (`multi-fidelity`). `aim`: estimate each from a sample of its thread blocks. A variant that cannot be compiled or
    launched has a reason in place of a time. Raises InputError where all have one, and for what the model cannot do."""
    point, variants = gpu_of(gpu), [Variant(values=values) for values in space.variants()]
    refuse(strategy not in STRATEGIES, f"no strategy {strategy!r}{nearest(strategy, STRATEGIES)}")
    refuse(seed < 0, f"seed {seed} is below 0")
    refuse(aim and model != DETAILED, f"the {model} model times whole launches; leave out --error")
    model_named(model).refuse([point], "all")
    candidates = len(variants)
    if strategy == "random":
        drawn = np.random.default_rng(seed).permutation(candidates)[:count]
        variants = [variants[k] for k in sorted(drawn.tolist())]
    elif strategy == "multi-fidelity":
        screened = []
        for one in _told(variants, "variants by the formula", progress):
            try:
                seconds = run(space.case(one.values), point, model=FORMULA).totals["seconds"]
                screened.append(replace(one, screened_seconds=seconds))
            except InputError as error:
                screened.append(replace(one, reason=str(error)))
        ranked = sorted(screened, key=lambda one: one.screened_seconds or np.inf)
        variants = ranked[: count or max(1, candidates // 10)]
    found, known_error, notes, interrupted = list[Variant](), "", dict[str, None](), False
    try:
        for one in _told(variants, "variants timed", progress):
            timed, said, noted = _timed(space, one, point, model, aim)
            found.append(timed)
            known_error = said or known_error
            notes |= dict.fromkeys(filter(None, noted))
    except KeyboardInterrupt:
        interrupted = True
    if not interrupted and not any(one.cycles for one in found):
        raise InputError(f"none of {len(found):,} variants could be timed; the first: {found[0].reason}")
    gpu_said = {"gpu": point.name, "memory_model": point.memory_model, "known_error": known_error}
    return Tuning(
        source=space.source, model=model, candidates=candidates, notes=tuple(notes), variants=found,
        interrupted=interrupted, **gpu_said,
    )  # fmt: skip


def _told(variants: Sequence[Variant], what: str, progress: Progress) -> Iterator[Variant]:
    for done, one in enumerate(variants):
        progress(what, done, len(variants))
        yield one


def _timed(space: Space, variant: Variant, gpu: Gpu, model: str, aim: Aim | None) -> tuple[Variant, str, Sequence[str]]:
    """The variant with its time, or the reason why it has none; what is known of the error, and notes."""
    if variant.reason:
        return variant, "", ()
    try:
        case = space.case(variant.values)
        if aim is not None:
            sampled = sample(case, gpu, aim=aim)
            cycles, half = round(sampled.estimate.total), sampled.estimate.relative_half_width
            timed = replace(variant, cycles=cycles, seconds=cycles / gpu.spec.core_clock_hz, half_width=half)
            return timed, sampled.known_error, sampled.notes
        result = run(case, gpu, model=model)
    except InputError as error:
        return replace(variant, reason=str(error)), "", ()
    launch = result.launches[0]
    timed = replace(
        variant, cycles=launch.cycles, seconds=launch.seconds, blocks_per_sm=launch.blocks_per_sm,
        registers=launch.registers_per_thread, limit=result.limit,
    )  # fmt: skip
    return timed, result.known_error, [result.note]
