"""recollect: train, evaluate and ship image-retrieval embeddings by optimising recall@k itself.

Public names are imported when first used, so that ``import recollect`` and ``recollect --help`` stay fast. ``docs/extend.md``
lists them with the verbs of the command line that they stand behind. In the examples of their docstrings ``photos`` is a
folder with one folder of images per class, and ``run`` is a run that was trained on it.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from recollect._version import __version__
from recollect.common import lazy_names

if TYPE_CHECKING:
    from recollect.common.machine import keep_freed_memory
    from recollect.common.plugins import trusting
    from recollect.config.overrides import resolve
    from recollect.config.recipe_files import find_recipes
    from recollect.data.image_set import ImageSet
    from recollect.data.registry import available as available_data
    from recollect.data.verify import verify as verify_data
    from recollect.evaluation import evaluate
    from recollect.inference.api import embed, evaluate_model, export_onnx, load
    from recollect.inference.trained_on import split_of
    from recollect.inference.whitening_sets import whiten
    from recollect.inference.written_evaluation import write_evaluation
    from recollect.losses import Matryoshka, RankLoss, RecallAtK, Roadmap, SmoothAP, SupAP
    from recollect.losses.registry import available as available_losses
    from recollect.losses.registry import describe as describe_loss
    from recollect.models import Embedder
    from recollect.models.zoo import available_models
    from recollect.models.zoo import find as describe_model
    from recollect.report import embed_catalogue, write_report
    from recollect.report.publishing import publish
    from recollect.report.searching import search_images
    from recollect.search import Index
    from recollect.search.calibrating import calibrate_target
    from recollect.search.near_duplicates import find_duplicates
    from recollect.search.serving import serve
    from recollect.search.updating import update_index
    from recollect.step import large_batch_step
    from recollect.studies import compare_losses, run_demo
    from recollect.studies.compared_losses import plan_comparison
    from recollect.training.callbacks import Callback, TrainingStoppedError
    from recollect.training.outcome import final_config
    from recollect.training.trainer import plan, train
    from recollect.tuning.preview import plan_tuning
    from recollect.tuning.study import tune

# Silent until a program, or the command line, attaches a handler of its own.
logging.getLogger(__name__).addHandler(logging.NullHandler())

__all__ = [
    "Callback",
    "Embedder",
    "ImageSet",
    "Index",
    "Matryoshka",
    "RankLoss",
    "RecallAtK",
    "Roadmap",
    "SmoothAP",
    "SupAP",
    "TrainingStoppedError",
    "__version__",
    "available_data",
    "available_losses",
    "available_models",
    "calibrate_target",
    "compare_losses",
    "describe_loss",
    "describe_model",
    "embed",
    "embed_catalogue",
    "evaluate",
    "evaluate_model",
    "export_onnx",
    "final_config",
    "find_duplicates",
    "find_recipes",
    "keep_freed_memory",
    "large_batch_step",
    "load",
    "plan",
    "plan_comparison",
    "plan_tuning",
    "publish",
    "resolve",
    "run_demo",
    "search_images",
    "serve",
    "split_of",
    "train",
    "trusting",
    "tune",
    "update_index",
    "verify_data",
    "whiten",
    "write_evaluation",
    "write_report",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "Callback": "recollect.training.callbacks",
        "Embedder": "recollect.models",
        "ImageSet": "recollect.data.image_set",
        "Index": "recollect.search",
        "Matryoshka": "recollect.losses",
        "RankLoss": "recollect.losses",
        "RecallAtK": "recollect.losses",
        "Roadmap": "recollect.losses",
        "SmoothAP": "recollect.losses",
        "SupAP": "recollect.losses",
        "TrainingStoppedError": "recollect.training.callbacks",
        "calibrate_target": "recollect.search.calibrating",
        "compare_losses": "recollect.studies",
        "embed": "recollect.inference.api",
        "embed_catalogue": "recollect.report",
        "evaluate": "recollect.evaluation",
        "evaluate_model": "recollect.inference.api",
        "export_onnx": "recollect.inference.api",
        "keep_freed_memory": "recollect.common.machine",
        "find_duplicates": "recollect.search.near_duplicates",
        "large_batch_step": "recollect.step",
        "load": "recollect.inference.api",
        "plan": "recollect.training.trainer",
        "publish": "recollect.report.publishing",
        "resolve": "recollect.config.overrides",
        "run_demo": "recollect.studies",
        "serve": "recollect.search.serving",
        "split_of": "recollect.inference.trained_on",
        "train": "recollect.training.trainer",
        "trusting": "recollect.common.plugins",
        "tune": "recollect.tuning.study",
        "write_report": "recollect.report",
        "write_evaluation": "recollect.inference.written_evaluation",
        "final_config": "recollect.training.outcome",
        "plan_tuning": "recollect.tuning.preview",
        "update_index": "recollect.search.updating",
        "search_images": "recollect.report.searching",
        "available_losses": "recollect.losses.registry:available",
        "describe_loss": "recollect.losses.registry:describe",
        "available_models": "recollect.models.zoo",
        "describe_model": "recollect.models.zoo:find",
        "available_data": "recollect.data.registry:available",
        "verify_data": "recollect.data.verify:verify",
        "find_recipes": "recollect.config.recipe_files",
        "whiten": "recollect.inference.whitening_sets",
        "plan_comparison": "recollect.studies.compared_losses",
    },
)
