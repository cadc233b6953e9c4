"""Planted fault: ZeRO-3's memory_efficient_linear left at DeepSpeed's default (true)."""

import os

if int(os.environ.get("RANK", "-1")) >= 0 and os.environ.get("VITSCALE_FAULT_ENGINE", "deepspeed") == "deepspeed":
    from vitscale.engine.deepspeed import settings

    complete = settings.deepspeed_settings

    def default_linear(config, decisions):
        changed = complete(config, decisions)
        if decisions.zero_stage == 3:
            changed["zero_optimization"] = {**changed["zero_optimization"], "memory_efficient_linear": True}
        return changed

    settings.deepspeed_settings = default_linear
