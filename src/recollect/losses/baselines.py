"""Baseline losses from pytorch-metric-learning (extra ``baselines``), with published settings.

``MetricLearningLoss`` calls a loss of the library: it checks the input, computes in float32 or better, mines if the loss has a
miner, and handles batches without any positive. Below it is one function per loss: its arguments are the options of
``recollect.losses.create`` and its docstring is what ``recollect losses NAME`` prints. Add one here and a row in
``registry.py``. All distances are between L2-normalized vectors: the library normalizes, so embeddings may have any length.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from recollect.common.errors import InputError, require
from recollect.common.text import check_choice, check_flag, check_number, check_whole
from recollect.losses.checks import check_inputs
from recollect.losses.engine.tile_loop import compute_dtype, count_matches, same_set, zero_loss

_MINERS = ("semihard", "batch_hard", "distance_weighted", "all")


class MetricLearningLoss(nn.Module):
    """One loss of pytorch-metric-learning, with its miner.

    Args:
        name: the loss's name in the registry, for messages.
        loss: the library's loss.
        miner: the library's miner, or None to use every pair.
        num_classes: labels must be 0 … num_classes − 1; None if any labels will do.
        dim: the embeddings' dimension, for a loss with one vector per class. Other losses are 0 where no query has a
            positive.
        takes_references: whether a separate reference set makes sense.
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
    ) -> None:
        super().__init__()
        self.name, self.loss, self.miner, self.num_classes, self.dim = name, loss, miner, num_classes, dim
        self.takes_references = takes_references

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
        others = ids if ref_ids is None else ref_ids
        if self.dim is None and not bool((count_matches(ids, others) > (ref_ids is None)).any()):
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
                another dimension than the loss's own parameters.
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
    cast = {name: parameter.to(dtype) for name, parameter in loss.named_parameters()}
    result = torch.func.functional_call(loss, cast, arguments)
    return result


def contrastive(pos_margin: float = 0.0, neg_margin: float = 1.0, distance: str = "euclidean") -> MetricLearningLoss:
    """Contrastive: pulls positive pairs within a margin, pushes negative pairs beyond one (Hadsell et al. 2006).

    Mean of [D⁺ − pos_margin]₊ over positive pairs plus mean of [neg_margin − D⁻]₊ over negative pairs, each over the
    pairs where it is not zero. With ``distance="cosine"`` the margins are similarities: [pos_margin − s⁺]₊ and
    [s⁻ − neg_margin]₊.
    """
    # 0 and 1: Roth et al. 2020 (arXiv:2002.08473), on unit vectors.
    check_choice("distance", distance, ("euclidean", "cosine"))
    _margins(pos_margin=pos_margin, neg_margin=neg_margin)
    library = _library()
    metric = library.distances.CosineSimilarity() if distance == "cosine" else library.distances.LpDistance()
    loss = library.losses.ContrastiveLoss(pos_margin=pos_margin, neg_margin=neg_margin, distance=metric)
    return MetricLearningLoss("contrastive", loss)


def triplet(margin: float = 0.2, miner: str = "semihard", squared: bool = False) -> MetricLearningLoss:
    """Triplet: a positive is closer than a negative by a margin (Schroff et al. 2015).

    Mean of [D_ap − D_an + margin]₊ over the mined triplets where it is not zero. Miner: ``semihard`` (negatives beyond
    the positive but within the margin, as in FaceNet), ``batch_hard`` (hardest positive and negative of each query),
    ``distance_weighted`` (as for margin; draws from torch's generator), ``all``. ``squared=True`` uses squared
    distances, as FaceNet does.
    """
    # 0.2: FaceNet, and Roth et al. 2020 with plain distances.
    check_choice("miner", miner, _MINERS)
    _positive(margin=margin)
    check_flag("squared", squared)
    library = _library()
    metric = library.distances.LpDistance(power=2 if squared else 1)
    loss = library.losses.TripletMarginLoss(margin=margin, distance=metric)
    return MetricLearningLoss("triplet", loss, _miner(library, miner, margin, metric))


def margin(
    margin: float = 0.2,
    beta: float = 1.2,
    nu: float = 0.0,
    num_classes: int | None = None,
    learn_beta: bool = True,
    miner: str = "distance_weighted",
) -> MetricLearningLoss:
    """Margin: a learned boundary beta between positive and negative distances (Wu et al. 2017).

    [D_ap − beta + margin]₊ + [beta − D_an + margin]₊, over the number of terms that are not zero, plus nu·beta.
    beta is a parameter of the loss, one for each class with ``num_classes`` (labels 0 … num_classes − 1), otherwise one
    for all. Negatives are drawn by distance-weighted sampling (cut off at 0.5 and 1.4) from torch's generator.
    """
    # 0.2, 1.2, 0 and the cut-offs: Wu et al. 2017 and Roth et al. 2020, who learn beta at a rate of 5e-4.
    check_choice("miner", miner, _MINERS)
    _positive(margin=margin)
    _margins(beta=beta, nu=nu)
    check_flag("learn_beta", learn_beta)
    if num_classes is not None:
        check_whole("num_classes", num_classes, 1, 10**8)
    library = _library()
    loss = library.losses.MarginLoss(
        margin=margin, beta=beta, nu=nu, num_classes=num_classes, learn_beta=learn_beta, triplets_per_anchor="all"
    )
    metric = library.distances.LpDistance()
    return MetricLearningLoss("margin", loss, _miner(library, miner, margin, metric), num_classes=num_classes)


def multi_similarity(
    alpha: float = 2.0, beta: float = 50.0, base: float = 0.5, epsilon: float | None = 0.1
) -> MetricLearningLoss:
    """Multi-similarity: soft weights over each query's hard pairs (Wang et al. 2019).

    Mean over queries of log(1 + Σ⁺ e^(−alpha(s − base)))/alpha + log(1 + Σ⁻ e^(beta(s − base)))/beta. Pairs are those
    of the paper's miner: positives less similar than the hardest negative plus ``epsilon``, negatives more similar than
    the hardest positive minus ``epsilon``; None takes all pairs.
    """
    # alpha 2, beta 50, epsilon 0.1: the paper. base 0.5: the authors' released code (the paper's text has 1).
    _positive(alpha=alpha, beta=beta)
    _margins(base=base, epsilon=0.0 if epsilon is None else epsilon)
    library = _library()
    miner = None if epsilon is None else library.miners.MultiSimilarityMiner(epsilon=epsilon)
    loss = library.losses.MultiSimilarityLoss(alpha=alpha, beta=beta, base=base)
    return MetricLearningLoss("multi_similarity", loss, miner)


def fast_ap(bins: int = 10) -> MetricLearningLoss:
    """FastAP: average precision on a histogram of squared distances (Cakir et al. 2019).

    Like ``binned_ap``, on squared distances from 0 to 4. It stores bins × M × M numbers: for large batches use
    ``binned_ap``. Takes no separate reference set.
    """
    # 10: the paper.
    check_whole("bins", bins, 1, 10_000)
    loss = _library().losses.FastAPLoss(num_bins=bins)
    return MetricLearningLoss("fast_ap", loss, takes_references=False)


def supcon(temperature: float = 0.1) -> MetricLearningLoss:
    """SupCon: each positive against all others by softmax (Khosla et al. 2020).

    Mean over queries with a positive of −mean over positives of log softmax(s/temperature).
    """
    # 0.1: the paper.
    _positive(temperature=temperature)
    return MetricLearningLoss("supcon", _library().losses.SupConLoss(temperature=temperature))


def norm_softmax(num_classes: int, dim: int, temperature: float = 0.05) -> MetricLearningLoss:
    """NormSoftmax: classification with normalized class vectors (Zhai and Wu 2019).

    Cross-entropy of s/temperature over all classes' vectors, which are parameters of the loss. Labels are
    0 … num_classes − 1. Takes no separate reference set.
    """
    # 0.05: the paper.
    _positive(temperature=temperature)
    return _with_class_vectors("norm_softmax", "NormalizedSoftmaxLoss", num_classes, dim, temperature=temperature)


def proxy_nca(num_classes: int, dim: int, scale: float = 1.0) -> MetricLearningLoss:
    """ProxyNCA: neighbourhood components against one learned proxy per class (Movshovitz-Attias et al. 2017).

    −log of the softmax of −scale·D² at the own class's proxy, D² the squared distance between unit vectors. The own
    proxy counts in the denominator as well. Proxies are parameters of the loss. Labels are 0 … num_classes − 1. Takes
    no separate reference set.
    """
    # 1: the paper, which has no temperature.
    _positive(scale=scale)
    return _with_class_vectors("proxy_nca", "ProxyNCALoss", num_classes, dim, softmax_scale=scale)


def proxy_anchor(num_classes: int, dim: int, margin: float = 0.1, alpha: float = 32.0) -> MetricLearningLoss:
    """Proxy-Anchor: each proxy pulls its class and pushes the rest of the batch (Kim et al. 2020).

    Mean over the batch's classes of log(1 + Σ⁺ e^(−alpha(s − margin))) plus mean over all classes of
    log(1 + Σ⁻ e^(alpha(s + margin))). Proxies are parameters of the loss; the paper gives them 100 times the learning
    rate. Labels are 0 … num_classes − 1. Takes no separate reference set.
    """
    # 0.1 and 32: the paper.
    _positive(alpha=alpha)
    _margins(margin=margin)
    return _with_class_vectors("proxy_anchor", "ProxyAnchorLoss", num_classes, dim, margin=margin, alpha=alpha)


def arcface(num_classes: int, dim: int, margin: float = 28.6, scale: float = 64.0) -> MetricLearningLoss:
    """ArcFace: classification with a margin on the angle (Deng et al. 2019).

    Cross-entropy of scale·cos θ, with the margin, in degrees, added to the own class's angle. Class vectors are
    parameters of the loss. Labels are 0 … num_classes − 1. Takes no separate reference set.
    """
    # 0.5 radians = 28.6 degrees, and 64: the paper.
    _positive(scale=scale)
    _margins(margin=margin)
    # In one dimension every cosine is ±1, where the angle has no finite gradient.
    return _with_class_vectors("arcface", "ArcFaceLoss", num_classes, dim, least=2, margin=margin, scale=scale)


def cosface(num_classes: int, dim: int, margin: float = 0.35, scale: float = 64.0) -> MetricLearningLoss:
    """CosFace: classification with a margin on the cosine (Wang et al. 2018).

    Cross-entropy of scale·cos θ, with the margin taken from the own class's cosine. Class vectors are parameters of the
    loss. Labels are 0 … num_classes − 1. Takes no separate reference set.
    """
    # 0.35 and 64: the paper.
    _positive(scale=scale)
    _margins(margin=margin)
    return _with_class_vectors("cosface", "CosFaceLoss", num_classes, dim, margin=margin, scale=scale)


def _library() -> Any:
    for part in ("losses", "miners", "distances"):
        require(f"pytorch_metric_learning.{part}", "baselines", "This loss")
    return require("pytorch_metric_learning", "baselines", "This loss")


def _with_class_vectors(
    name: str, kind: str, num_classes: int, dim: int, least: int = 1, **options: float
) -> MetricLearningLoss:
    """The library's loss called ``kind``, with a vector of at least ``least`` numbers per class."""
    check_whole("num_classes", num_classes, 1, 10**8)
    check_whole("dim", dim, least, 10**6)
    loss = getattr(_library().losses, kind)(num_classes=int(num_classes), embedding_size=int(dim), **options)
    return MetricLearningLoss(name, loss, num_classes=num_classes, dim=dim, takes_references=False)


def _miner(library: Any, name: str, margin: float, metric: Any) -> Any:
    if name == "semihard":
        return library.miners.TripletMarginMiner(margin=margin, type_of_triplets="semihard", distance=metric)
    if name == "batch_hard":
        return library.miners.BatchHardMiner(distance=metric)
    if name == "distance_weighted":
        return library.miners.DistanceWeightedMiner(cutoff=0.5, nonzero_loss_cutoff=1.4)
    return None


def _positive(**options: float) -> None:
    for option, value in options.items():
        check_number(option, value, 1e-8, 1e8)


def _margins(**options: float) -> None:
    for option, value in options.items():
        check_number(option, value, -1e6, 1e6)
