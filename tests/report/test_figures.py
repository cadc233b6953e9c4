"""Figures are valid for plotly, hold the summary's values, and stay small and harmless."""

from __future__ import annotations

import json
import re

import plotly.graph_objects as go
import pytest
import report_making as make

from vitscale.report.figure import DARK, Figure, Style, end_labels, engine_colour, keys_of, points, styles
from vitscale.report.figures import figures

STUDIES = {
    "scaling": make.scaling_study,
    "batch": make.batch_study,
    "published": make.published_like,
    "hostile": make.hostile_study,
}


def made(name: str) -> dict[str, Figure]:
    return {figure.name: figure for figure in figures(STUDIES[name]())}


def strings(value: object):
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for item in value.values():
            yield from strings(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from strings(item)


@pytest.mark.parametrize("name", STUDIES)
def test_plotly_accepts_every_panel(name):
    """plotly's own classes refuse unknown keys and wrong values."""
    for figure in made(name).values():
        for panel in figure.panels:
            go.Figure(data=panel.data, layout=panel.layout)
            assert re.fullmatch(r"[a-z0-9-]+", panel.name)  # the stem of a file
            assert panel.description


def test_plotly_would_refuse_a_wrong_one():
    with pytest.raises(ValueError, match="linee"):
        go.Figure(data=[{"type": "scatter", "linee": 1}])


@pytest.mark.parametrize("name", STUDIES)
def test_values_have_a_row_per_point_and_equal_lengths(name):
    for figure in made(name).values():
        for values in figure.values:
            assert values.rows
            assert {len(row) for row in values.rows} == {len(values.head)}


def test_which_figures_a_study_has():
    assert list(made("scaling")) == ["scaling", "throughput", "attribution", "accuracy"]
    assert list(made("batch")) == ["throughput", "batch"]
    assert list(made("published")) == ["scaling", "throughput", "batch", "accuracy"]
    assert figures(make.summary(make.case("a", None))) == []


def test_scaling_has_the_ideal_line_intervals_and_laws():
    speedup, efficiency, throughput = made("scaling")["scaling"].panels
    ideal = speedup.data[0]
    assert (ideal["name"], ideal["x"], ideal["y"]) == ("ideal", [1, 8], [1, 8])
    ddp = next(t for t in speedup.data if t.get("name") == "ddp" and t["mode"] == "lines+markers")
    assert ddp["x"] == [1, 2, 4, 8]
    assert ddp["error_y"]["array"][-1] == pytest.approx(0.014 * ddp["y"][-1], rel=0.01)
    assert "7.0" in ddp["customdata"][-1]
    assert sum(t["line"]["dash"] == "dot" for t in speedup.data if "line" in t) == 6
    assert efficiency.data[0]["y"] == [1, 1]
    assert next(t for t in throughput.data if t.get("name") == "ddp")["y"][-1] == pytest.approx(23_900, rel=0.01)


def test_wide_intervals_do_not_stretch_an_axis():
    line = [make.case(f"x{n}", 100 * n, world_size=n, axes={"world_size": n}, spread=20.0) for n in (1, 2)]
    figure = figures(make.summary(*line, axes=("world_size",), series=(make.series("", line),)))[0]
    low, high = figure.panels[2].layout["yaxis"]["range"]
    assert low == 0
    assert 200 < high < 350


def test_attribution_adds_up_to_the_whole():
    panel = made("scaling")["attribution"].panels[0]
    for sums in zip(*(trace["x"] for trace in panel.data), strict=True):
        assert sum(sums) == pytest.approx(100, abs=0.01)
    labels = [annotation["text"] for annotation in panel.layout["annotations"]]
    assert labels[0] == "10.7 ms"
    assert len(labels) == 24


def test_attribution_says_what_is_not_told_apart():
    told = {"forward": 0.1, "backward": 0.2}
    case = make.case("a", attribution=told, attribution_unknown={"exposed_comm": "no trace"})
    other = make.case("b", micro=128, attribution_unknown={"all": "traced updates were 7 % slower"})
    figure = next(f for f in figures(make.summary(case, other)) if f.name == "attribution")
    assert "exposed communication (no trace)" in figure.caption
    assert "n/a for 1 case (traced updates were 7 % slower)" in figure.caption


def test_out_of_memory_is_a_cross_at_its_batch():
    memory = made("batch")["batch"].panels[1]
    crosses = [trace for trace in memory.data if trace.get("marker", {}).get("symbol") == "x"]
    assert crosses
    assert all(trace["x"] == [1024] and "out of memory" in trace["customdata"][0] for trace in crosses)


def test_a_global_batch_that_is_varied_is_an_axis_of_its_own():
    cases = [make.case(f"g{a}", 100 * a, accum=a, axes={"global_batch_size": 128 * a}) for a in (1, 2, 4)]
    study = make.summary(*cases, axes=("train.global_batch_size",))
    figure = next(f for f in figures(study) if f.name == "global-batch")
    assert figure.panels[0].data[0]["x"] == [128, 256, 512]
    assert [f.name for f in figures(study)] == ["global-batch"]  # bars of one engine would say nothing more


def test_host_memory_stands_in_where_no_device_has_any():
    cases = [make.case(name, micro=m, peak_rss_bytes=2**30) for name, m in (("a", 16), ("b", 64))]
    panel = figures(make.summary(*cases))[-1].panels[-1]
    assert panel.title == "Peak host memory of a process"


def test_accuracy_stands_against_time_updates_and_images():
    figure = made("scaling")["accuracy"]
    assert [panel.title for panel in figure.panels] == [
        "Against training time",
        "Against updates",
        "Against images seen",
    ]
    shown = [key.label for key in figure.legend if key.shown]
    assert len(shown) == 6
    assert all("8 GPUs" in label for label in shown)
    assert "6 of 24 cases are drawn" in figure.caption


def test_many_long_curves_are_thinned_with_their_ends_kept():
    curve = tuple((u, 64 * u, 0.1 * u, u / 2000) for u in range(1001))
    cases = [make.case(f"c{i}", micro=i + 1, accuracy_split="val", curves=(curve,) * 10) for i in range(60)]
    figure = next(f for f in figures(make.summary(*cases)) if f.name == "accuracy")
    data = figure.panels[0].data
    assert len(data) == 400
    assert all(len(trace["x"]) <= 200 and trace["x"][-1] == 100 for trace in data)
    assert sum(len(trace["x"]) for trace in data) < 13_000
    assert len(json.dumps([panel.data for panel in figure.panels])) < 1_200_000


def test_two_splits_are_two_figures():
    line = [
        make.case(f"{s}{n}", world_size=n, axes={"s": s, "world_size": n}, accuracy=make.around(0.5), accuracy_split=s)
        for s in ("train", "test")
        for n in (1, 2)
    ]
    titles = [f.title for f in figures(make.summary(*line, axes=("s", "world_size"))) if f.name.startswith("accuracy")]
    assert titles == ["Test accuracy at the end", "Training accuracy at the end"]


# --- colours ------------------------------------------------------------------------------------------------------


def test_an_engine_has_one_colour_everywhere():
    for figure in (*made("scaling").values(), *made("batch").values()):
        for panel in figure.panels:
            for trace in panel.data:
                colour = (trace.get("line") or trace.get("marker") or {}).get("color")
                if trace.get("name", "").startswith("fsdp2"):
                    assert colour == "#2e8b6f"
                if trace.get("name", "").startswith("DeepSpeed ZeRO 3"):
                    assert colour == "#7f2f4a"


def test_every_line_colour_has_a_dark_one():
    used = {engine_colour(make.case("a", engine=e, zero_stage=z).identity) for e, z, _, _ in make.ENGINES}
    items = [(str(i), make.case("a", micro=2**i).identity, {"micro_batch_size": 2**i}) for i in range(6)]
    used |= {style.colour for style in styles(items, ("micro_batch_size",)).values()}
    items = [(str(i), make.case("a").identity, {"name": str(i)}) for i in range(12)]
    many = styles(items, ("name",))
    used |= {style.colour for style in many.values()}
    assert used <= set(DARK)
    assert len(set(many.values())) == 12  # dashes tell apart what shares a colour


def test_a_numeric_axis_is_a_ramp_in_its_order():
    items = [(str(n), make.case("a").identity, {"micro_batch_size": n}) for n in (64, 16, 256)]
    looks = styles(items, ("micro_batch_size",))
    shades = [int(looks[name].colour[1:3], 16) for name in ("16", "64", "256")]
    assert shades == sorted(shades, reverse=True)  # darker with the batch


# --- labels and text ----------------------------------------------------------------------------------------------


def test_labels_at_the_ends_keep_apart():
    def curves(*ends: float):
        keys = keys_of({f"s{i}": Style("#2f6db5") for i in range(len(ends))}, 8)
        return [(key, points(key, [1, 2], [1, y], ["", ""])) for key, y in zip(keys.values(), ends, strict=True)]

    assert [label["y"] for label in end_labels(curves(100, 50, 10))] == [[100], [50], [10]]
    assert end_labels(curves(100, 99, 98)) == []
    assert len(end_labels(curves(100, 99, 50, 20))) == 2
    assert end_labels(curves(100)) == []


def test_nothing_hostile_reaches_plotly_as_markup():
    for figure in made("hostile").values():
        for panel in figure.panels:
            for text in strings([panel.data, panel.layout]):
                bare = re.sub(r"<br>|<extra></extra>", "", text)
                assert "<" not in bare, text
                assert "\x1b" not in text
                assert "\u202e" not in text
                assert not re.search(r"%\{(?!customdata\}|y:|x:)", text), text
