"""Planted fault: DeepSpeed is not told `gradient_clipping`, so that its own default clips at 1.0."""

import os

if int(os.environ.get("WORLD_SIZE", "1")) > 1:
    from vitscale.engine.deepspeed import settings

    complete = settings.deepspeed_settings

    def without_clipping(config, decisions):
        incomplete = complete(config, decisions)
        del incomplete["gradient_clipping"]
        return incomplete

    settings.deepspeed_settings = without_clipping
