"""recollect: train, evaluate and ship image-retrieval embeddings by optimising recall@k itself.

Public names are imported when first used, so that ``import recollect`` and ``recollect --help`` stay fast. ``docs/extend.md``
lists them with the verbs of the command line that they stand behind. In the examples of their docstrings ``photos`` is a
folder with one folder of images per class, and ``run`` is a run that was trained on it.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from recollect.common import lazy_names

if TYPE_CHECKING:
    from recollect._version import __version__ as __version__
    from recollect.common.machine import keep_freed_memory as keep_freed_memory
    from recollect.common.plugins import trusting as trusting
    from recollect.config.recipes import find_recipes as find_recipes
    from recollect.config.resolve import resolve as resolve
    from recollect.data.image_set import ImageSet as ImageSet
    from recollect.data.registry import available_data as available_data
    from recollect.data.verify import verify_data as verify_data
    from recollect.evaluation import evaluate as evaluate
    from recollect.inference.evaluate import evaluate_model as evaluate_model, write_evaluation as write_evaluation
    from recollect.inference.models import embed as embed, export_onnx as export_onnx, load as load
    from recollect.inference.training_record import split_of as split_of
    from recollect.inference.whitening import whiten as whiten
    from recollect.losses import (
        Matryoshka as Matryoshka,
        RankLoss as RankLoss,
        RecallAtK as RecallAtK,
        Roadmap as Roadmap,
        SmoothAP as SmoothAP,
        SupAP as SupAP,
    )
    from recollect.losses.registry import available_losses as available_losses, describe_loss as describe_loss
    from recollect.models import Embedder as Embedder
    from recollect.models.zoo import available_models as available_models, describe_model as describe_model
    from recollect.report import write_report as write_report
    from recollect.report.publishing import publish as publish
    from recollect.search import Index as Index
    from recollect.search.commands import search_images as search_images, update_index as update_index
    from recollect.search.duplicates import find_duplicates as find_duplicates
    from recollect.search.serving import serve as serve
    from recollect.search.stores.vector_file import embed_catalogue as embed_catalogue
    from recollect.search.thresholds import calibrate_target as calibrate_target
    from recollect.step import large_batch_step as large_batch_step
    from recollect.studies import compare_losses as compare_losses, run_demo as run_demo
    from recollect.studies.compare import plan_comparison as plan_comparison
    from recollect.studies.tune import plan_tuning as plan_tuning, tune as tune
    from recollect.training.build import final_config as final_config
    from recollect.training.callbacks import Callback as Callback, TrainingStoppedError as TrainingStoppedError
    from recollect.training.trainer import plan as plan, train as train

__getattr__, __dir__, __all__ = lazy_names(__name__, __file__)

# Silent until a program, or the command line, attaches a handler of its own.
logging.getLogger(__name__).addHandler(logging.NullHandler())
