"""Archives that attack whoever unpacks them, by name: file name and content."""

from __future__ import annotations

import gzip
import io
import stat
import tarfile
import zipfile
from collections.abc import Callable

Maker = Callable[[], bytes]
MEBIBYTE = 1 << 20


def _member(name: str, kind: bytes = tarfile.REGTYPE, link: str = "") -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname, info.size = kind, link, 3 if kind == tarfile.REGTYPE else 0
    return info


def _noted(name: str) -> tarfile.TarInfo:
    """A member whose name is in a note before it, where it may hold anything."""
    info = _member("a")
    info.pax_headers = {"path": name}
    return info


def _tar(*members: tarfile.TarInfo) -> Maker:
    def make() -> bytes:
        out = io.BytesIO()
        with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as tar:
            for member in members:
                tar.addfile(member, io.BytesIO(b"bad"))
        return out.getvalue()

    return make


def _header(name: str, kind: bytes, size: int) -> bytes:
    info = tarfile.TarInfo(name)
    info.type, info.size = kind, size
    return info.tobuf(tarfile.GNU_FORMAT)


def _bomb(kind: bytes) -> Maker:
    """A compressed archive whose first entry has 300 MiB of zeros."""
    return lambda: gzip.compress(_header("a", kind, 300 * MEBIBYTE) + bytes(300 * MEBIBYTE), 1)


def _sparse() -> bytes:
    """A file of 8 EiB, all of it a hole."""
    header = bytearray(_header("hole", tarfile.GNUTYPE_SPARSE, 0))
    header[483:495] = b"77777777777\0"
    header[148:156] = b"%06o\0 " % (sum(header[:148]) + 256 + sum(header[156:512]))
    return bytes(header) + bytes(1024)


def _zip(*names: str, mode: int = 0, compression: int = zipfile.ZIP_STORED, content: bytes = b"bad") -> Maker:
    def make() -> bytes:
        out = io.BytesIO()
        with zipfile.ZipFile(out, "w") as archive:
            for name in names:
                info = zipfile.ZipInfo(name)
                info.external_attr, info.compress_type = mode << 16, compression
                archive.writestr(info, content)
        return out.getvalue()

    return make


def _zip_with_a_name_that_is_no_text() -> bytes:
    return _zip("aé")().replace("é".encode(), b"\xff\xfe")


TARS: dict[str, Maker] = {
    "a way up": _tar(_member("../precious")),
    "a way up in the middle": _tar(_member("a/../../precious")),
    "an absolute path": _tar(_member("/tmp/forde-was-here")),
    "a Windows path": _tar(_member("..\\precious")),
    "a drive": _tar(_member("C:precious")),
    "a symbolic link": _tar(_member("link", tarfile.SYMTYPE, "../../precious"), _member("link/inside")),
    "a hard link": _tar(_member("link", tarfile.LNKTYPE, "../../precious")),
    "a device": _tar(_member("null", tarfile.CHRTYPE)),
    "a pipe": _tar(_member("pipe", tarfile.FIFOTYPE)),
    "a name twice": _tar(_member("one"), _member("one")),
    "a file as a folder": _tar(_member("one"), _member("one/two")),
    "a zero in a name": _tar(_noted("a\0b")),
    "a line end in a name": _tar(_member("a\nError: run this")),
    "a terminal code in a name": _tar(_member("a\x1b[2Jb")),
    "a name of ten thousand characters": _tar(_member("a" * 10_000)),
    "ten thousand folders in each other": _tar(_member("a/" * 10_000 + "b")),
    "a bomb of zeros": _bomb(tarfile.REGTYPE),
    "a name that is a bomb": _bomb(tarfile.GNUTYPE_LONGNAME),
    "a note that is a bomb": _bomb(tarfile.XHDTYPE),
    "a hole of 8 EiB": _sparse,
    "a size of 8 EiB": lambda: _header("a", tarfile.REGTYPE, (1 << 63) - 1) + bytes(2048),
    "a negative size": lambda: _tar(_member("a"))().replace(b"00000000003", b"-0000000003"),
    "a cut": lambda: gzip.compress(_tar(_member("a"))())[:60],
    "no archive": lambda: b"\x1f\x8bnothing at all",
}
ZIPS: dict[str, Maker] = {
    "a way up": _zip("../../precious"),
    "an absolute path": _zip("/tmp/forde-was-here"),
    "a link": _zip("link", mode=stat.S_IFLNK | 0o777, content=b"/etc/passwd"),
    "a pipe": _zip("pipe", mode=stat.S_IFIFO),
    "a line end in a name": _zip("a\nb"),
    "a name of sixty thousand characters": _zip("a" * 60_000),
    "a name that is no text": _zip_with_a_name_that_is_no_text,
    "a bomb": _zip("zeros", compression=zipfile.ZIP_DEFLATED, content=bytes(300 * MEBIBYTE)),
    "another compression": _zip("a", compression=zipfile.ZIP_LZMA),
    "a wrong checksum": lambda: _zip("a")().replace(b"bad", b"BAD"),
    "a cut": lambda: _zip("a", "b")()[:-30],
}
