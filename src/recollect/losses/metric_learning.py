"""A loss of pytorch-metric-learning behind ``loss(embeddings, labels, ref_emb=None, ref_labels=None)``.

The adapter checks the input, computes in float32 or better, mines if the loss has a miner, and handles batches without
any positive. The losses and their settings are in ``baselines.py``; the memory of earlier batches is
in ``cross_batch_memory.py``.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from recollect.common.errors import InputError
from recollect.losses.checks import check_inputs
from recollect.losses.engine.tile_loop import compute_dtype, count_matches, same_set, zero_loss


class MetricLearningLoss(nn.Module):
    """One loss of pytorch-metric-learning, with its miner.

    Args:
        name: the loss's name in the registry, for messages.
        loss: the library's loss.
        miner: the library's miner, or None to use every pair.
        num_classes: labels must be 0 … num_classes − 1; None if any labels will do.
        dim: the embeddings' dimension, for a loss with one vector per class.
        takes_references: whether a separate reference set makes sense.
        needs_positives: whether a batch in which no query has a positive gives 0. Losses that compare with class
            vectors do not need positives.
    """

    def __init__(
        self,
        name: str,
        loss: nn.Module,
        miner: nn.Module | None = None,
        *,
        num_classes: int | None = None,
        dim: int | None = None,
        takes_references: bool = True,
        needs_positives: bool = True,
    ) -> None:
        super().__init__()
        self.name = name
        self.loss = loss
        self.miner = miner
        self.num_classes = num_classes
        self.dim = dim
        self.takes_references = takes_references
        self.needs_positives = needs_positives

    def forward(
        self, embeddings: Tensor, labels: Tensor, ref_emb: Tensor | None = None, ref_labels: Tensor | None = None
    ) -> Tensor:
        """The loss of M × d embeddings, within the batch or against N × d references."""
        self.check(embeddings, labels, ref_emb, ref_labels)
        if same_set(embeddings, labels, ref_emb, ref_labels):
            ref_emb = ref_labels = None
        ids = labels.to(embeddings.device, torch.int64)
        # A copy: if both kinds of labels are one tensor, the library treats the two sets as one and drops pairs.
        ref_ids = None if ref_labels is None else ref_labels.to(embeddings.device, torch.int64, copy=True)
        if self.needs_positives and not _any_positive(ids, ref_ids):
            return zero_loss(embeddings, ref_emb)
        dtype = compute_dtype(embeddings, ref_emb)
        queries = embeddings.to(dtype)
        references = None if ref_emb is None else ref_emb.to(dtype)
        with torch.autocast(embeddings.device.type, enabled=False):
            mined = None if self.miner is None else self.miner(queries, ids, references, ref_ids)
            arguments = (queries, ids, mined, references, ref_ids)
            return call_in(self.loss, dtype, arguments)

    def check(
        self, embeddings: Tensor, labels: Tensor, ref_emb: Tensor | None = None, ref_labels: Tensor | None = None
    ) -> None:
        """Check the input against the options of this loss.

        Raises:
            InputError: a reference set for a loss that takes none, labels beyond the number of classes, embeddings of
                another dimension or on another device than the loss's own parameters.
        """
        check_inputs(embeddings, labels, ref_emb, ref_labels)
        if not self.takes_references and not same_set(embeddings, labels, ref_emb, ref_labels):
            raise InputError(
                f"{self.name} takes no separate reference set: call it with embeddings and labels alone, "
                "or choose another loss (recollect losses)."
            )
        if self.dim is not None and embeddings.shape[1] != self.dim:
            raise InputError(
                f"{self.name} was made for embeddings of {self.dim} dimensions and got {embeddings.shape[1]}: "
                f"make it with dim={embeddings.shape[1]}."
            )
        if self.num_classes is not None:
            ids = labels.to(torch.int64)  # torch has no minimum of unsigned integers
            smallest, largest = int(ids.min()), int(ids.max())
            if smallest < 0 or largest >= self.num_classes:
                raise InputError(
                    f"{self.name} was made for labels 0 to {self.num_classes - 1} and got labels from {smallest} to "
                    f"{largest}: number the classes from 0 and set num_classes to their number."
                )
        for parameter in self.loss.parameters():
            if parameter.device != embeddings.device:
                raise InputError(
                    f"{self.name} has parameters on {parameter.device} but the embeddings are on "
                    f"{embeddings.device}: call loss.to({str(embeddings.device)!r}) before making the optimizer."
                )

    def extra_repr(self) -> str:
        """The name in the registry."""
        return self.name


def call_in(loss: nn.Module, dtype: torch.dtype, arguments: tuple[Any, ...]) -> Tensor:
    """Call a loss of the library with its parameters seen as ``dtype``.

    The library would convert the parameters permanently, while the optimizer's state (Adam's moments) keeps the old type.
    """
    if all(parameter.dtype == dtype for parameter in loss.parameters()):
        result: Tensor = loss(*arguments)
        return result
    seen = {name: parameter.to(dtype) for name, parameter in loss.named_parameters()}
    result = torch.func.functional_call(loss, seen, arguments)
    return result


def _any_positive(ids: Tensor, ref_ids: Tensor | None) -> bool:
    if ref_ids is None:
        return bool((count_matches(ids, ids) > 1).any())
    return bool((count_matches(ids, ref_ids) > 0).any())
