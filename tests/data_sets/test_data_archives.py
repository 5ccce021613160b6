"""Archives unpack below their folder, or not at all."""

from __future__ import annotations

import io
import stat
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from forde.data.archives import unpack
from forde.errors import FordeError


def write_tar(path: Path, members: list[tarfile.TarInfo], mode: str = "w") -> Path:
    with tarfile.open(path, mode) as tar:  # type: ignore[call-overload]
        for member in members:
            tar.addfile(member, io.BytesIO(b"x" * member.size))
    return path


def member(name: str, size: int = 3, kind: bytes = tarfile.REGTYPE, link: str = "") -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.size, info.type, info.linkname = size, kind, link
    return info


def write_zip(path: Path, **names: str) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in names.values():
            archive.writestr(name, b"xxx")
    return path


@pytest.mark.parametrize("kind", ["w", "w:gz", "zip"])
def test_plain_archives(tmp_path: Path, kind: str) -> None:
    if kind == "zip":
        archive = write_zip(tmp_path / "a.zip", a="set/", b="set/train/one.png", c="two.txt")
    else:
        members = [member("./set", 0, tarfile.DIRTYPE), member("./set/train/one.png"), member("two.txt")]
        archive = write_tar(tmp_path / "a.tar", members, kind)
    unpack(archive, tmp_path / "out")
    found = sorted(path.relative_to(tmp_path / "out").as_posix() for path in (tmp_path / "out").rglob("*"))
    assert found == ["set", "set/train", "set/train/one.png", "two.txt"]
    assert (tmp_path / "out" / "two.txt").read_bytes() == b"xxx"


def bad_tars() -> Iterator[tarfile.TarInfo]:
    yield member("../up")
    yield member("a/../../up")
    yield member("/absolute")
    yield member("C:\\windows")
    yield member("link", 0, tarfile.SYMTYPE, "/etc/passwd")
    yield member("link", 0, tarfile.SYMTYPE, "inside")
    yield member("link", 0, tarfile.LNKTYPE, "../outside")
    yield member("device", 0, tarfile.CHRTYPE)
    yield member("pipe", 0, tarfile.FIFOTYPE)


@pytest.mark.parametrize("bad", list(bad_tars()), ids=lambda info: f"{info.name}-{info.type.decode()}")
def test_tar_members_that_are_refused(tmp_path: Path, bad: tarfile.TarInfo) -> None:
    archive = write_tar(tmp_path / "a.tar", [bad])
    with pytest.raises(FordeError, match=r"a\.tar.* do not trust"):
        unpack(archive, tmp_path / "x" / "out")
    assert [path.name for path in tmp_path.rglob("*") if path.is_file() or path.is_symlink()] == ["a.tar"]


@pytest.mark.parametrize("name", ["../up", "/absolute", "a/../../up", "a\\..\\up", "C:/x"])
def test_zip_members_that_are_refused(tmp_path: Path, name: str) -> None:
    archive = write_zip(tmp_path / "a.zip", bad=name)
    with pytest.raises(FordeError, match="leads outside"):
        unpack(archive, tmp_path / "x" / "out")
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == ["a.zip"]


def test_links_in_zip_files(tmp_path: Path) -> None:
    info = zipfile.ZipInfo("link")
    info.external_attr = (stat.S_IFLNK | 0o777) << 16
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.writestr(info, "/etc/passwd")
    with pytest.raises(FordeError, match="link or device"):
        unpack(tmp_path / "a.zip", tmp_path / "out")


def test_limits_are_counted_as_files_are_unpacked(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "bomb.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("zeros", bytes(5_000_000))
    assert (tmp_path / "bomb.zip").stat().st_size < 10_000
    with pytest.raises(FordeError, match="more bytes than are allowed"):
        unpack(tmp_path / "bomb.zip", tmp_path / "out", max_bytes=2_000_000)
    assert sum(path.stat().st_size for path in (tmp_path / "out").rglob("*")) <= 2_000_000
    many = write_tar(tmp_path / "many.tar", [member(str(number), 0) for number in range(20)])
    with pytest.raises(FordeError, match="more than 10 files"):
        unpack(many, tmp_path / "many", max_files=10)


@pytest.mark.parametrize("name", ["a.tar", "a.tar.gz", "a.zip"])
def test_truncated_archives(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    if name == "a.zip":
        write_zip(path, a="one", b="two")
    else:
        write_tar(path, [member("one", 50_000)], "w:gz" if name.endswith("gz") else "w")
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    with pytest.raises(FordeError, match="truncated or damaged"):
        unpack(path, tmp_path / "out")
    path.write_bytes(b"no archive at all")
    with pytest.raises(FordeError, match="truncated or damaged"):
        unpack(path, tmp_path / "out2")


def test_the_same_path_twice(tmp_path: Path) -> None:
    with pytest.raises(FordeError, match="twice"):
        unpack(write_tar(tmp_path / "a.tar", [member("one"), member("one")]), tmp_path / "out")
    with pytest.raises(FordeError, match="twice"):
        unpack(write_tar(tmp_path / "a.tar", [member("one"), member("one/two")]), tmp_path / "out2")
