"""Binned AP: average precision on a soft histogram of similarities (Revaud et al. 2019, arXiv:1906.07589).

One loss, one file. Its equation is in ``tests/oracles/baselines.py``, the tiling in ``engine/``. Here each similarity
goes to its two neighbouring bins directly, so the cost per pair is that of two bins, not of all bins.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from recollect.common.errors import ConfigError
from recollect.common.option_checks import check_number, check_whole
from recollect.losses.engine.rows import Rows, RowTile
from recollect.losses.engine.tile_loop import Term
from recollect.losses.rank_loss import TiledLoss, TileOptions


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
