"""Makes ``import torchvision`` work with a CPU build of torch.

The default torchvision wheel is a CUDA build. With a CPU-only torch its compiled operators do not load, and importing it
fails with ``operator torchvision::nms does not exist``, which also breaks timm. Declaring the two operators that
torchvision needs at import is enough for transforms, models and timm; the operators themselves (box suppression for
detectors) have no implementation, and nothing in recollect calls them.

On a healthy install this module does nothing. It must be imported before torchvision or timm: write
``from recollect.common import torchvision_fix`` and call ``torchvision_fix.apply()`` above those imports.
"""

from __future__ import annotations

import importlib
import sys
import threading

_SIGNATURE = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
_lock = threading.RLock()  # several decoding threads may call this first at the same time
_declared: list[object] = []  # torch drops an operator when its library object is collected


def apply() -> bool:
    """Import torchvision, declaring the missing operators first if necessary.

    Returns:
        Whether the repair was needed (now or on an earlier call).
    """
    with _lock:
        if "torchvision" in sys.modules:
            return bool(_declared)
        try:
            importlib.import_module("torchvision")
        except RuntimeError as error:
            if "torchvision::nms" not in str(error):
                raise
            _declare_operators()
            for name in [name for name in sys.modules if name.split(".")[0] == "torchvision"]:
                del sys.modules[name]
            importlib.import_module("torchvision")
        return bool(_declared)


def _declare_operators() -> None:
    import torch

    library = torch.library.Library("torchvision", "FRAGMENT")
    for name in ("nms", "qnms"):
        library.define(name + _SIGNATURE)
    _declared.append(library)
