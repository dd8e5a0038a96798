"""Shared basics: every other package may import from here, and nothing here imports from another package."""
