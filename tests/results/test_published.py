"""Published tables: what they say becomes records, what they do not say stays unknown, what is wrong is named.

The excerpt is of the figures that the authors of arXiv 2602.21081 published (means over ranks and epochs).
"""

from __future__ import annotations

from pathlib import Path

import pytest

from vitscale.analysis.summarise import summarise
from vitscale.errors import DataError
from vitscale.results.published import device_names, import_records
from vitscale.results.record import Record

EXCERPT = """\
cluster,gpu,placement,dataset,kind,data_fraction,batch_per_gpu,gpus,epochs,seconds_per_epoch,seconds_min,seconds_max,final_train_accuracy,repeat,note
Tesla,"RTX 3070 x3, then GTX 1070, then Tesla P4",one GPU per node,CIFAR-10,strong,1.0,16,1,10,712.96,712.2,714.0,0.6031,,
Tesla,"RTX 3070 x3, then GTX 1070, then Tesla P4",one GPU per node,CIFAR-10,strong,1.0,16,4,10,985.98,972.0,999.7,0.6797,,
Tesla,"RTX 3070 x3, then GTX 1070, then Tesla P4",one GPU per node,CIFAR-10,strong,1.0,32,1,10,278.39,277.8,279.1,0.6543,,fp16
Tesla,"RTX 3070 x3, then GTX 1070, then Tesla P4",one GPU per node,CIFAR-10,strong,1.0,32,3,10,219.47,217.3,222.0,0.7037,r1,fp16
Tesla,"RTX 3070 x3, then GTX 1070, then Tesla P4",one GPU per node,CIFAR-10,strong,1.0,32,3,10,217.83,215.6,220.7,0.7083,r2,fp16
Vector,T4,one node,CIFAR-10,strong,1.0,64,1,5,1817.65,1802.4,1823.5,0.5847,,
Vector,T4,one node,CIFAR-10,strong,1.0,64,6,5,302.29,298.2,304.1,0.5561,,
Vector,T4,one node,CIFAR-10,strong,1.0,64,8,5,234.21,225.7,239.3,0.5238,,
Vector,T4,one node,CIFAR-10,weak,0.1,64,1,5,169.38,168.2,171.7,0.2983,,
Vector,T4,one node,CIFAR-10,weak,0.8,64,8,5,201.13,191.0,204.4,0.4479,,
Vector,T4,one node,CIFAR-10,strong,1.0,6,8,5,379.66,378.4,380.9,0.5807,run_2,folder says batch 6; unclear
"""  # noqa: E501
STEPS = """\
gpus,forward_ms,backward_compute_ms,allreduce_ms,optimizer_ms
1,835,1451,6.5,29
4,868,1491,115,30
8,723,1363,281,30
"""


def imported(tmp_path: Path, text: str, **facts: str) -> tuple[Record, ...]:
    path = tmp_path / "table.csv"
    path.write_text(text, encoding="utf-8")
    return import_records(path, facts).records


def test_a_row_becomes_a_record_of_what_it_says(tmp_path: Path) -> None:
    made = imported(tmp_path, EXCERPT)[1]
    assert made.axes == {"mode": "strong", "cluster": "Tesla", "micro_batch_size": 16, "world_size": 4}
    assert made.case == "mode=strong cluster=Tesla micro_batch_size=16 world_size=4"
    identity = made.identity
    assert identity.device_names == ("RTX 3070", "RTX 3070", "RTX 3070", "GTX 1070")
    assert (identity.world_size, identity.nodes, identity.global_batch_size, identity.train_images) == (
        4,
        4,
        64,
        50_000,
    )
    assert made.epoch_times is not None
    assert (made.epoch_times.mean_s, made.epoch_times.min_s, made.epoch_times.epochs) == (985.98, 972.0, 10)
    assert made.epoch_times.includes_warmup is None
    assert made.learning is not None
    assert (made.learning.split, made.learning.final_accuracy) == ("train", 0.6797)
    for unknown in ("precision", "engine", "lr", "warmup_updates", "optimizer", "model", "grad_accum_steps"):
        assert getattr(identity, unknown) is None, unknown
    assert made.measurement is None
    assert made.environment is None
    assert (made.study, made.source, made.fixed) == ("table", "table.csv", None)


def test_weak_rows_know_their_share_of_the_data(tmp_path: Path) -> None:
    weak = [made for made in imported(tmp_path, EXCERPT) if made.mode == "weak"]
    assert [made.identity.train_images for made in weak] == [5_000, 40_000]


def test_rows_of_one_case_are_repeats_and_a_note_of_precision_is_one(tmp_path: Path) -> None:
    half = [made for made in imported(tmp_path, EXCERPT) if made.identity.precision]
    assert [(made.identity.precision, made.repeat) for made in half] == [("fp16", 0), ("fp16", 0), ("fp16", 1)]
    assert half[1].case == half[2].case
    assert all(made.notes == () for made in half)
    assert imported(tmp_path, EXCERPT)[-1].notes == ("folder says batch 6; unclear",)


def test_the_lint_finds_unprompted_what_is_wrong_with_the_published_study(tmp_path: Path) -> None:
    findings = summarise(imported(tmp_path, EXCERPT)).findings
    said = {finding.rule: finding.sentence for finding in findings}
    assert "6.01 times at 6 devices" in said["super-linear"]
    assert "9 of 10 cases ran once" in said["single-run"]
    assert "10 cases is training accuracy" in said["train-accuracy"]
    assert "64 to 512" in said["growing-batch"]
    assert "from 0.585 on 1 device to 0.524 on 8 devices at equal epochs (5)" in said["accuracy-falls"]
    assert "RTX 3070 and GTX 1070" in said["mixed-devices"]
    assert "2 cases in fp16 beside 8 cases that name none (fp32" in said["mixed-precision"]
    assert said["lr-unknown"].startswith("learning rate and warm-up are not recorded in 10 cases")
    assert "without saying whether the first epoch" in said["warmup-in-mean"]
    assert "folder says batch 6; unclear" in said["source-notes"]


def test_the_lint_reads_the_step_breakdown(tmp_path: Path) -> None:
    made = imported(tmp_path, STEPS)
    assert made[0].measurement is not None
    assert made[0].measurement.attribution is not None
    assert made[0].measurement.attribution.seconds == pytest.approx(
        {"forward": 0.835, "backward": 1.451, "exposed_comm": 0.0065, "optimizer": 0.029}
    )
    assert made[0].measurement.attribution.unknown["data_wait"] == "the table does not say"
    summary = summarise(made)
    said = {finding.rule: finding.sentence for finding in summary.findings}
    assert "forward takes 723 to 868 ms (20% apart)" in said["forward-varies"]
    assert "up to 281 ms of an update of 2397 ms (world_size=8)" in said["comm-not-hidden"]
    assert summary.cases[0].images_per_s is None


def test_facts_fill_what_the_table_does_not_say(tmp_path: Path) -> None:
    made = imported(tmp_path, EXCERPT, precision="fp32", lr="1e-4", warmup_updates="0", includes_warmup="true")
    assert {record.identity.precision for record in made} == {"fp16", "fp32"}
    assert all(record.identity.lr == 1e-4 for record in made)
    rules = {finding.rule for finding in summarise(made).findings}
    assert "lr-unknown" not in rules
    assert "lr-not-rescaled" in rules


def test_rates_and_step_times(tmp_path: Path) -> None:
    a, b = imported(tmp_path, "devices,images_per_s,batch_per_gpu,model\n1,640,64,vit\n2,1280,64,vit\n")
    assert a.measurement is not None
    assert b.measurement is not None
    assert (a.measurement.step_time_s, b.measurement.images) == ((0.1,), (128,))
    (c,) = imported(tmp_path, "world_size;step_time_ms\n2;50\n")
    assert c.measurement is not None
    assert c.measurement.step_time_s == (0.05,)


def test_unknown_columns_are_named(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("gpus,seconds_per_epoch,weather\n1,2,fine\n")
    assert import_records(path).unknown == ("weather",)


@pytest.mark.parametrize(
    ("text", "world_size", "names"),
    [
        ("T4", 8, ("T4",)),
        ("A x2, B", 3, ("A", "A", "B")),
        ("RTX A4500 (inferred)", 1, ("RTX A4500",)),
        ("A × 2", 2, ("A", "A")),
        ("A x2, then B", 1, ("A",)),
        ("A x99999999999, then B", 2, ("A", "A")),
        (None, 2, ()),
    ],
)
def test_device_names(text: str | None, world_size: int, names: tuple[str, ...]) -> None:
    assert device_names(text, world_size) == names


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "is empty"),
        ("gpus,seconds_per_epoch\n", "a header but no rows"),
        ("seconds_per_epoch\n1\n", "no column for the number of devices"),
        ("gpus,loss\n1,2\n", "no column with a time"),
        ("gpus,devices,seconds_per_epoch\n1,1,2\n", "two columns for world_size"),
        ("gpus,seconds_per_epoch\n1,2\n2\n", "row 3 has 1 cells, but the header has 2"),
        ("gpus,seconds_per_epoch\ntwo,2\n", "row 2, column world_size: 'two' is not a number"),
        ("gpus,seconds_per_epoch\n1.5,2\n", "'1.5' is not a whole number"),
        ("gpus,seconds_per_epoch\n1,nan\n", "'nan' is not a number"),
        ("gpus,seconds_per_epoch\n1,-3\n", "'-3' is not a number of 0 or more"),
        ("gpus,seconds_per_epoch\n1,0\n", "must be above 0"),
        ("gpus,seconds_per_epoch\n,3\n", "row 2 has no number of devices"),
        ("gpus,seconds_per_epoch,test_accuracy\n1,2,93.5\n", "write shares, not percent"),
        ("gpus,seconds_per_epoch,kind\n1,2,fast\n", "'fast' is none of strong, weak, grid"),
        ("gpus,images_per_s\n1,2\n", "needs a batch"),
        ("gpus,seconds_per_epoch,includes_warmup\n1,2,maybe\n", "neither true nor false"),
        ('gpus,seconds_per_epoch\n1,"2\n', "is not a CSV file"),
    ],
)
def test_what_is_wrong_with_a_table_is_one_sentence(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(DataError, match=words) as caught:
        imported(tmp_path, text)
    assert "\n" not in str(caught.value)


def test_files_that_are_no_tables(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="cannot read the table"):
        import_records(tmp_path / "none.csv")
    (tmp_path / "b.csv").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(DataError, match="not UTF-8"):
        import_records(tmp_path / "b.csv")
    (tmp_path / "ok.csv").write_text("gpus,seconds_per_epoch\n1,2\n")
    with pytest.raises(DataError, match="--set sped: no such column"):
        import_records(tmp_path / "ok.csv", {"sped": "1"})


@pytest.mark.parametrize(
    ("text", "cases"),
    [
        ("gpus,img_size,batch_per_gpu,images_per_s\n1,224,64,100\n1,384,64,40\n", ["img_size=224", "img_size=384"]),
        (
            "gpus,global_batch_size,images_per_s\n1,64,100\n1,256,140\n",
            ["global_batch_size=64", "global_batch_size=256"],
        ),
        ("gpus,gpu,seconds_per_epoch\n1,T4,100\n1,A100,9\n", ["device=T4", "device=A100"]),
        ("gpus,seconds_per_epoch,note\n1,100,\n1,40,fp16\n", ["", "precision=fp16"]),
        ("gpus,zero_stage,seconds_per_epoch\n1,0,100\n1,2,90\n", ["zero_stage=0", "zero_stage=2"]),
    ],
)
def test_rows_that_differ_in_what_was_run_are_no_repeats(tmp_path: Path, text: str, cases: list[str]) -> None:
    made = imported(tmp_path, text)
    assert [record.case for record in made] == [f"{case} world_size=1".strip() for case in cases]
    assert {record.repeat for record in made} == {0}


def test_a_phase_of_no_time_is_no_fault(tmp_path: Path) -> None:
    summarise(imported(tmp_path, "gpus,forward_ms\n1,0\n2,3\n"))


def test_one_figure_of_a_table_is_not_called_few_updates(tmp_path: Path) -> None:
    made = imported(tmp_path, "gpus,micro_batch_size,step_ms\n1,32,10\n2,32,11\n")
    assert "few-updates" not in {finding.rule for finding in summarise(made).findings}


@pytest.mark.parametrize(
    ("table", "sentence"),
    [
        ("gpus,device,step_time_ms\n4,A x99999999999,1\n", "names 99999999999 devices, but the row has 4"),
        ('gpus,device,step_time_ms\n4,"A x2, B",1\n', "names 3 devices, but the row has 4"),
        ('gpus,device,step_time_ms\n4,"A x2, then B",1\n', "names 3 devices, but the row has 4"),
        ("gpus,step_time_ms\n1000001,1\n", "more than 1,000,000"),
        ("gpus,step_time_ms\n1e300,1\n", "is more than 1e+12"),
        ("gpus,batch_per_gpu,step_time_ms\n1000000,100000000,1\n", "a global batch of 1e+14 images"),
        (
            "gpus,seconds_per_epoch,seconds_min\n1,5,6\n",
            "is not between its least and its greatest (6, not given)",
        ),
        ("gpus,seconds_per_epoch,seconds_max\n1,5,4\n", "is not between its least and its greatest (not given, 4)"),
    ],
)
def test_what_cannot_be_is_refused_with_its_row(tmp_path: Path, table: str, sentence: str) -> None:
    with pytest.raises(DataError, match="row 2") as caught:
        imported(tmp_path, table)
    assert sentence in str(caught.value)
