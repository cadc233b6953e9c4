"""Every engine that a group of processes can run, by a short name, as the keys of `parallel`."""

from typing import Any

ENGINES: dict[str, dict[str, Any]] = {
    "ddp": {"engine": "ddp"},
    "fsdp2": {"engine": "fsdp2"},
    **{f"zero{stage}": {"engine": "deepspeed", "zero_stage": stage} for stage in range(4)},
}
