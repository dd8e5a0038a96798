"""The plan of a training, printed before it starts: sizes, memory, time, and all automatic settings.

Times are measured on two real steps (``optimizer.take_step``) and one batch of every other stage, under the machine's current
load; memory is the peak of that. If a step would take more than a few seconds, part of the batch is measured.
"""

from __future__ import annotations

import copy
import math
import os
from collections.abc import Iterator
from dataclasses import replace
from shlex import quote
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from recollect.common import machine
from recollect.common.errors import ConfigError, in_bytes
from recollect.common.text import in_digits, in_words, number_of, some_names
from recollect.data import ImageSet
from recollect.data.folders import summary
from recollect.data.image_set import Indices
from recollect.data.pipeline import Batch
from recollect.evaluation.verdict import FEW_QUERIES
from recollect.inference.evaluate import measure_labelled
from recollect.inference.vectors import run_network, seconds_of_rows
from recollect.losses.engine.simix import MAX_PAIRS
from recollect.step.distributed import Processes, unsharded
from recollect.step.large_batch import free_bytes, large_batch_step, random_state, set_random_state
from recollect.training.batches import BatchSource, make_sampler, number_of_steps
from recollect.training.build import Setup, make_trained, open_source
from recollect.training.head import LARGEST, RATES, trial_steps, whitening_images
from recollect.training.optimizer import Position, take_step
from recollect.training.run import Trained

CORES = os.cpu_count() or 1
_FEW, _EMBEDDED = 16, 64  # images of the first step, and embedded without a graph
_SECONDS = 4.0  # that the second step may take
_RANKED = 2000  # vectors
_ERROR = 1.3  # how far a plan may be above the memory that a training uses (docs/training.md)


class Plan:
    """The figures of a training before it starts.

    Args:
        setup: what is trained; ``make_plan`` restores it.
        source: the training images; None for features that may not be computed yet.
    """

    def __init__(self, setup: Setup, source: BatchSource | None) -> None:
        config, model, sets, device = setup.config, setup.config.model, setup.sets, setup.device
        embedder, images, processes = setup.embedder, sets.train, setup.processes
        sampler = make_sampler(config, images.labels)
        whole = next(iter(sampler))
        sizes, each = images.class_sizes[images.class_sizes > 0], config.batch.samples_per_class
        repeats = config.batch.size == "all" or config.batch.small_classes == "repeat"
        own_images = embedder.preprocessing.resize is not None
        held_out, validation = sets.held_out, sets.validation
        # What is known.
        self.data = config.data.name
        self.root = config.data.root if config.data.name == "folder" else None
        """The folder or list, if the images are one's own."""
        self.images = len(images)
        self.classes = len(sizes)
        self.classes_used = len(sizes) if repeats else int((sizes >= each).sum())
        self.validation_classes = 0 if validation is None or sets.benchmark else validation.num_classes
        self.validation_queries = 0 if sets.benchmark is None else len(sets.benchmark.queries)
        """Number of queries of sfm120k."""
        self.validation_images = 0 if validation is None else len(validation)
        self.left_out = {str(reason): int(count) for reason, count in images.facts.get("left_out", {}).items()}
        """Skipped files, by reason."""
        self.held_out_classes = 0 if held_out is None else held_out.num_classes
        self.held_out_images = 0 if held_out is None else len(held_out)
        split = {} if held_out is None else held_out.facts.get("split", {})
        self.given_split = held_out is not None and split.get("class_split", "given") == "given"
        """The data say which classes are for testing."""
        self.all_classes = config.data.train_split == "all"
        """Whether nothing is held out, on purpose."""
        self.shared_classes = sets.shared_classes
        """Classes of the test part that are trained on as well."""
        self.init = model.init
        self.image_size = model.image_size or (embedder.preprocessing.size if own_images else None)
        self.own_size = model.image_size is None and own_images
        """Whether this is the resolution of its pre-training."""
        self.parameters = sum(parameter.numel() for parameter in embedder.parameters())
        self.trained_parameters = sum(
            parameter.numel() for parameter in embedder.parameters() if parameter.requires_grad
        )
        self.frozen = model.freeze
        self.cached = setup.frozen is not None
        """Whether the features of the frozen part are stored."""
        self.batch = setup.batch_size
        self.classes_per_batch = len(np.unique(images.labels[whole]))
        in_batch, limit = np.bincount(images.labels[whole]), config.loss.options.get("max_pairs", MAX_PAIRS)
        pairs = np.minimum(in_batch * (in_batch - 1) // 2, np.inf if limit is None else limit).sum()
        self.virtual_batch = setup.batch_size + (int(pairs) if config.loss.options.get("simix") else 0)
        """Images and virtual images of the loss; SiMix adds one for each pair of a class, up to ``max_pairs``."""
        self.chunk = setup.chunk
        self.processes = processes.size
        self.steps = number_of_steps(config, sampler)
        self.batches_per_epoch = len(sampler)
        self.epochs = config.run.epochs if isinstance(config.run.epochs, int) else self.steps / self.batches_per_epoch
        self.device = str(device)
        self.precision = config.run.precision

        # What is measured.
        trained = make_trained(setup, copy.deepcopy(setup.passed.loss))
        mine = np.array_split(whole, processes.size)[processes.rank]

        def read(indices: Indices) -> Batch:
            """Images, or variations of one feature, since features may not be computed yet."""
            if source is not None:
                return next(source.stream([indices]))
            rows = setup.example.expand(len(indices), *setup.example.shape[1:])
            return Batch(rows * (1 + 0.5 * torch.randn_like(rows)), torch.from_numpy(images.labels[indices]), indices)

        def step_on(batch: Batch, trained: Trained = trained) -> float:
            start, position, chunk = machine.clock(), Position(0.0, 0.0, 1.0), min(setup.chunk, len(batch.labels))
            with machine.limited_threads(setup.threads):
                take_step(setup.network, trained, config, batch, position, chunk, dtype=setup.dtype)
            if gpu:
                torch.cuda.synchronize(device)
            return machine.clock() - start

        def embed() -> None:
            batch = read(mine[: min(done, _EMBEDDED)])
            for vectors, _ in run_network(setup.network, [(batch.images, batch.indices)], device, setup.dtype):
                vectors.cpu()

        # Two steps: the first on a few images, the second on as many as a few seconds and the memory allow. All processes do
        # the same, since they wait for each other. A GPU and a compiled network are timed on whole chunks, after a first one.
        most, before = -(-len(whole) // processes.size), _peak_bytes(device)
        done, more = most if config.batch.size == "all" else min(most, _FEW), 1.0
        gpu, unit = device.type == "cuda", 1
        if gpu or config.run.compile:
            done = unit = -(-most // -(-most // min(setup.chunk, most)))
            step_on(read(mine[:done]))
        for _ in range(2):
            done = min(most, max(1, int(done * more) // unit) * unit)
            start = machine.clock()
            batch = read(mine[:done])
            reading = machine.clock() - start
            computing, grown = step_on(batch), _peak_bytes(device) - before
            available = free_bytes(device) if gpu else machine.available_bytes()
            more = min(_SECONDS / max(reading + computing, 1e-9), available / 2 / max(grown, 1))
            more = max(1.0, min(processes.all_gather(more)))
        self.longer_side = setup.example.shape[-1] if isinstance(batch.images, list) else 0
        """Maximum longer side of whole images; 0 if all have one size."""
        if done < most:
            # All but the last chunk are embedded twice, and a backward pass costs two forwards. The loss is of the whole batch.
            computing *= (4 * most - min(setup.chunk, most)) / (4 * done - min(setup.chunk, done))
            vectors = functional.normalize(torch.randn(len(mine), embedder.dim, device=device), dim=1)
            start, labels = machine.clock(), torch.from_numpy(images.labels[mine])
            float(large_batch_step(nn.Identity(), trained.loss, vectors, labels, most, group=processes))
            computing, reading = computing + machine.clock() - start, reading * most / done
        choosing = 0.0
        if trials := len(RATES) * trial_steps(setup):  # on half of the classes, by one process
            half, single = read(mine[: min(len(mine) // 2, LARGEST)]), replace(trained, processes=Processes())
            choosing = trials * min(step_on(half, single) for _ in range(2))
        with unsharded(setup.network):
            forward = machine.seconds_of(embed) / len(mine[: min(done, _EMBEDDED)])
        watched = [each for each in (validation, sets.test) if each is not None]
        ranking = sum(_ranking_seconds(setup, each) for each in watched if sets.benchmark is None or each is sets.test)
        whitening = whitening_images(config, images)

        self.seconds_features = sum(_feature_seconds(setup, each) for each in (images, *watched))
        """Features of a frozen part, once."""
        self.seconds_whitening = 0.0 if whitening is None else len(whitening.images) * forward
        self.seconds_choosing = choosing
        """Trials with several learning rates."""
        # On a CPU, threads that read need the same cores.
        shares_cores = device.type == "cpu" and torch.get_num_threads() >= CORES
        self.seconds_per_step = computing + reading if shares_cores else max(computing, reading)
        """Reading, network, loss, optimizer."""
        epochs, rest = divmod(self.steps, max(self.batches_per_epoch, 1))
        every = config.run.evaluate_every if isinstance(config.run.evaluate_every, int) else 1
        times = int(config.run.evaluate_first) + epochs // every + int(bool(rest) or epochs % every != 0)
        self.evaluations = times if watched else 0
        self.seconds_per_evaluation = (forward * sum(map(len, watched)) + ranking) / processes.size
        passes = 3 if model.whitening == "all" else 2  # of the held-out images, one for each network
        self.seconds_verdict = passes * self.held_out_images * forward
        if setup.frozen is not None and held_out is not None:
            self.seconds_verdict = _feature_seconds(setup, held_out, "skip")
        self.seconds = sum(seconds for _, seconds in self._parts())
        """Total."""

        # The rest of a chunk, the batch and the next one, images read ahead, and the vectors of an evaluation.
        memory = _peak_bytes(device) + grown * max(0.0, min(setup.chunk, most) / done - 1)
        if setup.frozen is None and device.type == "cpu":
            one_batch = most * setup.example[0].nbytes * setup.share
            ahead = 1.5 * one_batch if config.data.prefetch_mb is None else config.data.prefetch_mb << 20
            memory += one_batch * (2 - done / most) + min(ahead, one_batch * self.steps)
        memory += max((8 * len(each) * embedder.dim for each in watched), default=0)
        total = torch.cuda.get_device_properties(device).total_memory if gpu else machine.total_memory()
        if total is not None and memory > _ERROR * total:
            raise ConfigError(
                f"this training needs about {in_bytes(int(memory))} of memory, more than this machine has. Lower batch.chunk "
                "(--chunk, which never changes the result), model.image_size (--image-size) or batch.size (--batch-size)."
            )
        self.memory_mb = int(memory / 2**20)
        """Peak memory of the whole process; on a GPU, of the GPU."""
        self.chosen = setup.auto_settings
        """Automatic settings, with reasons."""

    def _parts(self) -> Iterator[tuple[str, float]]:
        """What the time is spent on."""
        yield "features", self.seconds_features
        yield "whitening", self.seconds_whitening
        yield "choosing the learning rate", self.seconds_choosing
        yield f"steps ({self.seconds_per_step:.2g} s each)", self.seconds_per_step * self.steps
        yield "evaluations", self.evaluations * self.seconds_per_evaluation
        yield "verdict", self.seconds_verdict

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for the manifest and ``--json``."""
        return vars(self) | {"chosen": [vars(setting) for setting in self.chosen]}

    def lines(self) -> list[str]:
        """The plan as text."""
        return [f"{name:<10} {text}" for name, text in self.rows()]

    def rows(self) -> Iterator[tuple[str, str]]:
        """What each line is about, and its text."""
        yield from self._data_rows()
        size = f" at {self.image_size} px" if self.image_size else ""
        how = ": features are computed once" if self.cached else ", whose features are computed in every step"
        frozen = f", frozen up to {self.frozen}{how}" if self.frozen != "none" else ""
        trained = f"{self.trained_parameters / 1e6:.2f} M trained{frozen}"
        yield "model", f"{self.init}{size}: {self.parameters / 1e6:.1f} M parameters, {trained}"
        if self.cached and self.own_size:
            yield (
                "size",
                f"features are computed at the resolution the network was pre-trained at, {self.image_size} px; "
                "smaller photos are enlarged, because features are worse at smaller sizes (--image-size changes it)",
            )
        virtual = f", with SiMix {self.virtual_batch:,}" if self.virtual_batch > self.batch else ""
        each = f", {self.batch // self.processes:,} on each of {self.processes} processes" if self.processes > 1 else ""
        classes = number_of(self.classes_per_batch, "class")
        yield "batch", f"{number_of(self.batch, 'image')} of {classes}{virtual}{each}"
        whole = f", each of at most {self.longer_side} × {self.longer_side} pixels" if self.longer_side else ""
        yield "chunk", f"{number_of(self.chunk, 'image')} in the network at once{whole}"
        epochs = "1 epoch" if self.epochs == 1 else f"{in_digits(self.epochs)} epochs"
        length = f"{epochs} of {number_of(self.batches_per_epoch, 'batch')}"
        yield (
            "length",
            f"{number_of(self.steps, 'step')}: {length if self.steps else 'the last layer stays as it starts'}",
        )
        yield "machine", f"{self.device}, {self.precision}; about {self.memory_mb:,} MB"
        # Every part of at least 5 %.
        least = max(0.05 * self.seconds, 1e-9)
        large = [f"{name} {in_words(value)}" for name, value in self._parts() if value >= least]
        yield "time", f"about {in_words(self.seconds)}" + (f": {', '.join(large)}" if self.seconds >= 1 else "")
        yield from (("chosen", str(setting)) for setting in self.chosen)

    def _data_rows(self) -> Iterator[tuple[str, str]]:
        unused = self.classes - self.classes_used
        parts = [
            f"{number_of(self.images, 'image')}, {number_of(self.classes_used, 'class')}"
            f"{f' ({unused:,} too small to use)' if unused else ''}"
        ]
        if self.validation_classes:
            parts.append(f"{number_of(self.validation_classes, 'class')} for validation")
        if self.validation_queries:
            parts.append(f"{self.validation_queries:,} queries of sfm120k for validation")
        yield "data", f"{self.data}: {'; '.join(parts)}"
        if self.left_out or self.held_out_classes:
            yield "files", summary(self.images, self.left_out, self.held_out_classes)
        if self.held_out_classes:
            yield (
                "held out",
                f"{number_of(self.held_out_classes, 'class')} ({number_of(self.held_out_images, 'image')}), so that the result "
                f"can be measured on unseen classes{'' if self.given_split else '; --test-share changes how many'}. When you "
                "are satisfied with the settings, recollect train --final RUN trains on all classes",
            )
        if self.shared_classes and not self.all_classes:
            count = number_of(len(self.shared_classes), "class of the test part is/classes of the test part are")
            others = "" if self.held_out_classes else ", and there are no others: hold out whole classes, not images"
            measured = f"the result is not measured there{others}"
            yield "note", f"{count} trained on as well ({some_names(self.shared_classes)}); {measured}"
            if self.root and not self.held_out_classes:
                command = f"recollect train --data {quote(self.root)} --test-share 0.5"
                yield "instead", f"pool both parts and hold out half of the classes: {command}"
        if self.all_classes:
            yield "note", "all classes are used for training: none are left for testing"
        yield from (("note", remark) for remark in few_queries(self.validation_queries or self.validation_images))


def few_queries(queries: int) -> list[str]:
    """A remark if so few queries decide little; none if there are enough, or none at all."""
    if not 0 < queries < FEW_QUERIES:
        return []
    points = 50 / math.sqrt(queries)
    return [f"{queries:,} validation queries are few: chance alone changes r@1 by about {points:.0f} points"]


def make_plan(setup: Setup) -> Plan:
    """The plan of a training. ``setup`` is left as it was, weights and random states included.

    Raises:
        ConfigError: the training needs more memory than the machine has.
    """
    device = setup.device
    parameters = [parameter for parameter in setup.embedder.parameters() if parameter.requires_grad]
    state, weights = random_state(device), [parameter.detach().clone() for parameter in parameters]
    source = None if setup.frozen is not None else open_source(setup)
    try:
        return Plan(setup, source)
    finally:
        for parameter, weight in zip(parameters, weights, strict=True):
            parameter.data.copy_(weight)
            parameter.grad = None
        set_random_state(device, state)
        if source is not None:
            source.close()


def _ranking_seconds(setup: Setup, images: ImageSet) -> float:
    """Seconds to evaluate a set against itself, extrapolated from a part if it is large: all pairs are compared."""
    count, each = min(len(images), _RANKED), max(2, round(len(images) / images.num_classes))
    labels = torch.arange(count, device=setup.device) // each
    vectors = functional.normalize(torch.randn(count, setup.embedder.dim, device=labels.device), dim=1)
    return machine.seconds_of(lambda: measure_labelled(vectors, labels)) * (len(images) / count) ** 2


def _feature_seconds(setup: Setup, images: ImageSet, policy: str | None = None) -> float:
    """Seconds to compute the features of a set that are not stored yet."""
    data, upto = setup.config.data, setup.config.model.freeze
    if setup.frozen is None:
        return 0.0
    policy = policy or data.on_bad_image
    return seconds_of_rows(setup.embedder, setup.frozen, images, upto, workers=data.workers, on_bad_image=policy)


def _peak_bytes(device: torch.device) -> int:
    return (machine.peak_memory_mb(device) or 0) << 20  # Windows does not report it
