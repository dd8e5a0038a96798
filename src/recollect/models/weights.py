"""Loads weights files into backbones, strictly: every tensor must fit, or an error names those that do not.

Reading is safe (no pickled code is ever run) and nothing is guessed: the layout is recognised by its anchor key
(``layouts.py``), classifiers and text towers are left out, position embeddings are resampled, and then nothing may be
missing, left over or of another shape. ``Embedder.create`` calls ``load_weights``.
"""

from __future__ import annotations

import math
import os
import pickle
import sys
import warnings
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from recollect.common.errors import DataError, WeightsError, in_one_line
from recollect.common.files import sha256
from recollect.common.reading import open_regular, read_npz, read_torch
from recollect.models import layouts
from recollect.models.weight_files import check_digest
from recollect.models.zoo import Initialization, is_timm_tag

PICKLED = (".pth", ".pt", ".bin", ".ckpt", ".torch")
_WRAPPERS = ("state_dict", "model", "model_state_dict")
_NAMES_SHOWN = 6

# Counters that BatchNorm keeps for a rarely used momentum setting; old files do not have them.
_COUNTER = "num_batches_tracked"


@dataclass(frozen=True)
class Provenance:
    """The origin of a model's starting weights; kept with every model trained from them."""

    file: str | None = None
    sha256: str | None = None
    layout: str | None = None
    licence: str = ""
    non_commercial: bool = False

    def as_dict(self) -> dict[str, Any]:
        """Plain values, as written into ``embedder.json``."""
        return asdict(self)


def refuse_torn(path: Path) -> None:
    """Refuse a ``.safetensors`` file that is shorter or longer than its header says, without reading its tensors.

    Raises:
        WeightsError: it is, or it is something else.
    """
    from safetensors import safe_open

    try:
        os.close(open_regular(path))  # a pipe would be waited for
        with safe_open(path, "pt"):
            pass
    except Exception as error:  # see read_tensors
        raise WeightsError(
            f"{path}: not a whole file of weights ({in_one_line(error)}). Copy it again from where it was saved."
        ) from error


def read_tensors(path: Path) -> dict[str, Tensor]:
    """All tensors of a weights file, unwrapped, on the CPU. No code in the file is run.

    ``.pth``, ``.pt``, ``.bin``, ``.ckpt`` and ``.torch`` are read with ``weights_only=True``; ``.safetensors`` and
    ``.npz`` (plain arrays) cannot contain code.

    Raises:
        WeightsError: another suffix, a damaged file, or one with anything but tensors and plain values.
    """
    suffix = path.suffix.lower()
    try:
        if suffix == ".safetensors":
            from safetensors.torch import load_file

            os.close(open_regular(path))  # opening a pipe would block
            return dict(load_file(path))
        if suffix == ".npz":
            return {name: torch.from_numpy(np.asarray(array)) for name, array in read_npz(path).items()}
        if suffix in PICKLED:
            with warnings.catch_warnings():
                warnings.simplefilter(
                    "ignore"
                )  # about other pickle protocols and TorchScript; both raise an error below
                return _unwrap(read_torch(path), path)
    except WeightsError:
        raise
    except DataError as error:
        if isinstance(error.__cause__, pickle.UnpicklingError):
            raise WeightsError(
                f"{path}: refused, because it contains more than tensors, and opening it could run code from the file. "
                "Ask its author for a plain state dict or a .safetensors file."
            ) from error
        raise WeightsError(f"{error} A TorchScript archive has to be saved again as a state dict.") from error
    except Exception as error:  # damaged archives fail in zip, struct, json, safetensors or torch code
        detail = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise WeightsError(
            f"{path}: cannot be read as weights ({detail}). A TorchScript archive has to be saved again as a "
            "state dict."
        ) from error
    raise WeightsError(
        f"{path}: files with the suffix {suffix!r} are not weights. Known: {', '.join(PICKLED)}, .safetensors, .npz."
    )


def load_weights(backbone: nn.Module, path: Path, init: Initialization) -> Provenance:
    """Fill ``backbone`` from ``path``, or change nothing and raise an error.

    Raises:
        WeightsError: the file belongs to another model; the message names the tensors that are missing, unexpected or
            of another shape.
    """
    digest = sha256(path)
    if path.name in init.files[:1]:
        check_digest(path, digest, init.sha256)
    state = read_tensors(path)
    layout = layouts.recognise(state)
    if init.layouts and layout.name not in init.layouts:
        raise WeightsError(
            f"{path}: its keys are those of {layout.project}, but {init.name} takes {', '.join(init.layouts)}. "
            f"It belongs to another model; the right file is described at {init.page}"
        )
    if layout.name == "timm" and is_timm_tag(init.name):
        state = _timm_filter(state, backbone)
    converted = layout.convert(state, backbone)
    _check_head(path, converted.head, init)
    tensors = dict(converted.tensors)
    if "pos_embed" in tensors:
        tensors["pos_embed"] = _resample_positions(tensors["pos_embed"], backbone)
    fill_strictly(backbone, tensors, f"{path} (layout {layout.name})", init.name)
    say_licence(init.name, init.licence, init.non_commercial)
    return Provenance(path.name, digest, layout.name, init.licence, init.non_commercial)


def fill_strictly(module: nn.Module, tensors: Mapping[str, Tensor], source: str, model: str) -> None:
    """Copy ``tensors`` into ``module``; none may be missing, unexpected, of another shape or not finite."""
    own = module.state_dict()
    own = {key: value for key, value in own.items() if key in tensors or not key.endswith(_COUNTER)}
    tensors = {key: value for key, value in tensors.items() if key in own or not key.endswith(_COUNTER)}
    problems = [
        _list("missing", sorted(set(own) - set(tensors))),
        _list("not expected", sorted(set(tensors) - set(own))),
        _list(
            "of another shape",
            [
                f"{key} {tuple(tensors[key].shape)} instead of {tuple(own[key].shape)}"
                for key in own
                if key in tensors and tensors[key].shape != own[key].shape
            ],
        ),
        _list(
            "with NaN or infinite values",
            [key for key in own if key in tensors and not bool(torch.isfinite(tensors[key]).all())],
        ),
    ]
    if any(value.is_meta for value in own.values()):
        raise WeightsError(
            f"{source}: {model} was built on the meta device, which cannot hold values: build it on the CPU."
        )
    if found := [problem for problem in problems if problem]:
        raise WeightsError(f"{source}: does not fit {model}. " + " ".join(found) + " Nothing was loaded.")
    with torch.no_grad():
        for key, value in own.items():
            value.copy_(tensors[key])


def _unwrap(value: Any, path: Path) -> dict[str, Tensor]:
    for _ in range(3):  # training checkpoints nest at most {"state_dict": {"model": ...}}
        if not isinstance(value, Mapping):
            break
        inner = next((name for name in _WRAPPERS if isinstance(value.get(name), Mapping)), None)
        if inner is None:
            break
        value = value[inner]
    if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
        raise WeightsError(f"{path}: contains a {type(value).__name__}, not a state dict (names with tensors).")
    tensors = {key: item for key, item in value.items() if isinstance(item, Tensor)}
    if not tensors:
        raise WeightsError(f"{path}: contains no tensors.")
    if all(key.startswith("module.") for key in tensors):  # saved from DataParallel
        tensors = {key.removeprefix("module."): item for key, item in tensors.items()}
    return tensors


def _timm_filter(state: dict[str, Tensor], backbone: nn.Module) -> dict[str, Tensor]:
    """timm's own renaming for the many models outside our table; what it returns is still checked strictly."""
    rename = getattr(sys.modules[type(backbone).__module__], "checkpoint_filter_fn", None)
    if rename is None:
        return state
    try:
        return dict(rename(dict(state), backbone))
    except (KeyError, RuntimeError, AttributeError):
        return state  # a file that timm does not know; the strict check names what does not fit


def _check_head(path: Path, head: Mapping[str, Tensor], init: Initialization) -> None:
    weight = next((value for key, value in head.items() if key.endswith("weight")), None)
    if init.head_classes is None or weight is None or weight.shape[0] == init.head_classes:
        return
    expected = f"one of {init.head_classes:,}" if init.head_classes else "none"
    raise WeightsError(
        f"{path}: has a classifier of {weight.shape[0]:,} classes, but the file of {init.name} has {expected}. "
        f"It was fine-tuned and is a different starting point; the right file is described at {init.page}"
    )


def _resample_positions(positions: Tensor, backbone: nn.Module) -> Tensor:
    """Position embeddings resampled (bicubic) to the grid of this model; unchanged if something else differs."""
    own = getattr(backbone, "pos_embed", None)
    if own is None or positions.shape == own.shape or positions.ndim != 3 or positions.shape[-1] != own.shape[-1]:
        return positions
    prefix = 0 if getattr(backbone, "no_embed_class", False) else int(backbone.num_prefix_tokens)  # type: ignore[arg-type]
    if math.isqrt(positions.shape[1] - prefix) ** 2 != positions.shape[1] - prefix:
        return positions
    from timm.layers import resample_abs_pos_embed

    grid = list(backbone.patch_embed.grid_size)  # type: ignore[union-attr,arg-type]
    resampled: Tensor = resample_abs_pos_embed(positions, new_size=grid, num_prefix_tokens=prefix)
    return resampled


def _list(what: str, names: list[str]) -> str:
    if not names:
        return ""
    more = f" and {len(names) - _NAMES_SHOWN} more" if len(names) > _NAMES_SHOWN else ""
    return f"{len(names)} {what}: {', '.join(names[:_NAMES_SHOWN])}{more}."


_said: set[str] = set()


def say_licence(name: str, licence: str, non_commercial: bool) -> None:
    """Print a non-commercial licence, once per process and model."""
    if non_commercial and name not in _said:
        _said.add(name)
        print(f"recollect: the weights of {name} are licensed {licence}: not for commercial use.", file=sys.stderr)
