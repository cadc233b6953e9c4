"""Planted fault: DeepSpeed is not told `gradient_clipping`, so that its own default clips at 1.0.

Nor that nobody needs the norm: it would refuse to clip then, and the fault would be no silent one.
"""

import os

if int(os.environ.get("WORLD_SIZE", "1")) > 1:
    from vitscale.engine.deepspeed import settings

    complete = settings.deepspeed_settings

    def without_clipping(config, decisions):
        incomplete = complete(config, decisions)
        del incomplete["gradient_clipping"]
        incomplete["zero_optimization"].pop("compute_grad_norm", None)
        return incomplete

    settings.deepspeed_settings = without_clipping
