"""The data sets known by name."""

from __future__ import annotations

from forde.data.class_names import CIFAR10_CLASSES, CIFAR100_CLASSES, DIGIT_CLASSES, FASHION_CLASSES
from forde.data.description import Description
from forde.errors import unknown_name

_CINIC_MEAN = (0.47889522, 0.47227842, 0.43047404)
_CINIC_STD = (0.24205776, 0.23828046, 0.25874835)
_CINIC_SOURCE = "Darlow et al. 2018, University of Edinburgh; CC BY 4.0, its ImageNet part under ImageNet's terms"

_ALL = (
    Description(
        "digits",
        10,
        (8, 8, 1),
        (0.3039,),
        (0.3751,),
        {"train": 898, "test": 899},
        "UCI optical recognition of handwritten digits, shipped with scikit-learn; CC BY 4.0",
        DIGIT_CLASSES,
    ),
    Description(
        "regression-1d", 0, (2,), (), (), {"train": 400}, "generated after Izmailov et al. 2019; nothing to download"
    ),
    Description(
        "classification-2d",
        5,
        (2,),
        (),
        (),
        {"train": 200, "test": 100},
        "generated after D'Angelo & Fortuin 2021; nothing to download",
        tuple("01234"),
    ),
    Description(
        "cifar10",
        10,
        (32, 32, 3),
        (0.4914, 0.4822, 0.4465),
        (0.2470, 0.2435, 0.2616),
        {"train": 50_000, "test": 10_000},
        "Krizhevsky 2009, University of Toronto; no licence stated, citation asked for",
        CIFAR10_CLASSES,
    ),
    Description(
        "cifar100",
        100,
        (32, 32, 3),
        (0.5071, 0.4865, 0.4409),
        (0.2673, 0.2564, 0.2762),
        {"train": 50_000, "test": 10_000},
        "Krizhevsky 2009, University of Toronto; no licence stated, citation asked for",
        CIFAR100_CLASSES,
    ),
    Description(
        "tinyimagenet",
        200,
        (64, 64, 3),
        tuple(level / 255 for level in (122.4786, 114.2755, 101.3963)),
        tuple(level / 255 for level in (70.4924, 68.5679, 71.8127)),
        {"train": 100_000, "test": 10_000},
        "Stanford CS231n, a subset of ImageNet; research use under ImageNet's terms",
    ),
    Description(
        "cinic10",
        10,
        (32, 32, 3),
        _CINIC_MEAN,
        _CINIC_STD,
        {"train": 90_000, "valid": 90_000, "test": 90_000},
        _CINIC_SOURCE,
        CIFAR10_CLASSES,
    ),
    Description(
        "cinic10-imagenet",
        10,
        (32, 32, 3),
        _CINIC_MEAN,
        _CINIC_STD,
        {"train": 70_000, "valid": 70_000, "test": 70_000},
        _CINIC_SOURCE,
        CIFAR10_CLASSES,
    ),
    Description(
        "fashion-mnist",
        10,
        (28, 28, 1),
        (0.2860,),
        (0.3530,),
        {"train": 60_000, "test": 10_000},
        "Xiao et al. 2017, Zalando Research; MIT",
        FASHION_CLASSES,
    ),
    Description(
        "mnist",
        10,
        (28, 28, 1),
        (0.1307,),
        (0.3081,),
        {"train": 60_000, "test": 10_000},
        "LeCun, Cortes & Burges 1998; CC BY-SA 3.0",
        DIGIT_CLASSES,
    ),
)

CATALOGUE: dict[str, Description] = {description.name: description for description in _ALL}
"""The data sets known by name."""

BUILT_IN = ("digits", "regression-1d", "classification-2d")
"""Those that need no files."""


def describe(name: str) -> Description:
    """The description of a data set known by name; nothing is read.

    >>> describe("mnist").mean
    (0.1307,)
    """
    if name not in CATALOGUE:
        raise unknown_name("data set", name, CATALOGUE)
    return CATALOGUE[name]
