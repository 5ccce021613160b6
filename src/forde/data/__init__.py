"""Data sets: descriptions, loading, downloads, and published or generated corrupted copies.

>>> import forde.data
>>> forde.data.load("digits", "test").images.shape
(899, 8, 8, 1)
"""

from forde.data.arrays import from_arrays
from forde.data.catalogue import CATALOGUE, describe
from forde.data.checking import SplitReport, check
from forde.data.corrupted_sets import corrupted
from forde.data.description import Description, Images, Table
from forde.data.downloading import download
from forde.data.features import load_features
from forde.data.inputs import normalise
from forde.data.known_inputs import Inputs
from forde.data.loading import load, load_images
from forde.data.locating import data_folder
from forde.data.standardise import Standardisation

__all__ = [
    "CATALOGUE",
    "Description",
    "Images",
    "Inputs",
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
    "load_features",
    "load_images",
    "normalise",
]
