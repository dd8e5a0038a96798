"""Losses on average precision.

With smooth steps: Smooth-AP, the main competitor of RS@k, SupAP and ROADMAP. From a query's whole list of similarities: binned
AP makes a histogram of it (Revaud et al. 2019, arXiv:1906.07589), Blackbox-AP sorts it (Rolínek et al. 2020,
arXiv:1912.03500). The equations are in ``tests/oracles``, the tiling in ``engine/``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from recollect.common.errors import ConfigError
from recollect.common.text import check_flag, check_number, check_whole
from recollect.losses.engine.soft_rank import Ranks
from recollect.losses.engine.steps import Asymmetric, Sigmoid, Step
from recollect.losses.engine.tile_loop import Term, TileFunction, TileIndices, TileRun
from recollect.losses.rank_loss import RankLoss, TiledLoss, TileOptions

# A larger tile falls out of the processor's caches and is never faster.
_TILE_BYTES = 32 * 2**20


class AveragePrecisionLoss(RankLoss):
    """``1 − mean_q 1/|P_q| Σ_x rank⁺(q, x) / rank(q, x)`` with any step.

    Args:
        step: how "z is ahead of x" is smoothed.
        count_query: rank the query among its references, as a positive of itself: the form of all released code. The
            papers', and the default, leaves the query out.
        **options: see ``recollect.losses.rank_loss.RankOptions``.
    """

    def __init__(self, *, step: Step, count_query: bool = False, **options: Any) -> None:
        query: Literal["positive", "excluded"] = "positive" if check_flag("count_query", count_query) else "excluded"
        super().__init__(step=step, query=query, **options)

    def query_loss(self, ranks: Ranks) -> Tensor:
        """``1 − AP``, T."""
        return 1 - (ranks.positives / ranks.all * ranks.mask).sum(0) / ranks.count


class SmoothAP(AveragePrecisionLoss):
    """Smooth-AP (Brown et al., 2020): ``1 − mean_q mean_x rank⁺(q, x) / rank(q, x)`` over the positives x.

    Args:
        tau: temperature of the step on similarities; 0.01 in its paper.
        count_query: rank the query too, as a positive of itself: the released code's form, not the paper's.
        **options: see ``recollect.losses.rank_loss.RankOptions``.

    Examples:
        >>> import torch
        >>> embeddings = torch.nn.functional.normalize(torch.randn(4, 16), dim=1)
        >>> bool(SmoothAP()(embeddings, torch.tensor([0, 0, 1, 1])) >= 0)
        True
    """

    def __init__(self, tau: float = 0.01, count_query: bool = False, **options: Any) -> None:
        super().__init__(step=Sigmoid(tau), count_query=count_query, **options)


class SupAP(AveragePrecisionLoss):
    """SupAP (Ramzi et al., 2021): Smooth-AP with a step that is an upper bound and does not saturate for negatives ahead.

    Args:
        tau, rho, delta, start, offset: the step, see ``recollect.losses.engine.steps.Asymmetric``. The defaults are the
            published ones; for iNaturalist its authors use ``start=0, offset=1``.
        count_query: rank the query too, as a positive of itself: the released code's form, not the paper's.
        **options: see ``recollect.losses.rank_loss.RankOptions``.

    Examples:
        >>> import torch
        >>> embeddings = torch.nn.functional.normalize(torch.randn(4, 16), dim=1)
        >>> bool(SupAP()(embeddings, torch.tensor([0, 0, 1, 1])) >= 0)
        True
    """

    def __init__(
        self,
        tau: float = 0.01,
        rho: float = 100.0,
        delta: float = 0.05,
        start: float = 0.5,
        offset: float = 1.44,
        count_query: bool = False,
        **options: Any,
    ) -> None:
        super().__init__(step=Asymmetric(tau, rho, delta, start, offset), count_query=count_query, **options)


class Roadmap(SupAP):
    """ROADMAP (Ramzi et al., 2021): ``(1 − λ) · SupAP + λ · calibration``.

    The calibration draws positives above one similarity and negatives below another, so that scores of different
    queries can be compared: mean over positive pairs of ``[0.9 − s]₊`` plus mean over negative pairs of ``[s − 0.6]₊``.
    SiMix enlarges the ranking part only; calibration uses the images themselves. The released code corresponds to
    ``count_query=True, calibrate="violating"``.

    Args:
        calibration_weight: λ.
        positive_margin, negative_margin: the two similarities.
        calibrate: ``"all"``: means over all pairs (the paper); ``"violating"``: over pairs beyond their margin only.
        **options: ``tau``, ``rho``, ``delta``, ``start``, ``offset`` and ``count_query``, see ``SupAP``; and see
            ``recollect.losses.rank_loss.RankOptions``.

    Examples:
        >>> import torch
        >>> embeddings = torch.nn.functional.normalize(torch.randn(4, 16), dim=1)
        >>> bool(Roadmap(calibration_weight=0.3)(embeddings, torch.tensor([0, 0, 1, 1])) >= 0)
        True
    """

    options_type = SupAP

    def __init__(
        self,
        calibration_weight: float = 0.5,
        positive_margin: float = 0.9,
        negative_margin: float = 0.6,
        calibrate: Literal["all", "violating"] = "all",
        **options: Any,
    ) -> None:
        super().__init__(
            calibration_weight=calibration_weight,
            positive_margin=positive_margin,
            negative_margin=negative_margin,
            calibrate=calibrate,
            **options,
        )


class RowTile(NamedTuple):
    """Lists of similarities, one row per query; each query has at least one positive."""

    similarities: Tensor  # T × N, may be overwritten
    row: Tensor  # for each positive pair, its row
    column: Tensor  # and its column
    num_positives: Tensor  # T, in the similarities' type
    own: Tensor | None  # T: the column of the query itself; None with a separate reference set
    num_queries: int  # Q, over all tiles; the loss is averaged over these


RowLoss = Callable[[RowTile], tuple[Tensor, Tensor]]
"""A tile to the loss of each row, and ∂(Σ losses / Q)/∂similarities."""


class Rows(Term):
    """The mean of a loss over the lists of all queries.

    Args:
        row_loss: the loss of a tile's rows and its gradient.
        bytes_per_pair: memory that ``row_loss`` needs per similarity, in float32.
    """

    def __init__(self, row_loss: RowLoss, bytes_per_pair: int) -> None:
        self.row_loss, self.bytes_per_pair = row_loss, bytes_per_pair

    def width(self, run: TileRun) -> int:
        """As many as the memory and the caches allow."""
        pair = self.bytes_per_pair * run.item_bytes // 4
        return max(1, min(run.memory, _TILE_BYTES) // (run.layout.num_references * pair))

    def start(self, run: TileRun) -> TileFunction:
        """Turn a tile's columns into rows, and the gradient back."""
        queries = run.layout.num_queries

        def of_tile(similarities: Tensor, tile: TileIndices) -> tuple[Tensor, Tensor]:
            slot, row = tile.mask.nonzero(as_tuple=True)
            column = tile.positives[slot, row]
            rows = RowTile(similarities.T.contiguous(), row, column, tile.count, tile.own, queries)
            values, gradient = self.row_loss(rows)
            return values.sum(dtype=torch.float64) / queries, gradient.T

        return of_tile


class BinnedAP(TiledLoss):
    """1 − mean AP, with AP computed on a histogram of similarities with triangular bins.

    The bins' centres are evenly spaced from ``high`` down to ``low``. A similarity counts in the two nearest bins, by
    distance, so that the histogram, and AP with it, is differentiable. Similarities beyond the ends count wholly in the
    end bins and have no gradient. The embeddings are not normalized here: normalize them first.

    Args:
        bins: number of bins. 25 is the default of the authors' released code.
        low: centre of the last bin. −1 is the paper's; the released code's default is 0.
        high: centre of the first bin.
        **options: see ``recollect.losses.rank_loss.TileOptions``.

    Raises:
        ConfigError: fewer than 2 bins, or ``low`` not below ``high``.

    Examples:
        >>> embeddings = torch.nn.functional.normalize(torch.randn(8, 16), dim=1).requires_grad_()
        >>> loss = BinnedAP()(embeddings, torch.arange(8) // 2)
        >>> loss.backward()
    """

    def __init__(self, bins: int = 25, low: float = -1.0, high: float = 1.0, **options: Any) -> None:
        super().__init__(TileOptions(**options))
        self.bins = check_whole("bins", bins, 2, 10_000)
        self.low, self.high = check_number("low", low, -1e6, 1e6), check_number("high", high, -1e6, 1e6)
        if self.high - self.low < 1e-6:
            raise ConfigError(f"low is {low} and high is {high}: low must be below high by at least 1e-6.")

    def term(self) -> Term:
        """Similarities, positions, indices, two weights, gradient and masks: 48 bytes per pair."""
        return Rows(self.rows, 48)

    def rows(self, tile: RowTile) -> tuple[Tensor, Tensor]:
        """The loss of a tile's queries and its gradient."""
        width = (self.high - self.low) / (self.bins - 1)
        # u counts bins from the top: u = 3.2 puts 0.8 of the pair into bin 3 and 0.2 into bin 4.
        u = (self.high - tile.similarities) / width
        inside = (u > 0) & (u < self.bins - 1)
        u.clamp_(0, self.bins - 1)
        lower = u.floor().clamp_(max=self.bins - 2)
        upper_weight = u.sub_(lower)
        lower_weight = 1 - upper_weight
        bin_index = lower.long()
        if tile.own is not None:
            own = tile.own[:, None]
            lower_weight.scatter_(1, own, 0.0)
            upper_weight.scatter_(1, own, 0.0)
            inside.scatter_(1, own, False)

        rows = len(bin_index)
        h = u.new_zeros(rows, self.bins)  # h_m: the sum of the weights in bin m
        h[:, :-1].scatter_add_(1, bin_index, lower_weight)
        h[:, 1:].scatter_add_(1, bin_index, upper_weight)
        row, column = tile.row, tile.column
        positive_bin = bin_index[row, column]
        h_pos = torch.zeros_like(h)
        h_pos.index_put_((row, positive_bin), lower_weight[row, column], accumulate=True)
        h_pos.index_put_((row, positive_bin + 1), upper_weight[row, column], accumulate=True)

        H = h.cumsum(1)
        H.masked_fill_(H == 0, 1.0)  # no similarity so far: both quotients below are 0
        precision = h_pos.cumsum(1) / H
        share = h_pos / H
        values = 1 - (h_pos * precision).sum(1) / tile.num_positives

        # AP·|P| = Σ_m h⁺_m H⁺_m / H_m. Moving a pair by du takes du from bin j and gives it to bin j + 1, which changes
        # H and H⁺ at j alone; so the derivative needs neighbouring bins only.
        scale = -1 / (tile.num_positives * tile.num_queries * -width)[:, None]  # ∂loss/∂AP·|P| times du/ds
        by_any = (share * precision)[:, :-1] * scale
        by_positive = (precision[:, 1:] - precision[:, :-1] - share[:, :-1]) * scale
        G = by_any.gather(1, bin_index)
        G[row, column] += by_positive[row, positive_bin]
        return values, G.mul_(inside)


class BlackboxAP(TiledLoss):
    """1 − mean AP of the true ranking; the gradient comes from ranking once more with perturbed scores.

    Ranking is a solver, ``rk(y) = argmin_π y·π``, piecewise constant in the scores ``y``. With ``g = ∂loss/∂rk`` its
    gradient is replaced by that of an interpolation, ``(rk(y + λ g) − rk(y)) / λ``. Positives' scores are
    lowered by the margin first, so that a ranking has to be right by that margin.

    Ranks are divided by the length of the list, as in the authors' code, which makes λ independent of the batch size.
    λ applies to the loss as returned: scaling the loss (mixed precision, a weight) scales the gradient and does not
    change the perturbation. Equal scores are ranked in the order of the batch.

    Args:
        lambda_val: the interpolation's strength λ; larger is smoother and further from the true loss. 4 and a margin of
            0.02 are the settings of published comparisons on these benchmarks.
        margin: α, the margin between positives' and negatives' scores.
        **options: see ``recollect.losses.rank_loss.TileOptions``.

    Raises:
        ConfigError: λ not from 1e-6 to 1e6, or a margin not from 0 to 1e6.

    Examples:
        >>> embeddings = torch.nn.functional.normalize(torch.randn(8, 16), dim=1).requires_grad_()
        >>> loss = BlackboxAP()(embeddings, torch.arange(8) // 2)
        >>> loss.backward()
    """

    def __init__(self, lambda_val: float = 4.0, margin: float = 0.02, **options: Any) -> None:
        super().__init__(TileOptions(**options))
        self.lambda_val = check_number("lambda_val", lambda_val, 1e-6, 1e6)
        self.margin = check_number("margin", margin, 0, 1e6)

    def term(self) -> Term:
        """Scores, two rankings with the indices of their sorts, and the gradient: 64 bytes per pair."""
        return Rows(self.rows, 64)

    def rows(self, tile: RowTile) -> tuple[Tensor, Tensor]:
        """The loss of a tile's queries and its gradient."""
        scores = tile.similarities
        row, column = tile.row, tile.column
        length = scores.shape[1]
        scores[row, column] -= self.margin
        if tile.own is not None:
            # Last in both rankings: it does not move other items and gets no gradient.
            scores.scatter_(1, tile.own[:, None], -torch.inf)
            length -= 1

        rank, order = _rank(scores)
        rank_of = rank[row, column]
        is_positive = torch.zeros_like(scores, dtype=torch.bool)
        is_positive[row, column] = True
        among_positives = is_positive.gather(1, order).cumsum(1, dtype=torch.int32)
        positive_rank_of = among_positives[row, rank_of.long() - 1]
        num_positives = tile.num_positives[row]
        precision = positive_rank_of / rank_of / num_positives
        values = 1 - torch.zeros_like(scores[:, 0]).index_add_(0, row, precision)

        # ∂loss/∂(rank/length); positive_rank_of is piecewise constant and counts as a constant.
        g = precision / rank_of * (length / tile.num_queries)
        scores[row, column] += self.lambda_val * g
        perturbed, _ = _rank(scores)
        return values, perturbed.sub_(rank).div_(self.lambda_val * length)


def _rank(scores: Tensor) -> tuple[Tensor, Tensor]:
    """Ranks from 1, highest score first, in the scores' type; and the order that sorts each row."""
    order = scores.argsort(dim=1, descending=True, stable=True)
    places = torch.arange(1, scores.shape[1] + 1, dtype=scores.dtype, device=scores.device)
    return torch.empty_like(scores).scatter_(1, order, places.expand_as(scores)), order
