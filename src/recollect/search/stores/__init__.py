"""Stores of vectors: ``base`` says what one must do, and opens them by their addresses."""

NEIGHBOURS = 10
"""Results of a query, unless another number is asked for."""
