from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from recollect.cli.app import app
from recollect.common.errors import DataError
from recollect.config.overrides import resolve
from recollect.studies import demonstration as demo
from recollect.training.run_folder import RunFolder


def test_the_two_trainings_differ_in_the_loss_alone() -> None:
    one, other = (resolve("glyphs", demo.demo_settings(loss, 30, 4, {})) for loss in demo.LOSSES.values())
    assert one.loss.name == "recall_at_k"
    assert other.loss.name == "contrastive"
    for part in ("data", "model", "batch", "optimizer", "run"):
        assert getattr(one, part) == getattr(other, part)
    assert one.data.name == "glyphs"
    assert (one.data.train_split, one.data.test_split) == ("train", "test")


def test_few_fonts_make_a_demonstration_too(monkeypatch: pytest.MonkeyPatch) -> None:
    def too_few(*arguments: object, **options: object) -> None:
        raise DataError("no character has 32 different pictures")

    monkeypatch.setattr(demo, "load", too_few)
    assert demo._data_options() == {}


@pytest.mark.slow
def test_the_demonstration_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    # The characters that nearly all typefaces have: the same course with a tenth of the pictures.
    monkeypatch.setattr(demo, "_data_options", lambda: {"min_faces": 48})
    reports = []
    for _ in range(2):
        done = CliRunner().invoke(app, ["demo", "--steps", "1"])
        assert done.exit_code == 0, done.output
        reports.append(Path(done.output.splitlines()[-1]))
    assert reports[0] != reports[1]
    for report in reports:
        assert report.is_file()
        page = report.read_text(encoding="utf-8")
        assert "Improved from" in page
        assert "contrastive" in page
        for loss in demo.LOSSES.values():
            run = RunFolder.open(report.parent / loss)
            assert run.read_manifest()["outcome"]["steps"] == 1
            evaluated = [record["step"] for record in run.read_metrics() if record["kind"] == "evaluation"]
            assert evaluated[0] == 0
            assert evaluated[-1] == 1
    # Both began with the same network: the first evaluation of one is that of the other.
    first = [next(iter(RunFolder.open(reports[0].parent / loss).read_metrics())) for loss in demo.LOSSES.values()]
    assert first[0]["r@1"] == first[1]["r@1"]
