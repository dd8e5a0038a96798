"""``recollect eval``'s first half: from what the user named to vectors and labels.

A target is a file of vectors, a trained run, a saved embedder, or an initialisation as it comes. This is where the
models and the data room meet the evaluation room, which knows neither.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from recollect.cli import eval_recipe
from recollect.common.errors import ConfigError, DataError, InputError

if TYPE_CHECKING:
    from recollect.config.schema import Config

REVISITED = eval_recipe.REVISITED


@dataclass
class Target:
    """Vectors and what is known of them.

    Attributes:
        name: for titles. folder: where results go by default.
        embeddings, labels, gallery, gallery_labels: as ``evaluate`` takes them; for instance search ``gallery`` is the
            database and ``gnd`` the ground truth.
        distractors: more of the gallery, an array or a file, wrong for every query.
        published: metric → percent, the recipe's row in the paper, if it has one; ``published_without``: the same
            without distractors.
        source: what was embedded, for ``metrics.json``.
    """

    name: str
    folder: Path
    embeddings: Any
    labels: Any = None
    gallery: Any = None
    gallery_labels: Any = None
    gnd: list[dict[str, Any]] | None = None
    distractors: Any = None
    published: dict[str, float] = field(default_factory=dict)
    published_without: dict[str, float] = field(default_factory=dict)
    source: dict[str, Any] = field(default_factory=dict)


def from_file(path: Path) -> Target:
    """Vectors from an ``.npz``: ``embeddings``, ``labels``, and possibly ``gallery``, ``gallery_labels``, ``gnd``."""
    from recollect.common.reading import parse_json, read_npz

    arrays = read_npz(path)
    if "embeddings" not in arrays:
        raise DataError(f"{path}: has no array 'embeddings' (it has {', '.join(arrays) or 'nothing'}).")
    gnd = None
    if "gnd" in arrays:
        gnd = parse_json(str(arrays["gnd"]), f"{path}: its array 'gnd'")
    elif "labels" not in arrays:
        raise DataError(f"{path}: has no array 'labels' beside 'embeddings' (it has {', '.join(arrays)}).")
    return Target(
        name=path.stem,
        folder=path.with_name(f"{path.stem}-eval"),
        embeddings=arrays["embeddings"],
        labels=arrays.get("labels"),
        gallery=arrays.get("gallery"),
        gallery_labels=arrays.get("gallery_labels"),
        gnd=gnd,
        source={"vectors": str(path)},
    )


def result_folder(
    target: Path | None, init: str | None, data: str, split: str, distractors: Path | None = None
) -> Path:
    """Where the results of a run, an embedder or an initialisation go by default."""
    name = f"{data}+revisitop1m" if distractors is not None and data in REVISITED else data
    return _eval_folder(target, init) / f"{name}-{split}"


def _eval_folder(target: Path | None, init: str | None) -> Path:
    return (Path("runs") / f"init-{init}" if target is None else target) / "eval"


def from_images(
    target: Path | None,
    init: str | None,
    data: str | None,
    root: Path | None,
    split: str,
    *,
    weights: str | None,
    batch_size: int,
    device: str | None,
    multiscale: bool | None,
    allow_outside: bool,
    overwrite: bool = False,
    recipe: Config | None = None,
    distractors: Path | None = None,
    download: bool = False,
    options: Mapping[str, Any] | None = None,
) -> Target:
    """Embed a data set with a run's model, a saved embedder or a bare initialisation.

    ``recipe`` tells how an initialisation is built, how many scales there are and which numbers are published; without
    it a run's own does. ``options`` are the data set's. Vectors of instance search are kept beside the results as they
    are made.
    """
    if data is None:
        raise ConfigError("--data NAME says which images to embed; only an .npz of vectors does without.")
    from recollect.models import INSTANCE_SEARCH_SCALES, Embedder

    if target is not None:
        model = Embedder.load(_model_folder(target))
    elif recipe is not None and recipe.model.init == init:
        model = eval_recipe.embedder(recipe, weights, download)
    else:
        # Outputs of the backbone itself, without the new layer that training would add: the paper's *init* rows.
        model = Embedder.create(init or "", dim=None, weights=weights, download=download)
    where = result_folder(target, init, data, split, distractors)
    name = target.name if target is not None else f"{init} (as it comes)"
    written = _run_config(target)
    if data in REVISITED:
        from recollect.cli.eval_instance import embed_benchmark

        if root is None:
            raise ConfigError(f"--root says where the folder {data} lies.")
        own = dict(written.get("model") or {}).get("scales") if recipe is None else recipe.model.scales
        scales = tuple(own or INSTANCE_SEARCH_SCALES) if multiscale or (multiscale is None and own) else None
        vectors = embed_benchmark(
            Target(name, where, None),
            model,
            data,
            root,
            _eval_folder(target, init),
            scales=scales,
            batch_size=batch_size,
            device=device,
            distractors=distractors,
            allow_outside=allow_outside,
            overwrite=overwrite,
        )
    else:
        from recollect.data import load

        images = load(data, root, split, **{**(options or {}), **({"allow_outside": True} if allow_outside else {})})
        scales = INSTANCE_SEARCH_SCALES if multiscale else None
        rows = model.embed(images, batch_size=batch_size, device=device, progress=True, scales=scales)
        vectors = Target(name, where, rows, labels=images.labels, distractors=distractors)
        vectors.source["fingerprint"] = images.fingerprint
    published = written.get("published") if recipe is None else recipe.published
    with_them = eval_recipe.name_of_test(data, split, distractors is not None)
    vectors.published = eval_recipe.published_row(published, with_them)
    vectors.published_without = eval_recipe.published_row(published, eval_recipe.name_of_test(data, split))
    made_from = str(target) if target is not None else f"init {init}"
    vectors.source = {"model": made_from, "data": data, "split": split, **vectors.source}
    return vectors


def _model_folder(target: Path) -> Path:
    """A run keeps its embedder in ``model``; a saved embedder is a folder itself."""
    return target / "model" if (target / "model").is_dir() else target


def _run_config(target: Path | None) -> Mapping[str, Any]:
    """A run's settings as written, or nothing where there are none."""
    if target is None or not (target / "config.yaml").is_file():
        return {}
    from recollect.common.yaml_text import read_yaml

    config = read_yaml(target / "config.yaml")
    return config if isinstance(config, Mapping) else {}


def own_data(target: Path | None) -> Mapping[str, Any]:
    """What a run says of the images it was trained and tested on; nothing for other targets."""
    own = _run_config(target).get("data")
    if isinstance(own, Mapping) and own.get("name") == "folder":
        # Runs of earlier versions divided classes by the alphabet without saying so.
        return {**own, "options": {"class_split": "alphabet", **(own.get("options") or {})}}
    return own if isinstance(own, Mapping) else {}


def which_data(target: Path | None, data: str | None, root: Path | None) -> tuple[str | None, Path | None]:
    """What ``--data`` and ``--root`` mean: a data set's name, or a folder of images; for a run, by default its own."""
    from recollect.data import available

    if data is None:
        own = own_data(target)
        if own.get("name"):
            return str(own["name"]), root or (Path(own["root"]) if own.get("root") else None)
    elif data not in available() and root is None and Path(data).exists():
        return "folder", Path(data)
    return data, root


def check_choice(target: Path | None, init: str | None) -> None:
    """Exactly one of the two names what to evaluate, and a target is there."""
    if (target is None) == (init is None):
        raise InputError(
            "name either a TARGET (run, saved embedder or .npz of vectors) or --init NAME, one of the two; or --recipe "
            "NAME for a row that is not trained."
        )
    if target is None or target.suffix == ".npz":
        return
    if not target.is_dir():
        raise DataError(f"{target}: no such run or folder; an .npz of vectors, a run or a saved embedder is expected.")
    if not any((target / name).exists() for name in ("embedder.json", "model", "config.yaml")):
        raise DataError(f"{target} is neither a run (no config.yaml in it) nor a saved embedder (no embedder.json).")
