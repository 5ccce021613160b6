"""Data sets: descriptions, loading, downloads, and published or generated corrupted copies.

>>> import forde.data
>>> forde.data.load("digits", "test").images.shape
(899, 8, 8, 1)
"""

from .arrays import from_arrays
from .catalogue import CATALOGUE, describe
from .checking import SplitReport, check
from .corrupted_sets import corrupted
from .description import Description, Images, Table
from .downloading import download
from .inputs import normalise
from .loading import load, load_images
from .locating import data_folder
from .standardise import Standardisation

__all__ = [
    "CATALOGUE",
    "Description",
    "Images",
    "SplitReport",
    "Standardisation",
    "Table",
    "check",
    "corrupted",
    "data_folder",
    "describe",
    "download",
    "from_arrays",
    "load",
    "load_images",
    "normalise",
]
