"""Objects passed to ``recollect.train`` in Python instead of names: a loss, images, a network.

The configuration names each as ``given:…``, and the manifest records its class and code. Such a run is resumed in Python,
with the objects passed again.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from torch import nn

from recollect.common import plugins
from recollect.common.errors import ConfigError, InputError
from recollect.config.resolve import default_recipe, parse_settings, resolve, with_settings
from recollect.config.schema import Config, ModelConfig
from recollect.data import ImageSet
from recollect.data.registry import is_source, refuse_two_meanings
from recollect.models import Embedder
from recollect.training.resuming import resumed_config
from recollect.training.run_folder import RunFolder


@dataclass(frozen=True)
class Given:
    """The passed objects; None means it is made from the configuration.

    Args:
        loss: called as ``loss(embeddings, labels)``. Trained in place if it has parameters.
        train_set, validation_set, test_set: images.
        model: an embedder, or a backbone for an embedder. Trained in place.
    """

    loss: nn.Module | None = None
    train_set: ImageSet | None = None
    validation_set: ImageSet | None = None
    test_set: ImageSet | None = None
    model: nn.Module | None = None

    def __post_init__(self) -> None:
        kinds: dict[str, type] = {"loss": nn.Module, "model": nn.Module}
        for name, value in vars(self).items():
            kind = kinds.get(name, ImageSet)
            if value is not None and not isinstance(value, kind):
                article = "an nn.Module or a name" if kind is nn.Module else "an ImageSet"
                article += " or a name" if name == "train_set" else ""
                raise InputError(f"{name} is a {type(value).__name__}: it must be {article}.")

    @property
    def pretrained(self) -> bool:
        """Whether the given model starts from trained weights."""
        if isinstance(self.model, Embedder):
            return self.model.config.provenance.file is not None
        return bool(getattr(self.model, "pretrained", False))

    def named(self, config: Config) -> Config:
        """``config`` with a name for every passed object."""
        if self.loss is not None and config.loss.dims:
            raise ConfigError(
                "loss.dims works with a loss by name only: use recollect.losses.Matryoshka(loss, dims), and remove it."
            )
        if self.loss is not None:
            name = plugins.describe(self.loss, "loss").reference
            config = replace(config, loss=replace(config.loss, name=name, options={}))
        if self.train_set is not None:
            name = plugins.describe(self.train_set, "data set", _word(self.train_set.name)).reference
            config = replace(config, data=replace(config.data, name=name, root=None, options={}))
        if isinstance(self.model, Embedder):
            config = replace(config, model=_settings_of(self.model, config.model))
        elif self.model is not None:
            name = plugins.describe(self.model, "backbone").reference
            size = config.model.image_size or 224
            config = replace(config, model=replace(config.model, init=name, options={}, image_size=size))
        if self.test_set is not None:
            config = replace(config, run=replace(config.run, watch_test=True))
        return config


def chosen_config(
    config: Config | str | Path | None,
    settings: Mapping[str, Any] | Iterable[str],
    named: Mapping[str, str],
    run: RunFolder | None,
    has_images: bool,
) -> Config:
    """The configuration for ``train``."""
    if run is not None:
        if config is not None:
            raise ConfigError("a resumed run keeps its own settings: give either a configuration or a run to resume.")
        chosen = resumed_config(run, settings)
        return with_settings(chosen, named) if named else chosen
    if config is None and not has_images and not settings and not named:
        raise ConfigError("give either a configuration or a run to resume.")
    if isinstance(config, Config):
        pairs = parse_settings(settings)
        return with_settings(config, {**pairs, **named}) if pairs or named else config
    recipe = config if config is not None else default_recipe(has_images or None)
    said = parse_settings(settings)
    return resolve(recipe, {**said, **named})


def objects_and_names(
    loss: nn.Module | str | None,
    train_set: ImageSet | str | Path | None,
    validation_set: ImageSet | None,
    test_set: ImageSet | None,
    model: nn.Module | str | None,
) -> tuple[Given, dict[str, str]]:
    """The objects passed to ``train``, and the settings for those given by name."""
    named = {key: name for key, name in (("loss.name", loss), ("model.init", model)) if isinstance(name, str)}
    if isinstance(train_set, str | Path):
        place = str(train_set)
        refuse_two_meanings(place)
        named |= {"data.name": place} if is_source(place) else {"data.name": "folder", "data.root": place}
    objects = Given(
        None if isinstance(loss, str) else loss,
        None if isinstance(train_set, str | Path) else train_set,
        validation_set,
        test_set,
        None if isinstance(model, str) else model,
    )
    return objects, named


def _settings_of(embedder: Embedder, model: ModelConfig) -> ModelConfig:
    """The settings that describe a given embedder."""
    made = embedder.config
    taken = ("dim", "pooling", "p", "learn_p", "layer_norm", "l2_before_head", "batch_norm")
    settings: dict[str, Any] = {name: getattr(made, name) for name in taken}
    name = plugins.describe(embedder, "backbone", _word(made.init)).reference
    size, resize = made.preprocessing.size, made.preprocessing.resize
    return replace(model, init=name, options={}, weights=None, image_size=size, resize=resize, **settings)


def _word(name: str) -> str:
    return re.sub(r"\W", "_", name) or "images"
