"""Downloads against a server on this machine, honest and otherwise."""

from __future__ import annotations

import errno
import hashlib
import io
import tarfile
import threading
import urllib.request
from collections.abc import Iterator
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import data_files as files
import pytest

import forde.data
from forde.data import transfer
from forde.data.publications import PUBLICATIONS, File, Publication
from forde.errors import FordeError


class Publisher(ThreadingHTTPServer):
    """Serves `files`; `break_after` bytes it hangs up, as often as `breaks` says; `length` is a lie about the size.

    `leads_to` is where names have moved; `slow` in "headers" or "content" is sent a byte at a time until `stop`.
    """

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.files: dict[str, bytes] = {}
        self.ranges = True
        self.break_after = 0
        self.breaks = 0
        self.length = ""
        self.asked: list[str | None] = []
        self.leads_to: dict[str, str] = {}
        self.slow = ""
        self.stop = threading.Event()

    def handle_error(self, *_: object) -> None:
        """Quiet when a client hangs up, as it does on too many bytes."""

    def url(self, name: str) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/{name}"


class Handler(BaseHTTPRequestHandler):
    server: Publisher

    def do_GET(self) -> None:
        content = self.server.files.get(self.path.removeprefix("/"))
        wanted = self.headers.get("Range")
        self.server.asked.append(wanted)
        if place := self.server.leads_to.get(self.path.removeprefix("/")):
            self.send_response(302)
            self.send_header("Location", place)
            self.end_headers()
            return
        if self.server.slow == "headers":
            self.send_slowly(b"HTTP/1.1 200 OK\r\nX: " + b"a" * 10_000)
            return
        if content is None:
            self.send_error(404)
            return
        start = int(wanted.removeprefix("bytes=").removesuffix("-")) if wanted and self.server.ranges else 0
        if start >= len(content):
            self.send_error(416)
            return
        self.send_response(206 if start else 200)
        if start:
            self.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
        self.send_header("Content-Length", self.server.length or str(len(content) - start))
        self.end_headers()
        body = content[start:]
        if self.server.slow == "content":
            self.send_slowly(body)
            return
        if self.server.breaks:
            self.server.breaks -= 1
            body = body[: self.server.break_after]
        self.wfile.write(body)

    def send_slowly(self, content: bytes) -> None:
        for byte in content:
            self.wfile.write(bytes([byte]))
            if self.server.stop.wait(0.01):
                return

    def log_message(self, *_: object) -> None:
        """Quiet."""


@pytest.fixture
def publisher(monkeypatch: pytest.MonkeyPatch) -> Iterator[Publisher]:
    monkeypatch.setattr(transfer, "PAUSE", 0.0)
    with Publisher() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.stop.set()
        server.shutdown()
        thread.join()


def md5(content: bytes) -> str:
    return hashlib.md5(content, usedforsecurity=False).hexdigest()


CONTENT = bytes(range(256)) * 5_000


def test_a_file_arrives_with_progress_and_without_a_trace(publisher: Publisher, tmp_path: Path) -> None:
    publisher.files["set.bin"] = CONTENT
    seen: list[tuple[int, int | None]] = []
    path = transfer.fetch(
        publisher.url("set.bin"), tmp_path / "set.bin", md5=md5(CONTENT), progress=lambda *step: seen.append(step)
    )
    assert path.read_bytes() == CONTENT and [file.name for file in tmp_path.iterdir()] == ["set.bin"]
    assert seen[-1] == (len(CONTENT), len(CONTENT)) and seen == sorted(seen)


def test_a_broken_transfer_is_continued_at_once(publisher: Publisher, tmp_path: Path) -> None:
    publisher.files["set.bin"] = CONTENT
    publisher.break_after, publisher.breaks = 500_000, 2
    path = transfer.fetch(publisher.url("set.bin"), tmp_path / "set.bin", md5=md5(CONTENT))
    assert path.read_bytes() == CONTENT
    assert publisher.asked == [None, "bytes=500000-", "bytes=1000000-"]


def test_a_transfer_that_keeps_breaking_is_continued_by_the_next_call(publisher: Publisher, tmp_path: Path) -> None:
    publisher.files["set.bin"] = CONTENT
    publisher.break_after, publisher.breaks = 1_000, transfer.ATTEMPTS
    with pytest.raises(FordeError, match=r"broke off after 4,000 bytes; run the same command again"):
        transfer.fetch(publisher.url("set.bin"), tmp_path / "set.bin", md5=md5(CONTENT))
    assert not (tmp_path / "set.bin").exists()
    transfer.fetch(publisher.url("set.bin"), tmp_path / "set.bin", md5=md5(CONTENT))
    assert publisher.asked[-1] == "bytes=4000-" and (tmp_path / "set.bin").read_bytes() == CONTENT


def test_a_server_without_ranges_sends_all_again(publisher: Publisher, tmp_path: Path) -> None:
    publisher.files["set.bin"] = CONTENT
    publisher.ranges = False
    (tmp_path / "set.bin.part").write_bytes(CONTENT[:100])
    assert transfer.fetch(publisher.url("set.bin"), tmp_path / "set.bin", md5=md5(CONTENT)).read_bytes() == CONTENT


def test_a_whole_part_is_only_checked(publisher: Publisher, tmp_path: Path) -> None:
    publisher.files["set.bin"] = CONTENT
    (tmp_path / "set.bin.part").write_bytes(CONTENT)
    assert transfer.fetch(publisher.url("set.bin"), tmp_path / "set.bin", md5=md5(CONTENT)).read_bytes() == CONTENT


def test_without_a_checksum_nothing_is_continued(publisher: Publisher, tmp_path: Path) -> None:
    publisher.files["set.bin"] = CONTENT
    (tmp_path / "set.bin.part").write_bytes(b"from another version")
    assert transfer.fetch(publisher.url("set.bin"), tmp_path / "set.bin", md5=None).read_bytes() == CONTENT
    assert publisher.asked == [None]


def test_a_wrong_checksum_is_refused_and_deleted(publisher: Publisher, tmp_path: Path) -> None:
    publisher.files["set.bin"] = b"something else"
    with pytest.raises(FordeError, match=rf"MD5 {md5(b'something else')}, but {md5(CONTENT)} was expected"):
        transfer.fetch(publisher.url("set.bin"), tmp_path / "set.bin", md5=md5(CONTENT))
    assert not list(tmp_path.iterdir())


def test_more_bytes_than_allowed(publisher: Publisher, tmp_path: Path) -> None:
    publisher.files["set.bin"] = CONTENT
    with pytest.raises(FordeError, match="more than the 1,000 bytes"):
        transfer.fetch(publisher.url("set.bin"), tmp_path / "set.bin", md5=None, max_bytes=1_000)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("length", ["²", "-1", "9" * 5_000, "many"])
def test_a_length_that_is_no_number_is_not_believed(publisher: Publisher, tmp_path: Path, length: str) -> None:
    publisher.files["set.bin"], publisher.length = CONTENT, length
    path = transfer.fetch(publisher.url("set.bin"), tmp_path / "set.bin", md5=md5(CONTENT))
    assert path.read_bytes() == CONTENT


def test_a_folder_that_cannot_be_written(publisher: Publisher, tmp_path: Path) -> None:
    publisher.files["set.bin"] = CONTENT
    (tmp_path / "set.bin.part").mkdir()
    with pytest.raises(FordeError, match=r"set\.bin\.part' cannot be written \(Is a directory\)"):
        transfer.fetch(publisher.url("set.bin"), tmp_path / "set.bin", md5=None)
    files.write_file(tmp_path / "file", b"in the way")
    with pytest.raises(FordeError, match="cannot be written"):
        transfer.fetch(publisher.url("set.bin"), tmp_path / "file" / "set.bin", md5=None)
    assert (tmp_path / "file").read_bytes() == b"in the way"


def test_a_full_disk_keeps_what_has_arrived(publisher: Publisher, tmp_path: Path) -> None:
    publisher.files["set.bin"] = CONTENT

    def full(_: int, __: int | None) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(FordeError, match=r"No space left on device.*run the same command again"):
        transfer.fetch(publisher.url("set.bin"), tmp_path / "set.bin", md5=md5(CONTENT), progress=full)
    assert not (tmp_path / "set.bin").exists() and (tmp_path / "set.bin.part").stat().st_size > 0
    transfer.fetch(publisher.url("set.bin"), tmp_path / "set.bin", md5=md5(CONTENT))
    assert (tmp_path / "set.bin").read_bytes() == CONTENT


def test_a_file_that_is_not_there_and_a_server_that_does_not_answer(publisher: Publisher, tmp_path: Path) -> None:
    with pytest.raises(FordeError, match=r"nothing\.bin answered 404"):
        transfer.fetch(publisher.url("nothing.bin"), tmp_path / "set.bin", md5=None)
    address = publisher.url("set.bin")
    publisher.socket.close()  # as without a network: the connection is refused
    with pytest.raises(FordeError, match=r"cannot be reached .*check the network") as raised:
        transfer.fetch(address, tmp_path / "set.bin", md5=None)
    assert "\n" not in str(raised.value)


def test_a_server_that_sends_a_byte_now_and_then(
    publisher: Publisher, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    publisher.files["set.bin"], publisher.slow = CONTENT, "content"
    monkeypatch.setattr(transfer, "GRACE", 0.1)
    with pytest.raises(FordeError, match=r"sends too slowly, \d+ bytes in 0 s; run the same command again") as raised:
        transfer.fetch(publisher.url("set.bin"), tmp_path / "set.bin", md5=md5(CONTENT))
    assert "\n" not in str(raised.value) and not (tmp_path / "set.bin").exists()
    arrived = (tmp_path / "set.bin.part").read_bytes()
    assert arrived and CONTENT.startswith(arrived)
    publisher.slow = ""
    transfer.fetch(publisher.url("set.bin"), tmp_path / "set.bin", md5=md5(CONTENT))
    assert publisher.asked[-1] == f"bytes={len(arrived)}-" and (tmp_path / "set.bin").read_bytes() == CONTENT


def test_all_attempts_together_have_an_end(
    publisher: Publisher, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    publisher.files["set.bin"], publisher.slow = CONTENT, "content"
    monkeypatch.setattr(transfer, "MAX_SECONDS", 0.1)
    with pytest.raises(FordeError, match="sends too slowly"):
        transfer.fetch(publisher.url("set.bin"), tmp_path / "set.bin", md5=md5(CONTENT))


def test_headers_that_never_end(publisher: Publisher, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    publisher.slow = "headers"
    monkeypatch.setattr(transfer, "TIMEOUT", 0.1)
    with pytest.raises(FordeError, match=r"cannot be reached \(timed out\)"):
        transfer.fetch(publisher.url("set.bin"), tmp_path / "set.bin", md5=None)


@pytest.mark.parametrize("through", ["", "https"])
def test_https_is_never_left(
    publisher: Publisher, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, through: str
) -> None:
    """Connections to https are made without encryption here, which urllib's handling of redirections does not see."""
    monkeypatch.setattr(
        urllib.request.HTTPSHandler, "https_open", lambda self, request: self.do_open(HTTPConnection, request)
    )
    secure = {name: publisher.url(name).replace("http:", "https:") for name in ("moved.bin", "again.bin", "set.bin")}
    publisher.files["set.bin"] = CONTENT
    publisher.leads_to["moved.bin"] = secure["set.bin"]
    transfer.fetch(secure["moved.bin"], tmp_path / "set.bin", md5=md5(CONTENT))
    publisher.leads_to["again.bin"] = publisher.url("set.bin")
    publisher.leads_to["moved.bin"] = secure["again.bin"] if through else publisher.url("set.bin")
    with pytest.raises(FordeError, match=r"leads to http://.*set\.bin, which is not https"):
        transfer.fetch(secure["moved.bin"], tmp_path / "other.bin", md5=md5(CONTENT))
    assert not (tmp_path / "other.bin").exists()


def test_a_redirection_leaves_the_web_for_nothing(publisher: Publisher, tmp_path: Path) -> None:
    publisher.files["set.bin"] = CONTENT
    publisher.leads_to = {"file.bin": "file:///etc/passwd", "ftp.bin": "ftp://127.0.0.1/set", "here.bin": "/set.bin"}
    for name, said in (("file.bin", "answered 302"), ("ftp.bin", "which is not http or https")):
        with pytest.raises(FordeError, match=said):
            transfer.fetch(publisher.url(name), tmp_path / name, md5=None)
    assert transfer.fetch(publisher.url("here.bin"), tmp_path / "here.bin", md5=md5(CONTENT)).read_bytes() == CONTENT


def archive_of(folder: Path) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as tar:
        tar.add(folder, folder.name)
    return out.getvalue()


def offer(publisher: Publisher, monkeypatch: pytest.MonkeyPatch, name: str, **content: bytes) -> None:
    entries = []
    for stem, body in content.items():
        file = f"{stem}.tar.gz" if body[:2] == b"\x1f\x8b" and stem == "archive" else stem.replace("_", "-") + ".gz"
        publisher.files[file] = body
        entries.append(File(publisher.url(file), file, md5(body)))
    monkeypatch.setitem(PUBLICATIONS, name, Publication(tuple(entries), "stated by the test"))


def test_a_data_set_is_downloaded_unpacked_and_loaded(
    publisher: Publisher, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files.write_cifar10_batches(tmp_path / "cifar-10-batches-py")
    offer(publisher, monkeypatch, "cifar10", archive=archive_of(tmp_path / "cifar-10-batches-py"))
    data_dir = tmp_path / "data"
    folder = forde.data.download("cifar10", data_dir)
    assert folder == data_dir / "cifar10" / "cifar-10-batches-py"
    assert len(forde.data.load("cifar10", "train", data_dir)) == 20
    assert forde.data.download("cifar10", data_dir) == folder and len(publisher.asked) == 1
    assert [path.name for path in data_dir.iterdir() if not path.name.startswith(".")] == ["cifar10"]
    assert not list((data_dir / ".downloads").iterdir())


def test_files_that_are_not_archives(publisher: Publisher, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files.write_idx_set(tmp_path / "made", compressed=True)
    content = {
        path.name.removesuffix(".gz").replace("-", "_"): path.read_bytes() for path in (tmp_path / "made").iterdir()
    }
    offer(publisher, monkeypatch, "mnist", **content)
    seen: set[str] = set()
    forde.data.download("mnist", tmp_path / "data", progress=lambda file, *_: seen.add(file.name))
    assert len(forde.data.load("mnist", "test", tmp_path / "data")) == 5 and len(seen) == 4


def test_nothing_appears_when_one_file_is_wrong(
    publisher: Publisher, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    offer(publisher, monkeypatch, "mnist", train_images_idx3_ubyte=b"a", train_labels_idx1_ubyte=b"b")
    publisher.files["train-labels-idx1-ubyte.gz"] = b"c"
    with pytest.raises(FordeError, match="was expected"):
        forde.data.download("mnist", tmp_path / "data")
    assert not (tmp_path / "data" / "mnist").exists()


def test_a_malicious_archive_stays_outside(
    publisher: Publisher, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as tar:
        member = tarfile.TarInfo("../../escaped")
        member.size = 3
        tar.addfile(member, io.BytesIO(b"bad"))
    offer(publisher, monkeypatch, "cifar10", archive=out.getvalue())
    with pytest.raises(FordeError, match="leads outside"):
        forde.data.download("cifar10", tmp_path / "a" / "b")
    assert not list(tmp_path.rglob("escaped")) and not (tmp_path / "a" / "b" / "cifar10").exists()


def test_names_that_cannot_be_downloaded(tmp_path: Path) -> None:
    with pytest.raises(FordeError, match="did you mean 'cifar10-c'"):
        forde.data.download("cifar10c", tmp_path)
    files.write_file(tmp_path / "cifar10" / "notes.txt", b"mine")
    with pytest.raises(FordeError, match="in the way"):
        forde.data.download("cifar10", tmp_path)


def test_every_published_file_comes_over_https_and_has_a_checksum() -> None:
    for publication in PUBLICATIONS.values():
        assert publication.checksums
        for file in publication.files:
            assert file.url.startswith("https://")
            assert file.md5 is not None and len(bytes.fromhex(file.md5)) == 16
