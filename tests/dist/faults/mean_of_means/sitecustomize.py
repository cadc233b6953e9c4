"""Planted fault: each rank takes the mean over its own images, and the ranks' means are averaged: right only where all
ranks have as many."""

import os

if int(os.environ.get("WORLD_SIZE", "1")) > 1:
    from vitscale.data import batch

    made = batch.UpdateBatch.__init__

    def own_mean(self, micro_batches, num_samples, window, epoch):
        own = sum(int((micro.weights > 0).sum()) for micro in micro_batches)
        made(self, micro_batches, max(own, 1) * int(os.environ["WORLD_SIZE"]), window, epoch)

    batch.UpdateBatch.__init__ = own_mean
