"""The command line's frame: help in time and without torch, one line per error, exit codes."""

import resource
import subprocess
import sys

import pytest
import typer

from vitscale.cli import main
from vitscale.errors import CheckFailed, ConfigError, RunFailed, Stopped

COMMANDS = ("train", "eval", "predict", "export", "show", "recipes", "verify", "study", "env")


def test_help_lists_every_command_with_its_sentence(vitscale):
    done = vitscale("--help")
    assert done.returncode == 0
    for command in COMMANDS:
        assert f" {command} " in done.stdout


@pytest.mark.parametrize("command", COMMANDS)
def test_each_command_has_a_manual_with_examples(vitscale, command):
    done = vitscale(command, "--help")
    assert done.returncode == 0
    assert "Examples" in done.stdout
    assert f"vitscale {command}" in done.stdout


def test_version(vitscale):
    done = vitscale("--version")
    assert (done.returncode, done.stdout.split()[0]) == (0, "vitscale")


def test_help_takes_less_than_400_ms_of_processor_time():
    def seconds() -> float:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([sys.executable, "-m", "vitscale.cli.main", "--help"], capture_output=True, check=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return (after.ru_utime - before.ru_utime) + (after.ru_stime - before.ru_stime)

    assert min(seconds() for _ in range(5)) < 0.4


@pytest.mark.parametrize(
    "arguments",
    [
        ["--help"],
        ["show", "digits"],
        ["show", "digits", "-n", "2", "parallel.engine=deepspeed"],
        ["recipes"],
        ["study", "strong-scaling", "--dry-run", "--device", "cpu"],
    ],
    ids=" ".join,
)
def test_no_torch_is_loaded(arguments):
    code = (
        "import sys; from vitscale.cli.main import run; code = run(sys.argv[1:]); "
        "heavy = {'torch', 'torchvision', 'timm', 'deepspeed', 'scipy', 'sklearn', 'pyarrow'} & set(sys.modules); "
        "sys.exit(f'loaded {heavy}' if heavy else code)"
    )
    done = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (["sohw"], "No such command 'sohw'"),
        (["show"], "Missing argument 'CONFIG'"),
        (["show", "digits", "--foo"], "No such option: --foo"),
        (["show", "digits", "--nproc", "0"], "--nproc"),
        (["show", "digts"], "did you mean digits?"),
        (["show", "digits", "optim.lr=x"], "optim.lr=x must be a number"),
        (["show", "digits", "model.patch_size=3"], "nearest legal: model.img_size=6 or 9"),
    ],
)
def test_wrong_use_is_one_line_and_exit_code_2(vitscale, arguments, part):
    done = vitscale(*arguments)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith("error: ")
    assert done.stderr.count("\n") == 1
    assert part in done.stderr


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ConfigError("bad\n  input"), 2),
        (RunFailed("lost"), 3),
        (CheckFailed("out"), 1),
        (Stopped("stopped"), 75),
        (KeyboardInterrupt(), 130),
        (typer.Abort(), 130),
        (RuntimeError("a fault"), 3),
    ],
)
def test_errors_become_their_exit_code(monkeypatch, capsys, error, code):
    def fail(**_: object) -> None:
        raise error

    monkeypatch.setattr(main, "app", fail)
    assert main.run([]) == code
    stderr = capsys.readouterr().err
    assert stderr.splitlines()[-1].startswith("error: ")
    assert ("Traceback" in stderr) == (type(error) is RuntimeError)


def test_a_commands_number_is_the_exit_code(monkeypatch):
    monkeypatch.setattr(main, "app", lambda **_: 1)
    assert main.run([]) == 1
    monkeypatch.setattr(main, "app", lambda **_: None)
    with pytest.raises(SystemExit) as caught:
        main.main([])
    assert caught.value.code == 0


def test_a_reader_that_has_seen_enough_is_no_error():
    command = f"{sys.executable} -m vitscale.cli.main show digits | true; echo ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("0\n", "")
