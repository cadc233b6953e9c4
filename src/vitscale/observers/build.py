"""Which observers a config asks for. In: a RunConfig and the run's folder, on rank 0. Out: a list in telling order."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from vitscale.config.run import LogConfig, RunConfig
from vitscale.errors import ConfigError
from vitscale.observers.guard import Guarded
from vitscale.observers.metrics_file import MetricsFileObserver
from vitscale.observers.progress import ProgressObserver

if TYPE_CHECKING:
    from vitscale.trainer import Observer


def check_observers(config: LogConfig) -> None:
    """Raise ConfigError if the package of an observer is not installed; imports none of them."""
    wanted = {"tensorboard": config.tensorboard, "wandb": config.wandb, "mlflow": config.mlflow}
    for package, asked in wanted.items():
        if asked and find_spec(package) is None:
            extra = "tensorboard" if package == "tensorboard" else f"'vitscale[{package}]'"
            raise ConfigError(f"log.{package}=true needs a package: pip install {extra}, or set log.{package}=false")


def build_observers(config: RunConfig, out: Path) -> list[Observer]:
    """The observers of one run. Those that talk to a service are guarded: their failure does not end a run."""
    check_observers(config.log)
    observers: list[Observer] = [MetricsFileObserver(out / "metrics.jsonl"), ProgressObserver()]
    if config.log.tensorboard:
        from vitscale.observers.tensorboard import TensorBoardObserver

        observers.append(TensorBoardObserver(out / "tensorboard"))
    if config.log.wandb:
        from vitscale.observers.wandb import WandbObserver

        observers.append(Guarded("Weights & Biases", WandbObserver(config, out)))
    if config.log.mlflow:
        from vitscale.observers.mlflow import MlflowObserver

        observers.append(Guarded("MLflow", MlflowObserver(config, out)))
    return observers
