"""``write_evaluation``: evaluate a model, or vectors from a file, and write the result. Used by ``recollect eval``.

Everything is checked before the first image is embedded, and nothing is written until all metrics are computed.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from recollect.common.errors import ConfigError, InputError
from recollect.common.files import make_folder_for
from recollect.common.plugins import trusting
from recollect.common.text import number_of
from recollect.config.resolve import resolve
from recollect.config.schema import Config
from recollect.data import available, summary as census
from recollect.evaluation import Evaluation, ReidResult, RevisitedResult
from recollect.evaluation.metrics import METRICS, MetricLike, find_metric
from recollect.evaluation.result import refuse_existing, write_summary
from recollect.inference.evaluating import check_protocol, compare_evaluations, evaluate_prefixes, evaluate_target
from recollect.inference.features import BATCH
from recollect.inference.target_vectors import Prepared, Target, prepare_target, target_vectors
from recollect.inference.test_sets import TestSet

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class WrittenEvaluation:
    """The result of ``write_evaluation``.

    Attributes:
        name: name of the model, for titles. test: name of the test set; "" for vectors from a file.
        result: values per query and their means; for re-identification, the means over the draws.
        summary: the content of ``metrics.json``: ``metrics`` as fractions, ``source``, and further requested results
            (``dims``, ``compared_with``, ``without_distractors``).
        published: the numbers of the recipe's row in percent. published_without: the same without distractors.
        notes: remarks needed to understand the numbers.
        metrics_file: ``metrics.json``.
    """

    name: str
    test: str
    result: Evaluation | RevisitedResult | ReidResult
    summary: dict[str, Any]
    published: dict[str, float]
    published_without: dict[str, float]
    notes: Sequence[str]
    metrics_file: Path


def write_evaluation(
    model: str | Path | None = None,
    data: str | Path | None = None,
    *,
    recipe: str | Path | None = None,
    root: str | Path | None = None,
    split: str | None = None,
    trained_classes: str = "auto",
    ks: Sequence[int] | None = None,
    dims: Sequence[int] | None = None,
    metrics: Sequence[MetricLike] = (),
    protocol: str = "all",
    similarity: str = "dot",
    ties: str = "pessimistic",
    hierarchical: bool | None = None,
    multiscale: bool | None = None,
    distractors: Path | None = None,
    compare: Path | None = None,
    metrics_out: Path | None = None,
    queries_out: Path | None = None,
    vectors_out: Path | None = None,
    overwrite: bool = False,
    weights: str | None = None,
    download: bool = False,
    batch_size: int = BATCH,
    memory: int = 512,
    device: str | None = None,
    skip_bad: bool = False,
    trust: bool = False,
) -> WrittenEvaluation:
    """Compute recall@k and more, and write ``metrics.json`` and ``queries.npz``.

    Args:
        model: a run, a saved embedder, an initialisation, or an ``.npz`` with embeddings and labels. None for the
            initialisation of a recipe that trains nothing.
        data: a data set by name or reference, or a folder of images; by default the recipe's, or the run's own.
        recipe: provides data set, k and published numbers.
        root: the folder of the data set. split: the split to use; by default the test split.
        trained_classes: classes the run was trained on: ``"auto"`` leaves them out of a test that has others too;
            ``"exclude"``, ``"keep"``.
        ks: the k of r@k; by default those of the recipe or the data set.
        dims: also evaluate vectors cut to these lengths; by default the run's ``loss.dims``.
        metrics: further metrics: functions of (ranks, positives), ``Metric`` objects, or references.
        protocol: ``"all"``: everything against everything; ``"reid"``: a random gallery.
        similarity: ``"dot"``, or ``"cosine"`` for vectors that are not of length 1.
        ties: tied negatives first (``"pessimistic"``) or last (``"optimistic"``).
        hierarchical: compute ``h_ap`` and ``ndcg``; by default if there are coarse labels and it does not take long.
        multiscale: average each image over three scales; by default instance search does as the recipe says.
        distractors: a ``.npy`` of vectors; for instance search also the folder that contains R1M.
        compare: ``queries.npz`` of another run on the same images, or the folder of a run that was evaluated once.
        metrics_out, queries_out: where to write; by default a folder of the run. vectors_out: also write the vectors.
        overwrite: replace existing results.
        weights, download: of an initialisation, see ``recollect.load``.
        batch_size: images per batch while embedding. memory: MiB for ranking. device: where to compute.
        skip_bad: leave out images that cannot be read, and list them.
        trust: run the code that a run or a saved embedder names (references).

    Raises:
        ConfigError, DataError, InputError, WeightsError: something cannot be opened, evaluated or written.

    Example:
        On the test images that a run never saw::

            found = recollect.write_evaluation("runs/mine", overwrite=True)
            found.summary["metrics"]["r@1"]
    """
    check_protocol(protocol)
    other = None if compare is None else Evaluation.load(_result_file(compare))
    more = [find_metric(metric) if isinstance(metric, str) else metric for metric in metrics]
    with trusting(trust):
        chosen = None if recipe is None else _recipe(recipe, trains=model is None)
        prepared = prepare_target(
            _model(model, chosen),
            recipe=chosen,
            data=None if data is None else str(data),
            root=None if root is None else Path(root),
            split=split,
            weights=weights,
            download=download,
            device=device,
            distractors=distractors,
            trained_classes=trained_classes,
            skip_bad=skip_bad,
        )
    prepared.notes.extend(_cautions(prepared))
    for note in prepared.notes:
        logger.info(note, extra={"in_result": True})
    metrics_out = metrics_out or prepared.place / "metrics.json"
    queries_out = queries_out or prepared.place / "queries.npz"
    for path in (metrics_out, queries_out, vectors_out):
        if path is not None:
            refuse_existing(path, overwrite)
            make_folder_for(path)
    found = target_vectors(prepared, multiscale=multiscale, batch_size=batch_size, skip_bad=skip_bad)
    _tell_files(found)
    if vectors_out is not None:
        found.save_vectors(vectors_out)
        logger.info(f"written: {vectors_out}")
    options: dict[str, Any] = {"similarity": similarity, "ties": ties, "memory": memory << 20, "device": device}
    if more:
        options["metrics"] = [*METRICS, *more]
    result, summary = evaluate_target(found, ks, protocol, hierarchical=hierarchical, **options)
    if (left_out := summary.get("left_out")) and hierarchical is None:
        logger.info(f"{' and '.join(left_out)} would take minutes and are left out; use --hierarchical to compute them")
    if lengths := _trained_dims(prepared) if dims is None else dims:
        prefixes = evaluate_prefixes(found, lengths, ks, protocol, **options)
        summary["dims"] = {str(length): metrics for length, metrics in prefixes.items()}
    if other is not None:
        if not isinstance(result, Evaluation):
            raise ConfigError(
                "--compare needs values per query, which only the protocol 'all' on labelled images has: remove it."
            )
        summary["compared_with"] = {"file": str(compare), **compare_evaluations(other, result)}
    if isinstance(result, Evaluation | RevisitedResult):
        result.save(queries_out, overwrite=overwrite)
        logger.info(f"written: {queries_out}")
    write_summary(metrics_out, summary, overwrite=overwrite)
    logger.info(f"written: {metrics_out}")
    test = "" if prepared.test is None else prepared.test.name
    return WrittenEvaluation(
        found.name, test, result, summary, found.published, found.published_without, prepared.notes, metrics_out
    )


def _result_file(path: Path) -> Path:
    """The values per query that ``--compare`` means: the file, or that of a run with one evaluation."""
    if not path.is_dir():
        return path
    found = sorted(path.glob("queries.npz")) or sorted(path.glob("eval/*/queries.npz"))
    if len(found) == 1:
        return found[0]
    which = f"contains {number_of(len(found), 'result')}" if found else "contains no result of recollect eval"
    names = f": {', '.join(map(str, found))}" if found else ""
    raise InputError(f"--compare {path}: the folder {which}{names}. Give one file, RUN/eval/TEST/queries.npz.")


def _cautions(prepared: Prepared) -> list[str]:
    """What makes the numbers meaningless although they can be computed, or of a part of the images."""
    target, screened = prepared.target, None if prepared.test is None else prepared.test.screened
    said = [] if prepared.test is None else _part(prepared.test)
    labels = target.labels if target is not None else None if screened is None else screened.images.labels
    searched = prepared.distractors or (target and (target.gallery is not None or target.distractors is not None))
    if labels is None or searched or len(set(labels.tolist())) != 1:
        return said
    alone = "all images are of one class, so every result is right and the numbers measure nothing: add other classes"
    return [*said, alone]


def _part(test: TestSet) -> list[str]:
    """What else could be tested: the other classes of a folder, the other test lists of a data set."""
    choice = test.choice
    lists = available()[choice.data].test_splits if choice.data in available() else ()
    if len(lists) > 1 and choice.split in lists:
        others = ", ".join(f"--split {name}" for name in lists if name != choice.split)
        return [f"{choice.split} is one of the {len(lists)} test lists of {choice.data}; for the others use {others}"]
    split = test.images.facts.get("split") if choice.unseen else None
    if not split or choice.split != "test":
        return []
    count = number_of(split["held_out_classes"], "class is/classes are")
    return [f"{count} tested, as many as a training would hold out; --split all tests all of them"]


def _recipe(name: str | Path, trains: bool) -> Config:
    config = resolve(name)
    if trains and config.run.epochs != 0:
        raise ConfigError(
            f"{name} is a recipe for training: also give the run to evaluate (recollect eval RUN --recipe {name}), "
            "or choose a recipe that ends in /init."
        )
    return config


def _model(model: str | Path | None, recipe: Config | None) -> str:
    if model is not None:
        return str(model)
    if recipe is None:
        raise InputError(
            "give one model to evaluate: a run, a saved embedder, an initialisation, an .npz of vectors, or --recipe "
            "NAME for a row that is not trained."
        )
    return recipe.model.init


def _tell_files(found: Target) -> None:
    """Report the skipped files by reason, and name the first image that could not be read."""
    if (left_out := found.source.get("left_out")) and found.labels is not None:
        logger.info(census(len(found.labels), left_out))
    if skipped := found.source.get("skipped"):
        more = len(skipped) - 1
        listed = f" {number_of(more, 'other is/others are')} listed in metrics.json." if more else ""
        logger.info(f"could not be read: {skipped[0]['reason']}{listed}")


def _trained_dims(prepared: Prepared) -> Sequence[int]:
    opened = prepared.opened
    return () if opened is None or opened.config is None else opened.config.loss.dims
