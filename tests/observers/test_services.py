"""W&B and MLflow: missing packages are one sentence, a failing service never ends a run, calls are as documented."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from vitscale.config.load import load_config
from vitscale.errors import ConfigError
from vitscale.observers import build
from vitscale.observers.guard import Guarded
from vitscale.observers.mlflow import MlflowObserver, flat
from vitscale.observers.wandb import WandbObserver

ROW = {"kind": "train", "update": 10, "loss": 0.5}


class Recorder:
    """A stand-in for a module: records the names and arguments of all calls."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = []

    def __getattr__(self, name: str) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            self.calls.append((name, args, kwargs))
            return SimpleNamespace(info=SimpleNamespace(run_id="abc")) if name == "start_run" else self

        return call

    def named(self, name: str) -> list[tuple[tuple[Any, ...], dict[str, Any]]]:
        return [(args, kwargs) for called, args, kwargs in self.calls if called == name]


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch) -> Recorder:
    recorder = Recorder()
    for name in ("wandb", "mlflow"):
        stand_in = ModuleType(name)
        stand_in.__getattr__ = recorder.__getattr__  # type: ignore[method-assign]
        monkeypatch.setitem(sys.modules, name, stand_in)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    return recorder


@pytest.mark.parametrize("package", ["wandb", "mlflow", "tensorboard"])
def test_a_missing_package_is_one_sentence(package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "find_spec", lambda name: None if name == package else object())
    config = load_config("digits", [f"log.{package}=true"])
    with pytest.raises(ConfigError, match=f"log.{package}=true needs a package: pip install .*{package}"):
        build.check_observers(config.log)


def test_default_observers_write_below_the_run_folder(tmp_path: Path) -> None:
    observers = build.build_observers(load_config("digits"), tmp_path)
    names = [type(observer).__name__ for observer in observers]
    assert names == ["MetricsFileObserver", "ProgressObserver", "TensorBoardObserver"]
    for observer in observers:
        observer.close()


def test_wandb_goes_on_in_the_same_run(tmp_path: Path, module: Recorder) -> None:
    for _ in range(2):
        observer = WandbObserver(load_config("digits"), tmp_path)
        observer.start({"update": 0})
        observer.metrics(ROW)
        observer.event({"kind": "note", "update": 1, "text": "x"})
        observer.close()
    (_, first), (_, second) = module.named("init")
    assert first["id"] == second["id"]
    assert first["resume"] == "allow"
    assert module.named("log")[0][0] == ({"train/loss": 0.5, "update": 10},)
    assert len(module.named("finish")) == 2


def test_mlflow_goes_on_in_the_same_run(tmp_path: Path, module: Recorder) -> None:
    for _ in range(2):
        observer = MlflowObserver(load_config("digits"), tmp_path)
        observer.start({"update": 0})
        observer.metrics(ROW)
        observer.event({"kind": "note", "update": 1, "text": "x"})
        observer.close()
    assert module.named("set_tracking_uri")[0][0] == ((tmp_path / "mlflow").as_uri(),)
    assert [kwargs["run_id"] for _, kwargs in module.named("start_run")] == [None, "abc"]
    (parameters,) = (args[0] for args, _ in module.named("log_params"))
    assert parameters["optim.name"] == "adamw"
    assert module.named("log_metrics")[0] == (({"train/loss": 0.5},), {"step": 10})


def test_flat_cuts_long_values_and_keeps_empty_sections() -> None:
    assert flat({"a": {"b": 1, "c": "x" * 900}, "d": {}}) == {"a.b": "1", "a.c": "x" * 500, "d": "{}"}


class Failing:
    """A service that goes away."""

    def __init__(self) -> None:
        self.calls = 0

    def start(self, info: dict[str, Any]) -> None:
        self.calls += 1

    def metrics(self, row: dict[str, Any]) -> None:
        self.calls += 1
        raise ConnectionError("no route to host")

    event = metrics

    def close(self) -> None:
        self.calls += 1


def test_a_failing_service_is_said_once_and_left_alone(capsys: pytest.CaptureFixture[str]) -> None:
    failing = Failing()
    guarded = Guarded("W&B", failing)
    guarded.start({})
    guarded.metrics(ROW)
    guarded.metrics(ROW)
    guarded.event(ROW)
    guarded.close()
    assert failing.calls == 2
    assert capsys.readouterr().err == "W&B gets no more rows: ConnectionError: no route to host; training goes on\n"
