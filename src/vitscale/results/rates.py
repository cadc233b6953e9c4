"""The figure of one run: its step time and images per second, from raw values. Torch-free.

In: a Record. Out: one number, or None where nobody measured it. Medians over updates; comparing runs is for analysis.
"""

from __future__ import annotations

from statistics import median

from vitscale.results.record import Record


def step_time_s(record: Record) -> float | None:
    """The median of the counted updates of one run."""
    steps = record.measurement.step_time_s if record.measurement else ()
    middle = median(steps) if steps else 0.0
    return middle if middle > 0 else None


def pace(record: Record) -> float | None:
    """Step time, or the mean time of an epoch where there are no steps."""
    if (step := step_time_s(record)) is not None:
        return step
    return record.epoch_times.mean_s if record.epoch_times and record.epoch_times.mean_s > 0 else None


def images_per_s(record: Record) -> float | None:
    """The median over updates of images by seconds; from the time of an epoch where there are no steps."""
    steps = record.measurement.step_time_s if record.measurement else ()
    if steps and record.measurement:
        images = record.measurement.images or ((record.identity.global_batch_size,) * len(steps))
        pairs = [count / step for count, step in zip(images, steps, strict=False) if count and step > 0]
        return median(pairs) if pairs else None
    if record.epoch_times and record.epoch_times.mean_s > 0 and record.identity.train_images:
        return record.identity.train_images / record.epoch_times.mean_s
    return None
