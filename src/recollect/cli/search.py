"""Images that are alike: ``recollect index``, ``search``, ``serve``, ``calibrate`` and ``duplicates``."""

from __future__ import annotations

from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer
from typer import Argument, Option

from recollect.cli import options
from recollect.common.errors import InputError
from recollect.common.text import number_of, printable
from recollect.search.stores import NEIGHBOURS

_limit = partial(Option, min=1, max=10**10)
_rate = partial(Option, min=1e-12, max=0.5, callback=options.finite)


@options.app.command()
def index(
    address: Annotated[
        str, Argument(metavar="INDEX", help="A file, postgresql://…, milvus://host/name, or module:Class://…")
    ],
    things: Annotated[
        list[str] | None,
        Argument(metavar="[FOLDER]...", help="Folders and .csv files; with --add image files, with --remove ids."),
    ] = None,
    model: Annotated[
        str | None, options.model_option(help="A run, a saved embedder, or an initialisation by name.")
    ] = None,
    add: Annotated[bool, Option("--add", help="Add single image files, with their relative paths as ids.")] = False,
    remove: Annotated[bool, Option("--remove", help="Remove the images with these ids.")] = False,
    info: Annotated[bool, Option("--info", help="Print a summary of the index.")] = False,
    check: Annotated[
        bool, Option("--check", help="With --info: read the whole file and say whether it is damaged.")
    ] = False,
    prune: Annotated[
        bool, Option("--prune", help="Remove images whose files are gone (with --rebuild: leave them out).")
    ] = False,
    rebuild: Annotated[
        bool, Option("--rebuild", help="Embed everything with --model; the old vectors answer meanwhile.")
    ] = False,
    meta: Annotated[list[str] | None, Option(help="Metadata for --add, as name=value.")] = None,
    prefix: Annotated[str, Option(help="Prefix of every id, to keep several folders apart.")] = "",
    dim: Annotated[int | None, Option(min=1, max=2**16, help="Keep only the first DIM values of each vector.")] = None,
    half: Annotated[bool, Option("--half", help="Keep vectors in half precision.")] = False,
    approximate: Annotated[
        bool, Option("--approximate", help="Search approximately from now on, and measure the recall.")
    ] = False,
    candidates: Annotated[
        int | None, Option(min=1, max=1000, help="With --approximate: images per query compared exactly. Default: 100.")
    ] = None,
    exact: Annotated[bool, Option("--exact", help="Always search exactly from now on.")] = False,
    rehash: Annotated[bool, Option("--rehash", help="Read every file, even if size and time are unchanged.")] = False,
    max_pixels: options.MaxPixels = None,
    wait: options.Wait = 0.0,
    weights: options.Weights = None,
    batch_size: options.BatchSize = None,
    precision: options.Precision = None,
    device: options.Device = None,
    download: options.Download = False,
    as_json: options.AsJson = False,
    quiet: options.Quiet = False,
) -> None:
    """Create or update an index of images: only new and changed images are embedded.

    It can be interrupted at any moment; the next call resumes.
    """
    given = options.arguments(locals(), "things", "info", "meta", "exact")
    from recollect import update_index
    from recollect.data import summary

    names = things or []
    if (add or remove) and not names:
        raise InputError(f"--{'add' if add else 'remove'}: give the {'files' if add else 'ids'}.")
    options.refuse_unused(remove, "with --remove", "add")
    options.refuse_unused(approximate, "with --approximate", "exact")
    options.refuse_unused(not add, "without --add", "meta")
    options.refuse_unused(not info, "without --info", "check")
    folders = not (add or remove) and bool(names)
    options.refuse_unused(not folders, "without a folder", "prefix", "rehash")
    options.refuse_unused(not (folders or rebuild), "without a folder or --rebuild", "prune")
    embeds = folders or add or model is not None
    unused = ("weights", "batch_size", "precision", "device", "download", "max_pixels")
    options.refuse_unused(not embeds, "without a model or images", *unused)
    given |= {"folders": names if folders else [], "add": names if add else [], "remove": names if remove else []}
    given["metadata"] = {name: values[-1] for name, values in options.parse_pairs(meta or [], "--meta").items()}
    given["approximate"] = True if approximate else False if exact else None
    update = update_index(**given)
    for changes in update.changes:
        for sentence in changes.skipped:
            options.remark(sentence, aside=True)
    if as_json:
        options.print_json({**update.facts, "changes": [asdict(changes) for changes in update.changes]})
        return
    address = update.facts["address"]
    if remove:
        options.remark(f"{address}: {update.removed:,} of {len(names):,} ids removed")
    for changes in update.changes:
        options.remark(
            f"{address}: {changes.added:,} added, {changes.updated:,} updated, {changes.removed:,} removed, "
            f"{changes.unchanged:,} unchanged, {len(changes.skipped):,} skipped; {changes.embedded:,} embedded"
        )
        if changes.left_out:
            options.remark(summary(changes.added + changes.updated + changes.unchanged, changes.left_out))
    if info:
        _show_facts(update.facts)
        if check:
            typer.echo(f"{'file':<12}no damage found")
        return
    if approximate:
        options.remark(f"{address}: search is {_search_mode(update.facts)}")
    options.remark(f"{address}: {update.facts['items']:,} images")


def _show_facts(facts: dict[str, Any]) -> None:
    model = facts["model"]
    rows = {
        "images": f"{facts['items']:,}",
        "model": f"{model.get('model') or model['name']} ({model['fingerprint'][:12]})",
        "vectors": f"{facts['dim']} values, {'half' if facts['half'] else 'single'} precision",
        "generation": str(facts["generation"]),
        "search": _search_mode(facts),
    }
    if facts["calibration"] is not None:
        same = facts["calibration"]["same"]
        rates = f"false matches {same['false_match_rate']:.2g}, misses {same['miss_rate']:.2g}"
        rows["same from"] = f"{same['similarity']:.4f} ({rates})"
    if facts["building"] is not None:
        rows["rebuilding"] = f"{facts['building']['items']:,} images done; resume with --rebuild"
    for name, value in rows.items():
        typer.echo(f"{name:<12}{value}")


def _search_mode(facts: dict[str, Any]) -> str:
    if near := facts["approximate"]:
        sample = f"{near['candidates']} candidates, measured on {near['queries']} queries"
        return f"approximate, recall@{near['k']} {near['recall']:.3f} of exact ({sample})"
    return "exact" if near is False else "exact; in a file approximate from 200,000 images (--exact, --approximate)"


@options.app.command()
def search(
    index: Annotated[str, Argument(help="An index (a file or an address), or an .npz of recollect embed.")],
    queries: Annotated[list[str], Argument(help="Image files, folders of images, or ids (in an .npz, names).")],
    top: Annotated[int, Option(min=1, max=10**6, help="Results per query.")] = NEIGHBOURS,
    where: Annotated[
        list[str] | None,
        Option(help="Only images with this metadata, e.g. label=shoe; repeat a name to allow several values."),
    ] = None,
    exact: Annotated[
        bool, Option("--exact", help="Compare with every image, even if the index is searched approximately.")
    ] = False,
    dim: options.Dim = None,
    html: Annotated[Path | None, Option(help="Also write a page with the results.")] = None,
    as_json: options.AsJson = False,
    model: options.MovedModel = None,
    weights: options.Weights = None,
    device: options.Device = None,
    max_pixels: options.MaxPixels = None,
    root: Annotated[Path | None, Option(help="New folder of the images of an .npz, if they moved; for --html.")] = None,
    skip_bad: options.SkipBad = False,
    overwrite: Annotated[
        bool, Option("--overwrite", help="Let --html overwrite a file that recollect did not write.")
    ] = False,
    quiet: options.Quiet = False,
) -> None:
    """Find the most similar images, with the model that computed the vectors."""
    from recollect.search.commands import search_images
    from recollect.search.index import Index

    options.remarks.aside = True
    options.refuse_unused(html is None, "without --html", "overwrite")
    options.refuse_unused(not index.endswith(".npz"), "on an index, which knows its images", "root")
    if html is not None:
        from recollect.report.page import check_target
        from recollect.report.search_page import GENERATOR, write_search_page

        check_target(html, overwrite, GENERATOR)  # before the work begins
    with Index.open(index, model, dim=dim, root=root, weights=weights, device=device) as opened:
        conditions = options.parse_pairs(where, "--where") if where else None
        policy = "skip" if skip_bad else "error"
        results = search_images(opened, queries, top, where=conditions, exact=exact, on_bad_image=policy)
        if html is not None:
            write_search_page(html, results, opened, overwrite=overwrite)
    if as_json:
        options.print_json([result.as_dict() for result in results])
    else:
        for result in results:
            typer.echo(printable(str(result.query)))
            if not result.matches:
                typer.echo("      no other image, or none that passes the filter")
            for number, match in enumerate(result.matches, 1):
                level = "" if match.level is None else f"  {match.level:<7}"
                label = f"  ({match.metadata['label']})" if "label" in match.metadata else ""
                typer.echo(printable(f"{number:>4}  {match.similarity:.4f}{level}  {match.id}{label}"))
    if html is not None:
        typer.echo(html, err=as_json)


@options.app.command()
def serve(
    address: Annotated[str, Argument(metavar="INDEX", help="The index: a file or an address.")],
    host: Annotated[str, Option(help="Address to listen on; 0.0.0.0 for every network.")] = "127.0.0.1",
    port: Annotated[int, Option(min=1, max=65535, help="Port to listen on.")] = 8000,
    write: Annotated[bool, Option("--write", help="Allow clients with the token to add and remove images.")] = False,
    token_file: Annotated[
        Path | None, Option(help="File with the token; without it RECOLLECT_TOKEN, or a new one is printed.")
    ] = None,
    allow_host: Annotated[
        list[str] | None, Option(help="Another host name to accept, e.g. search.example.org; may be repeated.")
    ] = None,
    max_bytes: Annotated[int, _limit(help="Maximum size of an uploaded image in bytes.")] = 20_000_000,
    max_pixels: Annotated[int, _limit(help="Maximum number of pixels of an uploaded image.")] = 50_000_000,
    model: options.MovedModel = None,
    weights: options.Weights = None,
    device: options.Device = None,
    quiet: options.Quiet = False,
) -> None:
    """Serve an index: a web page at /, an API at /search and /items (description at /openapi.json)."""
    given = options.arguments(locals(), "address", "allow_host", hosts=allow_host or [], max_pixels=max_pixels)
    import recollect

    options.refuse_unused(not write, "without --write", "token_file")
    recollect.serve(address, **given)


@options.app.command()
def calibrate(
    target: Annotated[str, Argument(help="A run, a saved embedder, or an index.")],
    data: Annotated[
        str | None, Option(help="Labelled images of classes not trained on: a folder, a .csv, or a data set by name.")
    ] = None,
    model: Annotated[str | None, Option(help="New folder of the model, if it moved; for an index.")] = None,
    root: Annotated[Path | None, Option(help="The folder of a data set.")] = None,
    split: Annotated[str, Option(help="The split to use, if there are splits.")] = "test",
    false_match_rate: Annotated[float, _rate(help="Share of different pairs that may be called the same.")] = 1e-3,
    similar_rate: Annotated[float, _rate(help="Share of different pairs that may be called similar.")] = 5e-2,
    wait: options.Wait = 0.0,
    weights: options.Weights = None,
    device: options.Device = None,
    download: options.Download = False,
    max_pixels: options.MaxPixels = None,
    as_json: options.AsJson = False,
    quiet: options.Quiet = False,
) -> None:
    """Measure the similarity at which two images are the same, with its error rates, and store it.

    recollect search and recollect serve then say same, similar or unknown.
    """
    given = options.arguments(locals(), "false_match_rate", same_rate=false_match_rate)
    from recollect import calibrate_target
    from recollect.search.stores.base import is_index

    options.refuse_unused(data is None, "without --data", "root", "split", "max_pixels")
    options.refuse_unused(not is_index(target), "on a model, which has no other writers", "wait")
    calibration, remarks = calibrate_target(**given)
    for sentence in remarks:
        options.remark(str(sentence), aside=True)
    if as_json:
        options.print_json(calibration.as_dict())
        return
    images = f"{calibration.images:,} images of {calibration.classes:,} classes"
    typer.echo(f"{images}: {calibration.same_pairs:,} pairs of one class, {calibration.other_pairs:,} of two")
    typer.echo(f"{'':<9}{'similarity':>11}{'false matches':>15}{'misses':>9}")
    for name, row in (("same", calibration.same), ("similar", calibration.similar)):
        typer.echo(f"{name:<9}{row.similarity:>11.4f}{row.false_match_rate:>15.2g}{row.miss_rate:>9.1%}")
    typer.echo("At other rates:")
    for row in calibration.curve:
        typer.echo(f"{'':<9}{row.similarity:>11.4f}{row.false_match_rate:>15.2g}{row.miss_rate:>9.1%}")


@options.app.command()
def duplicates(
    target: Annotated[str, Argument(help="An index, or a folder or .csv of images.")],
    similarity: Annotated[
        float, Option(min=-1, max=1, callback=options.finite, help="Pairs at least this similar are near-duplicates.")
    ] = 0.95,
    model: Annotated[
        str, options.model_option(help="For a folder: a run, an embedder or an initialisation.")
    ] = "lite0-in1k",
    top: Annotated[int, Option(min=0, max=10**9, help="Number of groups to show; 0 for all.")] = 50,
    weights: options.Weights = None,
    device: options.Device = None,
    download: options.Download = False,
    max_pixels: options.MaxPixels = None,
    as_json: options.AsJson = False,
    quiet: options.Quiet = False,
) -> None:
    """Find near-duplicates by exact search, in groups, also between train and test folders."""
    given = options.arguments(locals(), "similarity", "top", threshold=similarity)
    from recollect import find_duplicates
    from recollect.search.stores.base import is_index

    unused = ("model", "weights", "device", "download", "max_pixels")
    options.refuse_unused(is_index(target), "on an index, whose vectors are compared", *unused)
    options.refuse_unused(as_json, "with --json, which has all groups", "top")
    remarks: list[str] = []
    groups, count = find_duplicates(**given, remarks=remarks)
    for sentence in remarks:
        options.remark(sentence, aside=True)
    if as_json:
        rows = [
            {"ids": [item.id for item in group.items], "similarity": round(group.similarity, 6)}
            | {key: getattr(group, key) for key in ("identical", "crosses", "labels")}
            for group in groups
        ]
        options.print_json({"images": count, "similarity": similarity, "groups": rows})
        return
    images = sum(len(group.items) for group in groups)
    crossing, mixed = sum(group.crosses for group in groups), sum(len(group.labels) > 1 for group in groups)
    typer.echo(
        f"{number_of(count, 'image')}: {number_of(len(groups), 'group')} of near-duplicates with "
        f"{number_of(images, 'image')}; {number_of(crossing, 'is/are')} in both train and test, "
        f"{number_of(mixed, 'has/have')} more than one label"
    )
    for group in groups[: top or None]:
        marks = ["identical"] * group.identical + ["in both train and test"] * group.crosses
        marks += [f"labels {', '.join(group.labels)}"] * (len(group.labels) > 1)
        typer.echo(
            f"{group.similarity:.4f}  {len(group.items)} images{'  ' if marks else ''}{printable('; '.join(marks))}"
        )
        for item in group.items:
            typer.echo(f"        {printable(item.id)}")
    if top and len(groups) > top:
        typer.echo(f"… and {len(groups) - top:,} more groups (--top 0 shows all)")
