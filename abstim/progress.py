"""Long work: how far it is, told to whoever wants to show it, and pieces of it side by side."""

import logging
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from functools import partial
from typing import TypeVar

from functional.execution.computer import default_threads

T = TypeVar("T")
Progress = Callable[[str, int, int], None]  # what is done, steps finished, steps in all
TELL_SECONDS = 0.5


def silent(what: str, done: int, total: int) -> None:
    """Tell nobody."""


def logged(what: str, done: int, total: int) -> None:
    """Tell the logger `abstim`, at level INFO."""
    logging.getLogger("abstim").info("%s: %d of %d", what, done, total)


def pipelined(
    jobs: Iterable[Callable[[], T]], threads: int, meanwhile: Callable[[], None] = lambda: None
) -> Iterator[T]:
    """Results of jobs, in their order. Jobs are taken from `jobs` in this thread, while others run them, and no more
    than one beyond `threads` at a time. After an exception or an interrupt nothing new is started. `meanwhile` is
    called in this thread, every TELL_SECONDS that it waits."""
    waiting: deque[Future[T]] = deque()
    with ThreadPoolExecutor(threads) as pool:
        try:
            for job in jobs:
                waiting.append(pool.submit(job))
                if len(waiting) > threads:
                    yield _result(waiting.popleft(), meanwhile)
            while waiting:
                yield _result(waiting.popleft(), meanwhile)
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def _result(future: Future[T], meanwhile: Callable[[], None]) -> T:
    while not wait([future], TELL_SECONDS).done:
        meanwhile()
    return future.result()


def in_parallel(
    work: Callable[[int], T], count: int, report: Callable[[int, int], None] = lambda done, total: None,
    threads: int | None = None,
) -> list[T]:  # fmt: skip
    """`[work(0), ..., work(count - 1)]`; `report` is told how many of how many are done."""
    alone = threads == 1 or count == 1
    jobs, found = (partial(work, number) for number in range(count)), list[T]()
    for result in (job() for job in jobs) if alone else pipelined(jobs, threads or default_threads()):
        report(len(found), count)
        found.append(result)
    return found
