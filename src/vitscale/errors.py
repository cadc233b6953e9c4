"""The tree of named errors: what a person sees as one sentence, and the exit code that goes with it.

Not here: internal invariants, which are plain assertions. `sys.exit` is called only in cli/ and in the
`__main__` block of a worker.
"""

EXIT_OK = 0
EXIT_CHECK_FAILED = 1
EXIT_BAD_INPUT = 2
EXIT_RUN_FAILED = 3
EXIT_STOPPED = 75  # EX_TEMPFAIL: run the same command again to go on
EXIT_INTERRUPTED = 130


class VitscaleError(Exception):
    """Base of all errors meant for people. `str(error)` is one sentence: what is wrong, where, what to do."""

    exit_code = EXIT_BAD_INPUT


class ConfigError(VitscaleError):
    """A key, value or combination in the config that cannot be run; the sentence names the key."""


class DataError(VitscaleError):
    """A data set that is missing, damaged or does not fit the model; the sentence names the file or the index."""


class ModelError(VitscaleError):
    """A model or a weights file that cannot be built or loaded."""


class DeviceError(VitscaleError):
    """The machine lacks what the config asks for: devices, a precision, a back-end."""


class CheckpointError(VitscaleError):
    """A checkpoint that is missing, truncated, altered, or of another model."""


class RunFolderError(VitscaleError):
    """A run folder that is in use, not empty, or not a run folder."""


class OutputError(VitscaleError):
    """A file or folder that cannot be written; the sentence names the path and another way."""


class CompareError(VitscaleError):
    """Two studies that cannot be compared as they are; the sentence names what differs or is missing."""


class RunFailed(VitscaleError):
    """The run itself failed after it began: out of memory, a dead rank, a full disk."""

    exit_code = EXIT_RUN_FAILED


class NonFiniteLoss(RunFailed):
    """The loss was not finite for several updates in a row; the last good checkpoint is kept."""


class CheckFailed(VitscaleError):
    """A check that was asked for (verify) is out of its bounds."""

    exit_code = EXIT_CHECK_FAILED


class Stopped(VitscaleError):
    """Stopped at a signal, after a checkpoint where there is something to keep; the same command goes on."""

    exit_code = EXIT_STOPPED


class Interrupted(VitscaleError):
    """Ctrl-C, where there is more to say than that: how far it came, and how to go on."""

    exit_code = EXIT_INTERRUPTED
