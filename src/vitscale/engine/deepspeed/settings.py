"""The JSON that DeepSpeed gets: from our config, its decisions, and the user's `deepspeed:` section.

Torch-free and without deepspeed, so that `vitscale show` can print it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from pydantic import ValidationError

from vitscale.config.decide import Decisions
from vitscale.config.overrides import merge
from vitscale.config.run import RunConfig
from vitscale.errors import ConfigError


def deepspeed_settings(config: RunConfig, decisions: Decisions) -> dict[str, Any]:
    """DeepSpeed's config for this run; the user's own keys win where they add to ours (contradictions were refused)."""
    stage = decisions.zero_stage
    settings: dict[str, Any] = {
        "train_micro_batch_size_per_gpu": decisions.batch.micro_batch_size,
        # The engine owns the accumulation boundary: micro-steps vary at the end of an epoch, and with managed
        # accumulation ZeRO-2 would drop all but the last micro-batch.
        "gradient_accumulation_steps": 1,
        # 0.19.8 clips at 1.0 when this key is missing.
        "gradient_clipping": config.optim.clip_grad or 0.0,
        "zero_allow_untested_optimizer": True,
        "steps_per_print": 10**9,
        "zero_optimization": _zero(stage),
        **_precision(decisions),
    }
    return merge(settings, config.deepspeed)


def _zero(stage: int) -> dict[str, Any]:
    zero: dict[str, Any] = {"stage": stage}
    if stage == 3:
        # It replaces torch.nn.functional.linear for the whole process, and gradients vanish under torch.compile.
        zero["memory_efficient_linear"] = False
    return zero


def _precision(decisions: Decisions) -> dict[str, Any]:
    compute, params, reduce = decisions.precision
    if compute in ("fp32", "tf32"):
        return {}
    reduced = {"communication_data_type": reduce}
    if params == "fp32":
        return {"torch_autocast": {"enabled": True, "dtype": "bfloat16"}, **reduced}
    if params == "bf16":
        return {"bf16": {"enabled": True}, **reduced}
    return {"fp16": {"enabled": True, "loss_scale": 0}, **reduced}


@contextmanager
def naming_refused_keys(section: dict[str, Any]) -> Iterator[None]:
    """Turn DeepSpeed's refusal of a value in the user's section into a ConfigError that names the key."""
    try:
        yield
    except ValidationError as error:
        problem = error.errors(include_url=False)[0]
        name = str(problem["loc"][-1]) if problem["loc"] else error.title
        key = next((key for key in _dotted(section) if key.rpartition(".")[2] == name), name)
        raise ConfigError(f"deepspeed.{key}={problem['input']} is refused by DeepSpeed: {problem['msg']}") from None
    except AssertionError as error:  # how DeepSpeed refuses combinations
        if not section:
            raise
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise ConfigError(
            f"DeepSpeed refuses the deepspeed section ({', '.join(_dotted(section))}): {reason}"
        ) from error


def _dotted(section: dict[str, Any], prefix: str = "") -> Iterator[str]:
    """Every key that holds a value."""
    for name, value in section.items():
        if isinstance(value, dict):
            yield from _dotted(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}"
