"""`vitscale train`: what is refused before a process starts, the plan, the dry run, and real groups."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from vitscale.cli import main as cli
from vitscale.cli import preflight
from vitscale.cli.preflight import prepare
from vitscale.errors import ConfigError, DeviceError
from vitscale.launch.detect import OuterLaunch
from vitscale.launch.probe import NO_DEVICES, DeviceFacts

SOURCE = Path(cli.__file__).parents[2]
COMMAND = [sys.executable, "-m", "vitscale.cli.main", "train"]
OUTER = OuterLaunch("torchrun", 1, 4, 1, 4, "127.0.0.1", 29400)
TORCHRUN = {
    "RANK": "0",
    "WORLD_SIZE": "2",
    "LOCAL_RANK": "0",
    "LOCAL_WORLD_SIZE": "2",
    "MASTER_ADDR": "127.0.0.1",
    "MASTER_PORT": "29400",
    "TORCHELASTIC_RUN_ID": "none",
}


def environ(**more: str) -> dict[str, str]:
    clean = {name: value for name, value in os.environ.items() if name not in TORCHRUN}
    return {**clean, "PYTHONPATH": str(SOURCE), "OMP_NUM_THREADS": "1", **more}


def run(folder: Path, *args: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*COMMAND, *args], cwd=folder, env=environ(**variables), capture_output=True, text=True, check=False
    )


def gpus(count: int, *, bf16: bool = True, rocm: bool = False, float8: bool = False) -> DeviceFacts:
    can = {"bf16": bf16, "float8": float8}
    return DeviceFacts(count, ("GPU",) * count, (2**34,) * count, mps=False, rocm=rocm, torch_cuda="13.0", **can)


def plan_of(
    *overrides: str, nproc: int | None = None, outer: OuterLaunch | None = None, device: str | None = None
) -> preflight.Plan:
    out = Path("/tmp/never-made")
    return prepare("digits", overrides, nproc, out, outer, fresh=False, ds_config=None, device=device)


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["digitz"], "digits"),
        (["digits", "optim.lrr=1"], "optim.lr"),
        (["digits", "train.micro_batch_size=5", "-n", "2"], "nearest valid (micro, accum, global)"),
        (["digits", "model.patch_size=3"], "model.patch_size"),
        (["digits", "parallel.engine=single", "-n", "2"], "--nproc 1"),
        (["digits", "parallel.engine=fsdp2", "optim.name=lamb", "-n", "2"], "optim.name=lamb"),
        (["digits", "--device", "cuda"], "torch sees no CUDA device"),
        (["digits", "--device", "mps"], "MPS is not supported"),
        (["digits", "data.source=npz", "data.root=/no/such"], "data.root=/no/such does not exist"),
        (["digits", "model.pretrained=/no/such"], "model.pretrained=/no/such is not a file"),
        (["digits", "--out", "used", "--fresh"], "--fresh needs an empty folder"),
        (["digits", "--out", "other"], "not a run folder"),
        (["digits", "--nproc", "0"], "--nproc"),
    ],
)
def test_bad_input_is_one_sentence_code_2_and_nothing_is_written(tmp_path: Path, args: list[str], words: str) -> None:
    for folder, name in (("used", "config.yaml"), ("other", "thesis.tex")):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / name).touch()
    before = sorted(tmp_path.rglob("*"))
    done = run(tmp_path, *args, CUDA_VISIBLE_DEVICES="")
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1, done.stderr
    assert done.stderr.startswith("error: ")
    assert words in done.stderr
    assert sorted(tmp_path.rglob("*")) == before


def test_nproc_and_a_missing_out_are_refused_inside_a_launcher(tmp_path: Path) -> None:
    done = run(tmp_path, "digits", "--nproc", "2", "--out", "a", **TORCHRUN)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "--nproc 2 inside torchrun, which has started 2 processes already" in done.stderr
    assert "--out is needed inside torchrun" in run(tmp_path, "digits", **TORCHRUN).stderr


def test_inside_a_launcher_one_rank_speaks(tmp_path: Path) -> None:
    done = run(tmp_path, "digits", "optim.lrr=1", "--out", "a", **{**TORCHRUN, "RANK": "1", "LOCAL_RANK": "1"})
    assert (done.returncode, done.stderr) == (2, "")


def test_the_checks_load_no_torch() -> None:
    code = (
        "import sys; from pathlib import Path; from vitscale.cli.preflight import prepare\n"
        "prepare('digits', ['parallel.engine=deepspeed'], 2, Path('/tmp/never-made'), None, fresh=False, "
        "ds_config=None, device='cpu')\n"
        "sys.exit(any(name in sys.modules for name in ('torch', 'timm', 'deepspeed')))"
    )
    assert subprocess.run([sys.executable, "-c", code], env=environ(), check=False).returncode == 0


@pytest.mark.parametrize(
    ("facts", "overrides", "nproc", "words"),
    [
        (gpus(2), (), 4, "4 processes need 4 GPUs, and this machine shows 2 GPUs"),
        (gpus(1, bf16=False), ("precision.compute=tf32",), 1, "precision.compute=tf32 is not possible on a GPU"),
        (gpus(1), ("precision.compute=float8",), 1, "compute=float8 is not possible on a GPU, only since Ada and Hop"),
        (gpus(0, rocm=True), (), 1, "ROCm"),
    ],
)
def test_what_the_devices_cannot_do_is_refused(
    monkeypatch: pytest.MonkeyPatch, facts: DeviceFacts, overrides: tuple[str, ...], nproc: int, words: str
) -> None:
    monkeypatch.setattr(preflight, "device_facts", lambda: facts)
    with pytest.raises(DeviceError, match=words):
        plan_of(*overrides, nproc=nproc)


def test_float8_is_planned_where_device_package_and_width_allow_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preflight, "device_facts", lambda: gpus(1, float8=True))
    monkeypatch.setattr(preflight, "find_spec", lambda _: None)
    with pytest.raises(ConfigError, match=r"needs a package: pip install vitscale\[float8\]"):
        plan_of("precision.compute=float8")
    monkeypatch.setattr(preflight, "find_spec", lambda _: "found")
    with pytest.raises(ConfigError, match=r"model.embed_dim=72 is not divisible by 16, which precision.compute=float8"):
        plan_of("precision.compute=float8", "model.embed_dim=72")
    assert "/".join(plan_of("precision.compute=float8").decisions.precision) == "float8/bf16/bf16"


def test_the_ranks_of_this_host_are_counted_not_of_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preflight, "device_facts", lambda: gpus(4))
    outer = OuterLaunch("srun", 7, 8, 3, 4, "node0", 29400)
    plan = plan_of("train.global_batch_size=64", outer=outer)
    assert (plan.device, plan.decisions.world_size, plan.decisions.engine) == ("cuda", 8, "ddp")


def test_emulated_bf16_and_a_mac_are_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preflight, "device_facts", lambda: gpus(1, bf16=False))
    assert "only emulates bf16" in plan_of("precision.compute=bf16").notes[0]
    mac = DeviceFacts(0, (), (), bf16=False, mps=True, rocm=False, torch_cuda=None)
    monkeypatch.setattr(preflight, "device_facts", lambda: mac)
    plan = plan_of()
    assert plan.device == "cpu"
    assert "MPS is not supported" in plan.notes[0]


def test_without_an_out_the_folder_has_the_recipes_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preflight, "device_facts", lambda: NO_DEVICES)
    plan = prepare("digits", (), None, None, None, fresh=False, ds_config=None, device=None)
    assert plan.out.parent == Path("runs")
    assert plan.out.name.startswith("digits-")


def test_dry_run_writes_nothing_and_counts_updates(tmp_path: Path) -> None:
    done = run(tmp_path, "digits", "--dry-run", "--device", "cpu", "--nproc", "2", COLUMNS="200")
    assert done.returncode == 0, done.stderr
    assert "1,350 (45 per epoch)" in done.stdout
    assert "16 x 1 x 2 = 32" in done.stdout
    assert "202,186 parameters" in done.stdout
    assert not list(tmp_path.iterdir())


@pytest.mark.dist
def test_a_group_trains_stops_and_resumes(tmp_path: Path) -> None:
    args = ["digits", "--nproc", "2", "--out", "run", "--device", "cpu", "train.max_updates=150"]
    process = subprocess.Popen(
        [*COMMAND, *args], cwd=tmp_path, env=environ(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        metrics = tmp_path / "run" / "metrics.jsonl"
        deadline = time.monotonic() + 120
        while not (metrics.exists() and '"train"' in metrics.read_text()):
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.1)
        busy = run(tmp_path, "digits", "--out", "run")
        assert busy.returncode == 2
        assert "in use by process" in busy.stderr
        began = time.monotonic()
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=60)
        assert time.monotonic() - began < 30
    finally:
        process.kill()  # of use only if the test failed; its ranks go with it
    assert process.returncode == 75, err
    assert "after a checkpoint" in err.splitlines()[-1]
    done = run(tmp_path, *args, COLUMNS="200")
    assert done.returncode == 0, done.stderr
    assert "resumed at update" in done.stdout
    assert json.loads((tmp_path / "run" / "result.json").read_text())["updates"] == 150


@pytest.mark.dist
def test_an_error_that_a_rank_finds_is_said_once(tmp_path: Path) -> None:
    (tmp_path / "broken.npz").write_bytes(b"no arrays")
    args = ["data.source=npz", "data.root=broken.npz", "--nproc", "2", "--out", "run", "--device", "cpu"]
    done = run(tmp_path, "digits", *args)
    assert done.returncode == 2, done.stderr
    assert done.stderr.count("error: ") == 1
    assert "broken.npz" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(("updates", "words"), [((), "no checkpoint was written yet"), ((5, 30), "is of update 30: ")])
def test_an_interrupt_says_from_where_the_run_can_go_on(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    updates: tuple[int, ...],
    words: str,
) -> None:
    for update in updates:
        folder = tmp_path / "checkpoints" / f"update-{update:08d}"
        folder.mkdir(parents=True)
        (folder / "manifest.json").write_text("{}")
    (tmp_path / "config.yaml").touch()

    def interrupt(*_: object, **__: object) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr("vitscale.cli.train._train", interrupt)
    assert cli.run(["train", "digits", "--device", "cpu", "--out", str(tmp_path)]) == 130
    said = capsys.readouterr().err
    assert said.startswith("error: interrupted; ")
    assert words in said
    assert said.count("\n") == 1


def test_sigterm_while_no_rank_runs_is_a_stop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between two attempts of --restarts there is nobody to pass it on to."""
    monkeypatch.setattr(
        "vitscale.cli.train_group.train_in_group", lambda *_, **__: os.kill(os.getpid(), signal.SIGTERM)
    )
    before = signal.getsignal(signal.SIGTERM)
    try:
        assert cli.run(["train", "digits", "--restarts", "1", "--out", str(tmp_path / "run")]) == 75
    finally:
        signal.signal(signal.SIGTERM, before)
