"""TrainLoader and EvalLoader: images become the MicroBatches of one rank, on its device.

In: an ImageSet, the config, the batch identity, this rank's place. Out: UpdateBatches for any range of windows (train)
or MicroBatches that cover each sample once (eval). Stateless between calls: every draw of window w is made for all
positions of the global batch from (seed, purpose, w) and then sliced, so neither the world size nor the split into
micro-steps nor a restart changes what a sample looks like.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from vitscale.config.augment import check_augmentation
from vitscale.config.balance import divide
from vitscale.config.batch import BatchTriple
from vitscale.config.run import DataConfig, RunConfig, TrainConfig
from vitscale.data.batch import MicroBatch, UpdateBatch
from vitscale.data.draws import Purpose, uniform, words
from vitscale.data.erasing import draw_holes, erase
from vitscale.data.feed import Job, Reader, Staged, Stager, may_stay, read_ahead, resident_pixels
from vitscale.data.images import ImageSet
from vitscale.data.mix import PairMix, draw_pairs, mix_images, mix_rows, mixes, one_hot
from vitscale.data.randaugment import RandAugment, draw_operations
from vitscale.data.sampler import Sampler, Window, share
from vitscale.data.transforms import (
    WorkerTransform,
    as_channels,
    choose_augment_on,
    crop_and_flip,
    to_input,
)
from vitscale.errors import ConfigError
from vitscale.phases import NULL, Recorder

CPU = torch.device("cpu")


@dataclass(frozen=True)
class _MicroPlan:
    """One micro-step before its images are read; arrays are rows of the micro-batch, padding included."""

    job: Job
    targets: NDArray[np.int64]
    weights: NDArray[np.float32]
    draws: NDArray[np.float32] | None
    holes: NDArray[np.int64] | None
    mix: PairMix | None
    augment_on_device: bool

    def tensors(self) -> dict[str, torch.Tensor]:
        """What goes to the device beside the images."""
        arrays: dict[str, NDArray[np.generic]] = {"targets": self.targets, "weights": self.weights}
        if self.augment_on_device:
            arrays |= {"placement": self.job.placement, "codes": self.job.codes}
        if self.draws is not None:
            arrays["draws"] = self.draws
        if self.holes is not None:
            arrays["holes"] = self.holes
        if self.mix is not None:
            arrays |= {"keep": self.mix.keep, "boxes": self.mix.boxes}
        return {name: torch.from_numpy(array) for name, array in arrays.items()}


@dataclass(frozen=True)
class _WindowDraws:
    """All draws of one window, for every position of the global batch, and its samples."""

    window: Window
    placement: NDArray[np.float32]
    codes: NDArray[np.int64]
    seeds: NDArray[np.uint64]
    drop_path: NDArray[np.float32] | None
    holes: NDArray[np.int64] | None
    mix: PairMix | None


def class_weights(train: TrainConfig, labels: NDArray[np.int64], num_classes: int) -> NDArray[np.float32] | None:
    """Loss weight per class, or None. balanced: n / (classes present * count), whose mean over the images is 1."""
    if train.class_weights == "none":
        return None
    if train.class_weights == "balanced":
        counts = np.bincount(labels, minlength=num_classes)
        return (len(labels) / (np.count_nonzero(counts) * np.maximum(counts, 1))).astype(np.float32)
    if len(train.class_weights) != num_classes:
        raise ConfigError(
            f"train.class_weights has {len(train.class_weights)} values but the model has {num_classes} classes; "
            "give one per class"
        )
    return np.asarray(train.class_weights, dtype=np.float32)


class TrainLoader:
    """The training data of one rank. augment_on says where augmentation runs; notes says what is dropped or odd."""

    def __init__(
        self,
        train: ImageSet,
        config: RunConfig,
        batch: BatchTriple,
        *,
        img_size: int,
        mean: tuple[float, ...],
        std: tuple[float, ...],
        num_classes: int,
        num_draws: int = 0,
        rank: int = 0,
        world_size: int = 1,
        device: torch.device = CPU,
        pad_to_micro_batch: bool = False,
        recorder: Recorder = NULL,
        shares: Sequence[int] = (),
    ) -> None:
        """shares: images of a micro-step by rank; without them batch.micro_batch_size on each."""
        data = config.data
        check_augmentation(data, len(mean))
        self.train, self.data, self.batch = train, data, batch
        self.img_size, self.mean = img_size, mean
        self.num_classes, self.num_draws = num_classes, num_draws
        self.rank, self.world_size, self.device = rank, world_size, device
        self.pad_to_micro_batch, self.recorder = pad_to_micro_batch, recorder
        self.seed = config.train.seed
        self.unit = 2 if mixes(data) else 1
        self.sampler = Sampler(len(train), batch.global_batch_size, self.seed, data.drop_last)
        self.updates_per_epoch = self.sampler.updates_per_epoch
        self.augment_on = choose_augment_on(data, train.pixels is not None)
        self._augment_on_device = self.augment_on == "device" and _augments(data)
        self._randaugment: RandAugment | None = None  # made with the first batch, whose images have its size
        self._mean, self._std = as_channels(mean, device), as_channels(std, device)
        self._class_weights = class_weights(config.train, train.labels, num_classes)
        self._reader = self._make_reader()
        keep = config.performance.data_on_device and self._reader.transform is None
        self._resident = resident_pixels(train.pixels, device) if keep else None
        self._stager = Stager(device, beside=self._resident is None)
        self.rebalance(shares or (batch.micro_batch_size,) * world_size)

    def rebalance(self, shares: Sequence[int]) -> None:
        """Take these images of each micro-step by rank from the next `iterate` on."""
        share(self.batch.global_batch_size, self.rank, shares, self.unit)  # refuses odd pairs now
        self.shares = tuple(shares)

    def _make_reader(self) -> Reader:
        in_memory = self.train.pixels is not None
        in_workers = self.augment_on == "workers"
        if in_memory and not (in_workers and _augments(self.data)):
            return Reader(self.train, None)
        transform = WorkerTransform(self.data, self.img_size, in_memory=in_memory, augment=in_workers)
        return Reader(self.train, transform)

    @property
    def notes(self) -> tuple[str, ...]:
        """Sentences about what an epoch drops or cuts short."""
        rest, total = self.sampler.left_over, self.batch.global_batch_size
        if not rest:
            return ()
        if self.data.drop_last:
            return (f"data.drop_last leaves out {rest} of {len(self.train):,} images of each epoch, others each time",)
        return (f"the last update of each epoch has {rest} of {total} images",)

    def iterate(self, start_window: int, stop_window: int) -> Iterator[UpdateBatch]:
        """The updates of windows start_window..stop_window, counted from 0 over the run.

        Reads ahead, and copies one update ahead; close the iterator to stop both.
        """
        plans: deque[tuple[Window, list[_MicroPlan]]] = deque()
        images = self._images(self._jobs(start_window, stop_window, plans))
        ahead: deque[tuple[Window, list[Staged]]] = deque()
        for _ in range(start_window, stop_window):
            ahead.append(self._stage(images, plans))
            if len(ahead) > 1:
                yield self._finish(*ahead.popleft())
        while ahead:
            yield self._finish(*ahead.popleft())

    @property
    def reads_ahead(self) -> bool:
        """Whether images are read while the device computes; else between the updates."""
        return self._workers > 0 or self.device.type == "cuda"

    @property
    def _workers(self) -> int:
        return self.data.workers if self._reader.transform is not None else 0

    def _images(self, jobs: Iterator[Job]) -> Iterator[torch.Tensor]:
        """The images of each job, uint8 (B, C, h, w); only their numbers, int64 (B,), if the set is on the device."""
        if self._resident is not None:
            return (torch.from_numpy(job.indices) for job in jobs)
        return read_ahead(self._reader, jobs, self._workers, self.device)

    def _jobs(
        self, start_window: int, stop_window: int, plans: deque[tuple[Window, list[_MicroPlan]]]
    ) -> Iterator[Job]:
        for number in range(start_window, stop_window):
            draws = self._draw(self.sampler.window(number))
            ranges = share(len(draws.window.indices), self.rank, self.shares, self.unit)
            micro_plans = [self._plan(draws, start, stop) for start, stop in ranges]
            plans.append((draws.window, micro_plans))
            yield from (plan.job for plan in micro_plans)

    def _draw(self, window: Window) -> _WindowDraws:
        total, number = self.batch.global_batch_size, window.window
        random = _augments(self.data)
        zeros = np.zeros((total, 3), np.float32)
        data = self.data
        return _WindowDraws(
            window,
            placement=uniform(self.seed, Purpose.CROP_FLIP, number, (total, 3)) if random else zeros,
            codes=draw_operations(self.seed, number, total, data.randaugment),
            seeds=words(self.seed, Purpose.WORKER, number, total) if random else np.zeros(total, np.uint64),
            drop_path=uniform(self.seed, Purpose.DROP_PATH, number, (total, self.num_draws))
            if self.num_draws
            else None,
            holes=draw_holes(data.random_erasing, self.seed, number, total, self.img_size)
            if data.random_erasing
            else None,
            mix=draw_pairs(self.data, self.seed, number, total // 2, self.img_size) if self.unit == 2 else None,
        )

    def _plan(self, draws: _WindowDraws, start: int, stop: int) -> _MicroPlan:
        """The micro-step of positions start..stop; padding repeats the last position with weight 0."""
        num_real = stop - start
        length = self.shares[self.rank] if self.pad_to_micro_batch else max(num_real, 1)
        positions = np.minimum(np.arange(start, start + length), max(stop - 1, start))
        indices = draws.window.indices[positions]
        targets = self.train.labels[indices]
        weights = (np.arange(length) < num_real).astype(np.float32)
        if self._class_weights is not None:
            weights *= self._class_weights[targets]
        return _MicroPlan(
            Job(indices, draws.placement[positions], draws.codes[positions], draws.seeds[positions]),
            targets,
            weights,
            None if draws.drop_path is None else draws.drop_path[positions],
            None if draws.holes is None else draws.holes[positions],
            None if draws.mix is None else draws.mix.part(start // 2, length // 2, num_real // 2),
            self._augment_on_device,
        )

    def _make_randaugment(self, images: torch.Tensor) -> RandAugment:
        return RandAugment(self.data.randaugment_magnitude, images.shape[1:], self.device)

    def _stage(
        self, images: Iterator[torch.Tensor], plans: deque[tuple[Window, list[_MicroPlan]]]
    ) -> tuple[Window, list[Staged]]:
        """Wait for the images of one update and begin to copy them."""
        with self.recorder.phase("data_wait"):
            pixels = [next(images)]
            window, micro_plans = plans.popleft()  # made by the job whose images have just come
            pixels += [next(images) for _ in micro_plans[1:]]
        with self.recorder.phase("host_to_device"):
            pairs = zip(pixels, micro_plans, strict=True)
            return window, [self._stager.start({"images": one, **plan.tensors()}) for one, plan in pairs]

    def _finish(self, window: Window, staged: list[Staged]) -> UpdateBatch:
        with self.recorder.phase("host_to_device"):
            micro_batches = tuple(self._augment(self._stager.finish(one)) for one in staged)
        return UpdateBatch(micro_batches, len(window.indices), window.window, window.epoch)

    def _augment(self, tensors: dict[str, torch.Tensor]) -> MicroBatch:
        """The device's part: crop, flip and RandAugment (device path), resize, normalise, erase, mix."""
        images, targets, weights = tensors["images"], tensors["targets"], tensors["weights"]
        if self._resident is not None:
            images = self._resident[images]
        if self._augment_on_device:
            images = crop_and_flip(images, tensors["placement"], self.data.crop_padding, self.data.flip)
            if self.data.randaugment:
                self._randaugment = self._randaugment or self._make_randaugment(images)
                images = self._randaugment(images, tensors["codes"])
        images = to_input(images, self.img_size, self._mean, self._std)
        if "holes" in tensors:
            images = erase(images, tensors["holes"])
        if "keep" in tensors:
            keep = tensors["keep"]
            images = mix_images(images, keep, tensors["boxes"])
            targets, weights = mix_rows(one_hot(targets, self.num_classes), keep), mix_rows(weights, keep)
        return MicroBatch(images, targets, weights, tensors.get("draws"))


def _augments(data: DataConfig) -> bool:
    """True if any transform before the resize to the model's input is random."""
    return bool(data.flip or data.crop_padding or data.random_resized_crop or data.randaugment)


class EvalLoader:
    """One split in its own order, each sample once over all ranks, the same number of micro-batches on every rank.

    A rank short of samples gets an image of weight 0. Iterate as often as needed; a set in memory that may stay on the
    GPU is copied there by the first whole pass only.
    """

    def __init__(
        self,
        split: ImageSet,
        config: RunConfig,
        *,
        micro_batch_size: int,
        img_size: int,
        mean: tuple[float, ...],
        std: tuple[float, ...],
        rank: int = 0,
        world_size: int = 1,
        device: torch.device = CPU,
        pad_to_micro_batch: bool = False,
        shares: Sequence[int] = (),
    ) -> None:
        """shares: in which proportion the ranks share a micro-step of micro_batch_size x world_size images."""
        self.split, self.rank, self.pad_to_micro_batch = split, rank, pad_to_micro_batch
        self._together = micro_batch_size * world_size
        self.img_size, self.device = img_size, device
        self._mean, self._std = as_channels(mean, device), as_channels(std, device)
        self.rebalance(shares or (1,) * world_size)
        data, in_memory = config.data, split.pixels is not None
        in_worker = WorkerTransform(data, img_size, in_memory=False, augment=False, crop_share=data.eval_crop)
        self._reader = Reader(split, None if in_memory else in_worker)
        self._workers = 0 if in_memory else data.workers
        self._crop_share = data.eval_crop if in_memory else 1.0
        self._stager = Stager(device)
        self._keep = config.performance.data_on_device and may_stay(split.pixels, device)

    def rebalance(self, shares: Sequence[int]) -> None:
        """Share in this proportion from the next iteration on."""
        sizes = divide(shares, self._together)
        self.micro_batch_size = sizes[self.rank]
        self._ranges = share(len(self.split), self.rank, sizes)
        self._kept: list[dict[str, torch.Tensor]] | None = None

    def __len__(self) -> int:
        return len(self._ranges)

    def __iter__(self) -> Iterator[MicroBatch]:
        if self._kept is not None:
            yield from map(self._micro_batch, self._kept)
            return
        copied: list[dict[str, torch.Tensor]] = []
        for tensors in self._read():
            if self._keep:
                copied.append(tensors)
            yield self._micro_batch(tensors)
        if self._keep:  # a pass that was given up comes not here
            self._kept = copied

    def _read(self) -> Iterator[dict[str, torch.Tensor]]:
        """Every micro-batch as uint8 images, targets and weights, on the device."""
        jobs = [self._job(start, stop) for start, stop in self._ranges]
        images = read_ahead(self._reader, jobs, self._workers, self.device)
        for (start, stop), job, pixels in zip(self._ranges, jobs, images, strict=True):
            weights = torch.from_numpy((np.arange(len(job.indices)) < stop - start).astype(np.float32))
            targets = torch.from_numpy(self.split.labels[job.indices])
            yield self._stager.finish(self._stager.start({"images": pixels, "targets": targets, "weights": weights}))

    def _job(self, start: int, stop: int) -> Job:
        length = self.micro_batch_size if self.pad_to_micro_batch else max(stop - start, 1)
        indices = np.minimum(np.arange(start, start + length), max(stop - 1, start))
        nothing = np.zeros((length, 0), dtype=np.int64)
        return Job(indices, np.zeros((length, 3), dtype=np.float32), nothing, np.zeros(length, dtype=np.uint64))

    def _micro_batch(self, tensors: dict[str, torch.Tensor]) -> MicroBatch:
        images = to_input(tensors["images"], self.img_size, self._mean, self._std, self._crop_share)
        return MicroBatch(images, tensors["targets"], tensors["weights"])
