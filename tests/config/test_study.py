"""Studies: files, packaged ones, overrides, and one sentence for what is wrong with them."""

from pathlib import Path

import pytest

from vitscale.config.load import load_config
from vitscale.config.study import MeasureConfig, StudyConfig, dump_study, load_study, studies
from vitscale.errors import ConfigError

NAMES = [study.name for study in studies()]


def write(tmp_path: Path, text: str) -> str:
    file = tmp_path / "mine.yaml"
    file.write_text(text)
    return str(file)


SMALL = """
base:
  recipe: digits
  train: {micro_batch_size: 16, global_batch_size: none}
axes:
  engine: [ddp, single]
  train.micro_batch_size: [8, 16]
measure: {updates: 20}
"""


def test_the_packaged_studies_are_those_that_are_promised():
    assert {
        "strong-scaling", "weak-scaling", "batch-sweep", "accumulation-sweep", "engine-shootout", "published-strong",
        "published-weak", "published-batch", "digits-demo",
    } == set(NAMES)  # fmt: skip


@pytest.mark.parametrize(
    ("name", "quick"),
    [(name, False) for name in NAMES] + [(name, True) for name in NAMES if name != "digits-demo"],  # small already
)
def test_packaged_studies_load_and_survive_their_own_dump(name, quick, tmp_path):
    study = load_study(name, quick=quick)
    assert study.name == name
    assert load_study(write(tmp_path, dump_study(study))) == study
    if quick:
        assert study.base["data"]["source"] == "digits"
        assert study.timeout_s <= 300


def test_ddp_is_always_in_the_shootout():
    assert "ddp" in load_study("engine-shootout").axes["engine"]
    assert "ddp" in load_study("engine-shootout", quick=True).axes["engine"]


def test_a_file_gives_base_and_axes(tmp_path):
    study = load_study(write(tmp_path, SMALL))
    assert study.name == "mine"
    assert study.base["optim"]["lr"] == 3e-3  # the recipe's
    assert study.base["train"]["global_batch_size"] is None  # `none`, laid over the recipe's
    assert study.axes == {"engine": ("ddp", "single"), "micro_batch_size": (8, 16)}


def test_overrides_reach_axes_by_either_name_base_and_measure(tmp_path):
    file = write(tmp_path, SMALL)
    more = ["axes.micro_batch_size=[4]", "base.optim.lr=1e-2", "measure.updates=7", "repeats=5", "axes.engine=none"]
    study = load_study(file, [*more, "axes.train.seed=[0,1]", "axes.world_size=2"])
    assert study.axes == {"micro_batch_size": (4,), "seed": (0, 1), "world_size": (2,)}
    assert study.base["optim"]["lr"] == 1e-2
    assert (study.measure.updates, study.repeats) == (7, 5)


def test_a_recipe_file_is_found_beside_the_study(tmp_path, monkeypatch):
    (tmp_path / "base.yaml").write_text("train: {micro_batch_size: 3}\n")
    file = write(tmp_path, "base: {recipe: base.yaml}\nmeasure: {updates: 5}\n")
    monkeypatch.chdir("/")
    assert load_study(file).base == {"train": {"micro_batch_size": 3}}


def test_quick_with_a_recipe_replaces_the_base():
    assert load_study("batch-sweep").base["data"]["synthetic_size"] == 4096
    assert "synthetic_size" not in load_study("batch-sweep", quick=True).base["data"]


@pytest.mark.parametrize(
    ("overrides", "part"),
    [
        (["axes.micro_batch=[1]"], "did you mean micro_batch_size?"),
        (["axes.micro_batch_size=[]"], "holds no value, so the study has no case"),
        (["axes.micro_batch_size=[[1]]"], "is not a single value"),
        (["axes.micro_batch_size=[8,8]"], "holds 8 twice"),
        (["axes.world_size=[0]"], "must be a whole number > 0"),
        (["axes.world_size=[true]"], "must be a whole number > 0"),
        (["repets=2"], "unknown key repets (did you mean repeats?)"),
        (["measure.update=2"], "did you mean measure.updates?"),
        (["measure.updates=none"], "measure.updates or measure.epochs must be given"),
        (["measure.epochs=2"], "measure.updates and measure.epochs exclude each other"),
        (["measure.target_top1=0.9"], "measure.updates and measure.target_top1 exclude each other"),
        (["measure.trace_updates=3"], "must be 0 or at least 10"),
        (["mode=strong"], "fixed=global or fixed=per_device"),
        (["mode=stong"], "did you mean strong?"),
        (["mode=strong", "fixed=global"], "give axes.world_size"),
        (["mode=weak"], "give axes.world_size"),
        (["fixed=global"], "mode=strong only"),
        (["images_per_device=5"], "mode=weak only"),
        (["mode=weak", "axes.world_size=[1]", "measure={epochs: 1}"], "needs images_per_device"),
        (["repeats=0"], "repeats=0 must be a whole number > 0"),
        (["exclude=[{engine: ddp, micro_batch_sizes: 1}]"], "did you mean micro_batch_size?"),
        (["exclude=[{world_size: 1}]"], "which is no axis of this study"),
        (["exclude=3"], "exclude is a list of combinations"),
        (["axes=3"], "axes is a section"),
        (["base=3"], "base is a section"),
        (["axes.lr=[.inf]"], "axes.lr: inf is not a finite number"),
        (["axes.lr=[1e999]"], "axes.lr: inf is not a finite number"),
        (["axes.lr=[.nan]"], "axes.lr: nan is not a finite number"),
        (["measure=none"], "measure is missing; give measure.updates or measure.epochs"),
        (["axes.engine=[ddp]", "axes.parallel.engine=[ddp]"], "axes: engine is given twice (engine, parallel.engine)"),
        (["exclude=[{engine: dpd}]"], "exclude: engine=dpd is no value of that axis (did you mean ddp?)"),
        (["exclude=[{micro_batch_size: [8, 99]}]"], "exclude: micro_batch_size=99 is no value of that axis"),
        (["exclude=[{}]"], "exclude holds an empty combination"),
        (["exclude=[{engine: ddp, parallel.engine: ddp}]"], "exclude: engine is given twice"),
        (["name=a/b"], "name='a/b' must be 1 to 100 letters, digits, spaces and ._-"),
        (["name='a\\nb'"], "must be 1 to 100 letters"),
        ([f"name={'x' * 101}"], "xxx...' must be 1 to 100 letters"),
        (["mode=weak", "axes.world_size=[1]", "fixed=global"], "clear it with fixed=none"),
    ],
)
def test_what_is_wrong_is_one_sentence(tmp_path, overrides, part):
    with pytest.raises(ConfigError) as caught:
        load_study(write(tmp_path, SMALL), overrides)
    assert part in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_file_without_measure_or_with_an_axis_twice(tmp_path):
    with pytest.raises(ConfigError, match=r"^measure is missing; give measure.updates or measure.epochs$"):
        load_study(write(tmp_path, "name: bad\nbase: {recipe: digits}\n"))
    twice = SMALL.replace("train.micro_batch_size: [8, 16]", "parallel.engine: [ddp]")
    with pytest.raises(ConfigError, match=r"axes: engine is given twice \(engine, parallel.engine\)"):
        load_study(write(tmp_path, twice))


def test_an_override_of_the_other_name_replaces_an_axis(tmp_path):
    assert load_study(write(tmp_path, SMALL), ["axes.parallel.engine=[fsdp2]"]).axes["engine"] == ("fsdp2",)


def test_an_exclusion_of_values_that_an_override_took_out_is_dropped(tmp_path):
    file = write(tmp_path, SMALL + "exclude: [{engine: ddp, micro_batch_size: [8, 16]}, {micro_batch_size: 8}]\n")
    study = load_study(file, ["axes.micro_batch_size=[16]"])
    assert study.exclude == ({"engine": "ddp", "micro_batch_size": [16]},)
    assert load_study(write(tmp_path, dump_study(study))) == study


def test_an_exclusion_may_name_values_of_the_file_or_of_its_quick_part(tmp_path):
    more = "exclude: [{micro_batch_size: 16}, {micro_batch_size: 4}]\nquick: {axes: {micro_batch_size: [2, 4]}}\n"
    file = write(tmp_path, SMALL + more)
    assert load_study(file, quick=True).exclude == ({"micro_batch_size": 4},)
    assert load_study(file, ["axes.micro_batch_size=[2]"], quick=True).exclude == ()


def test_a_file_whose_name_no_study_may_have_gives_one_that_it_may(tmp_path):
    file = tmp_path / "my: study (2).yaml"
    file.write_text(SMALL)
    assert load_study(str(file)).name == "my- study -2-"


def test_a_recipe_is_no_study_and_a_study_no_recipe():
    with pytest.raises(ConfigError, match=r"digits is a training recipe, and no study: vitscale train digits"):
        load_study("digits")
    with pytest.raises(ConfigError, match=r"strong-scaling is a study, and no recipe: vitscale study strong-scaling"):
        load_config("strong-scaling")


def test_a_study_that_does_not_exist():
    with pytest.raises(ConfigError, match=r"no study 'strong-scalin' \(did you mean strong-scaling\?\)"):
        load_study("strong-scalin")


def test_quick_without_a_quick_part(tmp_path):
    with pytest.raises(ConfigError, match="has no `quick:` part"):
        load_study(write(tmp_path, SMALL), quick=True)


def test_the_fingerprint_is_of_what_a_case_measures(tmp_path):
    file = write(tmp_path, SMALL)
    one = load_study(file).fingerprint()
    for same in ("repeats=9", "axes.micro_batch_size=[4]", "order_seed=3", "timeout_s=7"):
        assert load_study(file, [same]).fingerprint() == one
    for other in ("base.optim.lr=1", "measure.updates=9", "memory_limit_gib=3"):
        assert load_study(file, [other]).fingerprint() != one


def test_a_study_is_frozen(tmp_path):
    study = load_study(write(tmp_path, SMALL))
    assert isinstance(study, StudyConfig)
    with pytest.raises(ValueError, match="frozen"):
        study.repeats = 2


def test_the_page_names_every_key_and_every_packaged_study():
    page = (Path(__file__).parents[2] / "docs" / "studies.md").read_text()
    keys = [
        *(set(StudyConfig.model_fields) - {"measure", "name"}),
        *(f"measure.{key}" for key in MeasureConfig.model_fields),
    ]
    for key in keys:
        assert f"| `{key}` |" in page, key
    for name in NAMES:
        assert f"`{name}`" in page.partition("## Packaged studies")[2], name
    for key, field in MeasureConfig.model_fields.items():
        if field.default is not None:
            assert f"| `measure.{key}` | {str(field.default).lower()} |" in page, key
