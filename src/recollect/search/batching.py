"""Queries that arrive together are embedded together: a model takes little longer for eight images than for one.

Queries are never delayed on purpose. While a batch is in the model, new queries are collected; they form the next batch.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field

import numpy as np

from recollect.common.errors import RecollectError
from recollect.search.index import Index, Match
from recollect.search.opened_index import OtherModelError

LARGEST = 32
"""Queries in one batch."""
WAITING = 512
"""Maximum number of waiting queries; more are refused, since their answers would come too late."""


class TooBusyError(RecollectError):
    """More queries are waiting than can be answered in time."""


@dataclass
class Job:
    """One query: an image's bytes, or an id of the index."""

    k: int
    where: Mapping[str, list[str]]
    image: bytes | None = None
    name: str | None = None
    answer: asyncio.Future[list[Match]] = field(default_factory=lambda: asyncio.get_running_loop().create_future())


def warm_up(index: Index) -> None:
    """Open the model and read the vectors; an index that is damaged is refused here."""
    rows = index.encoder.embed([np.full((64, 64, 3), 127, np.uint8)])
    index.search_vectors(np.nan_to_num(rows), 1)


class Batcher:
    """Answers queries of an index, one batch after the other.

    Args:
        index: the index to search.
        observe: called with the size of every batch.
    """

    def __init__(self, index: Index, observe: Callable[[int], None] = lambda size: None) -> None:
        self._index, self._observe = index, observe
        self._queue: asyncio.Queue[Job] = asyncio.Queue(WAITING)
        self._worker = ThreadPoolExecutor(1, thread_name_prefix="search")
        self._task: asyncio.Task[None] | None = None

    @property
    def waiting(self) -> int:
        """Queries that wait for the batch before them."""
        return self._queue.qsize()

    async def start(self) -> None:
        """Open the model and read the vectors, so that the first query is as fast as the others; then accept queries."""
        await asyncio.get_running_loop().run_in_executor(self._worker, warm_up, self._index)
        self._task = asyncio.create_task(self._run())

    async def stop(self) -> None:
        """Answer the waiting queries, then stop."""
        await self._queue.join()
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task
        self._worker.shutdown()

    async def search(
        self, k: int, where: Mapping[str, list[str]], *, image: bytes | None = None, name: str | None = None
    ) -> list[Match]:
        """The answer to one query.

        Raises:
            TooBusyError: too many queries are waiting. ImageError, InputError: this query is not valid.
        """
        job = Job(k, where, image, name)
        try:
            self._queue.put_nowait(job)
        except asyncio.QueueFull as error:
            raise TooBusyError("too many queries are waiting: try again in a moment.") from error
        return await job.answer

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            jobs = [await self._queue.get()]
            while len(jobs) < LARGEST and not self._queue.empty():
                jobs.append(self._queue.get_nowait())
            self._observe(len(jobs))
            found = await loop.run_in_executor(self._worker, self._answers, jobs)
            for job, answer in zip(jobs, found, strict=True):
                if not job.answer.done():  # a client that went away cancelled it
                    if isinstance(answer, Exception):
                        job.answer.set_exception(answer)
                    else:
                        job.answer.set_result(answer)
                self._queue.task_done()

    def _answers(self, jobs: list[Job]) -> list[list[Match] | Exception]:
        for attempt in range(3):
            try:
                return self._attempt(jobs)
            except OtherModelError as error:  # the index was rebuilt between embedding and searching
                if attempt == 2:
                    return [error] * len(jobs)
            except Exception as error:  # after any error every client gets an answer and the service continues
                return [error] * len(jobs)
        return []

    def _attempt(self, jobs: list[Job]) -> list[list[Match] | Exception]:
        answers: dict[int, list[Match] | Exception] = {}
        images = [place for place, job in enumerate(jobs) if job.image is not None]
        if images:
            bad: dict[int, Exception] = {}
            encoder = self._index.encoder
            rows = encoder.embed([jobs[place].image for place in images], bad.__setitem__)
            answers.update({images[number]: error for number, error in bad.items()})
            groups: dict[str, list[int]] = {}
            for number, place in enumerate(images):
                if number not in bad:
                    key = json.dumps([jobs[place].k, jobs[place].where], sort_keys=True)
                    groups.setdefault(key, []).append(number)
            for numbers in groups.values():
                job = jobs[images[numbers[0]]]
                found = self._index.search_vectors(rows[numbers], job.k, job.where, fingerprint=encoder.fingerprint)
                answers.update({images[number]: matches for number, matches in zip(numbers, found, strict=True)})
        for place, job in enumerate(jobs):
            if job.name is not None:
                try:
                    answers[place] = self._index.search_id(job.name, job.k, job.where)
                except RecollectError as error:
                    answers[place] = error
        return [answers[place] for place in range(len(jobs))]
