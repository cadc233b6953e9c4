"""`vitscale compare`: table, exit codes and refusals, as a script in CI sees them."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from vitscale.results.record import Identity, Measurement, Record
from vitscale.results.records import write_records


def study(
    folder: Path, factor: float = 1.0, *, repeats: int = 4, torch: str = "2.14", seed: int = 0, noise: float = 0.002
):
    rng = random.Random(seed)
    made = [
        Record(
            study="s",
            case=f"engine={engine} world_size={size}",
            axes={"engine": engine, "world_size": size},
            repeat=repeat,
            identity=Identity(world_size=size, engine=engine, global_batch_size=16),
            measurement=Measurement(
                step_time_s=[0.1 * size * factor * (1 + rng.gauss(0, noise))] * 10, images=[16] * 10
            ),
            environment={"packages": {"torch": torch}},
        )
        for engine in ("ddp", "fsdp2")
        for size in (1, 2)
        for repeat in range(repeats)
    ]
    write_records(folder / "records.jsonl", made)
    return str(folder)


def test_a_study_passes_against_itself_and_an_injected_slow_down_fails(vitscale, tmp_path: Path):
    a, slow = study(tmp_path / "a"), study(tmp_path / "b", 1.08, seed=1)
    same = vitscale("compare", a, a, "--fail-if-slower", "5%")
    assert same.returncode == 0, same.stderr
    assert same.stdout.count("no difference shown") == 5
    worse = vitscale("compare", a, slow, "--fail-if-slower", "5%")
    assert worse.returncode == 1
    assert "slower by 5.0% or more: ddp, 1 device" in worse.stdout
    assert vitscale("compare", a, slow, "--fail-if-slower", "0.2").returncode == 0
    assert vitscale("compare", a, slow).returncode == 0  # nobody asked to fail
    assert vitscale("compare", slow, a, "--fail-if-slower", "5%").returncode == 0  # faster


def test_the_table_is_whole_on_100_columns(vitscale, tmp_path: Path):
    done = vitscale("compare", study(tmp_path / "a"), study(tmp_path / "b", 1.08, seed=1))
    assert "fsdp2, 2 devices" in done.stdout
    assert "all cases together" in done.stdout
    assert "<0.001" in done.stdout
    assert "…" not in done.stdout


def test_unequal_software_is_refused_unless_allowed(vitscale, tmp_path: Path):
    a, b = study(tmp_path / "a"), study(tmp_path / "b", torch="2.13")
    done = vitscale("compare", a, b)
    assert done.returncode == 2
    assert done.stderr.startswith("error: A and B are unequal in packages.torch (2.14 | 2.13); make them equal")
    assert done.stderr.count("\n") == 1
    allowed = vitscale("compare", a, b, "--allow-different")
    assert allowed.returncode == 0
    assert "note: A and B are unequal in packages.torch (2.14 | 2.13)" in allowed.stdout


def test_a_check_that_cannot_fail_does_not_pass(vitscale, tmp_path: Path):
    once = study(tmp_path / "a", repeats=1)
    done = vitscale("compare", once, once, "--fail-if-slower", "5%")
    assert done.returncode == 2
    assert "no case could be compared: one run each" in done.stderr
    assert vitscale("compare", once, once).returncode == 0


def test_a_check_that_is_too_noisy_says_so(vitscale, tmp_path: Path):
    a = study(tmp_path / "a", noise=0.2)
    done = vitscale("compare", a, a, "--fail-if-slower", "5%")
    assert done.returncode == 2
    assert "all 5 comparisons are too noisy to find a slow-down of 5.0% with 90 % power" in done.stderr
    assert vitscale("compare", a, study(tmp_path / "b", 9.0, noise=0.2), "--fail-if-slower", "5%").returncode == 1


def test_json_is_for_programs(vitscale, tmp_path: Path):
    a, slow = study(tmp_path / "a"), study(tmp_path / "b", 1.08, seed=1)
    done = vitscale("compare", a, slow, "--json", "--fail-if-slower", "5%")
    rows = json.loads(done.stdout)["differences"]
    assert done.returncode == 1
    assert rows[0]["verdict"] == "slower"
    assert rows[0]["ratio"]["low"] < rows[0]["ratio"]["value"] < rows[0]["ratio"]["high"]


@pytest.mark.parametrize("limit", ["0%", "0", "5", "five", "-1%", "nan", "%"])
def test_a_limit_that_is_none_is_a_sentence(vitscale, tmp_path: Path, limit: str):
    a = study(tmp_path / "a")
    done = vitscale("compare", a, a, "--fail-if-slower", limit)
    assert done.returncode == 2
    assert "such as 5% or 0.05" in done.stderr


def test_folders_without_records_are_a_sentence(vitscale, tmp_path: Path):
    done = vitscale("compare", study(tmp_path / "a"), str(tmp_path))
    assert done.returncode == 2
    assert "records.jsonl does not exist" in done.stderr


def test_cases_that_could_not_be_checked_are_counted_and_names_cannot_steer_a_terminal(vitscale, tmp_path: Path):
    a = study(tmp_path / "a")
    once = Record(
        study="s",
        case="odd\x1b[2J",
        identity=Identity(world_size=1, global_batch_size=16),
        measurement=Measurement(step_time_s=[0.1] * 10, images=[16] * 10),
        environment={"packages": {"torch": "2.14"}},
    )
    with (tmp_path / "a" / "records.jsonl").open("a") as file:
        file.write(once.model_dump_json() + "\n")
    done = vitscale("compare", a, a, "--fail-if-slower", "5%")
    assert done.returncode == 0, done.stderr
    assert "not compared, so not checked: 1 of 6 comparisons" in done.stdout
    assert "\x1b" not in done.stdout


def test_what_b_lacks_fails_the_check_unless_it_may_be_missing(vitscale, tmp_path: Path):
    a, b = study(tmp_path / "a"), study(tmp_path / "b")
    lines = (tmp_path / "b" / "records.jsonl").read_text().splitlines(keepends=True)
    (tmp_path / "b" / "records.jsonl").write_text("".join(lines[:12]))
    done = vitscale("compare", a, b, "--fail-if-slower", "5%")
    assert done.returncode == 1
    assert "broken: fsdp2, 2 devices: absent in B" in done.stdout
    assert vitscale("compare", a, b, "--fail-if-slower", "5%", "--allow-missing").returncode == 0
    alone = vitscale("compare", a, b, "--allow-missing")
    assert alone.returncode == 2
    assert "--allow-missing belongs to --fail-if-slower" in alone.stderr
