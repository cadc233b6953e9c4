"""A profile becomes a forecast and an advice, by arithmetic alone."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from vitscale.config.decide import Decisions, decide
from vitscale.config.load import load_config
from vitscale.config.run import RunConfig
from vitscale.estimate.profile import (
    AllReduce,
    Profile,
    RankProfile,
    Spread,
    StepTimes,
    advice_of,
    forecast_of,
    spread,
)


def exactly(value: float) -> Spread:
    return spread([value])


def rank(per_image: float = 0.001, fixed: float = 0.002, loader: float | None = None) -> RankProfile:
    """forward and backward as 1 to 2, an optimizer of 5 ms."""
    steps = tuple(
        StepTimes(
            images=images,
            forward=exactly(fixed + per_image * images),
            backward=exactly(2 * (fixed + per_image * images)),
            optimizer=exactly(0.005),
        )
        for images in (4, 16)
    )
    return RankProfile(
        host="host",
        device="cpu",
        matrix_flops={"fp32": exactly(1e9)},
        copy_bytes_per_s=exactly(1e9),
        steps=steps,
        loader_images_per_s=None if loader is None else exactly(loader),
    )


def profile(*ranks: RankProfile, beta: float = 1e8) -> Profile:
    sizes = (4096, 2**16, 2**20, 2**22) if len(ranks) > 1 else ()
    points = tuple(AllReduce(num_bytes=size, seconds=exactly(0.0005 + size / beta)) for size in sizes)
    return Profile(made_at="now", backend="gloo", config="digits", ranks=ranks, all_reduce=points)


def run(world_size: int, *changes: str) -> tuple[RunConfig, Decisions]:
    config = load_config("digits", ["train.global_batch_size=none", "train.micro_batch_size=16", *changes])
    return config, decide(config, world_size=world_size)


def test_a_spread_is_the_median_and_the_ends() -> None:
    one = spread([3.0, 1.0, 2.0, 9.0])
    assert (one.value, one.least, one.most, one.repeats) == (2.5, 1.0, 9.0, 4)
    assert one.width == pytest.approx(3.2)


def test_the_step_is_that_of_the_slowest_rank() -> None:
    forecast = forecast_of(profile(rank(), rank(per_image=0.004)), *run(2))
    assert forecast is not None
    told = forecast.predict(16)
    assert told.compute_s == pytest.approx(3 * (0.002 + 0.004 * 16) + 0.005)
    assert told.communication_s > 0


def test_one_process_needs_no_network_and_accumulation_none_of_its_own() -> None:
    forecast = forecast_of(profile(rank()), *run(1))
    assert forecast is not None
    assert forecast.predict(16, 4).exposed_s == 0
    assert forecast.predict(16, 4).step_s == pytest.approx(4 * 3 * 0.018 + 0.005)


def test_the_slowest_loader_counts() -> None:
    forecast = forecast_of(profile(rank(loader=1000.0), rank(loader=100.0)), *run(2))
    assert forecast is not None
    assert forecast.predict(16).loader_s == pytest.approx(0.16)
    assert forecast.predict(16).limit == "loader"


def test_nothing_is_predicted_without_steps_or_a_line_or_a_closed_form() -> None:
    assert forecast_of(profile(rank().model_copy(update={"steps": ()})), *run(1)) is None
    two = profile(rank(), rank())
    assert forecast_of(two.model_copy(update={"all_reduce": two.all_reduce[:1]}), *run(2)) is None
    assert forecast_of(two, *run(2, "model.freeze=[patch_embed]")) is None


def test_a_rank_for_which_all_wait_is_left_out() -> None:
    advice = advice_of(profile(rank(), rank(), rank(per_image=0.02)), *run(3))
    assert advice is not None
    assert advice.dropped == (2,)
    assert advice.underfed.images[2] < 16 < advice.underfed.images[0]
    equal = advice_of(profile(rank(), rank(), rank()), *run(3))
    assert equal is not None
    assert equal.dropped == ()
    assert advice_of(profile(rank()), *run(1)) is None


def test_a_profile_goes_through_json_and_nothing_unknown_is_taken() -> None:
    one = profile(rank(), rank(loader=3.0))
    assert Profile.model_validate_json(one.model_dump_json()) == one
    with pytest.raises(ValidationError):
        Profile.model_validate({**one.model_dump(), "other": 1})
