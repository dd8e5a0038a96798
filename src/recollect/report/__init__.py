"""Runs to pages: curves, galleries, tables beside the paper's."""
