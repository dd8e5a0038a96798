"""``recollect index``: create, update and inspect an index of images."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from recollect.cli.options import (
    AsJson,
    BatchSize,
    Device,
    Download,
    MaxPixels,
    Quiet,
    Wait,
    Weights,
    app,
    complete_model,
    given,
    parse_pairs,
    print_json,
    refuse_unused,
    remark,
    remark_aside,
)

if TYPE_CHECKING:
    from recollect.search.index import IndexUpdate


@app.command()
def index(
    address: Annotated[
        str, typer.Argument(metavar="INDEX", help="A file, postgresql://…, milvus://host/name, or module:Class://…")
    ],
    things: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[FOLDER]...", help="Folders and .csv files; with --add image files, with --remove ids."
        ),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(autocompletion=complete_model, help="A run, a saved embedder, or an initialisation by name."),
    ] = None,
    add: Annotated[
        bool, typer.Option("--add", help="Add single image files, with their relative paths as ids.")
    ] = False,
    remove: Annotated[bool, typer.Option("--remove", help="Remove the images with these ids.")] = False,
    info: Annotated[bool, typer.Option("--info", help="Print a summary of the index.")] = False,
    check: Annotated[
        bool, typer.Option("--check", help="With --info: read the whole file and say whether it is damaged.")
    ] = False,
    prune: Annotated[
        bool, typer.Option("--prune", help="Remove images whose files are gone (with --rebuild: leave them out).")
    ] = False,
    rebuild: Annotated[
        bool, typer.Option("--rebuild", help="Embed everything with --model; the old vectors answer meanwhile.")
    ] = False,
    meta: Annotated[list[str] | None, typer.Option(help="Metadata for --add, as name=value.")] = None,
    prefix: Annotated[str, typer.Option(help="Prefix of every id, to keep several folders apart.")] = "",
    dim: Annotated[
        int | None, typer.Option(min=1, max=2**16, help="Keep only the first DIM values of each vector.")
    ] = None,
    half: Annotated[bool, typer.Option("--half", help="Keep vectors in half precision.")] = False,
    approximate: Annotated[
        bool, typer.Option("--approximate", help="Search approximately from now on, and measure the recall.")
    ] = False,
    candidates: Annotated[
        int | None,
        typer.Option(min=1, max=1000, help="With --approximate: images per query compared exactly. Default: 100."),
    ] = None,
    exact: Annotated[bool, typer.Option("--exact", help="Always search exactly from now on.")] = False,
    rehash: Annotated[
        bool, typer.Option("--rehash", help="Read every file, even if size and time are unchanged.")
    ] = False,
    max_pixels: MaxPixels = None,
    wait: Wait = 0.0,
    weights: Weights = None,
    batch_size: BatchSize = 64,
    device: Device = None,
    download: Download = False,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Create or update an index of images: only new and changed images are embedded.

    It can be interrupted at any moment; the next call resumes.
    """
    from recollect import update_index
    from recollect.common.errors import InputError

    named = things or []
    if (add or remove) and not named:
        raise InputError(f"--{'add' if add else 'remove'}: give the {'files' if add else 'ids'}.")
    refuse_unused(remove, "with --remove", "add")
    refuse_unused(approximate, "with --approximate", "exact")
    refuse_unused(not add, "without --add", "meta")
    refuse_unused(not info, "without --info", "check")
    folders = not (add or remove) and bool(named)
    refuse_unused(not folders, "without a folder", "prefix", "rehash")
    refuse_unused(not (folders or rebuild), "without a folder or --rebuild", "prune")
    embeds = folders or add or model is not None
    refuse_unused(not embeds, "without a model or images", "weights", "batch_size", "device", "download", "max_pixels")
    done = update_index(
        address,
        [] if add or remove else named,
        model=model,
        add=named if add else [],
        remove=named if remove else [],
        metadata={name: values[-1] for name, values in parse_pairs(meta or [], "--meta").items()},
        rebuild=rebuild,
        prune=prune,
        prefix=prefix,
        dim=dim,
        half=half,
        approximate=True if approximate else False if exact else None,
        candidates=candidates,
        check=check,
        rehash=rehash,
        wait=wait,
        **given(weights=weights, device=device, batch_size=batch_size, download=download),
    )
    for changes in done.changes:
        for sentence in changes.skipped:
            remark_aside(sentence)
    if as_json:
        print_json({**done.facts, "changes": [asdict(changes) for changes in done.changes]})
        return
    _show_changes(done, len(named) if remove else None)
    if approximate and not info:
        remark(f"{done.facts['address']}: search is {_searching(done.facts)}")
    if info:
        _show_facts(done.facts)
        if check:
            typer.echo(f"{'file':<12}no damage found")
    else:
        remark(f"{done.facts['address']}: {done.facts['items']:,} images")


def _show_changes(done: IndexUpdate, to_remove: int | None) -> None:
    from recollect.data import summary

    address = done.facts["address"]
    if to_remove is not None:
        remark(f"{address}: {done.removed:,} of {to_remove:,} ids removed")
    for changes in done.changes:
        remark(
            f"{address}: {changes.added:,} added, {changes.updated:,} updated, {changes.removed:,} removed, "
            f"{changes.unchanged:,} unchanged, {len(changes.skipped):,} skipped; {changes.embedded:,} embedded"
        )
        if changes.left_out:
            remark(summary(changes.added + changes.updated + changes.unchanged, changes.left_out))


def _show_facts(facts: dict[str, Any]) -> None:
    model = facts["model"]
    rows = [
        ("images", f"{facts['items']:,}"),
        ("model", f"{model.get('model') or model['name']} ({model['fingerprint'][:12]})"),
        ("vectors", f"{facts['dim']} values, {'half' if facts['half'] else 'single'} precision"),
        ("generation", str(facts["generation"])),
        ("search", _searching(facts)),
    ]
    if facts["calibration"] is not None:
        same = facts["calibration"]["same"]
        rows.append(
            (
                "same from",
                f"{same['similarity']:.4f} (false matches {same['false_match_rate']:.2g}, misses {same['miss_rate']:.2g})",
            )
        )
    if facts["building"] is not None:
        rows.append(("rebuilding", f"{facts['building']['items']:,} images done; resume with --rebuild"))
    for name, value in rows:
        typer.echo(f"{name:<12}{value}")


def _searching(facts: dict[str, Any]) -> str:
    if near := facts["approximate"]:
        return (
            f"approximate, recall@{near['k']} {near['recall']:.3f} of exact ({near['candidates']} candidates, measured on "
            f"{near['queries']} queries)"
        )
    return "exact" if near is False else "exact; in a file approximate from 200,000 images (--exact, --approximate)"
