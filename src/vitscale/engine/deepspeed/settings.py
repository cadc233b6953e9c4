"""The JSON that DeepSpeed gets: from our config, its decisions, and the user's `deepspeed:` section; and why.

Torch-free and without deepspeed, so that `vitscale show` can print it. docs/deepspeed.md has the measurements behind
the defaults.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from pydantic import ValidationError

from vitscale.config.decide import Decisions
from vitscale.config.overrides import merge
from vitscale.config.performance import Reason
from vitscale.config.run import RunConfig
from vitscale.errors import ConfigError

_BLOCKS = ["timm.models.vision_transformer.Block"]


def deepspeed_settings(config: RunConfig, decisions: Decisions) -> dict[str, Any]:
    """DeepSpeed's config for this run; the user's own keys win where they add to ours (contradictions were refused)."""
    settings: dict[str, Any] = {
        "train_micro_batch_size_per_gpu": decisions.batch.micro_batch_size,
        # The engine owns the accumulation boundary: micro-steps vary at the end of an epoch, and with managed
        # accumulation ZeRO-2 would drop all but the last micro-batch.
        "gradient_accumulation_steps": 1,
        # 0.19.8 clips at 1.0 when this key is missing.
        "gradient_clipping": 0.0 if steps_masters(config, decisions) else config.optim.clip_grad or 0.0,
        "zero_allow_untested_optimizer": True,
        "steps_per_print": 10**9,
        "zero_optimization": _zero(decisions.zero_stage),
        **_precision(config, decisions),
    }
    for path, value, _ in _defaults(config, decisions):
        settings = merge(settings, _nested(path, value))
    return merge(settings, config.deepspeed)


def deepspeed_reasons(config: RunConfig, decisions: Decisions) -> tuple[Reason, ...]:
    """Which of DeepSpeed's own defaults this run changes for speed, and why; not those that the user's section has."""
    own = [
        Reason(f"deepspeed.{path}", str(value).lower() if isinstance(value, bool) else str(value), why)
        for path, value, why in _defaults(config, decisions)
        if _given(config.deepspeed, path) is None
    ]
    if steps_masters(config, decisions):
        why = (
            "one step on fp32 masters, without a wait; DeepSpeed's own wrapper reads a value back from the device for "
            "every weight at every update (deepspeed.bf16.check_grad_overflow=true takes it)"
        )
        own.append(Reason("deepspeed.bf16", "vitscale's optimizer keeps the masters", why))
    return tuple(own)


def steps_masters(config: RunConfig, decisions: Decisions) -> bool:
    """Whether DeepSpeed gets bf16 weights and an optimizer with fp32 masters (engine/deepspeed/masters.py) instead of
    wrapping one itself: under stage 0 in bf16, where only its wrapper could skip updates of non-finite gradients."""
    asked_for_its_own = _given(config.deepspeed, "bf16.check_grad_overflow") is True
    return decisions.zero_stage == 0 and decisions.precision.params == "bf16" and not asked_for_its_own


def _defaults(config: RunConfig, decisions: Decisions) -> Iterator[tuple[str, Any, str]]:
    """(DeepSpeed's key, value, why) for speed; each leaves the mathematics as it is in every other engine."""
    stage = decisions.zero_stage
    yield "timers.throughput.enabled", False, "DeepSpeed's own timer waits for the device twice per update"
    if stage in (1, 2) and decisions.precision.params == "bf16":
        why = "a dozen launches per weight and a wait, to skip updates that no other engine skips in bf16"
        yield "bf16.check_grad_overflow", False, why
    offloads = _offloads(config.deepspeed)
    if stage in (1, 2) and not offloads and config.optim.clip_grad is None:
        why = "nothing clips, so nobody needs the norm: two launches per weight"
        yield "zero_optimization.compute_grad_norm", False, why
    overlaps = stage < 3 and _given(config.deepspeed, "zero_optimization.overlap_comm") is True
    if stage and not offloads and not overlaps:
        why = "gradients are reduced from where they are, without a copy of each into a bucket that is held ready"
        yield "zero_optimization.contiguous_gradients", False, why
    if stage == 3 and not config.model.freeze:
        why = "weights are gathered and hooks run once per block, not once per layer"
        yield "zero_optimization.leaf_module.classes", _BLOCKS, why


def _offloads(section: dict[str, Any]) -> bool:
    """Whether the user's section moves optimizer states off the device, which needs what is left out above."""
    zero = section.get("zero_optimization") or {}
    return any(bool(zero.get(key)) for key in ("offload_optimizer", "cpu_offload", "zenflow"))


def _given(section: dict[str, Any], path: str) -> Any:
    """What the user's section has at a dotted path; None where it has nothing."""
    inner: Any = section
    for key in path.split("."):
        inner = inner.get(key) if isinstance(inner, dict) else None
    return inner


def _nested(path: str, value: Any) -> dict[str, Any]:
    """{"a": {"b": value}} of "a.b"."""
    for key in reversed(path.split(".")):
        value = {key: value}
    return dict(value)


def _zero(stage: int) -> dict[str, Any]:
    zero: dict[str, Any] = {"stage": stage}
    if stage == 3:
        # It replaces torch.nn.functional.linear for the whole process, and gradients vanish under torch.compile.
        zero["memory_efficient_linear"] = False
    return zero


def _precision(config: RunConfig, decisions: Decisions) -> dict[str, Any]:
    compute, params, reduce = decisions.precision
    if compute in ("fp32", "tf32"):
        return {}
    reduced = {"communication_data_type": reduce}
    if params == "fp32":
        return {"torch_autocast": {"enabled": True, "dtype": "bfloat16"}, **reduced}
    if params == "bf16":
        return reduced if steps_masters(config, decisions) else {"bf16": {"enabled": True}, **reduced}
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
