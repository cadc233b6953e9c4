"""Export a trained model as one safetensors file that timm loads as it is.

In: a Trained model and a file name. Out: the file, written whole or not at all, whose metadata carries classes,
normalisation and timm's arguments; and the Python that loads it.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from safetensors.torch import save_file

from vitscale.config.run import ModelConfig
from vitscale.errors import ConfigError, RunFailed
from vitscale.estimate.vit import shape_of
from vitscale.models.build import image_size, model_arguments
from vitscale.models.stem import IMPORTS, stem_source
from vitscale.trained import Trained

# Arguments that act in training only: whoever loads the file chooses them anew.
_TRAINING_ARGUMENTS = ("drop_path_rate", "pos_drop_rate", "proj_drop_rate")


@dataclass(frozen=True, slots=True)
class Exported:
    """Where the file is, and how to load it."""

    path: Path
    create_model: str


def export(trained: Trained, path: Path, *, force: bool = False) -> Exported:
    """Write the model to `path` (.safetensors); `force` replaces a file that is there."""
    check_target(path, force=force)
    arguments = timm_arguments(trained)
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in trained.model.state_dict().items()}
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        save_file(tensors, temporary, metadata=_metadata(trained, arguments))
        with temporary.open("rb") as file:
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError as error:
        raise RunFailed(f"{path} cannot be written: {error.strerror or error}") from error
    finally:
        temporary.unlink(missing_ok=True)
    return Exported(path, create_model_text(trained.config.model, path, arguments))


def check_target(path: Path, *, force: bool) -> None:
    """Raise ConfigError where `path` cannot be written, before the checkpoint is read."""
    if path.suffix != ".safetensors":
        raise ConfigError(f"{path} must end in .safetensors: timm chooses the format by it")
    if not path.parent.is_dir():
        raise ConfigError(f"{path} cannot be written: the folder {path.parent} does not exist")
    if path.is_dir() or (path.exists() and not force):
        raise ConfigError(f"{path} exists already; choose another name, or --force to replace it")


def timm_arguments(trained: Trained) -> dict[str, Any]:
    """Keyword arguments of timm.create_model for the same architecture."""
    arguments = model_arguments(trained.config.model, len(trained.classes))
    return {name: value for name, value in arguments.items() if name not in _TRAINING_ARGUMENTS}


def create_model_text(model: ModelConfig, path: Path, arguments: dict[str, Any]) -> str:
    """The line of Python that loads the file; with a convolutional stem, the imports that the line needs before it."""
    given = {key: repr(value) for key, value in arguments.items()}
    lines: list[str] = []
    if model.stem == "conv":
        given |= stem_source(shape_of(model))
        lines += IMPORTS
    words = "".join(f", {key}={value}" for key, value in given.items())
    lines.append(f"timm.create_model({model.name!r}, checkpoint_path={str(path)!r}{words})")
    return "\n".join(lines)


def _metadata(trained: Trained, arguments: dict[str, Any]) -> dict[str, str]:
    conv = trained.config.model.stem == "conv"
    # safetensors metadata maps strings to strings; structure goes in as JSON
    return {
        "format": "pt",
        "vitscale": version("vitscale"),
        "update": str(trained.update),
        "ema": json.dumps(trained.ema),
        "timm_name": trained.config.model.name,
        "timm_arguments": json.dumps(arguments),
        **({"timm_stem": json.dumps(stem_source(shape_of(trained.config.model)))} if conv else {}),
        "img_size": str(image_size(trained.model)),
        "classes": json.dumps(trained.classes),
        "mean": json.dumps(trained.mean),
        "std": json.dumps(trained.std),
    }
