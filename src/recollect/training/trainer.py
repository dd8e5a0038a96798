"""The training loop. Start with ``train``; ``Trainer.run`` reads as a table of contents.

What each line does lives in a file of its own: everything made from settings and passed objects (``build.py``, ``batches.py``),
the plan (``plan.py``), the last layer's start (``head.py``), the step and its optimizer (``optimizer.py``, ``recollect/step``),
evaluation and verdict (``judging.py``), files and checkpoints (``run.py``), callbacks and logs (``callbacks.py``).
"""

from __future__ import annotations

import contextlib
import logging
import math
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from recollect.common import plugins
from recollect.common.console import RESULT, ProgressLine
from recollect.common.images import BadImage
from recollect.common.machine import limited_threads, peak_memory_mb
from recollect.config.resolve import as_mapping
from recollect.config.schema import Config
from recollect.data import ImageSet, shard
from recollect.data.image_set import Indices
from recollect.data.pipeline import Batch
from recollect.data.sources.revisited import SFM_NAME
from recollect.inference.models import make_embedder, places_of_images, read_checkpoint
from recollect.inference.training_record import carry_record, refuse_other_training_images, trained_on
from recollect.inference.vectors import describe_unreadable
from recollect.models import Embedder
from recollect.models.backbones import merge_lora
from recollect.step.distributed import distributed_errors, sharded_parts, unsharded, whole
from recollect.step.large_batch import StepInfo
from recollect.training.build import (
    PassedObjects,
    Training,
    build,
    objects_and_names,
    open_source,
    prepared,
    training_config,
)
from recollect.training.callbacks import Callback, CallbackList, Log, TrainingStoppedError, make_callback, make_loggers
from recollect.training.head import choose_start, whiten_last_layer, whitening_images
from recollect.training.judging import column_of, evaluate_watched, judge_training, merit
from recollect.training.optimizer import Position, StopRequest, stop_on_signals, take_step
from recollect.training.plan import Plan, make_plan
from recollect.training.run import (
    Outcome,
    Progress,
    RunFolder,
    circumstances,
    exclusive_lock,
    load_checkpoint,
    note_resumption,
    now,
    refuse_other_weights,
    resumable,
    resume_command,
    save_best,
    save_checkpoint,
)

logger = logging.getLogger(__name__)


def train(
    config: Config | str | Path | None = None,
    out: Path | str | None = None,
    *,
    settings: Mapping[str, Any] | Iterable[str] = (),
    loss: nn.Module | str | None = None,
    train_set: ImageSet | str | Path | None = None,
    validation_set: ImageSet | None = None,
    test_set: ImageSet | None = None,
    model: nn.Module | str | None = None,
    callbacks: Sequence[Callback | str] = (),
    resume: Path | str | None = None,
    trust: bool = False,
) -> Outcome:
    """Train an embedder, or resume a run.

    Args:
        config: a recipe's name, a YAML file, or a configuration (see ``recollect.resolve``); not with ``resume``. With
            ``train_set`` it may be left out: the settings are then those for a folder of photos.
        out: the run folder to create; by default a new one in ``runs``.
        settings: changes to it, ``{"batch.size": 392}`` or ``["batch.size=392"]``; with ``resume`` only those
            that do not change what is trained, such as ``{"data.root": "moved"}`` or ``{"data.on_bad_image": "skip"}``.
        loss: a loss of ``recollect losses``, a reference such as ``"my.py:MyLoss"``, or an ``nn.Module`` that is called as
            ``loss(embeddings, labels)``.
        train_set: images to train on, instead of those that ``config`` names: an ``ImageSet``, a data set by name or
            reference (``"my.py:images"``), or a folder of photos.
        validation_set: images that select the weights to keep. test_set: images that are evaluated but select nothing.
        model: an initialisation, a reference such as ``"my.py:backbone"``, an ``Embedder``, or a backbone (an ``nn.Module``
            from B×3×H×W to B×C×H×W or B×C). Modules are trained in place.
        callbacks: called after every step and evaluation; each a ``Callback``, or a reference to a class of callbacks
            (``"my.py:Patience"``). An exception in one ends the run, which can be resumed from its last checkpoint.
        resume: a run folder to resume. On a CPU the result is bit-identical to the uninterrupted run. Objects that the run
            was started with must be passed again.
        trust: run the code that the run to be resumed names (references).

    Returns:
        The run folder, the metrics, and the step whose weights were kept.

    Raises:
        ConfigError: invalid settings, or a run folder that is in use.
        TrainingStoppedError: stopped by a signal (after writing a checkpoint) or by a loss that is NaN or infinite.

    Example:
        >>> import recollect
        >>> settings = {"model.init": "tiny", "batch.size": 8, "run.steps": 2, "run.epochs": None}
        >>> outcome = recollect.train("folder", "new-run", settings={"data.root": "photos", **settings})
        >>> outcome.steps, recollect.load(outcome.folder).dim
        (2, 128)
    """
    run = None if resume is None else RunFolder.open(resume)
    if run is not None and (finished := run.read_manifest().get("outcome")):
        logger.info(f"{run.path} is finished; there is nothing left to do.")
        return Outcome.of_manifest(run.path, finished, run.read_manifest().get("verdicts", {}))
    objects, named = objects_and_names(loss, train_set, validation_set, test_set, model)
    with plugins.recording() as outside:
        with plugins.trusting(trust):
            resolved = objects.named(training_config(config, settings, named, run, train_set is not None))
        if run is None and out is not None:
            RunFolder.create(out, resolved.name)  # used or read-only: noticed before features are computed, not after
        user_callbacks = [make_callback(each) if isinstance(each, str) else each for each in callbacks]
        observers = CallbackList(user_callbacks, make_loggers(resolved.run))
        return _train(resolved, objects, run, out, observers, outside)


def _train(
    config: Config,
    objects: PassedObjects,
    run: RunFolder | None,
    out: Path | str | None,
    observers: CallbackList,
    outside: list[plugins.Loaded],
) -> Outcome:
    advice = "Start all of them again with the same command."
    with prepared(config, objects) as setup, distributed_errors(setup.processes, lambda: advice):
        first, figures = setup.processes.rank == 0, make_plan(setup)
        lines = figures.lines()
        for line in lines if first else []:
            logger.info(line)
        if run is not None:
            # On every process: all of them end.
            refuse_other_training_images(run.path, setup.sets.train)
            refuse_other_weights(run, setup.embedder.config.provenance.sha256)
        begun = time.monotonic()
        with contextlib.closing(open_source(setup)) as source:
            planned = setup.auto_settings
            if run is None:
                setup = choose_start(setup, source)
            for setting in [setting for setting in setup.auto_settings if setting not in planned] if first else []:
                lines.append(f"chosen     {setting}")
                logger.info(lines[-1])
            with contextlib.closing(build(setup, source)) as training:
                if training.watched:
                    column_of(training.config.run.select)  # a metric from outside is recorded before the run begins
                figures.steps = training.steps  # perhaps none, chosen after the plan was printed
                folder = _place(training, figures, run, out, outside, time.monotonic() - begun)
                how = resume_command(folder.path, outside)
                advice = f"Resume all of them from the last checkpoint: {how}."
                with exclusive_lock(folder, setup.processes), stop_on_signals() as stop, resumable(how):
                    trainer = Trainer(training, folder, stop, observers, how)
                    if not first:
                        observers.loggers.clear()
                    else:
                        folder.append_log(*lines)
                        if run is not None:
                            note_resumption(folder, training.config, outside)
                    trainer.remark(f"run        {folder.path}")
                    if setup.processes.size > 1:  # NCCL ends a process that waits in vain before it can say so
                        trainer.remark(f"resume     if a process is lost, all of them: {how}")
                    return trainer.run()


def plan(config: Config) -> Plan:
    """The plan of ``train``, without training. Writes nothing.

    Args:
        config: what would be trained (see ``recollect.resolve``).

    Returns:
        The plan; ``lines()`` returns it as the command line prints it.

    Example:
        >>> import recollect
        >>> figures = plan(recollect.resolve("folder", {"data.root": "photos", "model.init": "tiny"}))
        >>> figures.lines()[0].split()[0]
        'data'
    """
    with prepared(config) as setup:
        return make_plan(setup)


def _place(
    training: Training,
    figures: Plan,
    run: RunFolder | None,
    out: Path | str | None,
    outside: Sequence[plugins.Loaded],
    preparation: float,
) -> RunFolder:
    """The folder of ``run``, or a new one created with its configuration. Called by every process."""
    config, processes = training.config, training.processes
    if processes.rank == 0 and run is None:
        run = RunFolder.create(out, config.name)
        planned = figures.as_dict()
        del planned["chosen"]
        sets = {"train": training.sets.train, "validation": training.sets.validation, "test": training.sets.test}
        manifest = {
            **circumstances(training.device, processes.size),
            "data": {
                "name": config.data.name,
                **places_of_images(config.data, run.path),
                "fingerprints": {name: each.fingerprint for name, each in sets.items() if each is not None},
            },
            "weights": training.embedder.config.provenance.as_dict(),
            "choices": [vars(setting) for setting in training.auto_settings],
            "plan": planned,
            "preparation_seconds": round(preparation, 1),
        }
        if outside:
            manifest["outside"] = [loaded.as_dict() for loaded in outside]
        run.begin(config, manifest, trained_on(training.sets.train, training.sets.validation))
    return RunFolder(Path(processes.broadcast(None if run is None else str(run.path))))


class Trainer:
    """The loop over the objects from ``build``; use ``train``."""

    def __init__(
        self, training: Training, folder: RunFolder, stop: StopRequest, observers: CallbackList, how_to_resume: str
    ) -> None:
        self.training, self.folder, self.stop = training, folder, stop
        self.observers, self.how_to_resume = observers, how_to_resume
        self.config, self.processes = training.config, training.processes
        self.chunk, self.progress, self.first = training.chunk, Progress(), self.processes.rank == 0
        self.skipped = frozenset[str]()

    def remark(self, line: str, result: bool = False) -> None:
        """Log a line and write it to the run; ``result``: also with ``--quiet``."""
        if self.first:
            logger.info(line, extra=RESULT if result else None)
            self.folder.append_log(line)

    def run(self) -> Outcome:
        """The whole training."""
        self._restore()
        self._note_skipped()
        steps, done = self.training.steps, self.progress.step
        with ProgressLine("training", steps, "steps", None if self.first else True, done=done) as line:
            self.log = Log(self.folder if self.first else None, line)
            self.observers.call("on_start", self.folder.path, as_mapping(self.config), done)
            outcome = None
            try:
                if done == 0 and self.config.run.evaluate_first:
                    self._evaluate()
                self.tick = time.perf_counter()
                for batch in self._batches():
                    with limited_threads(self.training.threads):
                        self._step(batch)
                    if self._evaluation_is_due():
                        self._evaluate()
                    self._save_if_due()
                    self.tick = time.perf_counter()
                outcome = self._finish()
                return outcome
            finally:
                self.observers.call("on_end", outcome)

    def _note_skipped(self, tested: Sequence[BadImage] = ()) -> None:
        """List images that could not be read in the manifest, and say so if there are more of them than before.

        ``tested``: those of the images that the verdict is given on.
        """
        skipped = self._skipped() | {bad.name: bad for bad in tested}
        if len(skipped) > len(self.skipped) and self.first:
            self.remark(self.folder.note_skipped(list(skipped.values()), self.skipped), result=True)
        self.skipped = frozenset(skipped)

    def _skipped(self) -> dict[str, BadImage]:
        return {name: bad for each in self.processes.all_gather(self.training.skipped) for name, bad in each.items()}

    def _restore(self) -> None:
        resumed = self.folder.last.exists()
        if resumed:
            trained, seed = self.training.trained, self.config.run.seed
            self.progress, sampler, chunk, before = load_checkpoint(self.folder.last, trained, seed)
            if self.config.batch.chunk == "auto":  # the one measured at the start, not the one measured now
                self.chunk = chunk
            self.training.sampler.load_state_dict(sampler)
            if self.progress.best:  # needed after the last step; better to fail now
                read_checkpoint(self.folder.best(self.progress.best["step"]))
            self.remark(f"resumed    after step {self.progress.step:,}")
            if before != (size := self.processes.size):
                self.remark(f"processes  {size} instead of {before}: random numbers in the network (dropout) are new")
        elif (whitening_set := whitening_images(self.config, self.training.sets.train)) is not None:
            whiten_last_layer(self.training, whitening_set)
            whose = "training" if whitening_set.pairs is None else "SfM-120k"
            unread = self._skipped()
            count = sum(name not in unread for name in whitening_set.images.names)
            source = f"starts from {count:,} {whose} images"
            identity = self.config.model.whitening == "identity"
            self.remark(f"whitening  the last layer {'is the identity' if identity else source}")
            self._save()  # so that it is learned only once, even if the run is interrupted early
        if self.first:
            # Before the first step the first evaluation is repeated.
            self.folder.truncate_records(self.progress.step or -1, self.remark)
            self.folder.delete_other_best(self.progress.best.get("step"))
        self.saved_at = time.monotonic()
        self.started_at = time.monotonic() - self.progress.seconds

    # One step ---------------------------------------------------------------------------------------------------------

    def _batches(self) -> Iterator[Batch]:
        """Every batch from the current position to the end; this process's part of each."""
        sampler = self.training.sampler
        while not self._is_over():
            sampler.set_epoch(self.progress.epoch)
            self.batches_in_epoch = len(sampler)
            mine = map(self._part, sampler)
            stream = self.training.source.stream(mine, self.progress.epoch, self.progress.batch)
            with contextlib.closing(stream):  # which stops its read-ahead
                for batch in stream:
                    yield batch
                    if self._is_over():
                        return
            self.progress.epoch, self.progress.batch = self.progress.epoch + 1, 0

    def _part(self, batch: Indices) -> Indices:
        """Whole classes if there are enough: the draws for repeated and replaced images depend on them."""
        each, processes = self.config.batch.samples_per_class, self.processes
        whole = len(batch) % each == 0 and len(batch) // each >= processes.size
        return shard(batch, processes.rank, processes.size, group=each if whole else 1)

    def _is_over(self) -> bool:
        if self.config.run.steps is not None:
            return self.progress.step >= self.config.run.steps
        return self.progress.epoch >= int(self.config.run.epochs or 0)

    def _step(self, batch: Batch) -> None:
        info, training, progress = StepInfo(), self.training, self.progress
        loss, norm, factor = take_step(
            training.network,
            training.trained,
            self.config,
            batch,
            self._position(),
            self.chunk,
            dtype=training.dtype,
            info=info,
            check=partial(self._stop_if_diverged, batch),
        )
        progress.step += 1
        progress.batch += 1
        progress.seconds = time.monotonic() - self.started_at
        record: dict[str, Any] = {
            "step": progress.step,
            "epoch": round(progress.epoch + progress.batch / self.batches_in_epoch, 4),
            "loss": loss,
            "lr_factor": factor,
            "lr": training.trained.optimizer.param_groups[0]["lr"],
            "gradient_norm": norm if math.isfinite(norm) else None,
            "images_per_second": round(len(batch.labels) * self.processes.size / (time.perf_counter() - self.tick), 1),
            "seconds": round(progress.seconds, 3),
            "memory_mb": peak_memory_mb(training.device),
            "skipped": info.skipped,
            "negligible_share": round(info.negligible_share(0.01), 4),
        }
        self.log.step(**record)
        finite = {key: value for key, value in record.items() if value is not None and math.isfinite(value)}
        del finite["step"]
        self.observers.call("on_step", progress.step, finite)

    def _stop_if_diverged(self, batch: Batch, loss: float, norm: float) -> None:
        """Save the batch and stop, if the loss or the gradient norm is NaN or infinite, or the loss beyond the limit.

        Raises:
            TrainingStoppedError: the message says where the batch is.
        """
        scaler, images = self.training.trained.scaler, self.training.sets.train
        sound, advice = math.isfinite(norm), "Check its images, lower optimizer.lr, or set optimizer.clip."
        if not sound and math.isfinite(loss) and scaler.is_enabled():
            # fp16 overflows occasionally: the scaler then skips the step and lowers its factor, starting at 65,536. If it
            # overflows even with a small factor, the factor is not the reason, and every step would be skipped forever.
            sound = scaler.get_scale() >= 1
            advice = "It overflows fp16 with any factor: lower optimizer.lr, or set run.precision to bf16 or fp32."
        if math.isfinite(loss) and abs(loss) <= self.config.run.loss_limit and sound:
            return
        step = self.progress.step + 1
        facts = {
            "step": step,
            "epoch": self.progress.epoch,
            "loss": str(loss),
            "gradient_norm": str(norm),
            "images": [images.names[index] for index in batch.indices.tolist()],
            "classes": [images.class_names[label] for label in batch.labels.tolist()],
        }
        tensors = {"inputs": batch.images, "labels": batch.labels, "indices": torch.from_numpy(batch.indices)}
        path = self.folder.keep_batch(self.processes.rank, tensors, facts)
        raise TrainingStoppedError(
            f"stopped at step {step}: the loss is {loss:g} and the gradient's norm {norm:g}. The batch is saved in {path}. "
            f"{advice}"
        )

    def _position(self) -> Position:
        epoch = self.progress.epoch + self.progress.batch / self.batches_in_epoch
        steps = self.config.run.steps
        fraction = self.progress.step / steps if steps else epoch / int(self.config.run.epochs or 1)
        return Position(epoch, fraction, 1 / self.batches_in_epoch)

    # Between steps ----------------------------------------------------------------------------------------------------

    def _evaluation_is_due(self) -> bool:
        epoch_over = self.progress.batch >= self.batches_in_epoch
        done, every = self.progress.epoch + 1, self.config.run.evaluate_every
        if self.config.run.steps is not None and self.progress.step >= self.config.run.steps:
            return True
        return epoch_over and (done == self.config.run.epochs or (isinstance(every, int) and done % every == 0))

    def _evaluate(self) -> None:
        training, select = self.training, self.config.run.select
        with training.trained.averaged():
            for watched in training.watched:
                with unsharded(training.network):
                    metrics = evaluate_watched(
                        training.network, watched, self.processes, training.device, training.dtype, select
                    )
                self.log.evaluation(watched.name, self.progress.step, metrics)
                if watched.name == "val":
                    self._keep_if_best(metrics)
                self.observers.call("on_evaluation", watched.name, self.progress.step, dict(metrics))

    def _keep_if_best(self, metrics: dict[str, float]) -> None:
        value, tie, step = merit(metrics, self.config.run.select, self.progress.step)
        best = self.progress.best
        if (value, tie, step) > (best.get("value", -math.inf), best.get("tie", 0.0), best.get("step", -1)):
            self.progress.best = {"step": step, "value": value, "tie": tie}
            weights = whole(self.training.embedder.state_dict())
            if self.first:
                save_best(self.folder.best(step), weights, step, value)

    def _save_if_due(self) -> None:
        every = self.config.run.checkpoint_steps
        due = time.monotonic() - self.saved_at > 60 * self.config.run.checkpoint_minutes
        due = due or (every is not None and self.progress.step % every == 0)
        due, signal = self.stop.agreed(due, self.processes, self.training.device)
        if due or signal is not None:
            self._save()
        if signal is not None:
            raise TrainingStoppedError(
                f"stopped on request: saved after step {self.progress.step:,}. Resume with: {self.how_to_resume}",
                128 + signal,
            )

    def _save(self) -> None:
        state = self.training.sampler.state_dict(consumed=self.progress.batch)
        progress = replace(self.progress, epoch=state["epoch"], batch=state["batch"])
        save_checkpoint(self.folder.last, self.training.trained, progress, state, self.chunk)
        if self.first:
            self.folder.delete_other_best(self.progress.best.get("step"))
        self.saved_at = time.monotonic()

    # After the last step ----------------------------------------------------------------------------------------------

    def _whole_embedder(self) -> Embedder:
        """The embedder with the last weights or their average, on each process."""
        training = self.training
        if training.trained.average is not None:
            training.trained.average.swap()
        if not sharded_parts(training.embedder):
            return training.embedder
        weights = whole(training.embedder.state_dict())
        embedder = make_embedder(replace(self.config.model, weights="none"), self.config.run.seed).to(training.device)
        embedder.load_state_dict(weights)
        embedder.precision, embedder.config = training.embedder.precision, training.embedder.config
        self.training = replace(training, embedder=embedder)
        return embedder

    def _finish(self) -> Outcome:
        embedder, best, model = self._whole_embedder(), self.progress.best, self.config.model
        if best:
            self.processes.barrier()  # the file is written by the first process
            embedder.load_state_dict(read_checkpoint(self.folder.best(best["step"]))["model"])
        if model.lora is not None:
            merge_lora(embedder.backbone)
        if (used := describe_unreadable(self.training.sets.train, self._skipped())) is not None:
            self.remark(f"files      {used}", result=True)  # some that the plan counted could not be read
        started = time.monotonic()
        judged = judge_training(self.training, self.progress.step, partial(self.remark, result=True))
        judging = round(time.monotonic() - started, 1)
        self._note_skipped(judged.skipped)
        outcome = Outcome(
            folder=self.folder.path,
            steps=self.progress.step,
            seconds=round(self.progress.seconds, 1),
            chosen_step=int(best["step"]) if best else self.progress.step,
            metrics=self.log.latest,
            verdicts=judged.verdicts,
        )
        if self.first:
            embedder.save(self.folder.model, overwrite=True)
            carry_record(self.folder.path, self.folder.model)  # it may be copied out of the run
            set_name = SFM_NAME if self.training.sets.benchmark is not None else "the validation classes"
            by = f"{column_of(self.config.run.select)} of {set_name}" if best else "last step"
            self.folder.update_manifest(finished=now(), **outcome.for_manifest(chosen_by=by, judging_seconds=judging))
            self.folder.delete_other_best(best.get("step"))
        self.processes.barrier()
        return outcome
