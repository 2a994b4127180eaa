"""Options of a command declared once, as the fields of a dataclass, with what refuses them beside the field."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import MISSING, dataclass, fields, is_dataclass
from inspect import Parameter, Signature, signature
from typing import Annotated, Any, get_args, get_origin, get_type_hints

from abstim.cli.options import refuse_options


@dataclass(frozen=True)
class NoEffect:
    """In a field's `Annotated`: the option does nothing where the option `beside` is given, or `without` is not."""

    beside: str = ""
    without: str = ""


def expanded(command: Callable[..., None]) -> Callable[..., None]:
    """A command whose parameters that are dataclasses have become one option a field, in the fields' order.

    @dataclass
    class Sizes:
        width: Annotated[int, typer.Option(help="Pixels."), NoEffect(without="draw")] = 640

    @expanded
    def show(sizes: Sizes, as_json: Json = False) -> None: ...
    """
    groups: dict[str, type] = {}
    parameters: list[Parameter] = []
    for name, kind in get_type_hints(command, include_extras=True).items():
        if is_dataclass(kind) and isinstance(kind, type):
            groups[name] = kind
            hints = get_type_hints(kind, include_extras=True)
            defaults = ((f.name, Parameter.empty if f.default is MISSING else f.default) for f in fields(kind))
            parameters += [
                Parameter(own, Parameter.KEYWORD_ONLY, default=default, annotation=hints[own])
                for own, default in defaults
            ]
        elif name != "return":
            default = signature(command).parameters[name].default
            parameters.append(Parameter(name, Parameter.KEYWORD_ONLY, default=default, annotation=kind))

    def run(**given: Any) -> None:
        made = {name: kind(**{f.name: given.pop(f.name) for f in fields(kind)}) for name, kind in groups.items()}
        command(**made, **given)

    run.__name__, run.__doc__, run.__module__ = command.__name__, command.__doc__, command.__module__
    run.__signature__ = Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return run


def given_options(options: Any) -> dict[str, Any]:
    """Fields whose value is neither the default nor empty, by name."""
    values = ((field, getattr(options, field.name)) for field in fields(options))
    return {field.name: value for field, value in values if value and value != field.default}


def refuse_without_effect(options: Any) -> None:
    """Raises InputError for the options given that another one, or the lack of it, makes idle (`NoEffect`)."""
    given, idle = given_options(options), dict[str, list[str]]()
    for name, hint in get_type_hints(type(options), include_extras=True).items():
        for rule in get_args(hint)[1:] if get_origin(hint) is Annotated else ():
            if isinstance(rule, NoEffect) and name in given:
                if rule.beside in given:
                    idle.setdefault(f"with {_flag(rule.beside)}", []).append(name)
                if rule.without and rule.without not in given:
                    idle.setdefault(f"without {_flag(rule.without)}", []).append(name)
    for why, names in idle.items():
        refuse_options(why, **dict.fromkeys(sorted(names), True))


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")
