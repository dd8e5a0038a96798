"""A logger of one's own: one line per evaluation in a text file."""

from pathlib import Path

from recollect import Callback


class Diary(Callback):
    """Writes ``diary.txt`` into the run.

    Args:
        name: of the file.
    """

    def __init__(self, name: str = "diary.txt") -> None:
        self.name = name

    def on_start(self, run, config, step) -> None:
        self.file = Path(run) / self.name
        self.write(f"start {config['loss']['name']} at step {step}")

    def on_evaluation(self, split, step, metrics) -> None:
        self.write(f"{split} {step} {metrics['r@1']:.3f}")

    def on_end(self, outcome) -> None:
        self.write("stopped" if outcome is None else f"end after {outcome.steps} steps")

    def write(self, line: str) -> None:
        with self.file.open("a") as file:
            file.write(line + "\n")
