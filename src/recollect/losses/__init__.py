"""Embeddings and labels to a scalar: losses on soft ranks, and the losses they are compared with."""

from recollect.losses.registry import available, create

__all__ = ["available", "create"]
