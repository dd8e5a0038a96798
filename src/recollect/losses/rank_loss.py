"""``RankLoss``: what every loss on the soft-rank engine shares — the call, SiMix, the share of one process.

To add a rank loss, subclass it in a file of its own: pass the step to ``super().__init__`` and write ``query_loss``.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from recollect.common.errors import ConfigError, InputError
from recollect.losses.checks import check_flag, check_inputs, check_memory, check_whole
from recollect.losses.one_pass import MEMORY, same_set
from recollect.losses.simix import MAX_PAIRS, Mixing, draw_mixing
from recollect.losses.soft_rank import Ranks, Settings, soft_rank_loss
from recollect.losses.steps import Step


class RankLoss(nn.Module):
    """Base of the losses that are functions of soft ranks; called as ``loss(embeddings, labels)``.

    Args:
        step: how "z is ahead of x" is smoothed.
        count_query: rank each query among its own references.
        rank_limit: a rank beyond which a positive no longer matters to ``query_loss``; None if every rank does.
        simix: enlarge the batch by mixtures of images of one class (see ``simix.py``).
        max_pairs: with SiMix, at most so many mixtures a class; None for all n(n − 1)/2.
        generator: a CPU generator that makes SiMix reproducible; its state is part of ``state_dict``.
        memory: bytes the computation may hold beside embeddings and gradient.
        prune: leave out what cannot change the result beyond rounding.
    """

    def __init__(
        self,
        step: Step,
        count_query: bool,
        rank_limit: float | None,
        *,
        simix: bool = False,
        max_pairs: int | None = MAX_PAIRS,
        generator: torch.Generator | None = None,
        memory: int = MEMORY,
        prune: bool = True,
    ) -> None:
        super().__init__()
        memory, simix = check_memory(memory), check_flag("simix", simix)
        count_query, prune = check_flag("count_query", count_query), check_flag("prune", prune)
        max_pairs = None if max_pairs is None else check_whole("max_pairs", max_pairs, 1, 10**9)
        if generator is not None and (not isinstance(generator, torch.Generator) or generator.device.type != "cpu"):
            raise ConfigError(f"generator must be a torch.Generator on the CPU, but is {generator!r}.")
        self.simix, self.max_pairs, self.generator = simix, max_pairs, generator
        self._settings = Settings(step, count_query, rank_limit, memory, prune)

    def query_loss(self, ranks: Ranks) -> Tensor:
        """The loss of each of T queries from the ranks of its positives."""
        raise TypeError(f"{type(self).__name__} must define query_loss(ranks).")

    def forward(
        self, embeddings: Tensor, labels: Tensor, ref_emb: Tensor | None = None, ref_labels: Tensor | None = None
    ) -> Tensor:
        """The loss of a batch.

        Args:
            embeddings: M × d, L2-normalized; every one is a query.
            labels: M integers.
            ref_emb: references, N × d; without them the batch itself, each query excluded from its own references.
            ref_labels: N integers.
        """
        return self._compute(embeddings, labels, ref_emb, ref_labels, (0, 1))

    def share(self, embeddings: Tensor, labels: Tensor, rank: int, world_size: int) -> Tensor:
        """The part of the loss that is due to one of ``world_size`` shares of the queries.

        The parts add up to the loss of the batch, and so do their gradients. Each process of a group holds all
        embeddings and computes its own share; with SiMix, generators must be in the same state everywhere.
        """
        if not 0 <= rank < world_size:
            raise InputError(f"rank {rank} is not one of {world_size} shares.")
        return self._compute(embeddings, labels, None, None, (rank, world_size))

    def _compute(
        self,
        embeddings: Tensor,
        labels: Tensor,
        ref_emb: Tensor | None,
        ref_labels: Tensor | None,
        share: tuple[int, int],
    ) -> Tensor:
        check_inputs(embeddings, labels, ref_emb, ref_labels)
        same = same_set(embeddings, labels, ref_emb, ref_labels)
        mixing = self._mix(labels, None if same else ref_labels) if self.simix else None
        return soft_rank_loss(self.query_loss, embeddings, labels, ref_emb, ref_labels, self._settings, mixing, share)

    def _mix(self, labels: Tensor, ref_labels: Tensor | None) -> tuple[Mixing, Mixing]:
        queries = draw_mixing(labels.detach().cpu().long(), self.max_pairs, self.generator)
        if ref_labels is None:
            return queries, queries
        return queries, draw_mixing(ref_labels.detach().cpu().long(), self.max_pairs, self.generator)

    def get_extra_state(self) -> dict[str, Any]:
        """The generator's state, so that a resumed run draws what the uninterrupted one would have drawn."""
        return {} if self.generator is None else {"generator": self.generator.get_state()}

    def set_extra_state(self, state: dict[str, Any]) -> None:
        """Restore ``get_extra_state``."""
        if "generator" in state:
            self.generator = self.generator or torch.Generator()
            self.generator.set_state(state["generator"].cpu())
