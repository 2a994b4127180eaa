"""What the subcommands print: tables that fit the terminal on stdout, progress on stderr."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from string import Formatter
from textwrap import fill, wrap
from time import monotonic
from typing import TYPE_CHECKING, Any, NamedTuple

from functional.errors import InputError
from functional.terminal import plain

if TYPE_CHECKING:
    from rich.console import Console

GAPS = (3, 2, 1)  # between two columns; smaller where the table then stays one
LEAST_NAME = 14  # characters that a name is shortened to, at most so far
MOST_WORD = 30  # characters of a word that is not to be cut
MOST_PHRASE = 18  # characters of a line of several words, where a table would be too wide
MOST_NAME = 60  # characters of a name with words in it; a template's can have thousands

Cells = Sequence[Sequence[str]]


class Fitted(NamedTuple):
    """A part of a table: heads, which may have line breaks, cells, and the gap between its columns."""

    heads: list[str]
    rows: list[list[str]]
    gap: int


def fitted(heads: Sequence[str], rows: Cells, left: int, width: int, whole: Container[int] = ()) -> list[Fitted]:
    """Tables of at most `width` columns that together hold all cells; the first `left` columns, names, stand in each.

    Cells of the others, numbers, are as they were; words in columns that are `whole` are not cut."""
    rows = told_apart(rows, left, whole)
    wide = [max([len(row[k]) for row in rows] + [0]) for k in range(len(heads))]
    if needed([max(len(head), w) for head, w in zip(heads, wide, strict=True)]) <= width:
        return [Fitted(list(heads), [list(row) for row in rows], GAPS[0])]
    wide[left:] = [_phrase_width([row[k] for row in rows], wide[k]) for k in range(left, len(heads))]
    wide = [max(1, w, *map(len, head.split())) for head, w in zip(heads, wide, strict=True)]
    words = [max((len(word) for row in rows for word in row[k].split()), default=0) for k in range(left)]
    least = [min(words[k], MOST_WORD) if k in whole else LEAST_NAME for k in range(left)]
    tried = [(gap, _name_widths(wide, least, width, gap)) for gap in GAPS]
    gap, names = min(tried, key=lambda way: len(_groups(wide, way[1], width, way[0])))
    widths = [*names, *wide[left:]]
    heads = ["\n".join(wrap(head, w, break_long_words=False)) for head, w in zip(heads, widths, strict=True)]
    rows = [[_cell(text, w) for text, w in zip(row, widths, strict=True)] for row in rows]
    parts = [[*range(left), *group] for group in _groups(wide, names, width, gap)]
    return [Fitted([heads[k] for k in part], [[row[k] for k in part] for row in rows], gap) for part in parts]


def _phrase_width(cells: Sequence[str], wide: int) -> int:
    """What a column behind the names takes: phrases go on in the next line where they are long, numbers never."""
    longest = max((len(word) for cell in cells if len(cell) > MOST_PHRASE for word in cell.split()), default=0)
    return min(wide, max(MOST_PHRASE, longest))


def told_apart(rows: Cells, left: int, whole: Container[int] = ()) -> list[list[str]]:
    """Names of more than MOST_NAME characters (the first `left` cells, but in columns that are `whole`) shortened to
    what tells them apart: how they begin, and what stands where they first differ from the other long ones. Two that
    would look alike are numbered."""
    found = [list(row) for row in rows]
    for k in (k for k in range(left) if k not in whole):
        long = list(dict.fromkeys(row[k] for row in rows if len(row[k]) > MOST_NAME))
        differ = next((k for k, letters in enumerate(zip(*long, strict=False)) if len({*letters}) > 1), None)
        common = long[0][:differ] if len(long) > 1 else ""
        start = max((m.start() for m in re.finditer(r"\b", common)), default=0)  # a word is not cut
        begin = MOST_NAME // 3 if start > MOST_NAME // 3 else MOST_NAME - 1
        short = {name: f"{name[:begin]}…{name[start:][: max(0, MOST_NAME - 2 - begin)]}" for name in long}
        alike = [name for name in long if list(short.values()).count(short[name]) > 1]
        short |= {name: f"{short[name][: MOST_NAME - 5]} #{alike.index(name) + 1}" for name in alike}
        for row in found:
            row[k] = short.get(row[k], row[k])
    return found


def shortened(name: str, width: int) -> str:
    """A name of at most `width` characters: beginning and end, which tell most, stay."""
    if len(name) <= width:
        return name
    end = (width - 1) // 2
    return f"{name[: width - 1 - end]}…{name[len(name) - end :]}"


def needed(widths: Sequence[int], gap: int = GAPS[0]) -> int:
    """Columns of the terminal that a table of such columns takes."""
    return sum(widths) + gap * (len(widths) - 1) + 2


def _name_widths(wide: Sequence[int], least: Sequence[int], width: int, gap: int) -> list[int]:
    """What names get: all if the numbers leave it, else an even share, and never less than `least`."""
    left = len(least)
    room, found = width - needed([0] * left + list(wide[left:]), gap), list(wide[:left])
    for cut, k in enumerate(sorted(range(left), key=lambda k: wide[k])):  # what short ones leave is for the long ones
        found[k] = min(wide[k], max(least[k], room // (left - cut)))
        room -= found[k]
    return found


def _groups(wide: Sequence[int], names: Sequence[int], width: int, gap: int) -> list[list[int]]:
    """Columns of numbers, as many together as fit beside the names."""
    groups: list[list[int]] = [[]]
    for k in range(len(names), len(wide)):
        if groups[-1] and needed([*names, *(wide[j] for j in (*groups[-1], k))], gap) > width:
            groups.append([])
        groups[-1].append(k)
    return groups


def _cell(text: str, width: int) -> str:
    """Several words go on in the next line; one that is too long is shortened."""
    return "\n".join(shortened(line, width) for line in wrap(text, width, break_long_words=False)) or text


WIDTH, PIPED_WIDTH = 100, 80  # columns at the most: of a terminal, and of what is no terminal


def console(stderr: bool = False) -> Console:
    """At most `WIDTH` columns, less if the terminal is narrower; COLUMNS or `PIPED_WIDTH` where there is none."""
    from rich.console import Console

    stream = sys.stderr if stderr else sys.stdout
    return Console(file=stream, width=min(WIDTH, _columns(stream) or PIPED_WIDTH), highlight=False)


def _columns(stream: Any) -> int:
    if stream.isatty():
        return os.get_terminal_size(stream.fileno()).columns
    text = os.environ.get("COLUMNS", "")
    return int(text) if text.isdecimal() and len(text) < 6 else 0


def print_table(
    title: str, columns: Sequence[str], rows: Iterable[Sequence[Any]], left: int = 1, whole: Container[int] = ()
) -> None:
    """A table; the first `left` columns hold text, the others numbers (right-aligned), which are never cut: where they
    do not fit they go into a second table. Of the text only columns that are `whole` are not cut, either."""

    out = console()
    cells = [[plain(cell) if isinstance(cell, str) else quantity(cell) for cell in row] for row in rows]
    for number, part in enumerate(fitted(columns, cells, left, out.width, whole)):
        _print_part(out, "" if number else title, part, left)
    if any(len(name) > MOST_NAME and k not in whole for row in cells for k, name in enumerate(row[:left])):
        out.print("Names that are cut here are whole in --json")


def print_records(
    title: str, columns: str, records: Iterable[Any], left: int = 1, whole: Container[int] = (), **computed: Computed
) -> None:
    """A table of records: `cells`."""
    print_table(title, *cells(columns, records, **computed), left, whole)


Computed = Callable[[Any], Any]  # what a column says of a record that is no field of it


def cells(columns: str, records: Iterable[Any], **computed: Computed) -> tuple[list[str], list[list[Any]]]:
    """The heads of a table, and a row a record: its fields (a mapping's keys), or what functions make of it.

    cells("benchmark | cycles: {predicted_cycles} | error: {error:+.2%}", found.comparisons)

    A head alone stands for the field of its name. Forms are those of `format`, one with a unit behind it (`.1f ms`, of
    seconds), and `time`; a field that is None is `-`."""
    parts = [column.strip().partition(": ") for column in columns.split("|")]
    texts = [text or f"{{{head.replace(' ', '_')}}}" for head, _, text in parts]
    filled = _Filled(computed)
    return [head for head, *_ in parts], [[filled.cell(text, record) for text in texts] for record in records]


_PER_SECOND = {"ms": 1e3, "us": 1e6}


class _Filled(Formatter):
    """Fields of a record in a text."""

    def __init__(self, computed: Mapping[str, Computed]) -> None:
        self._computed = computed

    def cell(self, text: str, record: Any) -> Any:
        """A field alone is as it is: a number is aligned, and shown as all numbers are."""
        alone = re.fullmatch(r"{([\w.]+)}", text)
        return self.get_field(alone[1], (), record)[0] if alone else self.vformat(text, (), record)

    def get_value(self, key: Any, args: Any, record: Any) -> Any:
        if key in self._computed:
            return self._computed[key](record)
        return record[key] if isinstance(record, Mapping) else getattr(record, key)

    def format_field(self, value: Any, form: str) -> str:
        if value is None or not form:
            return quantity(value)
        if form == "time":
            return duration(value)
        form, _, unit = form.partition(" ")
        return f"{_PER_SECOND[unit] * value:{form}} {unit}" if unit else format(value, form)


def _print_part(out: Console, title: str, part: Fitted, left: int) -> None:
    from rich import box
    from rich.markup import escape
    from rich.table import Table

    if title:
        out.print(f"[bold]{escape(plain(title))}[/bold]")
    heads, rows, gap = part
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, (gap - 1) // 2 + (gap - 1) % 2, 0, (gap - 1) // 2))
    widths = [max(map(len, "\n".join(column).split("\n"))) for column in zip(heads, *rows, strict=True)]
    fits = needed(widths, gap) <= out.width
    for number, name in enumerate(heads):
        justify: Any = "left" if number < left else "right"
        table.add_column(name, justify=justify, no_wrap=fits or number >= left, overflow="fold")
    for row in rows:
        table.add_row(*map(escape, row))
    out.print(table)


def on_gpu(result: Any) -> str:
    """A result's GPU, and what its memory model is: cycles of one are not those of the other."""
    return f"{result.gpu} (memory: {result.memory_model})"


def say(text: str, indent: str = "  ") -> None:
    """A sentence on stdout, on as many lines of `PIPED_WIDTH` as it takes; those behind the first are indented."""
    print(fill(text, PIPED_WIDTH, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False))


def print_json(value: Any) -> None:
    """One JSON object on stdout."""
    sys.stdout.write(json.dumps(value) + "\n")


def print_printf(text: str) -> None:
    """What kernels wrote with `printf`, on lines of its own."""
    if text:
        print(plain(text), end="" if text.endswith("\n") else "\n", flush=True)


def counted(number: int, one: str = "launch", many: str = "launches") -> str:
    """So many of a thing, in words."""
    return f"{number:,} {one if number == 1 else many}"


def quantity(value: Any) -> str:
    """A number for people: thousands separated, four significant digits of a fraction."""
    if value is None:
        return "-"
    if isinstance(value, (tuple, list)):
        return "x".join(map(str, value))
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return str(value)
    if isinstance(value, int) or abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.4g}"


def known(value: float | None, form: str) -> str:
    """A figure in a form of `format`; `-` where there is none."""
    return "-" if value is None else format(value, form)


def duration(seconds: float) -> str:
    """`12.3 us`, `4.56 ms`, `7.89 s`: three significant digits."""
    return scaled(seconds, "s")


def scaled(value: float, unit: str) -> str:
    """`12.3 uJ`: three significant digits, by thousands from the unit downwards."""
    for prefix, scale in (("", 1.0), ("m", 1e-3), ("u", 1e-6)):
        if value >= scale:
            return f"{value / scale:.3g} {prefix}{unit}"
    return f"{value / 1e-9:.3g} n{unit}"


def _show(bar: Any, task: Any, pace: Pace, started: float, what: str, done: int, total: int | None) -> None:
    """Another kind of work starts its own clock, or the time left would be reckoned from that before it."""
    left = pace.left(what, done, total)
    for hint in pace.hint(left) if monotonic() - started > LINE_SECONDS else ():
        bar.console.print(hint)
    if bar.tasks[0].description != what:
        bar.reset(task, description=what)
    bar.update(task, completed=done, total=total, visible=True)


LINE_SECONDS = 10.0  # between two lines on what is no terminal, if ABSTIM_PROGRESS_SECONDS does not say otherwise
LONG_SECONDS = 60.0  # what is left of work that is called long


class Pace:
    """How far each kind of work was when it was first told, and so how long the rest takes; `shorter`: an estimate of
    it that takes less ("": none)."""

    def __init__(self, shorter: str) -> None:
        self._what, self._since, self._first, self._shorter = "", 0.0, 0, shorter

    def left(self, what: str, done: int, total: int | None) -> float | None:
        """Seconds, once there is something to reckon from; None for a `total` that nobody knows."""
        now = monotonic()
        if what != self._what:
            self._what, self._since, self._first = what, now, done
        if total is None or done <= self._first:
            return None
        return (now - self._since) / (done - self._first) * (total - done)

    def hint(self, left: float | None) -> Iterator[str]:
        """How long work is made shorter, once."""
        if self._shorter and left is not None and left > LONG_SECONDS:
            yield f"abstim: this takes about {left / 60:.0f} min more; shorter: {self._shorter}"
            self._shorter = ""


def _seconds_between_lines() -> float:
    """Raises InputError if the environment's value is no number of seconds."""
    text = os.environ.get("ABSTIM_PROGRESS_SECONDS", "")
    if text and not text.isdecimal():
        raise InputError(f"ABSTIM_PROGRESS_SECONDS = {text!r} is not a whole number of seconds")
    return min(float(text or LINE_SECONDS), 1e6)


@contextmanager
def _lines(shorter: str) -> Iterator[Any]:
    """Progress as lines, by a thread of its own: who works may be silent for long."""
    from threading import Event, Thread

    from functional.terminal import note

    seconds = _seconds_between_lines()
    over, pace, latest, started = Event(), Pace(shorter), list[tuple[str, str, float | None]](), monotonic()

    def told(what: str, done: int, total: int | None) -> None:
        far = f"{done:,}" + ("" if total is None else f" of {total:,}")
        latest[:] = [(what, far, pace.left(what, done, total))]

    def tell() -> None:
        while not over.wait(seconds):
            for what, far, left in latest:
                rest = "" if left is None else f", about {duration(left)} left"
                note(f"abstim: {what}: {far} after {monotonic() - started:.0f} s{rest}")
                for hint in pace.hint(left):
                    note(hint)

    Thread(target=tell, daemon=True).start()
    try:
        yield told
    finally:
        over.set()


@contextmanager
def progress(quiet: bool = False, after_seconds: float = 2.0, shorter: str = "") -> Iterator[Any]:
    """A callable `(what, done, total)` that shows a bar on stderr once `after_seconds` have passed.

    Where stderr is no terminal, a line every `LINE_SECONDS` instead; nothing if `quiet`. `shorter`: what is said of
    work that takes long."""
    if quiet:
        yield lambda what, done, total: None
        return
    if not sys.stderr.isatty():
        with _lines(shorter) as told:
            yield told
        return
    from threading import Timer

    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeElapsedColumn, TimeRemainingColumn

    far = (BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    bar = Progress(
        "{task.description}", *far, "left", TimeRemainingColumn(), console=console(stderr=True), transient=True
    )
    task, timer = bar.add_task("", total=None, visible=False), Timer(after_seconds, bar.start)  # nothing is known yet
    timer.daemon = True
    timer.start()
    try:
        yield partial(_show, bar, task, Pace(shorter), monotonic())
    finally:
        timer.cancel()
        bar.stop()
