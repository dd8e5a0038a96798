"""The training loop. Start with ``train``; ``Trainer.run`` reads as a table of contents.

What each line does lives in a file of its own: everything made from the settings (``build.py``), the plan
(``estimate.py``), the step (``recollect/step``), learning rates (``optimizer.py``), evaluation (``validation.py``),
state (``checkpoint.py``), files (``run_folder.py``), stopping (``stopping.py``), callbacks
(``callbacks.py``, ``loggers.py``), objects instead of names (``given.py``).
"""

from __future__ import annotations

import contextlib
import logging
import math
import time
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from recollect.common import plugins
from recollect.common.console import RESULT, ProgressLine
from recollect.common.images import BadImage
from recollect.common.machine import limited_threads, peak_memory_mb
from recollect.config.resolve import as_mapping
from recollect.config.schema import Config
from recollect.data import ImageSet, shard
from recollect.data.image_set import Indices
from recollect.data.sources.revisited import SFM_NAME
from recollect.inference.models import absolute_roots, read_checkpoint, relative_roots
from recollect.inference.training_record import refuse_other_training_images, trained_on
from recollect.inference.vectors import describe_unreadable
from recollect.step.chunking import is_out_of_memory, out_of_memory
from recollect.step.large_batch import StepInfo, large_batch_step
from recollect.step.team import losing_no_process
from recollect.training.batches import Fed
from recollect.training.build import Training, built
from recollect.training.callbacks import Callback, TrainingStoppedError, checked_callback
from recollect.training.checkpoint import Progress, load_checkpoint, save_best, save_checkpoint
from recollect.training.estimate import Plan, estimate
from recollect.training.given import Given, chosen_config, objects_and_names
from recollect.training.judging import judge_training
from recollect.training.last_layer import choose_start, whiten_last_layer, whitening_images
from recollect.training.loggers import make_callback, make_loggers, numbers
from recollect.training.optimizer import Position, clip_gradients, set_learning_rates
from recollect.training.outcome import Outcome as Outcome
from recollect.training.resuming import note_resumption, refuse_other_weights, resumable, resume_command
from recollect.training.run_folder import Log, RunFolder, alone, circumstances, now
from recollect.training.stopping import StopRequest, stop_if_lost, stop_on_signals
from recollect.training.validation import column_of, measure, merit

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
            chosen = objects.named(chosen_config(config, settings, named, run, train_set is not None))
        if run is None and out is not None:
            RunFolder.create(out, chosen.name)  # used or read-only: noticed before features are computed, not after
        loggers = make_loggers(chosen.run, logger.warning)
        told = [checked_callback(make_callback(given) if isinstance(given, str) else given) for given in callbacks]
        return _train(chosen, objects, run, out, told, loggers, outside)


def _train(
    config: Config,
    objects: Given,
    run: RunFolder | None,
    out: Path | str | None,
    callbacks: list[Callback],
    loggers: list[Callback],
    outside: list[plugins.Loaded],
) -> Outcome:
    advice = "Start all of them again with the same command."
    with (
        built(config, objects) as training,
        losing_no_process(training.machine.team, lambda: advice),
    ):
        team, figures = training.machine.team, estimate(training)
        lines = figures.lines(training.choices) if team.rank == 0 else []
        for line in lines:
            logger.info(line)
        if run is not None:
            # On every process: all of them end.
            refuse_other_training_images(run.path, training.sets.train)
            refuse_other_weights(run, training.network.embedder.config.provenance.sha256)
        begun = time.monotonic()
        training.prepare()
        if run is None:
            training = choose_start(training, lines.append if team.rank == 0 else lambda line: None)
        if training.watched:
            column_of(training.config.run.select)  # a metric from outside is recorded before the run begins
        folder = _place(training, figures.with_length(training), run, out, outside, time.monotonic() - begun)
        how = resume_command(folder.path, outside)
        advice = f"Resume all of them from the last checkpoint: {how}."
        with alone(folder, team), stop_on_signals() as stop, resumable(how):
            trainer = Trainer(training, folder, stop, [*callbacks, *(loggers if team.rank == 0 else [])], how)
            if team.rank == 0:
                folder.append_log(*lines)
                if run is not None:
                    note_resumption(folder, training.config, outside)
            trainer.remark(f"run        {folder.path}")
            return trainer.run()


def plan(config: Config) -> tuple[Plan, list[str]]:
    """The plan of ``train``, without training. Writes nothing.

    Args:
        config: what would be trained (see ``recollect.resolve``).

    Returns:
        The plan, and its lines as the command line prints them.

    Example:
        >>> import recollect
        >>> figures, lines = plan(recollect.resolve("folder", {"data.root": "photos", "model.init": "tiny"}))
        >>> lines[0].split()[0]
        'data'
    """
    with built(config) as training:
        figures = estimate(training)
        return figures, figures.lines(training.choices)


def _place(
    training: Training,
    figures: Plan,
    run: RunFolder | None,
    out: Path | str | None,
    outside: Sequence[plugins.Loaded],
    prepared: float,
) -> RunFolder:
    """The folder of ``run``, or a new one created with its configuration. Called by every process."""
    team, sets = training.machine.team, training.sets
    if team.rank == 0 and run is None:
        run = RunFolder.create(out, training.config.name)
        beginning = _manifest(training, figures, run.path) | {"preparation_seconds": round(prepared, 1)}
        if outside:
            beginning["outside"] = [loaded.as_dict() for loaded in outside]
        run.begin(training.config, beginning, trained_on(sets.train, sets.validation))
    return RunFolder(Path(team.from_first(None if run is None else str(run.path))))


class Trainer:
    """The loop over the objects from ``build``; use ``train``."""

    def __init__(
        self,
        training: Training,
        folder: RunFolder,
        stop: StopRequest,
        callbacks: Sequence[Callback] = (),
        how_to_resume: str = "",
    ) -> None:
        self.training, self.folder, self.stop, self.callbacks = training, folder, stop, callbacks
        self.how_to_resume = how_to_resume or resume_command(folder.path)
        self.outcome: Outcome | None = None
        self.config, self.machine, self.team = training.config, training.machine, training.machine.team
        self.chunk, self.progress, self.first = training.batches.chunk, Progress(), self.team.rank == 0
        self.skipped = frozenset[str]()

    def remark(self, line: str, extra: Mapping[str, Any] | None = None) -> None:
        """Log a line and write it to the run; ``extra`` is that of ``logging``."""
        if self.first:
            logger.info(line, extra=extra)
            self.folder.append_log(line)

    def report(self, line: str) -> None:
        """The same for a result, which is shown with ``--quiet`` too."""
        self.remark(line, RESULT)

    def run(self) -> Outcome:
        """The whole training."""
        self._restore()
        self._note_skipped()
        with self._logging():
            if self.progress.step == 0 and self.config.run.evaluate_first:
                self._evaluate()
            self.tick = time.perf_counter()
            for batch in self._batches():
                with limited_threads(self.training.batches.threads):
                    self._step(batch)
                if self._evaluation_is_due():
                    self._evaluate()
                self._save_if_due()
                self.tick = time.perf_counter()
            self.outcome = self._finish()
            return self.outcome

    def _note_skipped(self, tested: Sequence[BadImage] = ()) -> None:
        """List images that could not be read in the manifest, and say so if there are more of them than before.

        ``tested``: those of the images that the verdict is given on.
        """
        found = self._skipped() | {bad.name: bad for bad in tested}
        if len(found) > len(self.skipped) and self.first:
            self.report(self.folder.note_skipped(list(found.values()), self.skipped))
        self.skipped = frozenset(found)

    def _skipped(self) -> dict[str, BadImage]:
        return {name: bad for each in self.team.from_each(self.training.skipped) for name, bad in each.items()}

    def _say_used(self) -> None:
        """The line about files again, if some that the plan counted could not be read."""
        if (said := describe_unreadable(self.training.sets.train, self._skipped())) is not None:
            self.report(f"files      {said}")

    def _restore(self) -> None:
        resumed = self.folder.last.exists()
        if resumed:
            self.progress, sampler, chunk = load_checkpoint(self.folder.last, self.training.trained)
            if self.config.batch.chunk == "auto":  # the one measured at the start, not the one measured now
                self.chunk = chunk
            self.training.batches.sampler.load_state_dict(sampler)
            if self.progress.best:  # needed after the last step; better to fail now
                read_checkpoint(self.folder.best(self.progress.best["step"]))
            self.remark(f"resumed    after step {self.progress.step:,}")
        elif (chosen := whitening_images(self.config, self.training.sets.train)) is not None:
            whiten_last_layer(self.training, chosen)
            whose = "training" if chosen.pairs is None else "SfM-120k"
            unread = self._skipped()
            count = sum(name not in unread for name in chosen.images.names)
            source = f"starts from {count:,} {whose} images"
            identity = self.config.model.whitening == "identity"
            self.remark(f"whitening  the last layer {'is the identity' if identity else source}")
            self._save()  # so that it is learned only once, even if the run is interrupted early
        if self.first:
            # Before the first step the first evaluation is repeated.
            self.folder.forget_after(self.progress.step or -1, self.remark)
            self.folder.forget_best_but(self.progress.best.get("step"))
        self.saved_at = time.monotonic()
        self.started_at = time.monotonic() - self.progress.seconds

    @contextlib.contextmanager
    def _logging(self) -> Iterator[None]:
        quiet = None if self.first else True
        done, steps = self.progress.step, self.training.batches.steps
        with ProgressLine("training", steps, "steps", quiet, done=done) as line:
            self.log = Log(self.folder if self.first else None, line)
            for callback in self.callbacks:
                callback.on_start(self.folder.path, as_mapping(self.config), done)
            try:
                yield
            finally:
                for callback in self.callbacks:
                    callback.on_end(self.outcome)

    # One step ---------------------------------------------------------------------------------------------------------

    def _batches(self) -> Iterator[Fed]:
        """Every batch from the current position to the end; this process's part of each."""
        sampler = self.training.batches.sampler
        while not self._is_over():
            sampler.set_epoch(self.progress.epoch)
            self.batches_in_epoch = len(sampler)
            mine = map(self._part, sampler)
            stream = self.training.batches.feed.stream(mine, self.progress.epoch, self.progress.batch)
            with contextlib.closing(_closable(stream)) as batches:
                for batch in batches:
                    yield batch
                    if self._is_over():
                        return
            self.progress.epoch, self.progress.batch = self.progress.epoch + 1, 0

    def _part(self, batch: Indices) -> Indices:
        """Whole classes if there are enough: the draws for repeated and replaced images depend on them."""
        each, team = self.config.batch.samples_per_class, self.team
        whole = len(batch) % each == 0 and len(batch) // each >= team.size
        return shard(batch, team.rank, team.size, group=each if whole else 1)

    def _is_over(self) -> bool:
        if self.config.run.steps is not None:
            return self.progress.step >= self.config.run.steps
        return self.progress.epoch >= int(self.config.run.epochs or 0)

    def _step(self, batch: Fed) -> None:
        info, trained = StepInfo(), self.training.trained
        factor = set_learning_rates(trained.optimizer, self.config.optimizer, self._position())
        trained.optimizer.zero_grad(set_to_none=True)
        loss = self._loss_and_gradient(batch, info)
        trained.scaler.unscale_(trained.optimizer)
        norm = clip_gradients(trained.optimizer, self.config.optimizer.clip)
        stop_if_lost(self.training, self.folder, self.progress, batch, loss, norm)
        trained.scaler.step(trained.optimizer)
        trained.scaler.update()
        self.progress.step += 1
        self.progress.batch += 1
        self.progress.seconds = time.monotonic() - self.started_at
        record: dict[str, Any] = {
            "step": self.progress.step,
            "epoch": round(self.progress.epoch + self.progress.batch / self.batches_in_epoch, 4),
            "loss": loss,
            "lr_factor": factor,
            "lr": trained.optimizer.param_groups[0]["lr"],
            "gradient_norm": norm if math.isfinite(norm) else None,
            "images_per_second": round(len(batch.labels) * self.team.size / (time.perf_counter() - self.tick), 1),
            "seconds": round(self.progress.seconds, 3),
            "memory_mb": peak_memory_mb(self.machine.device),
            "skipped": info.skipped,
            "light": round(info.light_share(0.01), 4),
        }
        self.log.step(**record)
        values = numbers({key: value for key, value in record.items() if key != "step"})
        for callback in self.callbacks:
            callback.on_step(self.progress.step, values)

    def _loss_and_gradient(self, batch: Fed, info: StepInfo) -> float:
        trained = self.training.trained
        try:
            value = large_batch_step(
                self.training.network.trained,
                trained.loss,
                batch.inputs,
                batch.labels,
                self.chunk,
                autocast=self.machine.dtype,
                scaler=trained.scaler if trained.scaler.is_enabled() else None,
                skip_share=self.config.batch.skip_share,
                info=info,
            )
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
            raise out_of_memory(error, self.chunk) from error
        return float(value)

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
        network, machine = self.training.network.trained, self.machine
        for watched in self.training.watched:
            metrics = measure(network, watched, self.team, machine.device, machine.dtype, self.config.run.select)
            self.log.evaluation(watched.name, self.progress.step, metrics)
            if watched.name == "val":
                self._keep_if_best(metrics)
            for callback in self.callbacks:
                callback.on_evaluation(watched.name, self.progress.step, dict(metrics))

    def _keep_if_best(self, metrics: dict[str, float]) -> None:
        value, tie, step = merit(metrics, self.config.run.select, self.progress.step)
        best = self.progress.best
        if (value, tie, step) > (best.get("value", -math.inf), best.get("tie", 0.0), best.get("step", -1)):
            self.progress.best = {"step": step, "value": value, "tie": tie}
            if self.first:
                save_best(self.folder.best(step), self.training.network.embedder, step, value)

    def _save_if_due(self) -> None:
        every = self.config.run.checkpoint_steps
        due = time.monotonic() - self.saved_at > 60 * self.config.run.checkpoint_minutes
        due = due or (every is not None and self.progress.step % every == 0)
        if self.team.size > 1:  # clocks differ between processes, but all must take part
            wish = torch.tensor([int(due)], device=self.machine.device)
            dist.broadcast(wish, src=0)
            due = bool(wish)
        signal = self.stop.agreed(self.team, self.machine.device)
        if due or signal is not None:
            self._save()
        if signal is not None:
            raise TrainingStoppedError(
                f"stopped on request: saved after step {self.progress.step:,}. Resume with: {self.how_to_resume}",
                128 + signal,
            )

    def _save(self) -> None:
        state = self.training.batches.sampler.state_dict(consumed=self.progress.batch)
        progress = replace(self.progress, epoch=state["epoch"], batch=state["batch"])
        save_checkpoint(self.folder.last, self.training.trained, progress, state, self.chunk)
        if self.first:
            self.folder.forget_best_but(self.progress.best.get("step"))
        self.saved_at = time.monotonic()

    # After the last step ----------------------------------------------------------------------------------------------

    def _finish(self) -> Outcome:
        embedder, best = self.training.network.embedder, self.progress.best
        if best:
            self.team.barrier()  # the file is written by the first process
            embedder.load_state_dict(read_checkpoint(self.folder.best(best["step"]))["model"])
        self._say_used()
        started = time.monotonic()
        judged = judge_training(self.training, self.progress.step, self.report)
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
            self.folder.save_model(embedder)
            set_name = SFM_NAME if self.training.sets.benchmark is not None else "the validation classes"
            by = f"{column_of(self.config.run.select)} of {set_name}" if best else "being the last"
            self.folder.update_manifest(finished=now(), **outcome.for_manifest(chosen_by=by, judging_seconds=judging))
            self.folder.forget_best_but(best.get("step"))
        self.team.barrier()
        return outcome


def _manifest(training: Training, figures: Plan, run: Path) -> dict[str, Any]:
    """The manifest of a new run."""
    config, machine = training.config, training.machine
    return {
        **circumstances(machine.device, machine.team.size),
        "data": {
            "name": config.data.name,
            "root": absolute_roots(config.data).root,
            "relative": relative_roots(config.data, run),
            "fingerprints": training.sets.fingerprints(),
        },
        "weights": training.network.embedder.config.provenance.as_dict(),
        "choices": [str(choice) for choice in training.choices],
        "plan": figures.as_dict(),
    }


def _closable(stream: Iterator[Fed]) -> Generator[Fed]:
    """A stream that can be closed early, which stops its read-ahead."""
    yield from stream
