"""Names, presets and the severity constants of the 19 common corruptions: numbers only, no operations.

Three published sets of constants exist: for 32-pixel images (CIFAR-10-C), 64-pixel images
(TinyImageNet-C) and 224-pixel images (ImageNet-C). They are not scaled copies of one another, so forde
offers them as presets and interpolates nothing.
"""

from __future__ import annotations

NAMES: tuple[str, ...] = (
    "gaussian_noise",
    "shot_noise",
    "impulse_noise",
    "defocus_blur",
    "glass_blur",
    "motion_blur",
    "zoom_blur",
    "snow",
    "frost",
    "fog",
    "brightness",
    "contrast",
    "elastic_transform",
    "pixelate",
    "jpeg_compression",
    "speckle_noise",
    "gaussian_blur",
    "spatter",
    "saturate",
)
"""Official order: the 15 benchmark corruptions, then the 4 extra ("validation") ones."""

SEVERITIES: tuple[int, ...] = (1, 2, 3, 4, 5)
"""From mild to strong."""

PRESETS: tuple[str, ...] = ("cifar", "tiny", "imagenet")
"""Sets of constants: those published for CIFAR, Tiny ImageNet and ImageNet."""

Constants = tuple[float, ...]
"""The numbers of one corruption at one severity; FIELDS says what they mean."""

FIELDS: dict[str, str] = {
    "gaussian_noise": "standard deviation",
    "shot_noise": "photons at full intensity",
    "impulse_noise": "share of replaced values",
    "defocus_blur": "disk radius, alias sigma",
    "glass_blur": "sigma, largest shift, sweeps",
    "motion_blur": "radius, sigma",
    "zoom_blur": "step and end of the zoom factors",
    "snow": "mean, std, zoom, threshold, radius, sigma, share of the image's own colour",
    "frost": "image weight, frost weight, photo scale",
    "fog": "amplitude, decay per level",
    "brightness": "added value",
    "contrast": "factor",
    "elastic_transform": "displacement, its smoothing sigma and the affine jitter, all in pixels of side",
    "pixelate": "share of the side that is kept",
    "jpeg_compression": "quality",
    "speckle_noise": "standard deviation",
    "gaussian_blur": "sigma",
    "spatter": "mean, std, sigma, threshold, strength, 1 for mud and 0 for water",
    "saturate": "factor, offset",
}


def _scalars(*values: float) -> tuple[Constants, ...]:
    return tuple((value,) for value in values)


def _pixels(side: int, *fractions: Constants) -> tuple[Constants, ...]:
    """Elastic constants are published as fractions of a side; the operation needs pixels."""
    return tuple(tuple(side * fraction for fraction in row) for row in fractions)


_CIFAR: dict[str, tuple[Constants, ...]] = {
    "gaussian_noise": _scalars(0.04, 0.06, 0.08, 0.09, 0.10),
    "shot_noise": _scalars(500, 250, 100, 75, 50),
    "impulse_noise": _scalars(0.01, 0.02, 0.03, 0.05, 0.07),
    "defocus_blur": ((0.3, 0.4), (0.4, 0.5), (0.5, 0.6), (1, 0.2), (1.5, 0.1)),
    "glass_blur": ((0.05, 1, 1), (0.25, 1, 1), (0.4, 1, 1), (0.25, 1, 2), (0.4, 1, 2)),
    "motion_blur": ((6, 1), (6, 1.5), (6, 2), (8, 2), (9, 2.5)),
    "zoom_blur": ((0.01, 1.06), (0.01, 1.11), (0.01, 1.16), (0.01, 1.21), (0.01, 1.26)),
    "snow": (
        (0.1, 0.2, 1, 0.6, 8, 3, 0.95),
        (0.1, 0.2, 1, 0.5, 10, 4, 0.9),
        (0.15, 0.3, 1.75, 0.55, 10, 4, 0.9),
        (0.25, 0.3, 2.25, 0.6, 12, 6, 0.85),
        (0.3, 0.3, 1.25, 0.65, 14, 12, 0.8),
    ),
    "frost": ((1, 0.2, 0.2), (1, 0.3, 0.2), (0.9, 0.4, 0.2), (0.85, 0.4, 0.2), (0.75, 0.45, 0.2)),
    "fog": ((0.2, 3), (0.5, 3), (0.75, 2.5), (1, 2), (1.5, 1.75)),
    "brightness": _scalars(0.05, 0.1, 0.15, 0.2, 0.3),
    "contrast": _scalars(0.75, 0.5, 0.4, 0.3, 0.15),
    "elastic_transform": _pixels(
        32, (0, 0, 0.08), (0.05, 0.2, 0.07), (0.08, 0.06, 0.06), (0.1, 0.04, 0.05), (0.1, 0.03, 0.03)
    ),
    "pixelate": _scalars(0.95, 0.9, 0.85, 0.75, 0.65),
    "jpeg_compression": _scalars(80, 65, 58, 50, 40),
    "speckle_noise": _scalars(0.06, 0.1, 0.12, 0.16, 0.2),
    "gaussian_blur": _scalars(0.4, 0.6, 0.7, 0.8, 1),
    "spatter": (
        (0.62, 0.1, 0.7, 0.7, 0.5, 0),
        (0.65, 0.1, 0.8, 0.7, 0.5, 0),
        (0.65, 0.3, 1, 0.69, 0.5, 0),
        (0.65, 0.1, 0.7, 0.69, 0.6, 1),
        (0.65, 0.1, 0.5, 0.68, 0.6, 1),
    ),
    "saturate": ((0.3, 0), (0.1, 0), (1.5, 0), (2, 0.1), (2.5, 0.2)),
}

_TINY: dict[str, tuple[Constants, ...]] = {
    "gaussian_noise": _scalars(0.04, 0.08, 0.12, 0.15, 0.18),
    "shot_noise": _scalars(250, 100, 50, 30, 15),
    "impulse_noise": _scalars(0.01, 0.02, 0.05, 0.08, 0.14),
    "defocus_blur": ((0.5, 0.6), (1, 0.1), (1.5, 0.1), (2.5, 0.01), (3, 0.1)),
    "glass_blur": ((0.1, 1, 1), (0.5, 1, 1), (0.6, 1, 2), (0.7, 2, 1), (0.9, 2, 2)),
    "motion_blur": ((10, 1), (10, 1.5), (10, 2), (10, 2.5), (12, 3)),
    "zoom_blur": _CIFAR["zoom_blur"],
    "snow": tuple((*row[:6], mix) for row, mix in zip(_CIFAR["snow"], (0.8, 0.8, 0.7, 0.65, 0.6), strict=True)),
    "frost": ((1, 0.3, 0.3), (0.9, 0.4, 0.3), (0.8, 0.45, 0.3), (0.75, 0.5, 0.3), (0.7, 0.55, 0.3)),
    "fog": ((0.4, 3), (0.7, 3), (1, 2.5), (1.5, 2), (2, 1.75)),
    "brightness": _scalars(0.1, 0.2, 0.3, 0.4, 0.5),
    "contrast": _scalars(0.4, 0.3, 0.2, 0.1, 0.05),
    "elastic_transform": _pixels(
        64, (0, 0, 0.08), (0.05, 0.3, 0.06), (0.1, 0.08, 0.06), (0.1, 0.03, 0.03), (0.16, 0.03, 0.02)
    ),
    "pixelate": _scalars(0.9, 0.8, 0.7, 0.6, 0.5),
    "jpeg_compression": _scalars(65, 58, 50, 40, 25),
    "speckle_noise": _scalars(0.15, 0.2, 0.25, 0.3, 0.35),
    "gaussian_blur": _scalars(0.5, 0.75, 1, 1.25, 1.5),
    "spatter": (
        (0.62, 0.1, 0.7, 0.7, 0.6, 0),
        (0.65, 0.1, 0.8, 0.7, 0.6, 0),
        (0.65, 0.3, 1, 0.69, 0.6, 0),
        (0.65, 0.1, 0.7, 0.68, 0.6, 1),
        (0.65, 0.1, 0.5, 0.67, 0.6, 1),
    ),
    "saturate": ((0.3, 0), (0.1, 0), (2, 0), (5, 0.1), (30, 0.2)),
}

_IMAGENET: dict[str, tuple[Constants, ...]] = {
    "gaussian_noise": _scalars(0.08, 0.12, 0.18, 0.26, 0.38),
    "shot_noise": _scalars(60, 25, 12, 5, 3),
    "impulse_noise": _scalars(0.03, 0.06, 0.09, 0.17, 0.27),
    "defocus_blur": ((3, 0.1), (4, 0.5), (6, 0.5), (8, 0.5), (10, 0.5)),
    "glass_blur": ((0.7, 1, 2), (0.9, 2, 1), (1, 2, 3), (1.1, 3, 2), (1.5, 4, 2)),
    "motion_blur": ((10, 3), (15, 5), (15, 8), (15, 12), (20, 15)),
    "zoom_blur": ((0.01, 1.11), (0.01, 1.16), (0.02, 1.21), (0.02, 1.26), (0.03, 1.31)),
    "snow": (
        (0.1, 0.3, 3, 0.5, 10, 4, 0.8),
        (0.2, 0.3, 2, 0.5, 12, 4, 0.7),
        (0.55, 0.3, 4, 0.9, 12, 8, 0.7),
        (0.55, 0.3, 4.5, 0.85, 12, 8, 0.65),
        (0.55, 0.3, 2.5, 0.85, 12, 12, 0.55),
    ),
    "frost": ((1, 0.4, 1), (0.8, 0.6, 1), (0.7, 0.7, 1), (0.65, 0.7, 1), (0.6, 0.75, 1)),
    "fog": ((1.5, 2), (2, 2), (2.5, 1.7), (2.5, 1.5), (3, 1.4)),
    "brightness": _TINY["brightness"],
    "contrast": _TINY["contrast"],
    # 244, not 224: the published script has it so, and its constants are what the benchmark was made with.
    "elastic_transform": _pixels(
        244, (2, 0.7, 0.1), (2, 0.08, 0.2), (0.05, 0.01, 0.02), (0.07, 0.01, 0.02), (0.12, 0.01, 0.02)
    ),
    "pixelate": _scalars(0.6, 0.5, 0.4, 0.3, 0.25),
    "jpeg_compression": _scalars(25, 18, 15, 10, 7),
    "speckle_noise": _scalars(0.15, 0.2, 0.35, 0.45, 0.6),
    "gaussian_blur": _scalars(1, 2, 3, 4, 6),
    "spatter": (
        (0.65, 0.3, 4, 0.69, 0.6, 0),
        (0.65, 0.3, 3, 0.68, 0.6, 0),
        (0.65, 0.3, 2, 0.68, 0.5, 0),
        (0.65, 0.3, 1, 0.65, 1.5, 1),
        (0.67, 0.4, 1, 0.65, 1.5, 1),
    ),
    "saturate": ((0.3, 0), (0.1, 0), (2, 0), (5, 0.1), (20, 0.2)),
}

CONSTANTS: dict[str, dict[str, tuple[Constants, ...]]] = {
    "cifar": _CIFAR,
    "tiny": _TINY,
    "imagenet": _IMAGENET,
}
"""`CONSTANTS[preset][name][severity - 1]`."""


def preset_for(height: int, width: int) -> str:
    """The preset used when none is named: by the longer side, < 48 "cifar", < 128 "tiny", else "imagenet".

    >>> preset_for(28, 28), preset_for(64, 64), preset_for(224, 224)
    ('cifar', 'tiny', 'imagenet')
    """
    side = max(height, width)
    if side < 48:
        return "cifar"
    return "tiny" if side < 128 else "imagenet"
