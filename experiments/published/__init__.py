"""The paper's published numbers as tables; empty cells were not published."""

from __future__ import annotations

import csv
from pathlib import Path

TABLES = ("methods", "initialization", "instance_search", "batch_size", "k_values_cars196")


def published_rows(table: str) -> list[dict[str, str]]:
    """The rows of one of ``TABLES``, as texts by column."""
    text = Path(__file__).with_name(f"{table}.csv").read_text(encoding="utf-8")
    return list(csv.DictReader(text.splitlines()))
