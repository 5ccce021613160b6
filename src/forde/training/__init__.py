"""Training: batches, schedule, optimizer, history."""

from forde.training.callbacks import Training
from forde.training.history import History, Record
from forde.training.image_feed import Augmentation
from forde.training.options import Batching, Checkpointing, Execution, Optimization, Reporting, Validation
from forde.training.preparing import available_device
from forde.training.trained import TrainedRun, load_run
from forde.training.trainer import fit

__all__ = [
    "Augmentation",
    "Batching",
    "Checkpointing",
    "Execution",
    "History",
    "Optimization",
    "Record",
    "Reporting",
    "TrainedRun",
    "Training",
    "Validation",
    "available_device",
    "fit",
    "load_run",
]
