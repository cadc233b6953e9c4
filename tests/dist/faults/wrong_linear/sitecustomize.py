"""Planted fault: in a group of ranks (not in the reference) linear's weight gradient is 1 % too small."""

import os

if int(os.environ.get("WORLD_SIZE", "1")) > 1:
    import torch
    from torch.nn import functional

    right = functional.linear

    def linear(input, weight, bias=None):
        shrunk = 0.99 * weight + 0.01 * weight.detach()
        return right(input, shrunk, bias)

    functional.linear = torch.nn.functional.linear = linear
