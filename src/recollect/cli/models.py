"""``recollect models [NAME]``: list the initialisations."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from recollect.cli.app import app
from recollect.cli.options import AsJson, complete_model, print_json

if TYPE_CHECKING:
    from recollect.models.zoo import Initialization


@app.command("models")
def models(
    name: Annotated[
        str | None,
        typer.Argument(
            autocompletion=complete_model, help="Show one: a name from the list, timm:<full tag>, or file.py:name."
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """List the initialisations an embedder can start from, or show one in full."""
    from recollect import available_models, describe_model
    from recollect.common.plugins import added

    if name is not None:
        row = describe_model(name)
        print_json(_summary(row)) if as_json else _show(row)
    elif as_json:
        print_json([*(_summary(row) for row in available_models().values()), *added("backbone")])
    else:
        _list(list(available_models().values()))
        for outside in added("backbone"):
            typer.echo(f"{outside['name']}  from the package {outside['package']} ({outside['reference']})")


def _summary(row: Initialization) -> dict[str, Any]:
    """A row of the table as plain values, and the file its weights are in, if it is here."""
    import dataclasses

    from recollect.models.weight_files import find_weights

    found = find_weights(row) if row.has_weights_file else None
    outside = None if row.outside is None else row.outside.as_dict()
    plain = dataclasses.asdict(dataclasses.replace(row, outside=None))
    return {**plain, "outside": outside, "weights": None if found is None else str(found)}


def _list(rows: list[Initialization]) -> None:
    table = [("name", "paper", "architecture", "dim", "size", "mean/std", "params", "weights", "licence")]
    for row in rows:
        licence = row.licence + ("  (NC)" if row.non_commercial else "")
        shape = (str(row.feature_dim), _size(row), str(row.normalization), f"{row.parameters / 1e6:.1f}M")
        table.append((row.name, row.paper_row or "–", row.architecture, *shape, _at_hand(row), licence))
    widths = [max(len(line[column]) for line in table) for column in range(len(table[0]))]
    for line in table:
        typer.echo("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())
    typer.echo(
        "\n(NC): not for commercial use. dim: dimension of features before the head. weights: whether on this machine.\n"
        "Any other timm model: --init timm:<full tag>; your own backbone: --init file.py:name.\n"
        "`recollect models NAME` shows where weights are searched."
    )


def _show(row: Initialization) -> None:
    from recollect.models.weight_files import FOLDER_VARIABLE, find_weights

    preprocessing = row.preprocessing
    head = (
        f"{row.pooling} pooling, " + ("LayerNorm, " if row.layer_norm else "") + ("L2, " if row.l2_before_head else "")
    )
    found = find_weights(row) if row.has_weights_file else None
    non_commercial = "  (not for commercial use)" if row.non_commercial else ""
    lines = {
        "name": row.name,
        "paper row": row.paper_row or "– (not in the paper)",
        "architecture": f"{row.architecture} ({row.timm_id or 'our own'}), activation {row.activation}",
        "parameters": f"{row.parameters:,} without head",
        "features": str(row.feature_dim),
        "default head": f"{head}Linear to {row.dim}, L2",
        "input": f"{_size(row)} px, {preprocessing.interpolation}",
        "mean": ", ".join(f"{value:g}" for value in preprocessing.mean),
        "std": ", ".join(f"{value:g}" for value in preprocessing.std),
        "licence": row.licence + non_commercial,
        "weights": str(found)
        if found
        else ("not on this machine" if row.has_weights_file else "none exist: from scratch"),
    }
    if row.outside is not None:
        for unknown in ("parameters", "features", "licence"):
            del lines[unknown]
        lines["weights"] = "its own" if row.pretrained else "none: from scratch"
        lines["sha256"] = f"{row.outside.sha256} of {row.outside.file}"
    if row.has_weights_file:
        lines["file names"] = ", ".join([*row.files, f"{row.name}.safetensors (.pth, ...)"])
        lines["searched in"] = f"${FOLDER_VARIABLE}, the caches; --download downloads from " + (
            f"the hub ({row.hub})" if row.hub else row.url or "nowhere: no safe address is known"
        )
        lines["layouts"] = ", ".join(row.layouts) or "any that fits exactly"
        lines["sha256"] = row.sha256 or "not published"
        lines["page"] = row.page
    for title, value in lines.items():
        typer.echo(f"{title:13} {value}")


def _size(row: Initialization) -> str:
    return str(row.size) if row.resize is not None else f"any, ≤ {row.max_side}"


def _at_hand(row: Initialization) -> str:
    from recollect.models.weight_files import find_weights

    if not row.pretrained:
        return "from scratch"
    if find_weights(row) is None:
        return "no"
    return "bundled" if row.name == "lite0-in1k" else "yes"
