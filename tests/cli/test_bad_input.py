"""Bad input through the real command line: one sentence that names the place and says what to do, an exit code, and
nothing written. The table is the list of promises; what fails after training has begun (code 3) follows it."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from bad_input_making import (
    Make,
    altered,
    cifar_pickles,
    ds,
    image_folder,
    npz,
    of_a_deeper_model,
    other_weights,
    parquet,
    pickled_npz,
    text,
    tree,
    truncated,
    without,
)

from vitscale.cli import preflight
from vitscale.cli.main import run
from vitscale.launch.probe import NO_DEVICES, DeviceFacts

COMMAND = [sys.executable, "-m", "vitscale"]
TRAINED = ["train", "digits", "train.max_updates=2", "log.tensorboard=false", "--device", "cpu", "--out", "run"]
FOLDER = "data.source=folder data.root=images model.in_chans=3 data.workers=0"


@dataclass(frozen=True)
class Case:
    """A command line (after `train digits`, unless `command` says otherwise) and what it must say.

    process: in a process of its own, as people start it, and not in this one. gpus: what the machine pretends to have.
    """

    arguments: str
    sentence: str
    make: Make | None = None
    command: str = "train digits --device cpu --out out"
    process: bool = False
    gpus: DeviceFacts = NO_DEVICES

    @property
    def line(self) -> list[str]:
        """What is typed after `vitscale`."""
        return shlex.split(f"{self.command} {self.arguments}")


def gpus(count: int, *, bf16: bool = True) -> DeviceFacts:
    return DeviceFacts(
        count, ("Tesla T4",) * count, (2**34,) * count, bf16=bf16, mps=False, rocm=False, torch_cuda="13"
    )


ON_GPU = "train digits --out out"
RUN = "train digits --device cpu train.max_updates=2 log.tensorboard=false --out run"
CASES = [
    # --- recipes, files and keys
    Case("", "there is no recipe 'digts' (did you mean digits?)", command="train digts --out out", process=True),
    Case("", "config file gone.yaml does not exist", command="train gone.yaml --out out"),
    Case("", "my.yaml, line 3: not valid YAML", text("my.yaml", "a:\n  b: [1\nc: {}"), "train my.yaml", process=True),
    Case(
        "", "my.yaml: line 2: the key lr is given twice", text("my.yaml", "optim:\n  lr: 1\n  lr: 2"), "train my.yaml"
    ),
    Case("", "my.yaml must hold sections and keys, not [1]", text("my.yaml", "[1]"), "train my.yaml"),
    Case("", "my.yaml is not text in UTF-8", text("my.yaml", b"\xff\xfe"), "train my.yaml"),
    Case("optim.lrr=1", "unknown key optim.lrr (did you mean optim.lr?)", process=True),
    Case("optm.lr=1", "unknown key optm (did you mean optim?)"),
    Case("epochs=3", "unknown key epochs (did you mean train.epochs?)"),
    Case("lr", "'lr' is not an override; write section.key=value"),
    Case("optim.lr=-1", "optim.lr=-1 must be a number > 0"),
    Case("optim.lr=fast", "optim.lr=fast must be a number > 0"),
    Case("optim.lr=nan", "optim.lr=nan must be a number > 0"),
    Case("train.epochs=1.5", "train.epochs=1.5 must be a whole number > 0, or none"),
    Case("train.epochs=none", "train.epochs or train.max_updates must be given"),
    Case("parallel.zero_stage=5", "parallel.zero_stage=5 must be a whole number >= 0 and <= 3"),
    Case("parallel.engine=deepsped", "must be one of auto, single, ddp, fsdp2, deepspeed (did you mean deepspeed?)"),
    Case("--nproc two", "--nproc"),
    # --- batch, model
    Case("train.micro_batch_size=5 -n 2", "nearest valid (micro, accum, global): (4, 4, 32), (2, 8, 32)", process=True),
    Case(
        "train.micro_batch_size=8 train.grad_accum_steps=3 -n 2",
        "train.micro_batch_size=8, train.grad_accum_steps=3, train.global_batch_size=32 cannot hold on 2 devices",
    ),
    Case("model.patch_size=3", "nearest legal: model.img_size=6 or 9, or model.patch_size=2 or 4"),
    Case("model.name=vit_tinny_patch16_224", "(did you mean vit_tiny_patch16_224?)"),
    Case("model.kwargs.init_valus=1", "model.kwargs.init_valus is no argument", process=True),
    Case("model.freeze=blks", "model.freeze has 'blks', but no parameter of the model is under that prefix; nearest: "),
    Case("model.pretrained=gone.safetensors", "model.pretrained=gone.safetensors is not a file"),
    Case("model.pretrained=weights.safetensors", "model.pretrained=weights.safetensors lacks blocks.0.", other_weights),
    Case(
        "model.pretrained=weights.safetensors",
        "model.pretrained=weights.safetensors cannot be read as safetensors",
        text("weights.safetensors", b"\x80\x04pickle"),
    ),
    # --- engines, devices, precision
    Case("parallel.engine=single -n 2", "parallel.engine=single runs one process, not 2"),
    Case("parallel.engine=ddp parallel.zero_stage=1 -n 2", "parallel.zero_stage=1 has no effect with engine ddp"),
    Case("parallel.engine=fsdp2 optim.name=lamb -n 2", "optim.name=lamb does not work with engine fsdp2: its trust"),
    Case("parallel.zero_stage=2 optim.name=muon", "optim.name=muon does not work with engine deepspeed zero_stage 2"),
    Case("precision.compute=tf32", "precision.compute=tf32 needs an NVIDIA GPU; use fp32 or bf16 on the CPU"),
    Case("precision.compute=fp16 parallel.engine=deepspeed", "DeepSpeed has no fp16 on the CPU"),
    Case("precision.compute=float8", "precision.compute=float8 needs an NVIDIA GPU since Ada or Hopper"),
    Case("precision.compute=float8", "float8 is not possible on a Tesla T4", command=ON_GPU, gpus=gpus(1, bf16=False)),
    Case("precision.compute=float8 parallel.engine=deepspeed", "float8 layers have not been proved under DeepSpeed"),
    Case("precision.compute=tf32", "tf32 is not possible on a Tesla T4", command=ON_GPU, gpus=gpus(1, bf16=False)),
    Case("-n 4", "4 processes need 4 GPUs, and this machine shows 2 GPUs", command=ON_GPU, gpus=gpus(2)),
    Case("--device cuda", "--device cuda: torch sees no CUDA device here; use --device cpu", command=ON_GPU),
    Case("--device tpu", "--device tpu is not one of cpu and cuda", command=ON_GPU),
    # --- DeepSpeed's own keys
    Case("--ds-config gone.json", "--ds-config gone.json does not exist"),
    Case("--ds-config ds.json", "--ds-config ds.json is not readable JSON", text("ds.json", '{"a": ')),
    Case("--ds-config ds.json", "--ds-config ds.json must hold sections and keys, not [1]", ds([1])),
    Case("--ds-config ds.json", "train_batch_size is decided by vitscale: set train.gl", ds({"train_batch_size": 8})),
    Case("deepspeed.micro_batch_per_gpu=3", "(did you mean train_micro_batch_size_per_gpu? then set train.micro_batch"),
    Case("deepspeed.zero_optimization.stage=3", "deepspeed.zero_optimization.stage is decided by vitscale: set parall"),
    Case("deepspeed.zero_optimization.overlap_com=true", "(did you mean deepspeed.zero_optimization.overlap_comm?)"),
    Case("parallel.engine=ddp deepspeed.wall_clock_breakdown=true", "section has no effect with engine ddp"),
    # --- data
    Case("data.source=npz", "data.source=npz needs data.root"),
    Case("data.source=npz data.root=gone.npz", "data.root=gone.npz does not exist"),
    Case(
        "data.source=npz data.root=set.npz",
        "set.npz train, index 2: label 2 is outside 0..1, the 2 classes of the data set (1 such image)",
        npz([0, 1, 2, 1], [0, 1], ["a", "b"]),
        process=True,
    ),
    Case(
        "data.source=npz data.root=set.npz",
        "set.npz: val has classes that train has no image of: c",
        npz([0, 1, 0, 1], [0, 2], ["a", "b", "c"]),
    ),
    Case("data.source=npz data.root=set.npz", "it holds pickled objects, which can run code", pickled_npz),
    Case("data.source=npz data.root=set.npz", "it is another kind of file", text("set.npz", "no arrays")),
    Case(FOLDER, "data.root=images is not a folder", text("images", "")),
    Case(FOLDER, "images/val lacks class folders: eel", image_folder({"train/cat": 1, "train/eel": 1, "val/cat": 1})),
    Case(
        FOLDER, "images/val has unknown class folders: eel", image_folder({"train/cat": 1, "val/cat": 1, "val/eel": 1})
    ),
    Case(FOLDER, "the class folder images/train/eel has no images", image_folder({"train/cat": 1, "train/eel": 0})),
    Case("data.source=parquet data.root=set", "train-0.parquet has no column img or image", parquet(label=[0])),
    Case("data.source=parquet data.root=set", "has no column label or fine_label", parquet(img=[b"x"], y=[0])),
    Case(
        "data.source=cifar10 data.root=cifar model.in_chans=3",
        "data_batch_1 is not the published file (its MD5 differs) and was not opened",
        cifar_pickles,
    ),
    Case("model.num_classes=5", "digits has 10 classes but model.num_classes=5"),
    Case("train.class_weights=[1,2]", "train.class_weights has 2 values but the model has 10 classes"),
    Case("data.mean=[0.5,0.5]", "data.mean has 2 values but model.in_chans=1"),
    Case("data.mixup=0.5 train.micro_batch_size=1", "so train.micro_batch_size=1 must be even"),
    Case("data.random_resized_crop=true data.augment_on=device", "device cannot run data.random_resized_crop"),
    Case("data.crop_padding=1 data.random_resized_crop=true", "data.random_resized_crop and data.crop_padding are two"),
    # --- run folders and checkpoints
    Case("", "--out afile is a file; name a folder", text("afile", ""), "train digits --out afile"),
    Case("", "--out afile/run cannot be made: ", text("afile", ""), "train digits --out afile/run", process=True),
    Case("", "mine is not empty and not a run folder", text("mine/thesis.tex", ""), "train digits --out mine"),
    Case("--fresh", "--fresh needs an empty folder, and run is not", command=RUN),
    Case("model.depth=3", "is of a run with model.depth=4, and this command has model.depth=3", command=RUN),
    Case("parallel.engine=deepspeed", "is of a run with engine family=native, and this command", command=RUN),
    Case("", "update-00000002/weights.safetensors is truncated: ", truncated, RUN),
    Case("", "update-00000002/weights.safetensors was altered: its SHA-256", altered, RUN),
    Case("", "update-00000002/state.json is missing; delete", without("state.json"), RUN),
    # --- the commands that read a run
    Case("", "mine is not a run folder: it has no config.yaml", text("mine/a.txt", ""), "eval mine", process=True),
    Case("", "gone is not a run folder", command="predict gone pictures"),
    Case("", "gone is not a run folder", command="export gone out.safetensors"),
    Case("", "run has no checkpoint update-1; it has best, last, update-00000002", command="eval run -c update-1"),
    Case("", "this data set has no test split apart from val", command="eval run --split test"),
    Case("", "has no EMA weights; the run had optim.ema_decay off", command="eval run --ema"),
    Case("", "weights.safetensors is truncated: ", truncated, "export run out.safetensors"),
    Case("", "the checkpoint is of another model than config.yaml describes: ", of_a_deeper_model, "eval run"),
    Case("", "old.safetensors exists already; ", text("old.safetensors", ""), "export run old.safetensors"),
    Case("", "out.pth must end in .safetensors", command="export run out.pth"),
    Case("", "texts holds no image; file names must end in ", text("texts/a.txt", ""), "predict run texts"),
    Case("", "a.png cannot be decoded (it is no image", text("pictures/a.png", b"no"), "predict run pictures"),
    Case("", "gone is neither an image file nor a folder", command="predict run gone"),
    # --- verify and the rest
    Case("", "--engine ddpp is unknown; choose from single, ddp, fsdp2, ", command="verify --engine ddpp"),
    Case("", "model.img_size=8 is not a multiple of the patch size 3", command="verify model.patch_size=3"),
    Case("", "--device cuda: torch sees no CUDA device here", command="verify --device cuda"),
    Case("", "--out afile is a file; name a folder", text("afile", ""), "verify --out afile"),
]


def environ() -> dict[str, str]:
    launched = ("RANK", "WORLD_SIZE", "LOCAL_RANK")
    clean = {name: value for name, value in os.environ.items() if name not in launched}
    return {**clean, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}


def vitscale(*arguments: str, prefix: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
    """In a process of its own, in the working folder."""
    return subprocess.run(
        [*prefix, *COMMAND, *arguments], env=environ(), capture_output=True, text=True, check=False, timeout=300
    )


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of two updates."""
    folder = tmp_path_factory.mktemp("trained")
    subprocess.run([*COMMAND, *TRAINED], cwd=folder, env=environ(), capture_output=True, check=True)
    return folder / "run"


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty working folder; the commands may install a handler for SIGTERM."""
    monkeypatch.chdir(tmp_path)
    handler = signal.getsignal(signal.SIGTERM)
    yield tmp_path
    signal.signal(signal.SIGTERM, handler)


@pytest.mark.parametrize("case", CASES, ids=lambda case: " ".join(case.line))
def test_bad_input_is_one_sentence_with_code_2_and_nothing_is_written(
    case: Case, here: Path, trained: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    if "run" in case.line:
        shutil.copytree(trained, here / "run")
    if case.make:
        case.make(here)
    before = tree(here)
    if case.process:
        done = vitscale(*case.line)
        code, shown, said = done.returncode, done.stdout, done.stderr
    else:
        monkeypatch.setattr(preflight, "device_facts", lambda: case.gpus)
        code = run(case.line)
        shown, said = capfd.readouterr()
    assert (code, shown) == (2, ""), said
    assert said.startswith("error: ")
    assert said.count("\n") == 1, said
    assert case.sentence in said
    assert tree(here) == before


def test_a_folder_in_use_by_a_living_process_is_refused(here: Path) -> None:
    holder = (
        "import time; from pathlib import Path; from vitscale.results.run_folder import hold_run_folder\n"
        "with hold_run_folder(Path('run')): print('held', flush=True); time.sleep(60)"
    )
    process = subprocess.Popen([sys.executable, "-c", holder], stdout=subprocess.PIPE, text=True, env=environ())
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        done = vitscale(*TRAINED)
        assert (done.returncode, done.stdout) == (2, "")
        assert done.stderr.startswith(f"error: run is in use by process {process.pid} on ")
        assert done.stderr.count("\n") == 1
    finally:
        process.kill()
        process.communicate()


def test_an_unreadable_image_is_named_and_the_run_goes_on_once_it_is_mended(
    here: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    image_folder({"train/cat": 3, "train/eel": 3, "val/cat": 1, "val/eel": 1}, broken="train/eel/1.png")(here)
    line = [*shlex.split(f"train digits {FOLDER} train.epochs=1 train.global_batch_size=6"), *TRAINED[3:]]
    assert run(line) == 2
    said = capfd.readouterr().err
    assert said.count("\n") == 1
    assert "error: images/train/eel/1.png cannot be decoded (it is no image" in said
    shutil.copy("images/train/eel/0.png", "images/train/eel/1.png")
    assert run(line) == 0


@pytest.mark.dist
@pytest.mark.parametrize("engine", ["ddp", "fsdp2"])
def test_what_a_rank_finds_is_said_once_by_the_parent(here: Path, engine: str) -> None:
    npz([0, 1, 2, 1], [0, 1], ["a", "b"])(here)
    before = tree(here)
    done = vitscale(
        *shlex.split(f"train digits -n 2 parallel.engine={engine} data.source=npz data.root=set.npz"), *TRAINED[4:]
    )
    assert (done.returncode, done.stderr.count("\n")) == (2, 1), done.stderr
    assert done.stderr.startswith("error: set.npz train, index 2: label 2 is outside 0..1")
    assert tree(here) == before


# --- failures of a run that has begun: code 3, and the last good checkpoint stays usable ---------------------------


def test_losses_that_are_not_finite_end_the_run_and_keep_the_last_good_checkpoint(
    here: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    changes = "optim.name=sgd optim.lr=1e30 train.max_nonfinite_updates=3 log.every_updates=1"
    line = shlex.split(f"train digits --device cpu --out run {changes} checkpoint.every_updates=1")
    assert run(line) == 3
    said = capfd.readouterr().err
    assert said.count("\n") == 1
    assert "the loss was not finite for 3 updates in a row, up to update " in said
    assert "(learning rate " in said
    assert "the last good checkpoint is kept (update-00000001); lower optim.lr" in said
    assert [path.name for path in sorted(Path("run/checkpoints").glob("*update-*"))] == ["update-00000001"]
    assert run(["eval", "run", "--device", "cpu", "--checkpoint", "last"]) == 0
    assert json.loads(Path("run/eval.json").read_text())["update"] == 1


@pytest.mark.parametrize("more", ["", pytest.param("-n 2 parallel.engine=fsdp2", marks=pytest.mark.dist)])
def test_a_full_disk_ends_the_run_and_keeps_the_last_whole_checkpoint(here: Path, more: str) -> None:
    Path("small").mkdir()
    small = 'mount -t tmpfs -o size="$1" none small && shift && cd small && '  # seen by this process and its own alone
    enter = ("unshare", "-rm", "sh", "-c")
    if subprocess.run([*enter, small + "true", "sh", "1m"], capture_output=True, check=False).returncode:
        pytest.skip("this machine lets nobody mount a small disk")
    # Room for one checkpoint of 3.5 MiB and not for two.
    then = '"$@"; code=$?; ls -A run/checkpoints; "$1" -m vitscale eval run --device cpu | tail -1; exit $code'
    line = shlex.split(f"train digits --device cpu --out run train.max_updates=6 checkpoint.every_updates=2 {more}")
    done = vitscale(*line, prefix=(*enter, small + "{ " + then + "; }", "sh", "4m"))
    assert done.returncode == 3, done.stderr
    assert done.stderr.startswith("error: the disk is full while writing run/")
    assert done.stderr.count("\n") == 1, done.stderr
    assert "free some space and run the same command again to resume" in done.stderr
    assert done.stdout.splitlines()[-2:] == ["update-00000002", "wrote run/eval.json"]
