"""What this machine can run of a study: devices, cores, threads. Torch-free.

In: what launch.probe knows. Out: the kind of device, the reason why a case is skipped, the environment of its ranks.
On a CPU a "device" is a process with a fixed number of threads; otherwise one process would have all cores to itself,
and two could not be faster.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec

from vitscale.errors import DeviceError, RunFolderError
from vitscale.launch.probe import NO_DEVICES, DeviceFacts, device_facts
from vitscale.results.record import Record
from vitscale.study.expand import Case

MAX_CPU_PROCESSES = 8  # more than the cores are allowed up to here, with a note: enough to try an engine out


@dataclass(frozen=True)
class Machine:
    """This host. device_type is "cpu" or "cuda"."""

    device_type: str
    facts: DeviceFacts
    cores: int

    def problem(self, case: Case) -> str | None:
        """Why the case cannot run here, or None."""
        if case.nodes > 1:
            return f"needs {case.nodes} nodes, and a study starts its processes on one"
        if case.decisions is not None and case.decisions.engine == "deepspeed" and find_spec("deepspeed") is None:
            return "needs a package: pip install deepspeed (Linux only)"
        size, devices = case.world_size, self.facts.cuda_devices
        if self.device_type == "cuda" and size > devices:
            return f"needs {size} GPUs, and this machine shows {devices}"
        if self.device_type == "cpu" and size > max(self.cores, MAX_CPU_PROCESSES):
            return f"needs {size} processes, and this machine has {self.cores} usable cores"
        return None

    def lacks_devices(self, cases: Sequence[Case]) -> bool:
        """Whether every case needs more GPUs than there are, and a CPU would do."""
        return self.device_type == "cuda" and all(
            case.nodes == 1 and case.world_size > self.facts.cuda_devices for case in cases
        )

    def notes(self, case: Case, threads: int | None) -> tuple[str, ...]:
        """What a reader of the record must know of how it was run."""
        if self.device_type == "cuda":
            return ()
        notes = [] if threads is None else [f"{threads} thread{'s' if threads > 1 else ''} per process"]
        if case.world_size > self.cores:
            notes.append(f"{case.world_size} processes share {self.cores} cores: speed says nothing about scaling")
        return tuple(notes)

    def threads(self, cases: Sequence[Case]) -> int | None:
        """Threads of each process, the same in all cases of a study; None on a GPU, or where OMP_NUM_THREADS is set."""
        if self.device_type == "cuda" or "OMP_NUM_THREADS" in os.environ:
            return None
        return max(1, self.cores // self._largest(cases))

    def threads_as_before(self, cases: Sequence[Case], records: Sequence[Record]) -> int | None:
        """`threads`, but those of a folder's records where there are some: what is added must be like what is there.

        Raises RunFolderError where the cases cannot be run like the records: another kind of device, other threads.
        """
        ran = [record for record in records if record.outcome != "skipped"]
        kinds = {record.identity.device_type for record in ran} - {None, self.device_type}
        if kinds:
            raise RunFolderError(
                f"the folder holds records of {kinds.pop()} runs, and this study would run on {self.device_type}; name "
                "another --out, or give the same --device"
            )
        wanted, kept = self.threads(cases), _threads_of(ran)
        if self.device_type == "cuda" or kept is None:
            return wanted
        if wanted is None:
            asked = os.environ.get("OMP_NUM_THREADS")
            if asked != str(kept):
                raise RunFolderError(
                    f"the folder's records were made with {kept} threads per process, and OMP_NUM_THREADS={asked} asks "
                    "for another number; unset it, or name another --out"
                )
            return None
        if wanted < kept:
            raise RunFolderError(
                f"world_size={self._largest(cases)} leaves {wanted} threads per process on {self.cores} cores, and the "
                f"folder's records were made with {kept}: they could not be compared; name another --out"
            )
        return kept

    def _largest(self, cases: Sequence[Case]) -> int:
        return max((case.world_size for case in cases if not self.problem(case)), default=1)


def _threads_of(records: Sequence[Record]) -> int | None:
    """What the records' processes were told, or had; None if none of them says."""
    for record in records:
        environment = record.environment or {}
        told = (environment.get("variables") or {}).get("OMP_NUM_THREADS")
        had = (environment.get("torch_threads") or {}).get("intra_op")
        if told is not None or had is not None:
            return int(told or "") if str(told).isdigit() else had
    return None


def this_machine(asked: str | None) -> Machine:
    """The machine as a study sees it; DeviceError if it lacks the kind of device that was asked for."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    if asked not in (None, "cpu", "cuda"):
        raise DeviceError(f"--device {asked} is not one of cpu and cuda")
    facts = NO_DEVICES if asked == "cpu" else device_facts()
    if facts.rocm:
        raise DeviceError("this torch is a ROCm build, which vitscale does not support; use --device cpu")
    if asked == "cuda" and not facts.cuda_devices:
        raise DeviceError("--device cuda: torch sees no CUDA device here; use --device cpu, or see `vitscale env`")
    return Machine("cuda" if facts.cuda_devices else "cpu", facts, cores)
