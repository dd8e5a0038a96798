"""Pixels to unit vectors: embedders, the initialisations they start from, and whitening."""
