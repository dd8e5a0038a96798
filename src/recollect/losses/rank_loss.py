"""``TiledLoss`` and ``RankLoss``: the base classes of all losses on the tile loop (call, SiMix, calibration, shares).

To add a loss on soft ranks, subclass ``RankLoss`` in its own file: pass the step to ``super().__init__`` and write
``query_loss``. To add one on whole lists of similarities, subclass ``TiledLoss`` and give a ``Rows`` term, as ``BinnedAP``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from recollect.common.errors import ConfigError, InputError
from recollect.common.text import check_choice, check_flag, check_number, check_whole
from recollect.losses.checks import check_inputs
from recollect.losses.engine.simix import MAX_PAIRS, Mixing, draw_mixing
from recollect.losses.engine.soft_rank import Ranks, SoftRank
from recollect.losses.engine.steps import Step
from recollect.losses.engine.tile_loop import MEMORY, Pairing, Term, TileFunction, TileIndices, TileRun, tiled_loss


class Calibration(Term):
    """Mean over positive pairs of ``[margins[0] − s]₊`` plus mean over negative pairs of ``[s − margins[1]]₊``.

    Args:
        margins: a positive pair should be above the first, a negative pair below the second.
        violating: average over the pairs beyond their margin only, as ROADMAP's released code does, and not over all
            pairs. Their number is counted in a separate pass, by every process for all queries.
    """

    mixes, every_query = False, True

    def __init__(self, margins: tuple[float, float], violating: bool = False) -> None:
        self.margins, self.violating = margins, violating

    def width(self, run: TileRun) -> int:
        """Besides the similarities, a tile needs their excess and the gradient."""
        return max(1, min(512, run.memory // (4 * run.layout.num_references * run.item_bytes)))

    def start(self, run: TileRun) -> TileFunction:
        """Count the pairs first: the gradient of each mean depends on the number of pairs."""
        positives, negatives = (0, 0) if self.violating else run.layout.num_pairs
        for similarities, tile in run.tiles() if self.violating else ():
            short, excess, _ = self._hinges(similarities, tile)
            positives, negatives = positives + int((short > 0).sum()), negatives + int((excess > 0).sum())
        positives, negatives = max(1, positives), max(1, negatives)

        def of_tile(similarities: Tensor, tile: TileIndices) -> tuple[Tensor, Tensor]:
            short, excess, positions = self._hinges(similarities, tile)
            value = short.sum(dtype=torch.float64) / positives + excess.sum(dtype=torch.float64) / negatives
            gradient = (excess > 0).to(excess.dtype).div_(negatives)
            return value, gradient.scatter_add_(0, positions, (short > 0).to(excess.dtype).div_(-positives))

        return of_tile

    def _hinges(self, similarities: Tensor, tile: TileIndices) -> tuple[Tensor, Tensor, Tensor]:
        """How far positives are below their margin (P × T), negatives above theirs (N × T), and the positives' rows."""
        short = (self.margins[0] - similarities.gather(0, tile.positives)).clamp_(min=0).mul_(tile.mask)
        # Padding repeats a query's first positive, or is on an arbitrary row for a query without positives: skip it.
        keep = torch.where(tile.mask, -torch.inf, similarities.gather(0, tile.positives))
        similarities.scatter_reduce_(0, tile.positives, keep, "amin")
        if tile.own is not None:
            similarities.scatter_(0, tile.own[None], -torch.inf)
        return short, similarities.sub_(self.margins[1]).clamp_(min=0), tile.positives


@dataclass(frozen=True, kw_only=True)
class TileOptions:
    """Options of every tiled loss.

    Args:
        simix: enlarge the batch by mixtures of images of one class (see ``losses/engine/simix.py``).
        max_pairs: with SiMix, the maximum number of mixtures per class; None for all n(n − 1)/2.
        generator: a CPU generator that makes SiMix reproducible; its state is part of ``state_dict``.
        calibration_weight: λ of ``(1 − λ) · loss + λ · calibration``, ROADMAP's calibration of similarities.
        positive_margin, negative_margin: a positive pair should be more similar than the first, a negative pair less
            similar than the second.
        calibrate: ``"all"`` averages the calibration over all pairs, as the paper says; ``"violating"`` over the pairs
            beyond their margin only, as the released code does.
        memory: bytes the computation may use in addition to embeddings and gradient.
    """

    simix: bool = False
    max_pairs: int | None = MAX_PAIRS
    generator: torch.Generator | None = None
    calibration_weight: float = 0.0
    positive_margin: float = 0.9
    negative_margin: float = 0.6
    calibrate: Literal["all", "violating"] = "all"
    memory: int = MEMORY

    def __post_init__(self) -> None:
        check_whole("memory", self.memory, 1, 2**60)
        check_flag("simix", self.simix)
        if self.max_pairs is not None:
            check_whole("max_pairs", self.max_pairs, 1, 10**9)
        generator = self.generator
        if generator is not None and (not isinstance(generator, torch.Generator) or generator.device.type != "cpu"):
            raise ConfigError(f"generator must be a torch.Generator on the CPU, but is {generator!r}.")
        check_number("calibration_weight", self.calibration_weight, 0, 1)
        check_number("positive_margin", self.positive_margin, -1e6, 1e6)
        check_number("negative_margin", self.negative_margin, -1e6, 1e6)
        check_choice("calibrate", self.calibrate, ("all", "violating"))


@dataclass(frozen=True, kw_only=True)
class RankOptions(TileOptions):
    """Options of every loss on soft ranks: those of ``TileOptions``, and

    Args:
        prune: leave out what cannot change the result beyond rounding.
    """

    prune: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        check_flag("prune", self.prune)


class TiledLoss(nn.Module):
    """Base of the losses on the tile loop; called as ``loss(embeddings, labels)``."""

    options_type: ClassVar[type] = TileOptions
    """What takes the ``**options`` of a subclass."""

    def __init__(self, options: TileOptions) -> None:
        super().__init__()
        self.options, self.simix, self.generator = options, options.simix, options.generator

    def term(self) -> Term:
        """What is computed for each tile."""
        raise TypeError(f"{type(self).__name__} must define term().")

    def forward(
        self, embeddings: Tensor, labels: Tensor, ref_emb: Tensor | None = None, ref_labels: Tensor | None = None
    ) -> Tensor:
        """The loss of a batch.

        Args:
            embeddings: M × d, L2-normalized; every one is a query.
            labels: M integers.
            ref_emb: references, N × d. By default the batch itself, with each query excluded from its own references.
            ref_labels: N integers.
        """
        greatest = check_inputs(embeddings, labels, ref_emb, ref_labels)
        return self.of_pairing(Pairing.of(embeddings, labels, ref_emb, ref_labels, greatest))

    def share(self, embeddings: Tensor, labels: Tensor, rank: int, world_size: int) -> Tensor:
        """The part of the loss that comes from one of ``world_size`` shares of the queries.

        The parts add up to the loss of the batch, and so do their gradients. Each process of a group holds all
        embeddings and computes its own share; with SiMix, generators must be in the same state everywhere.
        """
        if not 0 <= rank < world_size:
            raise InputError(f"rank {rank} is not one of {world_size} shares: ranks are numbered from 0.")
        greatest = check_inputs(embeddings, labels)
        return self.of_pairing(Pairing.of(embeddings, labels, None, None, greatest), (rank, world_size))

    def of_pairing(self, pairing: Pairing, share: tuple[int, int] = (0, 1)) -> Tensor:
        """The loss of queries against references, already checked."""
        mixing = self._mix(pairing.labels, None if pairing.same else pairing.ref_labels) if self.simix else None
        value = tiled_loss(self.term(), pairing, mixing, self.options.memory, share)
        weight = self.options.calibration_weight
        if weight == 0:
            return value
        margins = (self.options.positive_margin, self.options.negative_margin)
        calibration = Calibration(margins, violating=self.options.calibrate == "violating")
        calibrated = tiled_loss(calibration, pairing, None, self.options.memory, share)
        return (1 - weight) * value + weight * calibrated

    def _mix(self, labels: Tensor, ref_labels: Tensor | None) -> tuple[Mixing, Mixing]:
        queries = draw_mixing(labels.cpu().long(), self.options.max_pairs, self.generator)
        if ref_labels is None:
            return queries, queries
        return queries, draw_mixing(ref_labels.cpu().long(), self.options.max_pairs, self.generator)

    def get_extra_state(self) -> dict[str, Any]:
        """The generator's state, so that a resumed run draws what the uninterrupted one would have drawn."""
        return {} if self.generator is None else {"generator": self.generator.get_state()}

    def set_extra_state(self, state: dict[str, Any]) -> None:
        """Restore ``get_extra_state``."""
        if "generator" in state:
            self.generator = self.generator or torch.Generator()
            self.generator.set_state(state["generator"].cpu())


class RankLoss(TiledLoss):
    """Base of the losses that are functions of soft ranks.

    Args:
        step: how "z is ahead of x" is smoothed.
        query: whether a query is excluded from its own list, ranked in it, or a positive of itself.
        rank_limit: a rank beyond which a positive no longer matters to ``query_loss``; None if every rank does.
        **options: see ``RankOptions``.

    Examples:
        >>> import torch
        >>> from recollect.losses import Sigmoid
        >>> class LogRank(RankLoss):
        ...     def __init__(self, tau=0.05, **options):
        ...         super().__init__(step=Sigmoid(tau), **options)
        ...     def query_loss(self, ranks):
        ...         return (ranks.all.log() * ranks.mask).sum(0) / ranks.count
        >>> embeddings = torch.nn.functional.normalize(torch.randn(8, 16), dim=1)
        >>> bool(LogRank()(embeddings, torch.arange(8) // 4) > 0)
        True
    """

    options_type: ClassVar[type] = RankOptions

    def __init__(
        self,
        *,
        step: Step,
        query: Literal["excluded", "ranked", "positive"] = "excluded",
        rank_limit: float | None = None,
        **options: Any,
    ) -> None:
        rank_options = RankOptions(**options)
        super().__init__(rank_options)
        self.step = step
        self._term = SoftRank(self.query_loss, step, query, rank_limit, rank_options.prune)

    def query_loss(self, ranks: Ranks) -> Tensor:
        """The loss of each of T queries from the ranks of its positives."""
        raise TypeError(f"{type(self).__name__} must define query_loss(ranks).")

    def term(self) -> Term:
        """Ranks, and the loss on them."""
        return self._term
