"""Features of pretrained networks: their last hidden layer over any data set, computed once and kept.

A folder of features holds, for one data set of images and one network,

    FOLDER/train.safetensors, FOLDER/test.safetensors   its splits
    FOLDER/corrupted/{name}-{severity}.safetensors       its test images under 19 corruptions at 5 severities
    FOLDER/foreign/{set}.safetensors                     test images of other data sets, and noise

each with the tensors `features` `[N, Q]` (float32, bfloat16 or float16) and `labels` int64 `[N]` (−1: none). The
metadata of each has JSON under the key "forde.features":

    backbone    name, revision, weights (a hash of them), layer, at, pool, preprocessing
    data        name, split, rows, fingerprint, classes; corruption, severity, source
    precision, dtype
    made        batch_size, device, torch, forde: what may change last digits
    sha256      of the tensors

A set that is not finished has a folder `{set}.parts` of shards beside the place of its file.

>>> import tempfile
>>> from torch import nn
>>> network = nn.Sequential(nn.Flatten(), nn.Linear(64, 5))
>>> own = Backbone("own", network, Preprocessing((8, 8), (0.5,), (0.5,)))
>>> folder = tempfile.mkdtemp()
>>> steps = list(fill(folder, own, feature_sets("digits", corruptions=["fog"], severities=[3])))
>>> feature_parts(folder)
['corrupted/fog-3', 'test', 'train']
>>> train = load_features(folder)
>>> train.x.shape, train.y.shape
(torch.Size([898, 5]), torch.Size([898]))
"""

from forde.data.features.api import features
from forde.data.features.backbones import Backbone, backbone
from forde.data.features.extracting import Watcher
from forde.data.features.folder import fill
from forde.data.features.preprocessing import Preprocessing
from forde.data.features.reading import Features, feature_parts, load_features
from forde.data.features.sets import FeatureSet, feature_sets
from forde.data.features.storing import Settings

__all__ = [
    "Backbone",
    "FeatureSet",
    "Features",
    "Preprocessing",
    "Settings",
    "Watcher",
    "backbone",
    "feature_parts",
    "feature_sets",
    "features",
    "fill",
    "load_features",
]
