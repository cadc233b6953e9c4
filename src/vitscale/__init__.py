"""vitscale: train Vision Transformers on one device or many, and measure honestly what scaling buys.

The public Python API. Each name is imported at first use, so that `import vitscale` loads neither torch nor pydantic:

    config = vitscale.load_config("digits", ["train.epochs=2"])
    model = vitscale.build_model(config.model, num_classes=10, seed=0)     a plain timm model
    result = vitscale.train(config, Path("runs/digits"))                   a run.Result; resumes what is there
    found = vitscale.evaluate_run(vitscale.open_run(Path("runs/digits")), "val", device)
    proof = vitscale.verify_engines(vitscale.load_config("verify"), nproc=2)       proof.passed

`train` runs in this process and in the ranks beside it that a launcher started; `vitscale train --nproc N` starts
them. `verify_engines` starts processes of its own. Every error meant for people is a VitscaleError with an exit_code.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vitscale.config.load import dump_config as dump_config
    from vitscale.config.load import load_config as load_config
    from vitscale.config.run import RunConfig as RunConfig
    from vitscale.errors import VitscaleError as VitscaleError
    from vitscale.evaluate import EvalResult as EvalResult
    from vitscale.evaluate import evaluate_run as evaluate_run
    from vitscale.models.build import build_model as build_model
    from vitscale.run import Result as Result
    from vitscale.run import train as train
    from vitscale.trained import open_run as open_run
    from vitscale.verify.proof import Proof as Proof
    from vitscale.verify.proof import verify_engines as verify_engines

_HOME = {
    "EvalResult": "vitscale.evaluate",
    "Proof": "vitscale.verify.proof",
    "Result": "vitscale.run",
    "RunConfig": "vitscale.config.run",
    "VitscaleError": "vitscale.errors",
    "build_model": "vitscale.models.build",
    "dump_config": "vitscale.config.load",
    "evaluate_run": "vitscale.evaluate",
    "load_config": "vitscale.config.load",
    "open_run": "vitscale.trained",
    "train": "vitscale.run",
    "verify_engines": "vitscale.verify.proof",
}

__all__ = sorted(_HOME)


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version

        return version("vitscale")
    if name not in _HOME:
        raise AttributeError(f"module 'vitscale' has no attribute {name!r}")
    return getattr(import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
