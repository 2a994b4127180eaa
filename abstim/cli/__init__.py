"""The `abstim` command: thin over the library, one file a subcommand."""

import atexit
import gc
import os
import signal
import sys
from contextlib import suppress
from errno import ENOMEM
from io import TextIOWrapper

MOST_CHARACTERS = 1000  # of an error, in which a stranger's name may stand
TRACEBACK = "ABSTIM_TRACEBACK"  # an environment variable: an error ends in its traceback


def main(arguments: list[str] | None = None) -> None:
    """Entry point. Every error ends in one line on stderr: bad input, and what a machine has too little of, with exit
    code 2, an interrupt with 130, a fault of abstim's own with 70."""
    from abstim.cli.watch import Watch, interrupted, seconds_allowed
    from functional.errors import InputError

    _occupy_standard_files()
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # as sampling.statistics.one_thread, of a whole command
    gc.set_threshold(200_000)  # imports make objects that stay; looking through them takes a tenth of a short run
    try:
        watch = Watch(seconds_allowed(), interrupted(sys.argv[1:] if arguments is None else arguments))
        with watch:
            _check_address_space()
            if sys.stdout is None:
                raise InputError("standard output is closed; there is nowhere to print")
            status = _run(arguments)
            sys.stdout.flush()  # a full disk shows here, not when the interpreter ends
    except InputError as error:
        status = _fail(str(error), 2)
    except KeyboardInterrupt:
        watch.say(watch.interrupted)
        status = 130
    except BrokenPipeError:  # `abstim ... | head`
        status = _discard_output(1)
    except Exception as error:
        if os.environ.get(TRACEBACK):
            raise
        status = _told(error)
    if arguments is None:  # else the caller's process goes on
        _leave(status)
    sys.exit(status)


def _leave(status: int) -> None:
    """End the process without taking apart all that was imported, which takes a sixth of a short run's time; but not
    where a profiler or debugger waits for that."""
    with suppress(ValueError):  # which comes where this is not the main thread
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # all is said: too late to change the exit code
    if sys.gettrace() or sys.getprofile():
        return
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError, AttributeError):
            stream.flush()
    os._exit(status)


def _occupy_standard_files() -> None:
    """Those that are closed: what is opened next would take their numbers, and what native code writes."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest number that is free
    if sys.stderr is None:  # as Python has it then; many ask it whether it is a terminal
        sys.stderr = open(2, "w", closefd=False)  # noqa: SIM115  for the rest of the process
    for stream in (sys.stdout, sys.stderr):  # a terminal that lacks a character shows `?` in its place
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="replace")


_LEAST_ADDRESSES = 3 << 29  # of a process: LLVM ends it, without an exception, where it gets no memory


def _check_address_space() -> None:
    """Raises InputError where the shell allows so few addresses that libraries would end in errors of their own."""
    from functional.errors import InputError

    with suppress(ImportError):
        from resource import RLIM_INFINITY, RLIMIT_AS, getrlimit

        allowed, least = getrlimit(RLIMIT_AS)[0], _LEAST_ADDRESSES
        if allowed != RLIM_INFINITY and allowed < least:
            raise InputError(
                f"a process may have {allowed >> 10:,} KiB of addresses here (ulimit -v); abstim takes {least >> 10:,}"
            )


def _run(arguments: list[str] | None) -> int:
    from typer._click.exceptions import ClickException  # typer has no public name for it

    from abstim.cli.app import app_for
    from functional.errors import InputError

    try:
        app = app_for(sys.argv[1:] if arguments is None else arguments)
        status = app(arguments, prog_name="abstim", standalone_mode=False)
    except (InputError, ClickException) as error:
        message = error.format_message() if isinstance(error, ClickException) else str(error)
        if message and (command := getattr(error, "ctx", None)):  # typer's own: what is missing, or not known
            message = f"{message.rstrip('.')}; see `{command.command_path} --help`"
        return _fail(message or "a command is needed; see `abstim --help`", 2)
    if status == 130:  # how typer passes an interrupt on
        raise KeyboardInterrupt
    return status if isinstance(status, int) else 0


def _told(error: Exception) -> int:
    """One line for what is no InputError; numbers that no machine can hold count as bad input."""
    from abstim.extras import lacking

    name = type(error).__name__
    if isinstance(error, ModuleNotFoundError) and (said := lacking(error.name or "")):
        return _fail(said, 2)
    if isinstance(error, MemoryError) or getattr(error, "errno", None) == ENOMEM:  # as mmap has it
        size = "" if isinstance(error, OSError) else str(error)
        return _fail(f"not enough memory: {size}" if size else "not enough memory", 2)
    if isinstance(error, OSError):
        where = error.filename or "the output cannot be written"  # of files that abstim opens, it knows the name
        return _discard_output(_fail(f"{where}: {error.strerror or error}", 2))
    if isinstance(error, (OverflowError, RecursionError)):
        return _fail(f"a number or a nesting is too large: {error}", 2)
    return _fail(f"{name}: {error}: this is a fault of abstim; {TRACEBACK}=1 shows where", 70)


def _discard_output(status: int) -> int:
    """Nobody reads, or can keep, what is left in the buffer of stdout."""
    with suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return status


def _fail(message: str, status: int) -> int:
    from functional.errors import note

    line = " ".join(message.split())
    note("abstim: " + (line if len(line) <= MOST_CHARACTERS else f"{line[:MOST_CHARACTERS]} ..."))
    return status
