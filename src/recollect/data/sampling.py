"""Chooses the images of a batch: M/m classes × m images, resumable, the same for any number of processes.

A batch depends only on (seed, epoch, number of the batch) and the labels, never on workers or processes: every
process draws the whole batch and keeps its ``shard``. Changing the order of the draws here changes every run's
batches; ``tests/data/test_sampling.py`` checks some of them. Training depends on this file; it needs only
labels, not images.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from recollect.common.errors import ConfigError, DataError, InputError
from recollect.common.text import check_choice
from recollect.data.image_set import Indices


def shard(batch: Indices, rank: int, world_size: int, group: int = 1) -> Indices:
    """The contiguous slice of ``batch`` that process ``rank`` of ``world_size`` works on.

    The slices, in order of rank, concatenate to the whole batch. Their lengths differ by at most ``group``.

    Args:
        batch: the whole batch, as the sampler yields it.
        rank: this process, from 0.
        world_size: how many processes there are.
        group: cut only at multiples of this. With ``group=samples_per_class`` a class stays on one process, which
            SiMix inside a shard needs, and repeated images too (see ``small_classes="repeat"``).

    Raises:
        InputError: the rank is not one of the processes, or there are fewer groups than processes.

    Examples:
        >>> [shard(np.arange(10), rank, 3).tolist() for rank in range(3)]
        [[0, 1, 2], [3, 4, 5], [6, 7, 8, 9]]
    """
    if not 0 <= rank < world_size:
        raise InputError(f"rank {rank} is not one of {world_size} processes: ranks go from 0 to {world_size - 1}.")
    if group < 1 or len(batch) % group:
        raise InputError(f"a batch of {len(batch)} cannot be cut into groups of {group}.")
    groups = len(batch) // group
    if groups < world_size:
        raise InputError(
            f"a batch of {groups} groups of {group} leaves nothing for some of {world_size} processes: "
            "raise the batch size or use fewer processes."
        )
    return batch[rank * groups // world_size * group : (rank + 1) * groups // world_size * group]


class ClassBalancedSampler:
    """Batches of M/m classes × m images; the images of a class are adjacent.

    Policies:

    - ``"paper"``: every batch is a new draw: M/m classes without replacement, all equally likely regardless of their
      size, and m different images of each. An epoch is ``floor(N / M)`` batches (at least 1), where N is the number of
      images of usable classes; some images occur in several batches, others in none.
    - ``"epoch"``: as in the released code. The images of each class are shuffled, and so is the list of classes; each
      batch goes through that list from its start and takes the next m unused images of every class that has m left, until
      it is full; when no full batch can be made the epoch ends, and the order of its batches is shuffled. No image occurs
      twice per epoch. The length depends slightly on the shuffle: call ``len`` after ``set_epoch``.

    Long tails: under ``"paper"`` an image of a large class is seen more rarely than one of a small class. Under
    ``"epoch"`` the epoch ends once fewer than M/m classes have m images left, so most images of a few very large
    classes are left out of that epoch (the next uses others).

    Args:
        labels: the class number of every image.
        batch_size: M, the images of a whole batch over all processes.
        samples_per_class: m.
        policy: ``"paper"`` or ``"epoch"``.
        small_classes: what to do with a class of fewer than m images: ``"drop"`` leaves it out, as the paper does;
            ``"repeat"`` repeats its images, each as often as the others, or once more.
        seed: 0 or more; another seed gives other batches.
        batches_per_epoch: overrides the policy's own number; under ``"epoch"`` it can only shorten the epoch.

    Raises:
        ConfigError: the batch is not a multiple of m, or larger than the usable classes allow (the message names the
            largest possible size), or a setting is unknown.
        DataError: no class can be used at all.

    Examples:
        >>> sampler = ClassBalancedSampler([0, 0, 0, 1, 1, 1, 2, 2], batch_size=4, samples_per_class=2)
        >>> sampler.set_epoch(3)
        >>> [len(batch) for batch in sampler]
        [4, 4]
    """

    def __init__(
        self,
        labels: Sequence[int] | Indices,
        batch_size: int,
        samples_per_class: int = 4,
        policy: str = "paper",
        small_classes: str = "drop",
        seed: int = 0,
        batches_per_epoch: int | None = None,
    ) -> None:
        check_choice("policy", policy, ("paper", "epoch"))
        check_choice("small_classes", small_classes, ("drop", "repeat"))
        self.labels = np.asarray(labels, dtype=np.int64)
        self.batch_size, self.samples_per_class = batch_size, samples_per_class
        self.policy, self.small_classes = policy, small_classes
        self.seed, self.batches_per_epoch = seed, batches_per_epoch
        for name, least in (("batch_size", 1), ("samples_per_class", 1), ("batches_per_epoch", 1), ("seed", 0)):
            number = getattr(self, name)
            if number is not None and number < least:
                raise ConfigError(f"{name} is {number}: it must be at least {least}.")
        if batch_size % samples_per_class:
            lower = batch_size // samples_per_class * samples_per_class
            near = f"{lower} or {lower + samples_per_class}" if lower else str(samples_per_class)
            raise ConfigError(
                f"batch_size {batch_size} is not a multiple of samples_per_class {samples_per_class}: use {near}."
            )

        # Images in order of class; class c of the usable ones has _order[_start[c] : _start[c] + _size[c]].
        self._order = np.argsort(self.labels, kind="stable").astype(np.int64)
        _, first, sizes = np.unique(self.labels[self._order], return_index=True, return_counts=True)
        large = sizes >= samples_per_class if small_classes == "drop" else sizes >= 1
        self._start, self._size = first[large].astype(np.int64), sizes[large].astype(np.int64)
        m, usable = samples_per_class, len(self._size)
        if usable == 0:
            raise DataError(
                f"none of {len(sizes)} classes has {m} images or more, so there is nothing to sample from "
                f"{len(self.labels)} images. Lower samples_per_class, or set small_classes to 'repeat'."
            )
        if self.batch_size > usable * m:
            hint = "" if self.small_classes == "repeat" else ", or set small_classes to 'repeat'"
            raise ConfigError(
                f"a batch of {self.batch_size} needs {self.batch_size // m} classes with {m} images each, but "
                f"{usable} of {len(sizes)} classes can be used: the largest possible batch_size is "
                f"{usable * m}. Lower it{hint}."
            )

        self._epoch = 0
        self._position = 0  # batches of this epoch already yielded
        self._resume_at = 0  # where the next __iter__ begins; set by load_state_dict
        self._plans: dict[int, Indices] = {}

    @property
    def epoch(self) -> int:
        """The epoch that iterating yields."""
        return self._epoch

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch. A position loaded by ``load_state_dict`` is kept if it belongs to this epoch."""
        if epoch != self._epoch:
            self._epoch, self._position, self._resume_at = epoch, 0, 0

    def __len__(self) -> int:
        """Batches of the current epoch, counted from its start."""
        return self._length(self._epoch)

    def __iter__(self) -> Iterator[Indices]:
        """The batches of the current epoch; after ``load_state_dict``, the remaining ones."""
        epoch, first = self._epoch, self._resume_at
        self._resume_at = 0
        for number in range(first, self._length(epoch)):
            # Counted before it is yielded: a state saved while this batch is in use continues with the next.
            self._position = number + 1
            yield self.batch(epoch, number)

    def batch(self, epoch: int, number: int) -> Indices:
        """Batch ``number`` of ``epoch``: M indices, m of a class in a row."""
        if not 0 <= number < self._length(epoch):
            raise InputError(f"epoch {epoch} has batches 0 to {self._length(epoch) - 1}, not {number}.")
        if self.policy == "epoch":
            batch: Indices = self._plan(epoch)[number]
            return batch
        random = np.random.default_rng((self.seed, epoch, number))
        classes = random.permutation(len(self._size))[: self.batch_size // self.samples_per_class]
        shuffled, starts = self._shuffle_within(classes, random)
        return self._take(shuffled, starts, self._size[classes], np.zeros_like(classes))

    def state_dict(self, consumed: int | None = None) -> dict[str, Any]:
        """The exact position, also in the middle of an epoch, as plain values for JSON.

        Args:
            consumed: batches of the current epoch already trained on. Needed when a reader takes batches ahead of
                their use, as ``Pipeline.stream`` does; by default, the batches yielded so far.
        """
        position = self._position if consumed is None else consumed
        length = len(self)
        if not 0 <= position <= length:
            raise InputError(f"{position} batches consumed, but epoch {self._epoch} has {length}.")
        # A finished epoch is the start of the next, so that resuming never gives an empty epoch.
        epoch, position = (self._epoch + 1, 0) if position == length else (self._epoch, position)
        return {"epoch": epoch, "batch": position, **self._identity()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue where ``state_dict`` was taken.

        Raises:
            ConfigError: the state belongs to other labels or settings, so its batches would not be the same.
        """
        for key, value in self._identity().items():
            if state.get(key) != value:
                raise ConfigError(
                    f"the saved sampler had {key} {state.get(key)!r}, this one has {value!r}: continuing would give "
                    "other batches. Use the settings and data of the saved run, or start a new one."
                )
        self._epoch = int(state["epoch"])
        self._position = self._resume_at = int(state["batch"])

    def _length(self, epoch: int) -> int:
        if self.policy == "epoch":
            return len(self._plan(epoch))
        if self.batches_per_epoch is not None:
            return self.batches_per_epoch
        return max(1, int(self._size.sum()) // self.batch_size)

    def _plan(self, epoch: int) -> Indices:
        """Policy ``"epoch"``: all batches of an epoch, batches × M. The last plan is kept."""
        if epoch in self._plans:
            return self._plans[epoch]
        m, per_batch = self.samples_per_class, self.batch_size // self.samples_per_class
        random = np.random.default_rng((self.seed, epoch))
        classes = random.permutation(len(self._size))
        shuffled, starts = self._shuffle_within(classes, random)
        sizes = self._size[classes]
        remaining = np.maximum(sizes // m, 1)  # a class is here with fewer than m images only under "repeat"
        used = np.zeros_like(remaining)
        batches = []
        while len(rows := np.flatnonzero(remaining)[:per_batch]) == per_batch:
            batches.append(self._take(shuffled, starts[rows], sizes[rows], used[rows] * m))
            remaining[rows] -= 1
            used[rows] += 1
        plan = np.stack(batches)[random.permutation(len(batches))][: self.batches_per_epoch]
        self._plans = {epoch: plan}
        return plan

    def _shuffle_within(self, classes: Indices, random: np.random.Generator) -> tuple[Indices, Indices]:
        """The images of ``classes``, each class shuffled, in one array; and where in it each class starts."""
        sizes = self._size[classes]
        starts = np.concatenate([[0], np.cumsum(sizes)[:-1]])
        members = np.arange(sizes.sum()) + np.repeat(self._start[classes] - starts, sizes)
        shuffle = np.lexsort((random.random(len(members)), np.repeat(np.arange(len(classes)), sizes)))
        return self._order[members[shuffle]], starts

    def _take(self, shuffled: Indices, starts: Indices, sizes: Indices, skip: Indices) -> Indices:
        """m images of each class after the first ``skip``; a class that is too small starts over."""
        within = (skip[:, None] + np.arange(self.samples_per_class)) % sizes[:, None]
        return shuffled[(starts[:, None] + within).reshape(-1)]

    def _identity(self) -> dict[str, Any]:
        """The values that must be equal for two samplers to yield the same batches."""
        names = ("policy", "batch_size", "samples_per_class", "small_classes", "seed", "batches_per_epoch")
        labels = hashlib.sha256(self.labels.astype("<i8").tobytes()).hexdigest()[:16]
        return {**{name: getattr(self, name) for name in names}, "labels": labels}
