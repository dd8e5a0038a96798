"""An augmentation of one's own: any torchvision transform from a PIL image to a uint8 tensor 3 × size × size."""

from torchvision.transforms import v2


def jitter(size: int, strength: float = 0.2) -> v2.Transform:
    """Random crops with changed colours."""
    return v2.Compose(
        [
            v2.PILToTensor(),
            v2.RandomResizedCrop((size, size), scale=(0.5, 1.0)),
            v2.ColorJitter(brightness=strength, contrast=strength),
        ]
    )
