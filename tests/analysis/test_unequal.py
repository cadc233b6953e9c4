"""A study over mixed devices gets its advice: the whole way from a published table to the verdict."""

from __future__ import annotations

from pathlib import Path

import pytest

from vitscale.analysis.summarise import summarise
from vitscale.analysis.summary import Summary
from vitscale.report.verdict import statements
from vitscale.results.published import import_records

# An excerpt of the logs published with arXiv 2602.21081: its Tesla cluster, 16 images per GPU, seconds per epoch.
HEADER = "cluster,gpu,placement,dataset,kind,data_fraction,batch_per_gpu,gpus,epochs,seconds_per_epoch"
DEVICES = '"RTX 3070 x3, then GTX 1070, then Tesla P4"'
WEAK = {1: 71.35, 2: 177.50, 3: 215.70, 4: 393.22, 5: 1748.62}
STRONG = {1: 712.96, 2: 908.18, 3: 739.10, 4: 985.98, 5: 3435.96}


def summary_of(tmp_path: Path, rows: list[str]) -> Summary:
    table = tmp_path / "tesla.csv"
    table.write_text("\n".join([HEADER, *rows]) + "\n")
    return summarise(import_records(table).records)


def row(mode: str, fraction: float, count: int, seconds: float, devices: str = DEVICES) -> str:
    return f"Tesla,{devices},one GPU per node,CIFAR-10,{mode},{fraction},16,{count},10,{seconds}"


@pytest.fixture
def tesla(tmp_path: Path) -> Summary:
    weak = [row("weak", 0.1 * n, n, seconds) for n, seconds in WEAK.items()]
    return summary_of(tmp_path, weak + [row("strong", 1.0, n, seconds) for n, seconds in STRONG.items()])


def test_both_series_tell_the_devices_apart_alike(tesla: Summary) -> None:
    weak, strong = tesla.unequal
    for one in (weak, strong):
        assert one.dropped == ("GTX 1070", "Tesla P4")
        assert one.kept == ("RTX 3070",) * 3
        assert one.seconds["RTX 3070"] == pytest.approx(0.228, rel=0.02)
    for name in weak.seconds:
        assert weak.seconds[name] == pytest.approx(strong.seconds[name], rel=0.1)


def test_the_verdict_says_which_to_leave_out_and_what_it_brings(tesla: Summary) -> None:
    (said,) = [one.sentence for one in statements(tesla) if one.topic == "Mixed devices"]
    assert "leave out GTX 1070 and Tesla P4, or give less to them" in said
    assert "RTX 3070 x3 alone are predicted to train 4.86 times the images/s of all 5" in said
    assert "(24, 24, 24, 7, 1 images)" in said
    assert "1 of 1 other series" in said


def test_devices_of_nearly_equal_speed_are_all_worth_having(tmp_path: Path) -> None:
    rows = [row("strong", 1.0, n, 1000 / n, '"A x2, then B"') for n in (1, 2)]
    found = summary_of(tmp_path, [*rows, row("strong", 1.0, 3, 340, '"A x2, then B"')])
    (said,) = [one.sentence for one in statements(found) if one.topic == "Mixed devices"]
    assert "all of A x2 and B are worth having with equal shares" in said
    assert found.unequal[0].dropped == ()


def test_equal_devices_are_no_matter_for_it(tmp_path: Path) -> None:
    found = summary_of(tmp_path, [row("strong", 1.0, n, 1000 / n, "A") for n in (1, 2, 4)])
    assert found.unequal == ()
    assert not [one for one in statements(found) if one.topic == "Mixed devices"]
