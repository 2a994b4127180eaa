"""Options of commands: those that several share, groups declared once as a dataclass, and refusals of idle ones."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import MISSING, Field, dataclass, field, fields, is_dataclass
from functools import partial
from inspect import Parameter, Signature, cleandoc, signature
from typing import TYPE_CHECKING, Annotated, Any, get_origin, get_type_hints

import typer

from functional.errors import InputError, refuse

if TYPE_CHECKING:
    from abstim.gpu.config import Gpu
    from functional.launches.case import Case


_GPU = "A GPU's name (`abstim gpus`) or TOML file"
GpuNames = Annotated[list[str], typer.Option("--gpu", metavar="GPU", help=f"{_GPU}; several are compared.")]
GpuName = Annotated[str, typer.Option("--gpu", metavar="GPU", help=f"{_GPU}.")]
_SET = "Change a value of the GPU (keys: `abstim gpus gtx480`); repeatable."
Overrides = Annotated[list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help=_SET)]
_TIMED = "What is timed. Default: what the GPU's description says, or PTX if there is no machine code."
TimedCode = Annotated[str, typer.Option("--timed-code", metavar="ptx|machine", help=_TIMED)]
_BUDGET = "Thread instructions after which a launch counts as endless; else 2^26 a thread."
InstructionBudget = Annotated[int | None, typer.Option(min=1, max=1 << 62, metavar="COUNT", help=_BUDGET)]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")]
_MODELS = "Every stage of the GPU, what warps wait for (quicker), or a formula (quickest)."
Model = Annotated[str, typer.Option(metavar="detailed|occupancy|analytic", help=_MODELS)]


@dataclass(kw_only=True)
class LaunchOptions:
    """The launch of a target.

    A .ptx or .cu target:
    --kernel  Entry to launch, if there are several.
    --grid  Thread blocks: `64`, `64x64`, `8,8,8`.
    --block  Threads a block, likewise.
    --arg ARG  The next argument: `5`, `0.5`, `u32:7`, `npy:data.npy`, `buf:f32:1024` (zeros), `buf:f32:1024:random`,
        `struct(f32:1,f32:2)`; repeatable.
    --dynamic-shared BYTES  Dynamic shared memory a block."""

    kernel: str = ""
    grid: str = ""
    block: str = ""
    arg: list[str] | None = None
    dynamic_shared: int = 0

    def of(self, target: str) -> Callable[[], Case]:
        """A target with this launch, opened when it is asked for (`resolve`)."""
        from abstim.targets.resolve import resolve

        said: dict[str, Any] = {"kernel": self.kernel, "grid": self.grid, "block": self.block, "sizes": self.sizes()}
        return partial(resolve, target, **said, arguments=self.arg or (), dynamic_shared_bytes=self.dynamic_shared)

    def sizes(self) -> dict[str, int]:
        """Those of a language model that were given."""
        return {}


@dataclass(kw_only=True)
class SizedLaunchOptions(LaunchOptions):
    """The same, or a language model's sizes (`workloads.SIZED`).

    gpt and llama:
    --prompt N  Tokens that are known at the start (16).
    --steps N  Tokens after these, one at a time (64).
    --batch N  Sequences at once, 1 to 8 (1)."""

    prompt: int | None = None
    steps: int | None = None
    batch: int | None = None

    def sizes(self) -> dict[str, int]:
        """Those that were given."""
        sizes = {"prompt": self.prompt, "steps": self.steps, "batch": self.batch}
        return {name: size for name, size in sizes.items() if size is not None}


@dataclass(kw_only=True)
class GpuOptions:
    """One GPU, with values changed."""

    gpu: GpuName = "gtx480"
    overrides: Overrides = None

    def load(self) -> Gpu:
        """Raises InputError for an unknown GPU, key or value."""
        from abstim.gpu.config import load_gpu

        return load_gpu(self.gpu, self.overrides or (), getattr(self, "timed_code", ""))


@dataclass(kw_only=True)
class TimedGpuOptions(GpuOptions):
    """One GPU that launches are timed on."""

    timed_code: TimedCode = ""


@dataclass(kw_only=True)
class GpusOptions:
    """GPUs side by side, with the same values changed."""

    gpu: GpuNames = field(default_factory=lambda: ["gtx480"])
    overrides: Overrides = None
    timed_code: TimedCode = ""

    def load(self) -> list[Gpu]:
        """Raises InputError for an unknown GPU, key or value, and for a GPU given twice."""
        from abstim.gpu.config import load_gpu

        if twice := [name for name in self.gpu if self.gpu.count(name) > 1]:
            raise InputError(f"--gpu {twice[0]}: given twice")
        return [load_gpu(name, self.overrides or (), self.timed_code) for name in self.gpu]


def refuse_options(why: str, **given: object) -> None:
    """Raises InputError for options that were given and would have no effect; a default is falsy."""
    refuse(named := [_flag(name) for name, value in given.items() if value], f"{', '.join(named)}: no effect {why}")


def refuse_marked(options: Any, mark: str, so: bool, why: str) -> None:
    """Raises InputError, if it is so, for an option given whose field bears a mark."""
    hints = get_type_hints(type(options), include_extras=True)
    marked = [name for name in given_options(options) if mark in getattr(hints[name], "__metadata__", ())]
    if so and marked:
        raise InputError(f"{_flag(marked[0])} is {mark}{why}")


def expanded(command: Callable[..., None]) -> Callable[..., None]:
    """A command whose parameters that are dataclasses have become one option a field, in the fields' order. What an
    option or argument is for stands in the docstring of its class, or of the command; a line of a class that ends in a
    colon is the heading of those below it. A line that begins with a command, as examples do, is shown by itself.

    @dataclass
    class Sizes:
        \"\"\"Of the picture.

        --width PIXELS  How many there are in a row,
            at least one.
        \"\"\"

        width: int = 640

    @expanded
    def show(name: str, sizes: Sizes, as_json: Json = False) -> None:
        \"\"\"Show a picture.

        NAME  Of the file.
        \"\"\"
    """
    groups: dict[str, type] = {}
    parameters: list[Parameter] = []
    said = _Said(command.__doc__)
    hints = get_type_hints(command, include_extras=True)
    for name, own in signature(command).parameters.items():
        kind = hints[name]
        if is_dataclass(kind) and isinstance(kind, type):
            groups[name] = kind
            types, shown = get_type_hints(kind, include_extras=True), _options_said(kind)
            parameters += [_parameter(f.name, types[f.name], shown.get(f.name), _default_of(f)) for f in fields(kind)]
        else:
            is_argument = get_origin(kind) is not Annotated and name not in said.options
            shown_as = said.arguments.pop(0) if is_argument else said.options.get(name)
            parameters.append(_parameter(name, kind, shown_as, own.default))

    def run(**given: Any) -> None:
        made = {name: kind(**{f.name: given.pop(f.name) for f in fields(kind)}) for name, kind in groups.items()}
        command(**made, **given)

    run.__name__, run.__doc__, run.__module__ = command.__name__, said.rest, command.__module__
    run.__signature__ = Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return run


def _parameter(name: str, kind: Any, shown: Any, default: Any) -> Parameter:
    annotation = Annotated[kind, shown] if shown else kind
    return Parameter(name, Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


_OPTION = re.compile(r"((?:-\w, )?--([\w-]+)(?:, -\w)?)(?: (\S+))?  (\S.*)")
_ARGUMENT = re.compile(r"([A-Z\[][A-Z\[\] .]*)  (\S.*)")


class _Said:
    """What a docstring tells of: options by the name of their field, arguments in order, and the rest of it."""

    def __init__(self, docstring: str | None) -> None:
        self.options: dict[str, Any] = {}
        self.arguments: list[Any] = []
        rest, panel, latest = list[str](), None, None
        for line in cleandoc(docstring or "").splitlines():
            if said := _OPTION.fullmatch(line):
                flags, name, metavar, text = said.groups()
                latest = typer.Option(*flags.split(", "), metavar=metavar, help=text, rich_help_panel=panel)
                self.options[name.replace("-", "_")] = latest
            elif said := _ARGUMENT.fullmatch(line):
                latest = typer.Argument(metavar=said[1], help=said[2])
                self.arguments.append(latest)
            elif line.startswith("    ") and latest is not None:
                latest.help = f"{latest.help} {line.strip()}"
            else:
                panel, latest = line[:-1] if line.endswith(":") else None, None
                rest.append(line)
        self.rest = re.sub(r"\n{3,}", "\n\n", "\n".join(rest).replace("\n`abstim ", "\n\n`abstim "))


def _options_said(kind: type) -> dict[str, Any]:
    classes = reversed(kind.__mro__)
    return {name: option for base in classes for name, option in _Said(base.__dict__.get("__doc__")).options.items()}


def _default_of(own: Field[Any]) -> Any:
    if own.default_factory is not MISSING:
        return own.default_factory()
    return Parameter.empty if own.default is MISSING else own.default


def given_options(options: Any) -> dict[str, Any]:
    """Fields whose value is neither the default nor empty, by name."""
    values = ((own, getattr(options, own.name)) for own in fields(options))
    return {own.name: value for own, value in values if value and value != _default_of(own)}


def flags_of(*kinds: type) -> frozenset[str]:
    """The options that the fields of dataclasses are."""
    return frozenset(_flag(own.name) for kind in kinds for own in fields(kind))


def _flag(name: str) -> str:
    return "--set" if name == "overrides" else "--" + name.replace("_", "-")
