"""The paper's experiment, from a clone: ``python -m experiments claims | paper | method``."""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from experiments.benches import BENCHES
from experiments.claims import CLAIMS
from recollect.common.errors import RecollectError


def main(arguments: Sequence[str] | None = None) -> None:
    """Run one command."""
    parser = argparse.ArgumentParser(prog="python -m experiments", description="The paper's experiment.")
    commands = parser.add_subparsers(dest="command", required=True)
    claims = commands.add_parser(
        "claims", help="measure the paper's claims: a matrix of ordinary, resumable runs; then a page with its numbers"
    )
    claims.add_argument("claim", choices=[*CLAIMS, "all"])
    claims.add_argument("--budget", choices=["small", "full"], default="small", help="length of each run")
    claims.add_argument(
        "--data", type=Path, help="a folder that holds cars196_96px and omniglot; without it, embedded images"
    )
    claims.add_argument(
        "--bench", dest="benches", action="append", default=[], choices=BENCHES, help="use only this; may be repeated"
    )
    claims.add_argument("--out", type=Path, default=Path("runs/claims"), help="folder for the runs and the page")
    claims.add_argument("--page", type=Path, help="where to write the page; by default OUT/page")
    claims.add_argument("--seeds", type=int, default=3, help="number of seeds")
    claims.add_argument("--jobs", type=int, help="runs at a time; by default one per core, or one with a GPU")
    claims.add_argument("--minutes", type=float, help="start no new run after this time; 0 only writes the page")
    claims.add_argument(
        "--earlier", type=Path, help="runs.jsonl of an earlier page: its runs count as done where settings are the same"
    )
    claims.add_argument("--plan", action="store_true", help="print what would be run, and stop")
    paper = commands.add_parser("paper", help="one page with the paper's tables and figures, runs beside their rows")
    paper.add_argument("runs", nargs="*", type=Path, help="run folders, evaluated with recollect eval")
    paper.add_argument("--out", type=Path, default=Path("paper.html"), help="the file to write")
    method = commands.add_parser("method", help="draw the figures of the method as SVG and PNG")
    method.add_argument("--out", type=Path, default=Path("figures"), help="the folder to write to")
    for command in (paper, method):
        command.add_argument("--overwrite", action="store_true", help="replace files of something else")
    options = vars(parser.parse_args(arguments))
    logging.basicConfig(format="%(message)s", stream=sys.stdout)
    logging.getLogger("recollect").setLevel(logging.INFO)
    try:
        _run(options.pop("command"), options)
    except RecollectError as error:
        sys.exit(f"experiments: {error}")
    except KeyboardInterrupt:
        sys.exit(130)


def _run(command: str, options: dict[str, Any]) -> None:
    if command == "claims":
        from experiments.reproduce import reproduce

        if page := reproduce(**options):
            print(page)
    elif command == "paper":
        from experiments.paper import write_paper

        print(write_paper(**options))
    else:
        from experiments.method import draw_method

        for path in draw_method(**options):
            print(path)


if __name__ == "__main__":
    main()
