"""Which of DeepSpeed's keys may stand in the `deepspeed:` section. Torch-free, and without importing deepspeed.

DeepSpeed ignores unknown top-level keys without a word, so a typing error would change the run unseen. The tables in
deepspeed_keys/ hold what each version knows (made by tests/config/deepspeed_table.py, compared by a test); `_OURS`
holds what vitscale decides itself, so that no key has two owners.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterator
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from importlib.resources import files
from typing import Any

from vitscale.errors import ConfigError

_TABLES = files("vitscale.config") / "deepspeed_keys"

# DeepSpeed's key -> what to set instead. A whole section stands for all keys in it.
_OURS = {
    "train_batch_size": "set train.global_batch_size",
    "train_micro_batch_size_per_gpu": "set train.micro_batch_size",
    "gradient_accumulation_steps": "set train.grad_accum_steps",
    "managed_gradient_accumulation": "set train.grad_accum_steps",
    "gradient_clipping": "set optim.clip_grad",
    "gradient_allreduce_op": "an update is always the mean over its images",
    "optimizer": "set optim.name, optim.lr and the other keys of optim",
    "scheduler": "set optim.schedule and optim.warmup_updates",
    "zero_allow_untested_optimizer": "vitscale gives DeepSpeed its own optimizer, so it is always on",
    "communication_data_type": "set precision.reduce",
    "fp16.enabled": "set precision.compute=fp16",
    "fp16.auto_cast": "set precision.compute=fp16",
    "fp16.fp16_master_weights_and_grads": "set precision.params; masters are fp32",
    "bf16.enabled": "set precision.compute=bf16",
    "bf16.bf16_master_weights_and_grads": "set precision.params; masters are fp32",
    "bf16.bf16_optimizer_states": "set precision.params; optimizer states are fp32",
    "bfloat16": "set precision.compute=bf16",
    "torch_autocast": "set precision.compute=bf16 and precision.params=fp32",
    "data_types": "set precision.params and precision.reduce",
    "zero_optimization.stage": "set parallel.zero_stage",
    "activation_checkpointing": "set performance.checkpointing",
    "compile": "set performance.compile",
    "checkpoint": "set the keys of checkpoint; another number of processes is handled at resume",
    "datastates_ckpt": "set the keys of checkpoint",
    "dataloader_drop_last": "set data.drop_last",
    "data_efficiency": "vitscale's loader feeds DeepSpeed, so this would have no effect",
    "tensorboard": "set log.tensorboard",
    "wandb": "set log.wandb",
    "tensor_parallel": "vitscale does not use it",
    "expert_parallel": "vitscale does not use it",
    "pipeline": "vitscale does not use it",
    "hybrid_engine": "vitscale does not use it",
    "autotuning": "vitscale does not use it",
    "weight_quantization": "vitscale does not use it",
}


def check_deepspeed_section(section: dict[str, Any]) -> None:
    """Raise ConfigError at the first key that DeepSpeed does not know, or that belongs to another section of ours."""
    table = _table()
    known: dict[str, Any] = table["keys"]
    for path, value in _walk(section, known):
        key = ".".join(path)
        if instead := _OURS.get(key):
            raise ConfigError(f"deepspeed.{key} is decided by vitscale: {instead}")
        if key in table["removed"]:
            raise ConfigError(f"deepspeed.{key}: DeepSpeed {table['deepspeed']} no longer has it; remove the key")
        inside = _inside(known, path[:-1])
        if path[-1] not in inside:
            tail = _nearest(path, known)
            raise ConfigError(f"DeepSpeed {table['deepspeed']} does not know deepspeed.{key}{tail}")
        cleared = value is None and len(path) > 1  # DeepSpeed reads a null inner section as absent
        if inside[path[-1]] is not None and not isinstance(value, dict) and not cleared:
            raise ConfigError(f"deepspeed.{key} is a section and holds keys, not {value!r}")
    _check_nvme(section)


def _check_nvme(section: dict[str, Any]) -> None:
    """Refuse swapping to NVMe: ZeRO-3 (0.19.8) may step on stale memory without a word, ZeRO-2 ignores the key."""
    for name in ("offload_optimizer", "offload_param"):
        offload = section.get("zero_optimization", {}).get(name) or {}
        if offload.get("device") == "nvme":
            raise ConfigError(
                f"deepspeed.zero_optimization.{name}.device=nvme: DeepSpeed {_table()['deepspeed']} trains on wrong "
                "values when it swaps to disk; use device=cpu"
            )


def _walk(section: dict[str, Any], known: dict[str, Any], prefix: tuple[str, ...] = ()) -> Iterator[tuple[Any, Any]]:
    """All (path, value) of a section, outer keys first, without what lies inside free-form values."""
    for key, value in section.items():
        path = (*prefix, str(key))
        yield path, value
        if isinstance(value, dict) and isinstance(known.get(key), dict):
            yield from _walk(value, known[key], path)


def _inside(known: dict[str, Any], path: tuple[str, ...]) -> dict[str, Any]:
    for key in path:
        known = known[key]
    return known


def _nearest(path: tuple[str, ...], known: dict[str, Any]) -> str:
    """The nearest name in the same section, else anywhere; our own name where the key is ours."""
    prefix = "".join(f"{part}." for part in path[:-1])
    here = {name: f"{prefix}{name}" for name in _inside(known, path[:-1])}
    everywhere = {place.rpartition(".")[2]: place for place in _places(known)}
    for names, cutoff in ((here, 0.6), (everywhere, 0.75)):
        if found := difflib.get_close_matches(path[-1], list(names), n=1, cutoff=cutoff):
            place = names[found[0]]
            instead = _OURS.get(place)
            return f" (did you mean {place}? then {instead})" if instead else f" (did you mean deepspeed.{place}?)"
    return "; its documentation lists the keys: https://www.deepspeed.ai/docs/config-json/"


def _places(known: dict[str, Any], prefix: str = "") -> Iterator[str]:
    for key, inner in known.items():
        yield f"{prefix}{key}"
        if inner:
            yield from _places(inner, f"{prefix}{key}.")


@cache
def _table() -> dict[str, Any]:
    """The table of the installed DeepSpeed, else of the nearest version below it, else the oldest."""
    tables = {_numbers(name): entry for entry in _TABLES.iterdir() if (name := entry.name).endswith(".json")}
    try:
        installed = _numbers(version("deepspeed"))
    except PackageNotFoundError:
        installed = max(tables)
    chosen = max((numbers for numbers in tables if numbers <= installed), default=min(tables))
    table: dict[str, Any] = json.loads(tables[chosen].read_text(encoding="utf-8"))
    return table


def _numbers(text: str) -> tuple[int, ...]:
    """0.19.8 or 0.19.8.json -> (0, 19, 8); what is not a number ends it."""
    parts = text.split("+")[0].split(".")
    return tuple(int(part) for part in parts if part.isdigit())
