"""What numbers were measured on."""

from __future__ import annotations

import os
import platform

import torch

from forde._version import __version__


def machine() -> dict[str, object]:
    """Processor, cores, GPU and versions.

    >>> machine()["torch"] == torch.__version__
    True
    """
    return {
        "processor": platform.processor() or platform.machine(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "cuda": torch.version.cuda,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "forde": __version__,
    }
