"""Images the corruption tests share."""

from __future__ import annotations

import numpy as np

from forde.benchmarks.corruptions import benchmark_images

DETERMINISTIC = (
    "defocus_blur",
    "zoom_blur",
    "brightness",
    "contrast",
    "pixelate",
    "jpeg_compression",
    "gaussian_blur",
    "saturate",
)


def photographs(n: int, height: int = 32, width: int = 32, channels: int = 3) -> np.ndarray:
    """Smooth random images, uint8 (n, height, width, channels), with some flat white and black areas."""
    images = benchmark_images(n, max(height, width))[:, :height, :width, :channels].copy()
    images[:, :4, :4] = 255
    images[:, -3:, :3] = 0
    return images
