"""Planted fault: a short window divides by the full batch instead of by its real samples."""

import os

if int(os.environ.get("WORLD_SIZE", "1")) > 1:
    from vitscale.data import batch

    made = batch.UpdateBatch.__init__

    def full(self, micro_batches, num_samples, window, epoch):
        made(self, micro_batches, max(num_samples, 32), window, epoch)

    batch.UpdateBatch.__init__ = full
