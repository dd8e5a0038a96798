"""``recollect serve``: an index over HTTP, with a page to search on."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from recollect.cli.options import (
    Device,
    Quiet,
    Weights,
    app,
    given,
    refuse_unused,
)


@app.command()
def serve(
    address: Annotated[str, typer.Argument(metavar="INDEX", help="The index: a file or an address.")],
    host: Annotated[str, typer.Option(help="Address to listen on; 0.0.0.0 for every network.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=1, max=65535, help="Port to listen on.")] = 8000,
    write: Annotated[
        bool, typer.Option("--write", help="Allow clients with the token to add and remove images.")
    ] = False,
    token_file: Annotated[
        Path | None, typer.Option(help="File with the token; without it RECOLLECT_TOKEN, or a new one is printed.")
    ] = None,
    allow_host: Annotated[
        list[str] | None, typer.Option(help="Another host name to accept, e.g. search.example.org; may be repeated.")
    ] = None,
    max_bytes: Annotated[
        int, typer.Option(min=1, max=10**10, help="Maximum size of an uploaded image in bytes.")
    ] = 20_000_000,
    max_pixels: Annotated[
        int, typer.Option(min=1, max=10**10, help="Maximum number of pixels of an uploaded image.")
    ] = 50_000_000,
    model: Annotated[str | None, typer.Option(help="New folder of the model, if it moved.")] = None,
    weights: Weights = None,
    device: Device = None,
    quiet: Quiet = False,
) -> None:
    """Serve an index: a web page at /, an API at /search and /items (description at /openapi.json)."""
    import recollect

    refuse_unused(not write, "without --write", "token_file")
    recollect.serve(
        address,
        host=host,
        port=port,
        write=write,
        token_file=token_file,
        hosts=allow_host or [],
        max_bytes=max_bytes,
        max_pixels=max_pixels,
        model=model,
        **given(weights=weights, device=device),
    )
