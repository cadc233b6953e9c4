"""DeepSpeed's FusedAdam, for DeepSpeed's own wrapper of stage 0 below fp32, which is slow with any other optimizer.

In: parameter groups and OptimConfig. Out: the optimizer, or None where its kernel cannot be compiled.
"""

from __future__ import annotations

import logging

import torch

from vitscale.config.run import OptimConfig
from vitscale.optim.groups import ParamGroup


def fused_adam(groups: list[ParamGroup], config: OptimConfig) -> torch.optim.Optimizer | None:
    """DeepSpeed's FusedAdam, compiled at its first use; None, with a warning, where it cannot be compiled."""
    from deepspeed.ops.adam import FusedAdam

    try:
        built: torch.optim.Optimizer = FusedAdam(groups, betas=config.betas, eps=config.eps, adam_w_mode=True)
    except Exception as error:  # whatever its build raises: no compiler, no toolkit, another CUDA version
        logging.getLogger(__name__).warning(
            "DeepSpeed's FusedAdam cannot be built here (%s); DeepSpeed's wrapper of zero_stage 0 is slow without it, "
            "zero_stage 1 is not",
            str(error).splitlines()[0] if str(error) else type(error).__name__,
        )
        return None
    return built
