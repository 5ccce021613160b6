"""What publishers offer for download, over HTTPS. Checksums are MD5, as the publishers state them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class File:
    """One file of a publication."""

    url: str
    name: str
    """Under which it is stored; an ending of .zip, .tar or .tar.gz means that it is unpacked."""
    md5: str | None
    """None where no checksum is published."""
    size: int | None = None
    """Bytes, where known."""


@dataclass(frozen=True)
class Publication:
    """The files of a data set and what is known about their checksums."""

    files: tuple[File, ...]
    checksums: str


_TORONTO = "https://www.cs.toronto.edu/~kriz"
_ZENODO = "https://zenodo.org/records"
_FASHION = "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion"
_MNIST = "https://ossci-datasets.s3.amazonaws.com/mnist"  # the original site no longer serves the files
_BY_PUBLISHER = "MD5 stated by the publisher"
_BY_OTHERS = "no checksum published that is known here; MD5 as recorded by several other libraries"


def _idx_files(base: str, *sums: str) -> tuple[File, ...]:
    names = ("train-images-idx3", "train-labels-idx1", "t10k-images-idx3", "t10k-labels-idx1")
    return tuple(File(f"{base}/{n}-ubyte.gz", f"{n}-ubyte.gz", md5) for n, md5 in zip(names, sums, strict=True))


PUBLICATIONS: dict[str, Publication] = {
    "cifar10": Publication(
        (
            File(
                f"{_TORONTO}/cifar-10-python.tar.gz",
                "cifar-10-python.tar.gz",
                "c58f30108f718f92721af3b95e74349a",
                170_498_071,
            ),
        ),
        _BY_PUBLISHER,
    ),
    "cifar100": Publication(
        (
            File(
                f"{_TORONTO}/cifar-100-python.tar.gz",
                "cifar-100-python.tar.gz",
                "eb9058c3a382ffc7106e4002c42a8d85",
                169_001_437,
            ),
        ),
        _BY_PUBLISHER,
    ),
    "tinyimagenet": Publication(
        (
            File(
                "https://cs231n.stanford.edu/tiny-imagenet-200.zip",
                "tiny-imagenet-200.zip",
                "90528d7ca1a48142e341f4ef8d21d0de",
                248_100_043,
            ),
        ),
        _BY_OTHERS,
    ),
    "cinic10": Publication(
        (
            File(
                "https://datashare.ed.ac.uk/bitstream/handle/10283/3192/CINIC-10.tar.gz",
                "CINIC-10.tar.gz",
                "6ee4d0c996905fe93221de577967a372",
                687_544_992,
            ),
        ),
        _BY_OTHERS,
    ),
    "fashion-mnist": Publication(
        _idx_files(
            _FASHION,
            "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
            "25c81989df183df01b3e8a0aad5dffbe",
            "bef4ecab320f06d8554ea6380940ec79",
            "bb300cfdad3c16e7a12a480ee83cd310",
        ),
        _BY_PUBLISHER,
    ),
    "mnist": Publication(
        _idx_files(
            _MNIST,
            "f68b3c2dcbeaaa9fbdd348bbdeb94873",
            "d53e105ee54ea40749a09fcbcd1e9432",
            "9fb629c4189551a2d022fa330f9573f3",
            "ec29112dd5afa0611ce80d1b7f02629c",
        ),
        _BY_OTHERS,
    ),
    "cifar10-c": Publication(
        (
            File(
                f"{_ZENODO}/2535967/files/CIFAR-10-C.tar?download=1",
                "CIFAR-10-C.tar",
                "56bf5dcef84df0e2308c6dcbcbbd8499",
                2_918_471_680,
            ),
        ),
        _BY_PUBLISHER,
    ),
    "cifar100-c": Publication(
        (
            File(
                f"{_ZENODO}/3555552/files/CIFAR-100-C.tar?download=1",
                "CIFAR-100-C.tar",
                "11f0ed0f1191edbf9fa23466ae6021d3",
                2_918_473_216,
            ),
        ),
        _BY_PUBLISHER,
    ),
    # The repaired record: in the first one `frost` has the 1000 classes of ImageNet.
    "tinyimagenet-c": Publication(
        (
            File(
                f"{_ZENODO}/8206060/files/Tiny-ImageNet-C.tar?download=1",
                "Tiny-ImageNet-C.tar",
                "f9c9a9dbdc11469f0b850190f7ad8be1",
                1_794_775_040,
            ),
            File(
                f"{_ZENODO}/8206060/files/Tiny-ImageNet-C-extra.tar?download=1",
                "Tiny-ImageNet-C-extra.tar",
                "0db0588d243cf403ef93449ec52b70eb",
            ),
        ),
        _BY_PUBLISHER,
    ),
}
