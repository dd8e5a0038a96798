"""Queries that arrive together are embedded together: a model takes little longer for eight images than for one.

Queries are never delayed on purpose. While a batch is in the model, new queries are collected; they form the next batch.
Images to be added to the index are embedded with them.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from recollect.search.index import Index, OtherModelError

LARGEST = 32
"""Queries in one batch."""


@dataclass
class Job:
    """One query: an image, or an id of the index. ``present`` raises an error if its client has left; ``k`` 0 asks
    for the vector of the image only."""

    present: Callable[[], Awaitable[None]]
    k: int
    where: Mapping[str, list[str]]
    image: NDArray[np.uint8] | None = None
    name: str | None = None
    answer: asyncio.Future[Any] = field(default_factory=lambda: asyncio.get_running_loop().create_future())


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
        self._queue: asyncio.Queue[Job] = asyncio.Queue()
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

    async def answer(self, job: Job) -> Any:
        """The matches of one query; with ``k`` 0, its vector and the fingerprint of the model.

        Raises:
            ImageError, InputError: this query is not valid.
        """
        self._queue.put_nowait(job)  # the server limits how many wait
        return await job.answer

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            jobs: list[Job] = []
            while not jobs or (len(jobs) < LARGEST and not self._queue.empty()):
                job = await self._queue.get()
                try:
                    await job.present()
                    jobs.append(job)
                except Exception as error:
                    self._finish(job, error)
            self._observe(len(jobs))
            answers = await loop.run_in_executor(self._worker, self._answers, jobs)
            for job, answer in zip(jobs, answers, strict=True):
                self._finish(job, answer)

    def _finish(self, job: Job, answer: Any) -> None:
        if not job.answer.done():  # it is cancelled where the service stops before the answer
            (job.answer.set_exception if isinstance(answer, Exception) else job.answer.set_result)(answer)
        self._queue.task_done()

    def _answers(self, jobs: list[Job]) -> list[Any]:
        """An answer or an error for every job."""
        for _ in range(3):
            try:
                return self._attempt(jobs)
            except OtherModelError as error:  # the index was rebuilt between embedding and searching
                failure: Exception = error
            except Exception as error:  # after any error every client gets an answer and the service continues
                failure = error
                break
        # One by one, so that only those at fault fail.
        return [failure] if len(jobs) == 1 else [self._answers([job])[0] for job in jobs]

    def _attempt(self, jobs: list[Job]) -> list[Any]:
        answers: dict[int, Any] = {}
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
                found: Any = [(rows[number], encoder.fingerprint) for number in numbers]
                if job.k:
                    found = self._index.search_vectors(rows[numbers], job.k, job.where, fingerprint=encoder.fingerprint)
                answers.update({images[number]: answer for number, answer in zip(numbers, found, strict=True)})
        for place, job in enumerate(jobs):
            if job.name is not None:
                answers[place] = self._index.search_id(job.name, job.k, job.where)
        return [answers[place] for place in range(len(jobs))]
