"""The verdict sets beside each other what is alike, and says what grows: targets, rivals, grids, noise, fit."""

from __future__ import annotations

from typing import Any

import pytest
import report_making as make

from vitscale.analysis.summary import Fit, Interval
from vitscale.report import claims, table, tiles
from vitscale.report.verdict import statements


def about(summary: Any, topic: str) -> list[str]:
    return [s.sentence for s in statements(summary) if s.topic == topic]


def reached(name: str, seconds: float, **more: Any) -> Any:
    return make.case(
        name, accuracy=Interval(0.9), accuracy_split="val", target=0.9, seconds_to_target=make.around(seconds), **more
    )


def test_times_to_a_target_do_not_cross_precisions():
    other = {"precision": "fp32/fp32/fp32"}
    told = about(make.summary(reached("a", 100), reached("b", 150, engine="fsdp2", identity=other)), "Accuracy")
    assert len(told) == 2
    assert all("the next" not in text for text in told)
    assert told[0].startswith("bf16/bf16/bf16: 90.0 % validation accuracy is reached first by ddp")
    assert told[1].startswith("fp32/fp32/fp32: 90.0 % validation accuracy is reached first by fsdp2")


@pytest.mark.parametrize("other", [{"data_source": "cifar10"}, {"device_names": ("T4", "T4")}, {"img_size": 32}])
def test_times_to_a_target_do_not_cross_set_ups(other: dict[str, Any]):
    told = about(make.summary(reached("a", 100), reached("b", 150, engine="fsdp2", identity=other)), "Accuracy")
    assert len(told) == 2
    assert all("the next" not in text for text in told)


def test_times_to_a_target_on_other_numbers_of_devices_are_figures():
    cases = reached("a", 100), reached("b", 150, engine="fsdp2"), reached("c", 60, world_size=4)
    (told,) = about(make.summary(*cases), "Accuracy")
    assert "reached first by ddp, global_batch_size 128, 2 GPUs" in told
    assert "the next, fsdp2" in told
    assert "On other numbers of devices the first is ddp, global_batch_size 256, 4 GPUs (60.0 s)." in told


def test_cases_that_reach_a_target_have_names_that_differ():
    cases = [reached(f"lr{lr}", 100 + 1000 * lr, axes={"lr": lr}) for lr in (0.1, 0.2)]
    (told,) = about(make.summary(*cases, axes=("lr",)), "Accuracy")
    assert "first by ddp, global_batch_size 128, 2 GPUs (lr 0.1)" in told
    assert "the next, ddp, global_batch_size 128, 2 GPUs (lr 0.2)" in told
    same = [reached(name, seconds, axes={}) for name, seconds in (("x", 100), ("y", 200))]
    (told,) = about(make.summary(*same, axes=()), "Accuracy")
    assert "2 GPUs (x)" in told
    assert "2 GPUs (y)" in told


def test_an_interval_is_wider_for_a_claim_picked_from_many():
    a, b = make.around(103.2), make.around(100, 0.02)
    assert claims.compare(a, b, (3, 3), 0.02).answer == "more"
    many = claims.compare(a, b, (3, 3), 0.02, 20)
    assert many.answer == "not shown"
    assert many.ratio.low is not None
    assert many.ratio.low < 1


def test_the_fastest_of_many_needs_more_than_the_faster_of_two():
    def ranked(engines: int) -> str:
        cases = [make.case("ours", 1032)]
        cases += [make.case(str(i), 1000, engine=f"e{i}", spread=0.02) for i in range(engines)]
        return " ".join(about(make.summary(*cases, axes=("engine",)), "Fastest"))

    assert "ddp is the fastest" in ranked(1)
    assert "no difference is shown" in ranked(20)


def test_only_deepspeed_fits_is_all_that_is_said_without_fsdp2():
    cases = [make.case("a", None, micro=512), make.case("b", 900, engine="deepspeed", zero_stage=3, micro=512)]
    told = " ".join(about(make.summary(*cases), "DeepSpeed"))
    assert "Of the engines tried, only DeepSpeed fits micro_batch_size 512 on 2 GPUs: ddp ran out" in told
    assert "needed to fit" not in told
    sharded = [*cases, make.case("c", None, engine="fsdp2", micro=512)]
    assert "DeepSpeed is needed to fit" in " ".join(about(make.summary(*sharded), "DeepSpeed"))


def grid(mode: str, micro: dict[int, int]) -> str:
    line = [make.case(f"x{n}", 900 * n, world_size=n, micro=m, axes={"world_size": n}) for n, m in micro.items()]
    fit = Fit("amdahl", {"p": Interval(0.95, 0.94, 0.96)}, ((1, 1), (2, 1.9)))
    series = make.series("s", line, mode=mode, fixed="global" if mode == "strong" else None, fits=(fit,))
    return " ".join(about(make.summary(*line, axes=("world_size",), series=(series,)), "Scaling"))


def test_a_grid_whose_batch_grows_says_so_and_has_no_limit_by_amdahl():
    told = grid("grid", {1: 64, 2: 64})
    assert told.startswith("With a global batch that grows from 64 to 128, 2 GPUs instead of 1 give")
    assert "Amdahl" not in told
    fixed = grid("grid", {1: 64, 2: 32})
    assert "grows" not in fixed
    assert "Amdahl" in fixed
    assert "Amdahl" in grid("strong", {1: 64, 2: 32})


def test_the_last_step_says_how_much_it_adds():
    assert "The step from 1 to 2 GPUs still adds 100 %." in grid("strong", {1: 64, 2: 32})


def test_above_a_floor_of_100_percent_nothing_is_claimed():
    cases = make.case("a", 9000), make.case("b", 1000, engine="fsdp2")
    made = make.summary(*cases, noise_floor=1.5)
    (told,) = about(made, "Noise floor")
    assert told.startswith("The runs differ too much for any claim")
    assert "is the fastest" not in " ".join(about(made, "Fastest"))
    assert claims.compare(make.around(9), make.around(1), (3, 3), 1.5).answer == "not shown"
    shown = [tile for tile in tiles.tiles(made) if tile.title == "Noise floor"]
    assert shown[0].figure == "over 100 %"


def test_power_is_that_of_one_gpu():
    made = make.summary(make.case("a", power_w=640.0), make.case("b", engine="fsdp2", power_w=600.0))
    assert "power per GPU, W" in [column.title for column in table.table(made).columns]
