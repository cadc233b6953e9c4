"""Figures and names read the same everywhere, and nothing unprintable gets out."""

import pytest
import report_making as make

from vitscale.analysis.summary import Interval
from vitscale.report import words


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "n/a"),
        (0, "0"),
        (3696.4, "3,696"),
        (9.996, "10.0"),
        (7.0, "7.00"),
        (0.04124, "0.0412"),
        (1e-6, "1.00e-06"),
        (float("nan"), "n/a"),
        (float("inf"), "n/a"),
        (-12.34, "-12.3"),
    ],
)
def test_three_digits_that_align(value, text):
    assert words.number(value) == text


def test_percentages_of_one_range_have_equal_places():
    assert words.percent_between(0.112, 0.095, 0.1294) == "11.2 % (9.5 to 12.9 %)"
    assert words.percent_between(0.45, 0.43, 0.47) == "45 % (43 to 47 %)"
    assert words.percent(0.0412) == "4.1 %"
    assert words.percent(0.82) == "82 %"


def test_an_interval_without_ends_or_width_is_its_value():
    assert words.interval(Interval(2.0)) == "2.00"
    assert words.interval(Interval(1.0, 1.0, 1.0)) == "1.00"
    assert words.interval(Interval(2.0, 1.0, 3.0)) == "2.00 (1.00 to 3.00)"


def test_durations():
    assert [words.duration(s) for s in (4.81, 48, 744, 11_160)] == ["4.8 s", "48.0 s", "12.4 min", "3.10 h"]


def test_engines_and_devices_by_their_names():
    assert words.engine(make.case("a", engine="deepspeed", zero_stage=2, identity={"compile": True}).identity) == (
        "DeepSpeed ZeRO 2 + compile"
    )
    assert words.engine(make.case("a", engine=None).identity) == ""
    assert words.devices(make.case("a", world_size=1).identity) == "1 GPU"
    assert words.devices(make.case("a", identity={"device_type": "cpu"}).identity) == "2 processes"
    assert words.devices(make.case("a", identity={"device_type": None}).identity) == "2 devices"


def test_labels_say_what_differs_and_no_two_are_alike():
    cases = [
        make.case("a", micro=16),
        make.case("b", micro=64),
        make.case("c", micro=64, axes={"micro_batch_size": 64}),
    ]
    made = words.labels(cases, ("engine", "micro_batch_size"))
    assert made["a"] == "micro 16"
    assert len(set(made.values())) == 3
    assert "(c)" in made["c"]


def test_a_sentence_gets_a_capital_unless_it_begins_with_a_name():
    assert words.sentence("nobody proved it.") == "Nobody proved it."
    assert words.sentence("ddp is alone") == "ddp is alone."
    assert words.sentence("engine=ddp is alone") == "engine=ddp is alone."
    assert words.sentence("more than 5% of it") == "More than 5 % of it."


def test_control_characters_are_dropped():
    assert words.clean("a\x1b[31mred\x07\nb\u202e") == "a [31mred b"
    assert words.clean_lines("x\x1b[0m\n\ty\r\n") == "x[0m\n    y"
