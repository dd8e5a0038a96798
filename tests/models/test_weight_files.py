from __future__ import annotations

import hashlib
import io
import urllib.request
from pathlib import Path

import pytest
import torch

from recollect.common.errors import WeightsError
from recollect.models import Embedder, weight_files, zoo
from recollect.models.weight_files import FOLDER_VARIABLE, fetch, find_weights, obtain_weights


@pytest.fixture(autouse=True)
def _no_caches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv(FOLDER_VARIABLE, raising=False)
    monkeypatch.setattr(weight_files, "_in_hub_cache", lambda init: None)

    def no_network(*_: object, **__: object) -> None:
        raise AssertionError("the network was touched")

    monkeypatch.setattr(urllib.request, "urlopen", no_network)


R50 = zoo.find("r50-in1k")


def test_missing_weights_are_an_error_that_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path / "mine"))
    with pytest.raises(WeightsError) as caught:
        Embedder.create("vit-b16-in21k")
    message = str(caught.value)
    for part in ("vit-b16-in21k", "mine", "B_16-i21k", "--download", "--weights none", FOLDER_VARIABLE):
        assert part in message


@pytest.mark.parametrize("name", ["resnet50-0676ba61.pth", "r50-in1k.safetensors", "resnet50.tv_in1k.bin"])
def test_folders_are_searched_by_known_names(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / name).touch()
    assert find_weights(R50) is None
    assert obtain_weights(R50, tmp_path, download=False) == tmp_path / name
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path))
    assert obtain_weights(R50, None, download=False) == tmp_path / name


def test_a_given_folder_is_the_only_one_searched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "r50-in1k.pth").touch()
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path))
    (tmp_path / "empty").mkdir()
    with pytest.raises(WeightsError, match="empty"):
        obtain_weights(R50, tmp_path / "empty", download=False)
    with pytest.raises(WeightsError, match="no such weights file"):
        obtain_weights(R50, tmp_path / "absent.pth", download=False)


def test_random_weights_only_when_asked_for() -> None:
    random = Embedder.create("lite0-in1k", weights="none")
    assert random.config.provenance.file is None
    real = Embedder.create("lite0-in1k")
    assert not torch.equal(random.backbone.conv_stem.weight, real.backbone.conv_stem.weight)  # type: ignore[union-attr]


class Response(io.BytesIO):
    def __init__(self, content: bytes, length: int | None = None) -> None:
        super().__init__(content)
        self.headers = {"Content-Length": str(len(content) if length is None else length)}


def answer(monkeypatch: pytest.MonkeyPatch, content: bytes, length: int | None = None) -> None:
    monkeypatch.setattr(urllib.request, "urlopen", lambda url, timeout: Response(content, length))


def test_downloads_are_checked_and_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    content = b"weights" * 300_000
    digest = hashlib.sha256(content).hexdigest()
    answer(monkeypatch, content)
    target = fetch("https://example.org/a.pth", tmp_path / "deep" / "a.pth", digest)
    assert target.read_bytes() == content
    fetch("https://example.org/a.pth", tmp_path / "b.pth", digest[:8])


def test_wrong_or_short_downloads_leave_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answer(monkeypatch, b"other")
    with pytest.raises(WeightsError, match="SHA-256"):
        fetch("https://example.org/a.pth", tmp_path / "a.pth", "0" * 64)
    answer(monkeypatch, b"half", length=8)
    with pytest.raises(WeightsError, match="4 of 8 bytes"):
        fetch("https://example.org/a.pth", tmp_path / "a.pth", None)
    with pytest.raises(WeightsError, match="https"):
        fetch("http://example.org/a.pth", tmp_path / "a.pth", None)
    assert list(tmp_path.iterdir()) == []


def test_download_fetches_the_original_file(monkeypatch: pytest.MonkeyPatch) -> None:
    row = zoo.find("swag-b16")
    answer(monkeypatch, b"content")
    path = obtain_weights(row, None, download=True)
    assert path == weight_files.weights_folder() / "vit_b16.torch"
    assert find_weights(row) == path  # at hand from now on


def test_without_an_address_download_says_so() -> None:
    with pytest.raises(WeightsError, match=r"from .*cnnimageretrieval"):
        obtain_weights(zoo.find("r101-caffe"), None, download=True)


def test_a_failing_hub_is_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    import huggingface_hub

    def offline(*_: object, **__: object) -> None:
        raise OSError("no route to host")

    monkeypatch.setattr(huggingface_hub, "hf_hub_download", offline)
    with pytest.raises(WeightsError, match=r"resnet50\.tv_in1k .*OSError: no route"):
        obtain_weights(R50, None, download=True)


def test_hub_downloads_are_checked_against_the_hubs_digest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import huggingface_hub

    class Metadata:
        etag = "0" * 64

    (tmp_path / "model.safetensors").write_bytes(b"damaged")
    monkeypatch.setattr(huggingface_hub, "hf_hub_download", lambda *_: str(tmp_path / "model.safetensors"))
    monkeypatch.setattr(huggingface_hub, "get_hf_file_metadata", lambda _: Metadata())
    with pytest.raises(WeightsError, match="SHA-256"):
        obtain_weights(R50, None, download=True)
    Metadata.etag = hashlib.sha256(b"damaged").hexdigest()
    assert obtain_weights(R50, None, download=True) == tmp_path / "model.safetensors"
