"""A RUN opened for use: the model with a checkpoint's weights, and what is needed to feed it new images.

In: a run folder, finished or still training, and which of its checkpoints. Out: Trained. Nothing is unpickled, and
the training data need not be there. Not here: resuming, which needs the engine's own state.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from timm.models.vision_transformer import VisionTransformer

from vitscale.checkpoint import find_checkpoint, read_state, read_weights
from vitscale.config.load import load_config
from vitscale.config.run import RunConfig
from vitscale.errors import CheckpointError, ModelError
from vitscale.models.build import build_model
from vitscale.models.weights import check_names, check_shapes
from vitscale.results.run_folder import CONFIG_FILE, check_is_run


@dataclass(frozen=True)
class Trained:
    """A trained model in eval mode on the CPU, in fp32.

    classes: a name per output of the head. mean, std: the normalisation that it was trained with, per channel.
    """

    model: VisionTransformer
    config: RunConfig
    classes: tuple[str, ...]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    checkpoint: Path
    update: int
    ema: bool

    def forward_on(self, device: torch.device) -> Callable[[torch.Tensor], torch.Tensor]:
        """Move the model to `device`; return its forward without gradients."""
        model = self.model.to(device)

        @torch.inference_mode()
        def forward(images: torch.Tensor) -> torch.Tensor:
            logits: torch.Tensor = model(images)
            return logits

        return forward


def open_run(run: Path, which: str = "best", *, ema: bool | None = None) -> Trained:
    """Open the checkpoint `which` ("best", "last" or its name) of `run`; ema None: as eval.use_ema says.

    Raises RunFolderError if `run` is no run folder, CheckpointError if the checkpoint is missing, damaged or of
    another model than RUN/config.yaml describes.
    """
    check_is_run(run)
    config = load_config(run / CONFIG_FILE)
    checkpoint = find_checkpoint(run, which)
    ema = config.eval.use_ema if ema is None else ema
    weights = read_weights(checkpoint, ema=ema)
    state = read_state(checkpoint)
    classes, mean, std = (tuple(state.identity[key]) for key in ("classes", "mean", "std"))
    num_classes = config.model.num_classes or len(classes)
    classes += tuple(f"class {index}" for index in range(len(classes), num_classes))
    model = _with_weights(config, num_classes, weights, checkpoint)
    return Trained(model, config, classes, mean, std, checkpoint, state.update, ema)


def _with_weights(
    config: RunConfig, num_classes: int, weights: dict[str, torch.Tensor], checkpoint: Path
) -> VisionTransformer:
    # the file of model.pretrained may be gone, and its weights would be overwritten anyhow
    bare = config.model.model_copy(update={"pretrained": None, "freeze": ()})
    model = build_model(bare, num_classes, seed=0)
    try:
        check_names(model.state_dict(), weights, checkpoint)
        check_shapes(model.state_dict(), weights, checkpoint)
    except ModelError as error:
        raise CheckpointError(f"the checkpoint is of another model than config.yaml describes: {error}") from None
    model.load_state_dict(weights)
    return model.eval()
