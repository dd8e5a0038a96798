"""Augmentations of training images, by name. ``make_augmentation`` looks them up.

To add one to the package, add its name to ``NAMES`` and a line to ``make_augmentation``. Augmentations outside the package
are found by ``common/doors.py``: ``my.py:augment``, or a name that an installed package adds. This file imports no torch, so
that settings can be checked without it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from recollect.common import doors
from recollect.common.errors import ConfigError
from recollect.common.preprocessing import Preprocessing

if TYPE_CHECKING:
    from recollect.data.transforms import Transform

NAMES = ("crop", "glyph", "whole", "none")


def check_augmentation(name: str, options: Mapping[str, Any]) -> None:
    """Refuse a name that ``make_augmentation`` does not know, without importing anything.

    Raises:
        ConfigError: an unknown name, or options for an augmentation of recollect.
    """
    if name in ("auto", *NAMES):
        if options:
            raise ConfigError(
                f"data.augmentation_options are for your own augmentation, but data.augmentation is {name}: use "
                "data.crop_scale and data.flip instead."
            )
    elif not doors.knows("augmentation", name):
        raise doors.unknown("augmentation", name, ("auto", *NAMES))


def make_augmentation(
    name: str,
    preprocessing: Preprocessing,
    *,
    scale: tuple[float, float] = (0.08, 1.0),
    flip: bool = True,
    options: Mapping[str, Any] | None = None,
) -> Transform:
    """The transform for training images.

    Args:
        name: one of ``NAMES``, or a reference to a class or function that returns a ``Transform`` or a torchvision
            transform from a PIL image to a uint8 tensor 3 × size × size. The arguments ``preprocessing`` and ``size`` are
            passed if it has them; all others are options.
        preprocessing: the input format of the model.
        scale, flip: see ``train_transform``.
        options: options of your own augmentation.

    Raises:
        ConfigError: an unknown name or option, or a result that is not a transform.
    """
    from recollect.data import transforms

    if name == "crop":
        return transforms.train_transform(preprocessing, scale=scale, flip=flip)
    if name == "glyph":
        return transforms.glyph_transform(preprocessing)
    if name == "whole":
        return transforms.whole_transform(preprocessing, flip=flip)
    if name == "none":
        return transforms.test_transform(preprocessing)
    loaded = doors.outside("augmentation", name)
    if loaded is None:
        raise doors.unknown("augmentation", name, NAMES)
    what, maker = f"augmentation {loaded.short!r}", loaded.target
    if not callable(maker):
        raise ConfigError(f"{what} is a {type(maker).__name__}: it must be a class or a function.")
    chosen = dict(options or {})
    arguments = doors.options_of(maker)
    told = {"preprocessing": preprocessing, "size": preprocessing.size}
    own = {name: parameter for name, parameter in arguments.items() if name not in told}
    doors.check_options(maker, chosen, what, own)
    with doors.running(what):
        made = maker(**chosen, **{name: value for name, value in told.items() if name in arguments})
    if all(hasattr(made, member) for member in ("size", "draws", "key")) and callable(made):
        transform: Transform = made
        return transform
    if not callable(made):
        raise ConfigError(f"{what} returned a {type(made).__name__}: it must return a transform.")
    return transforms.FromTorchvision(made, preprocessing.size)
