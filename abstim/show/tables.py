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
from textwrap import fill
from threading import Event, Thread, Timer
from time import monotonic
from typing import TYPE_CHECKING, Any

from abstim.brief import grouped
from functional.errors import note, plain, refuse

if TYPE_CHECKING:
    from rich.console import Console

LEAST_NAME = 14  # characters of a line of a name, at least
MOST_WORD = 30  # characters of a word that is not to be cut
MOST_PHRASE = 18  # characters of a line of several words, where a table would be too wide
MOST_NAME = 60  # characters of a name; a template's can have thousands
BEFORE = 8  # of them, before the first that differs


def shortened(name: str, width: int) -> str:
    """A name of at most `width` characters: beginning and end, which tell most, stay."""
    if len(name) <= width:
        return name
    end = (width - 1) // 2
    return f"{name[: width - 1 - end]}…{name[len(name) - end :]}"


def told_apart(names: Sequence[str]) -> dict[str, str]:
    """Names within MOST_NAME characters: by beginning and end, or, where several then look alike, by where they first
    differ, with a number if that is not enough."""
    short = {name: shortened(name, MOST_NAME) for name in names}
    for alike in grouped(short, short.__getitem__).values():
        if len(alike) > 1:
            start = len(os.path.commonprefix(alike)) - BEFORE  # noqa: RUF071  these are no paths
            parts = [f"{name[: MOST_NAME // 3]}…{name[start:]}"[: MOST_NAME - 5] for name in alike]
            short |= {
                name: part if parts.count(part) == 1 else f"{part} #{number}"
                for number, (name, part) in enumerate(zip(alike, parts, strict=True), 1)
            }
    return short


def _least(head: str, cells: Sequence[str], is_name: bool, is_whole: bool) -> int:
    """What a column takes: heads, names and phrases go on in the next line where they are long, numbers never."""
    long = [cell for cell in cells if is_whole or len(cell) > MOST_PHRASE]
    words = max((len(word) for cell in long for word in cell.split()), default=0)
    most = min(words, MOST_WORD) if is_whole else LEAST_NAME if is_name else max(MOST_PHRASE, words)
    return max([1, min(most, max(map(len, cells), default=0)), *map(len, head.split())])


def _parts(least: Sequence[int], left: int, width: int) -> list[list[int]]:
    """Columns of the tables that together hold all; names stand in each, and as many numbers as fit beside them."""
    parts = [[*range(left)]]
    for k in range(left, len(least)):
        if len(parts[-1]) > left and sum(least[j] + 1 for j in (*parts[-1], k)) >= width:
            parts.append([*range(left)])
        parts[-1].append(k)
    return parts


WIDTH, PIPED_WIDTH = 100, 80  # columns at the most: of a terminal, and of what is no terminal


def console(stderr: bool = False) -> Console:
    """At most `WIDTH` columns, less if the terminal is narrower; COLUMNS or `PIPED_WIDTH` where there is none."""
    from rich.console import Console

    stream, said = sys.stderr if stderr else sys.stdout, os.environ.get("COLUMNS", "")
    columns = int(said) if said.isdecimal() and len(said) < 6 else 0
    if stream.isatty():
        columns = os.get_terminal_size(stream.fileno()).columns
    return Console(file=stream, width=min(WIDTH, columns or PIPED_WIDTH), highlight=False, emoji=False)


def print_table(
    title: str, columns: Sequence[str], rows: Iterable[Sequence[Any]], left: int = 1, whole: Container[int] = ()
) -> None:
    """A table; the first `left` columns hold text, the others numbers (right-aligned), which are never cut: where they
    do not fit they go into a second table. Of the text only columns that are `whole` are not cut, either."""
    from rich import box
    from rich.markup import escape
    from rich.table import Table

    out = console()
    cells = [[plain(cell) if isinstance(cell, str) else quantity(cell) for cell in row] for row in rows]
    short = {k: told_apart([row[k] for row in cells]) for k in range(left) if k not in whole}
    shown = [[short[k][cell] if k in short else cell for k, cell in enumerate(row)] for row in cells]
    below = [[row[k] for row in shown] for k in range(len(columns))]
    wide = sum(max(map(len, (head, *column))) + 3 for head, column in zip(columns, below, strict=True))
    fits, least = wide <= out.width + 1, [_least(h, below[k], k < left, k in whole) for k, h in enumerate(columns)]
    if title:
        out.print(f"[bold]{escape(plain(title))}[/bold]")
    for part in [[*range(len(columns))]] if fits else _parts(least, left, out.width):
        left_over = out.width - sum(least[k] + 1 for k in part)
        apart = fits or left_over > len(part)
        table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, int(apart), 0, int(fits)))
        for k in part:
            aligned: Any = ("left", None) if k < left else ("right", None if fits else least[k])
            table.add_column(
                columns[k], justify=aligned[0], width=aligned[1], no_wrap=fits, overflow="fold",
                min_width=least[k] if k in whole and left_over > 0 else None,
            )  # fmt: skip
        for row in shown:
            table.add_row(*(escape(row[k]) for k in part))
        out.print(table)
    if shown != cells:
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
    return f"{value:,.0f}" if isinstance(value, int) or abs(value) >= 1000 else f"{value:.4g}"


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
    """How far each kind of work was when first told, and so how long the rest takes; `shorter`: a quicker estimate."""

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


@contextmanager
def _lines(shorter: str) -> Iterator[Any]:
    """Progress as lines, by a thread of its own, for work is silent long. InputError for a value that is no number."""
    text = os.environ.get("ABSTIM_PROGRESS_SECONDS", "")
    refuse(text and not text.isdecimal(), f"ABSTIM_PROGRESS_SECONDS = {text!r} is not a whole number of seconds")
    seconds = min(float(text or LINE_SECONDS), 1e6)
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
    """A callable `(what, done, total)` that shows a bar on stderr once `after_seconds` have passed. Where stderr is no
    terminal, a line every `LINE_SECONDS` instead; nothing if `quiet`. `shorter`: said of work that takes long."""
    if quiet:
        yield lambda what, done, total: None
        return
    if not sys.stderr.isatty():
        with _lines(shorter) as told:
            yield told
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeElapsedColumn, TimeRemainingColumn

    far = (BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), "left", TimeRemainingColumn())
    bar = Progress("{task.description}", *far, console=console(stderr=True), transient=True)
    task, timer = bar.add_task("", total=None, visible=False), Timer(after_seconds, bar.start)  # nothing is known yet
    timer.daemon = True
    timer.start()
    try:
        yield partial(_show, bar, task, Pace(shorter), monotonic())
    finally:
        timer.cancel()
        bar.stop()
