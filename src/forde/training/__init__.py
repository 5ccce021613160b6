"""Training: batches, schedule, optimiser, history."""

from forde.training.history import History, Record
from forde.training.image_feed import Augmentation
from forde.training.trainer import available_device, fit

__all__ = ["Augmentation", "History", "Record", "available_device", "fit"]
