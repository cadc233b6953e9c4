"""The `vitscale` command: registers one function per command and turns errors into one line and an exit code.

Nothing heavy is imported here or at the top of a command's module (`vitscale --help` has 0.4 s): torch, pydantic and
YAML are imported inside the functions. A command returns its exit code, or None for 0.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Annotated

import typer

from vitscale.cli.bench import bench
from vitscale.cli.compare import compare
from vitscale.cli.env import env
from vitscale.cli.eval import eval as evaluate
from vitscale.cli.export import export
from vitscale.cli.imports import import_table
from vitscale.cli.predict import predict
from vitscale.cli.recipes import recipes
from vitscale.cli.report import report
from vitscale.cli.show import show
from vitscale.cli.study import study
from vitscale.cli.train import train
from vitscale.cli.verify import verify
from vitscale.errors import EXIT_BAD_INPUT, EXIT_INTERRUPTED, EXIT_OK, EXIT_RUN_FAILED, VitscaleError

app = typer.Typer(
    help="Train Vision Transformers on one device or many, and measure honestly what scaling buys.",
    epilog="Start with: vitscale train digits    Help on a command: vitscale COMMAND --help",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)


def _print_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        typer.echo(f"vitscale {version('vitscale')}")
        raise typer.Exit()


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    pass


for _command in (train, evaluate, predict, export, show, recipes, verify, study, report, compare, bench, env):
    app.command(_command.__name__)(_command)
app.command("import")(import_table)  # a keyword: no function can have the name


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and exit with its code (see errors.py for what each means)."""
    sys.exit(run(arguments))


def run(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit code. Errors meant for people become one line on stderr."""
    try:
        code = app(args=None if arguments is None else list(arguments), prog_name="vitscale", standalone_mode=False)
        sys.stdout.flush()
    except VitscaleError as error:
        return _fail(str(error), error.exit_code)
    except (KeyboardInterrupt, typer.Abort):
        return _fail("interrupted", EXIT_INTERRUPTED)
    except BrokenPipeError:
        return _reader_left()
    except SystemExit as error:
        if isinstance(error.__context__, BrokenPipeError):  # typer's own answer is exit code 1
            return _reader_left()
        raise
    except Exception as error:
        # Wrong use of the command line: the base class of these errors has moved between typer's versions.
        if message := getattr(error, "format_message", None):
            return _fail(_with_help(message(), error), EXIT_BAD_INPUT)
        from vitscale.launch.failure import as_named

        command = list(sys.argv[1:] if arguments is None else arguments)[:1]
        # A full disk, or memory, in a command that has no word of its own for it.
        if named := as_named(error, resumes=command in (["train"], ["study"])):
            return _fail(str(named), named.exit_code)
        import traceback

        traceback.print_exc()
        return _fail("this is a fault in vitscale; please report it with the lines above", EXIT_RUN_FAILED)
    return code if isinstance(code, int) else EXIT_OK


def _reader_left() -> int:
    """`vitscale show digits | head`: the reader has seen enough, which is no error; what is left goes nowhere."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.__stdout__.fileno() if sys.__stdout__ else 1)
    return EXIT_OK


def _fail(sentence: str, code: int) -> int:
    line = f"error: {' '.join(sentence.split())}"
    coloured = sys.stderr.isatty() and not os.environ.get("NO_COLOR")
    print(typer.style(line, fg="red") if coloured else line, file=sys.stderr)
    return code


def _with_help(message: str, error: Exception) -> str:
    context = getattr(error, "ctx", None)
    path = context.command_path if context else "vitscale"
    return f"{message.rstrip('.')}; see {path} --help" if message else f"see {path} --help"


if __name__ == "__main__":
    main()
