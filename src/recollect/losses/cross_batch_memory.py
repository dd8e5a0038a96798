"""Cross-batch memory: a loss against the embeddings of earlier batches (Wang et al. 2020, arXiv:1912.06798).

Wraps a pair loss of ``baselines.py`` or any loss on the tile loop. With pair losses it equals pytorch-metric-learning's
wrapper step by step. The queue is kept here because the library's queue does not save its position in ``state_dict`` and is
also written to during evaluation.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from recollect.common.errors import ConfigError, InputError, require
from recollect.common.text import check_whole
from recollect.losses.baselines import MetricLearningLoss, call_in
from recollect.losses.checks import check_inputs, greatest_length
from recollect.losses.engine.tile_loop import Pairing, compute_dtype, count_matches, same_set, zero_loss
from recollect.losses.rank_loss import TiledLoss

# Wang et al. 2020 pair the memory with a contrastive loss on cosines: [1 − s⁺]₊ and [s⁻ − 0.5]₊.
_PAPER_CONTRASTIVE = {"distance": "cosine", "pos_margin": 1.0, "neg_margin": 0.5}


class CrossBatchMemory(nn.Module):
    """A pair or rank loss between the batch and the last ``memory_size`` embeddings, including the batch's own.

    Each call in training mode first puts the batch, detached, into the memory, then compares the batch with all of it,
    leaving out each embedding's pair with itself. In ``eval()`` the memory is read and not written. One call is one
    step: the large-batch step calls a loss once, with all embeddings of the step, so they are stored once; with several
    processes each holds the same memory, since each sees the gathered batch. Labels must mean the same class in every
    batch. The gradient reaches the batch only, not the memory, which is float32 unless ``loss.double()`` is called.

    Args:
        dim: dimension of the embeddings.
        memory_size: how many embeddings are kept; at least the batch size. The paper's memories grow up to the whole
            training set; 8192 is our choice, suited to batches of 4000.
        loss: contrastive, triplet, margin, multi_similarity, supcon, or a rank loss that takes references, your own
            (``my.py:MyLoss``, a ``RankLoss`` or ``TiledLoss``) included. It ranks the whole memory for each image.
        loss_options: options of that loss, without SiMix. The default for contrastive is the paper's.

    Raises:
        ConfigError: a loss that cannot use a memory, an option it does not have, or a size below 1.

    Examples:
        >>> loss = CrossBatchMemory(dim=16, memory_size=64)
        >>> for _ in range(3):
        ...     value = loss(torch.randn(8, 16, requires_grad=True), torch.arange(8) // 2)
        >>> loss.filled
        24
    """

    stored_embeddings: Tensor
    stored_labels: Tensor
    next_place: Tensor
    num_stored: Tensor

    def __init__(
        self,
        dim: int,
        memory_size: int = 8192,
        loss: str = "contrastive",
        loss_options: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__()
        dim, memory_size = check_whole("dim", dim, 1, 10**6), check_whole("memory_size", memory_size, 1, 10**8)
        if loss_options is not None and not isinstance(loss_options, Mapping):
            raise ConfigError(f"loss_options must be a mapping of options, but is {loss_options!r}.")
        if loss_options is None:
            loss_options = _PAPER_CONTRASTIVE if loss == "contrastive" else {}
        from recollect.losses.registry import available, create

        rows = available()
        usable = isinstance(loss, str) and (loss not in rows or rows[loss].references)
        wrapped = create(loss, **loss_options) if usable else None
        if not isinstance(wrapped, MetricLearningLoss | TiledLoss):
            choices = ", ".join(name for name, entry in rows.items() if entry.references and entry.family != "outside")
            raise ConfigError(
                f"loss {loss!r} cannot use a memory: choose one of {choices}, or a RankLoss or TiledLoss of your own."
            )
        if getattr(wrapped, "simix", False):
            raise ConfigError(
                "loss_options contains simix, but SiMix mixes images of one batch only: remove it to use a memory."
            )
        self.wrapped, self.dim, self.memory_size = wrapped, dim, memory_size
        self.register_buffer("stored_embeddings", torch.zeros(memory_size, dim))
        self.register_buffer("stored_labels", torch.zeros(memory_size, dtype=torch.int64))
        # Where the next embedding goes, and how many are stored: buffers, so that state_dict is the whole state.
        self.register_buffer("next_place", torch.zeros((), dtype=torch.int64))
        self.register_buffer("num_stored", torch.zeros((), dtype=torch.int64))

    @property
    def filled(self) -> int:
        """How many embeddings are in the memory."""
        return int(self.num_stored)

    def forward(
        self, embeddings: Tensor, labels: Tensor, ref_emb: Tensor | None = None, ref_labels: Tensor | None = None
    ) -> Tensor:
        """The loss of M × d embeddings against the memory."""
        if not same_set(embeddings, labels, ref_emb, ref_labels):
            raise InputError("cross_batch_memory takes no separate reference set: its memory is the reference set.")
        if isinstance(self.wrapped, TiledLoss):
            check_inputs(embeddings, labels)
        else:
            self.wrapped.check(embeddings, labels)
        if embeddings.shape[1] != self.dim:
            raise InputError(
                f"the memory was made for embeddings of {self.dim} dimensions and got {embeddings.shape[1]}: "
                f"make it with dim={embeddings.shape[1]}."
            )
        if self.training and len(embeddings) > self.memory_size:
            raise InputError(
                f"a batch of {len(embeddings)} does not fit into a memory of {self.memory_size}: "
                f"set memory_size to {len(embeddings)} or more."
            )
        queries = embeddings.to(compute_dtype(embeddings))
        ids = labels.to(embeddings.device, torch.int64)
        places = self._store(queries, ids) if self.training else None
        references = self.stored_embeddings[: self.filled].to(queries.dtype)
        ref_ids = self.stored_labels[: self.filled]
        if isinstance(self.wrapped, TiledLoss):
            greatest = greatest_length(queries) * greatest_length(references)
            return self.wrapped.of_pairing(Pairing(queries, ids, references, ref_ids, places, greatest))
        positives = count_matches(ids, ref_ids) - (0 if places is None else 1)
        if not bool((positives > 0).any()):
            return zero_loss(embeddings)
        tools = require("pytorch_metric_learning.utils.loss_and_miner_utils", "baselines", "Cross-batch memory")
        with torch.autocast(embeddings.device.type, enabled=False):
            if self.wrapped.miner is None:
                pairs = tools.get_all_pairs_indices(ids, ref_ids)
            else:
                pairs = self.wrapped.miner(queries, ids, references, ref_ids)
            if places is not None:  # without any embedding's pair with itself
                pairs = tools.remove_self_comparisons(pairs, places, self.memory_size)
            return call_in(self.wrapped.loss, queries.dtype, (queries, ids, pairs, references, ref_ids))

    def _store(self, queries: Tensor, ids: Tensor) -> Tensor:
        """Overwrite the oldest entries with the batch; returns the positions written."""
        places = (int(self.next_place) + torch.arange(len(ids), device=ids.device)) % self.memory_size
        self.stored_embeddings[places] = queries.detach().to(self.stored_embeddings.dtype)
        self.stored_labels[places] = ids
        self.next_place.copy_((self.next_place + len(ids)) % self.memory_size)
        self.num_stored.copy_((self.num_stored + len(ids)).clamp(max=self.memory_size))
        return places
