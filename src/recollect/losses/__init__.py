"""Embeddings and labels to a scalar: losses on soft ranks, and the losses they are compared with."""
