"""CIFAR's pickles: read by torchvision, only with the published MD5. The sets here are made, with lists to match."""

import hashlib
import pickle
import tarfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest
from torchvision.datasets import CIFAR10, CIFAR100

from vitscale.config.run import DataConfig
from vitscale.data.images import Splits
from vitscale.data.sources import open_splits
from vitscale.errors import DataError


def open_cifar(root: Path, source: str = "cifar10", in_chans: int = 3, **keys: object) -> Splits:
    config = DataConfig.model_validate({"source": source, "root": root, **keys})
    return open_splits(config, img_size=32, in_chans=in_chans)


def write_pickles(root: Path, kind: type[CIFAR10], per_file: int = 20) -> dict[str, np.ndarray]:
    """Files named as the published ones; returns the rows of each."""
    rng = np.random.default_rng(0)
    folder = root / kind.base_folder
    folder.mkdir(parents=True)
    rows = {}
    num_classes, key = (10, "labels") if kind is CIFAR10 else (100, "fine_labels")
    for name, _ in (*kind.train_list, *kind.test_list):
        rows[name] = rng.integers(0, 256, (per_file, 3072), dtype=np.uint8)
        labels = [index % num_classes for index in range(per_file)]
        (folder / name).write_bytes(pickle.dumps({"data": rows[name], key: labels}))
    names = [f"name{label}" for label in range(num_classes)]
    (folder / kind.meta["filename"]).write_bytes(pickle.dumps({kind.meta["key"]: names}))
    return rows


def publish(monkeypatch: pytest.MonkeyPatch, root: Path, kind: type[CIFAR10]) -> None:
    """Make torchvision's lists those of the files under `root`."""
    folder = root / kind.base_folder

    def md5(name: str) -> str:
        return hashlib.md5((folder / name).read_bytes()).hexdigest()

    monkeypatch.setattr(kind, "train_list", [[name, md5(name)] for name, _ in kind.train_list])
    monkeypatch.setattr(kind, "test_list", [[name, md5(name)] for name, _ in kind.test_list])
    monkeypatch.setattr(kind, "meta", {**kind.meta, "md5": md5(kind.meta["filename"])})


class _QuietHandler(SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        """Nothing."""


@contextmanager
def serving(folder: Path) -> Iterator[str]:
    """The files of `folder` over HTTP on this machine."""
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(_QuietHandler, directory=str(folder))) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


@pytest.mark.parametrize(("source", "kind", "per_file"), [("cifar10", CIFAR10, 20), ("cifar100", CIFAR100, 200)])
def test_pickles_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str, kind: type[CIFAR10], per_file: int
) -> None:
    rows = write_pickles(tmp_path, kind, per_file)
    publish(monkeypatch, tmp_path, kind)
    for root in (tmp_path, tmp_path / kind.base_folder):
        splits = open_cifar(root, source)
        assert len(splits.train) == per_file * len(kind.train_list)
        assert splits.train.read(3).flatten().tolist() == rows[kind.train_list[0][0]][3].tolist()
        assert splits.val.read(3).flatten().tolist() == rows[kind.test_list[0][0]][3].tolist()
        assert splits.classes[2] == "name2"
        assert splits.mean[0] == pytest.approx(0.49, abs=0.02)
        assert "val is the test split" in splits.notes[0]


def test_a_file_with_another_md5_is_never_unpickled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_pickles(tmp_path, CIFAR10)
    publish(monkeypatch, tmp_path, CIFAR10)
    marker = tmp_path / "was-run"

    class Attack:
        def __reduce__(self) -> tuple[object, tuple[object, ...]]:
            return Path.touch, (marker,)

    file = tmp_path / CIFAR10.base_folder / "data_batch_4"
    file.write_bytes(pickle.dumps(Attack()))
    with pytest.raises(DataError, match=r"data_batch_4 is not the published file \(its MD5 differs\)"):
        open_cifar(tmp_path)
    assert not marker.exists()
    pickle.loads(file.read_bytes())
    assert marker.exists()  # the attack works where it is let in


def test_missing_files_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(DataError, match=r"has no folder cifar-10-batches-py; set data\.download=true"):
        open_cifar(tmp_path)
    write_pickles(tmp_path, CIFAR10)
    publish(monkeypatch, tmp_path, CIFAR10)
    (tmp_path / CIFAR10.base_folder / "test_batch").unlink()
    with pytest.raises(DataError, match=r"test_batch is missing; remove .* and set data\.download=true"):
        open_cifar(tmp_path)


def test_download_fetches_and_unpacks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = tmp_path / "source"
    write_pickles(source, CIFAR10)
    publish(monkeypatch, source, CIFAR10)
    archive = tmp_path / "archive.tar.gz"
    with tarfile.open(archive, "w:gz") as tar:
        tar.add(source / CIFAR10.base_folder, CIFAR10.base_folder)
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with serving(tmp_path) as address:
        monkeypatch.setattr(CIFAR10, "url", f"{address}/{archive.name}")
        with pytest.raises(DataError, match=r"could not be fetched into .*new"):
            open_cifar(tmp_path / "new", download=True)  # the archive's MD5 is not the published one
        monkeypatch.setattr(CIFAR10, "tgz_md5", hashlib.md5(archive.read_bytes()).hexdigest())
        assert len(open_cifar(tmp_path / "new", download=True).train) == 100
    assert len(open_cifar(tmp_path / "new").train) == 100


def test_grey_statistics_are_those_of_the_pixels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_pickles(tmp_path, CIFAR10)
    publish(monkeypatch, tmp_path, CIFAR10)
    splits = open_cifar(tmp_path, in_chans=1)
    assert splits.train.pixels is not None
    assert splits.mean[0] == pytest.approx(splits.train.pixels.double().mean().item() / 255, abs=1e-4)
