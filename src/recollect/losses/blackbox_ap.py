"""Blackbox-AP: the exact AP, with a gradient by blackbox differentiation of the ranking (Rolínek et al. 2020).

"Optimizing Rank-based Metrics with Blackbox Differentiation", arXiv:1912.03500. One loss, one file. Its definition
is in ``tests/oracles/baselines.py``, the tiling in ``engine/``.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from recollect.common.option_checks import check_number
from recollect.losses.engine.rows import Rows, RowTile
from recollect.losses.engine.tile_loop import Term
from recollect.losses.rank_loss import TiledLoss, TileOptions


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
