from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from recollect.cli.main import app
from recollect.common.errors import RecollectError
from recollect.models import Embedder

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")


def test_export_writes_the_file_and_prints_the_difference(tmp_path: Path) -> None:
    Embedder.create("tiny", size=32).save(tmp_path / "run" / "model")
    arguments = ["export", str(tmp_path / "run"), "--onnx", str(tmp_path / "e.onnx")]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.exception
    assert "differs from the model by at most" in result.output
    assert (tmp_path / "e.onnx").is_file()
    again = CliRunner().invoke(app, arguments)
    assert isinstance(again.exception, RecollectError)
    assert CliRunner().invoke(app, [*arguments, "--overwrite"]).exit_code == 0
