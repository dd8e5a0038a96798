"""The command line; ``main.py`` is its beginning."""

from recollect.cli.main import main as main
