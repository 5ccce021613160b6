"""Training: batches, schedule, optimiser, history."""

from forde.training.history import History, Record
from forde.training.image_feed import Augmentation
from forde.training.trained import TrainedRun, load_run
from forde.training.trainer import available_device, fit

__all__ = ["Augmentation", "History", "Record", "TrainedRun", "available_device", "fit", "load_run"]
