"""How much memory files may take: the limits, and what files are found to need before they are read."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import data_files as files
import numpy as np
import pytest

import forde.data
from forde.data.checks import BLOCK, channel_statistics, column_statistics
from forde.data.parquet_pages import unpacked
from forde.errors import FordeError
from forde.reading import budget
from forde.reading.budget import check_fits


def npz(folder: Path) -> Path:
    np.savez(folder / "set.npz", x=files.noise(10, (8, 8, 3)), y=np.arange(10))
    return folder / "set.npz"


def class_folders(folder: Path) -> Path:
    files.write_class_folders(folder / "pictures", ["a", "b"])
    return folder / "pictures"


def parquet_images(folder: Path) -> Path:
    return files.write_parquet(folder / "set.parquet", [files.encoded(files.noise(1, (8, 8, 3))[0])] * 2, label=[0, 1])


def csv(folder: Path) -> Path:
    return files.write_file(folder / "set.csv", b"x,y\n1,2\n3,4\n")


def parquet_table(folder: Path) -> Path:
    import pyarrow as pa
    import pyarrow.parquet as pq

    pq.write_table(pa.table({"x": [1.0, 2.0], "y": ["a", "b"]}), folder / "table.parquet")
    return folder / "table.parquet"


@pytest.mark.parametrize("make", [npz, class_folders, parquet_images, csv, parquet_table])
def test_users_set_the_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, make: object) -> None:
    """Every reader says how much it needs, and reads as soon as it is allowed that much."""
    path = make(tmp_path)  # type: ignore[operator]
    monkeypatch.setenv("FORDE_MAX_BYTES", "10")
    for _ in range(10):  # a file may be looked at in several steps
        try:
            assert len(forde.data.load(path)) >= 2
            break
        except FordeError as error:
            sentence = str(error)
        assert "bytes of memory, but" in sentence and "are allowed (FORDE_MAX_BYTES)" in sentence
        assert "\n" not in sentence and sentence.endswith(".")
        monkeypatch.setenv("FORDE_MAX_BYTES", sentence.partition("set FORDE_MAX_BYTES=")[2].partition(" ")[0])
    else:
        pytest.fail("what it asked for was not enough")
    assert int(budget.os.environ["FORDE_MAX_BYTES"]) > 10


@pytest.mark.parametrize("name, folder", [("mnist", "mnist"), ("cifar10", "cifar10"), ("tinyimagenet", "tinyimagenet")])
def test_published_layouts_ask_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, folder: str) -> None:
    files.write_idx_set(tmp_path / "mnist", compressed=True)
    files.write_cifar10_batches(tmp_path / "cifar10")
    files.write_tiny_imagenet(tmp_path / "tinyimagenet")
    assert len(forde.data.load(name, "train", tmp_path)) > 0
    monkeypatch.setenv("FORDE_MAX_BYTES", "100")
    with pytest.raises(FordeError, match=rf"{folder}.* bytes of memory, but 100 are allowed"):
        forde.data.load(name, "train", tmp_path)


@pytest.mark.parametrize("value", ["many", "-1", "0", "8e9", "1.5", "²", "9" * 5_000, "8 GB"])
def test_a_limit_that_is_no_number(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    monkeypatch.setenv("FORDE_MAX_BYTES", value)
    with pytest.raises(FordeError, match=r"FORDE_MAX_BYTES is .*a whole number of bytes such as 8000000000") as raised:
        forde.data.load(npz(tmp_path))
    assert len(str(raised.value)) < 500


def test_without_a_limit_memory_and_size_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FORDE_MAX_BYTES", raising=False)
    file = files.write_file(tmp_path / "a", bytes(1_000))
    monkeypatch.setattr(budget, "_memory", lambda: 10**9)
    check_fits(400_100_000, file, [file, file])  # a file counts once
    with pytest.raises(
        FordeError, match=r"400,100,000 are allowed \(400,000,000 and 100 times the 1,000 bytes on disk"
    ):
        check_fits(400_100_001, file, [file, file])
    large = tmp_path / "large"
    with large.open("wb") as stream:
        stream.truncate(10**8)  # a hole, which takes no room
    check_fits(5 * 10**8, large, [large])
    with pytest.raises(FordeError, match=r"500,000,000 are allowed \(half of the memory there is\)"):
        check_fits(5 * 10**8 + 1, large, [large])


@pytest.mark.parametrize(
    "group, files_there, expected",
    [
        ("0::/a/b", {"a/memory.max": "5000", "a/b/memory.max": "max"}, 5_000),
        ("0::/a/b", {"a/memory.max": "5000", "a/b/memory.max": "3000"}, 3_000),
        ("4:memory:/job", {"memory/job/memory.limit_in_bytes": "7000"}, 7_000),
        ("4:memory:/elsewhere", {"memory/memory.limit_in_bytes": "8000"}, 8_000),
    ],
)
def test_a_container_has_less_than_the_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, group: str, files_there: dict[str, str], expected: int
) -> None:
    for name, content in files_there.items():
        files.write_file(tmp_path / name, content.encode())
    own = files.write_file(tmp_path / "own", group.encode())
    monkeypatch.setattr(budget, "_CGROUPS", tmp_path)
    monkeypatch.setattr(budget, "_OWN_GROUPS", own)
    assert budget._memory.__wrapped__() == expected


def test_the_size_of_pages_is_found_whatever_the_summary_says(tmp_path: Path) -> None:
    """Arrow's own summary, which is right in files that it wrote, agrees but for the headers of the pages."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    path = tmp_path / "a.parquet"
    table = pa.table(
        {
            "number": np.random.default_rng(0).random(50_000),
            "text": [f"{n % 7}" * 300 for n in range(50_000)],
            "list": [[1, 2]] * 50_000,
        }
    )
    for options in ({}, {"data_page_version": "2.0"}, {"compression": "zstd"}, {"row_group_size": 20_000}):
        pq.write_table(table, path, **options)
        metadata = pq.ParquetFile(path).metadata
        for column in range(3):
            found = unpacked(path, metadata, [column])
            summary = max(
                metadata.row_group(n).column(column).total_uncompressed_size for n in range(metadata.num_row_groups)
            )
            assert found.rows == 50_000 and 0.9 * summary < found.stored <= summary
    assert unpacked(path, metadata, [1]).repeated >= 7 * 300


def test_pages_that_are_none_or_shared_are_noticed(tmp_path: Path) -> None:
    """Summaries that a stranger could write: groups of rows that are all the same place of the file."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"x": [1.0]}), path)
    group = pq.ParquetFile(path).metadata.row_group(0)
    summary = SimpleNamespace(num_rows=1, num_row_groups=1, row_group=lambda _: group)
    assert unpacked(path, summary, [0]).rows == 1
    summary.num_row_groups = 100_000
    with pytest.raises(ValueError, match="share"):
        unpacked(path, summary, [0])
    summary.num_row_groups = 1
    for content in (bytes(1_000), b"\xff" * 1_000, b"PAR1"):
        with pytest.raises((ValueError, IndexError, KeyError)):
            unpacked(files.write_file(path, content), summary, [0])


def test_statistics_in_blocks_are_those_of_the_whole() -> None:
    images = files.noise(3, (700, 1_000, 3))  # more than one block, and the last one not full
    assert images.size // 3 > BLOCK and (images.size // 3) % BLOCK
    mean, std = channel_statistics(images)
    np.testing.assert_allclose(mean, images.mean((0, 1, 2), np.float64) / 255, rtol=1e-12)
    np.testing.assert_allclose(std, images.std((0, 1, 2), np.float64) / 255, rtol=1e-10)
    x = np.random.default_rng(0).normal(3, 2, (BLOCK // 2 + 5, 5)).astype(np.float32)
    mean, std = column_statistics(x)
    np.testing.assert_allclose(mean, x.mean(0, np.float64), rtol=1e-12)
    np.testing.assert_allclose(std, x.std(0, np.float64), rtol=1e-12)


def test_labels_may_come_before_images_and_in_several_files(tmp_path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    images = files.noise(7, (8, 8, 3))
    for number, rows in enumerate((range(4), range(4, 7))):
        content = pa.array([files.encoded(images[row]) for row in rows], pa.binary())
        table = pa.table({"label": [row % 3 for row in rows], "image": content})
        pq.write_table(table, tmp_path / f"train-{number}.parquet", row_group_size=2)
    data = forde.data.load(tmp_path)
    assert isinstance(data, forde.data.Images)
    np.testing.assert_array_equal(data.images, images)
    assert data.labels.tolist() == [0, 1, 2, 0, 1, 2, 0]
