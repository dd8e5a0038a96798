"""``recollect eval`` on instance search: queries, database and distractors to vectors that are kept as they are made.

Vectors lie in the run's ``eval`` folder: those of a benchmark beside its results, those of the distractors in
``revisitop1m``, where both benchmarks find them. A verb that was killed goes on where it was.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from recollect.common.errors import ConfigError

if TYPE_CHECKING:
    from recollect.cli.eval_target import Target
    from recollect.data import ImageSet
    from recollect.models import Embedder


def embed_benchmark(
    target: Target,
    model: Embedder,
    name: str,
    root: Path,
    folder: Path,
    *,
    scales: Sequence[float] | None,
    batch_size: int,
    device: str | None,
    distractors: Path | None,
    allow_outside: bool,
    overwrite: bool,
) -> Target:
    """Fill ``target`` with the vectors and the ground truth of a benchmark.

    Args:
        target: to be filled.
        model: what embeds.
        name, root: the benchmark and the folder that holds its folder.
        folder: where vectors are kept.
        scales: to average over; None for one.
        batch_size: images of the model's own size at once.
        device: where to embed.
        distractors: a ``.npy`` of vectors, or the folder that holds ``revisitop1m``; None for none.
        allow_outside: whether names may leave ``root``.
        overwrite: whether kept vectors of another model may be replaced.
    """
    from recollect.data import load_distractors, load_revisited
    from recollect.data.transforms.longer_side import LongerSide
    from recollect.inference.vector_store import stored_vectors, weights_digest

    # A query is a crop, to be shown at the scale its whole picture would have had.
    longer_side = LongerSide(model.preprocessing.max_side or 1024)
    digest = weights_digest(model)
    if device is not None:
        model.to(device)

    def embed(images: ImageSet, path: Path) -> Any:
        about = {
            "weights": digest,
            "preprocessing": repr(model.preprocessing),
            "sizes": longer_side.key,
            "scales": None if scales is None else list(scales),
            "set": images.fingerprint,
        }
        return stored_vectors(
            path,
            lambda part: model.embed(
                [partial(longer_side.read, images, index) for index in part],
                batch_size=batch_size,
                progress=False,
                scales=scales,
            ),
            len(images),
            model.dim,
            about,
            overwrite=overwrite,
            description=f"{images.name}/{images.split}",
        )

    benchmark = load_revisited(name, root, allow_outside=allow_outside)
    place = folder / f"{name}-vectors"
    target.gnd = list(benchmark.ground_truth)
    target.gallery = embed(benchmark.database, place / "database.npy")
    rows = benchmark.query_rows
    target.embeddings = embed(benchmark.queries, place / "queries.npy") if rows is None else target.gallery[rows]
    if distractors is not None and distractors.is_dir():
        images = load_distractors(distractors, allow_outside=allow_outside)
        target.distractors = embed(images, folder / "revisitop1m-vectors" / "distractors.npy")
    elif distractors is not None:
        if not distractors.exists():
            raise ConfigError(
                f"--distractors {distractors}: no such file or folder; a .npy of vectors or the folder that holds "
                "revisitop1m is expected."
            )
        target.distractors = distractors
    target.source = {
        "fingerprint": benchmark.database.fingerprint,
        "scales": [1.0] if scales is None else list(scales),
        "distractors": 0 if target.distractors is None else str(distractors),
    }
    return target
