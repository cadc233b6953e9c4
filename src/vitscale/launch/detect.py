"""Find out whether another launcher started this process as one of several ranks, and map its variables.

In: the environment. Out: an `OuterLaunch`, which `adopt` writes as RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE,
MASTER_ADDR and MASTER_PORT: after that distributed.py reads the same names whoever started the ranks. Torch-free.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass

from vitscale.errors import ConfigError


@dataclass(frozen=True, slots=True)
class OuterLaunch:
    """This process as one rank of a group that somebody else started."""

    launcher: str
    rank: int
    world_size: int
    local_rank: int
    local_world_size: int
    master_addr: str
    master_port: int


def detect(environ: Mapping[str, str]) -> OuterLaunch | None:
    """Return how an outer launcher placed this process; None if it stands alone."""
    if "RANK" in environ and "WORLD_SIZE" in environ:
        return _from_torch_names(environ)
    if _int(environ, "OMPI_COMM_WORLD_SIZE", 1) > 1:
        return _from_mpi(environ, "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_{}", "mpirun")
    if _int(environ, "PMI_SIZE", 1) > 1 and "SLURM_STEP_NUM_TASKS" not in environ:  # MPICH, Intel MPI
        return _from_mpi(environ, "PMI_RANK", "PMI_SIZE", "MPI_LOCAL{}", "mpirun")
    # Set by srun for its steps; not in the batch script itself, where SLURM_PROCID is 0 as well.
    if _int(environ, "SLURM_STEP_NUM_TASKS", 1) > 1 and "SLURM_PROCID" in environ:
        return _from_slurm(environ)
    return None


def adopt(outer: OuterLaunch, environ: MutableMapping[str, str]) -> None:
    """Write the launch under the names that torch and DeepSpeed read."""
    environ.update(
        RANK=str(outer.rank),
        WORLD_SIZE=str(outer.world_size),
        LOCAL_RANK=str(outer.local_rank),
        LOCAL_WORLD_SIZE=str(outer.local_world_size),
        MASTER_ADDR=outer.master_addr,
        MASTER_PORT=str(outer.master_port),
    )


def _int(environ: Mapping[str, str], name: str, default: int | None = None) -> int:
    text = environ.get(name)
    if text is None:
        if default is None:
            raise ConfigError(f"the launcher set RANK or its like but not {name}; start all ranks with one launcher")
        return default
    try:
        return int(text)
    except ValueError:
        raise ConfigError(f"environment variable {name}={text!r} is not a whole number") from None


def _from_torch_names(environ: Mapping[str, str]) -> OuterLaunch:
    """torchrun, deepspeed, and schedulers that use torch's own names."""
    world_size = _int(environ, "WORLD_SIZE")
    if "TORCHELASTIC_RUN_ID" in environ:
        launcher = "torchrun"
    else:  # deepspeed's launcher sets LOCAL_SIZE and CROSS_RANK besides torch's names
        launcher = "deepspeed" if "CROSS_RANK" in environ else "an outer launcher"
    local_world_size = _int(environ, "LOCAL_WORLD_SIZE", _int(environ, "LOCAL_SIZE", world_size))
    if world_size > 1 and "MASTER_ADDR" not in environ:
        raise ConfigError("RANK and WORLD_SIZE are set but MASTER_ADDR is not; set it to the host of rank 0")
    return OuterLaunch(
        launcher,
        _int(environ, "RANK"),
        world_size,
        _int(environ, "LOCAL_RANK"),
        local_world_size,
        environ.get("MASTER_ADDR", "127.0.0.1"),
        _int(environ, "MASTER_PORT", 29500),
    )


def _from_mpi(environ: Mapping[str, str], rank: str, size: str, local: str, launcher: str) -> OuterLaunch:
    """OpenMPI or a Hydra launcher. They name no address: ranks of one host use the loop-back one.

    DeepSpeed's own MPI discovery would take this machine's address over MASTER_ADDR, hence the mapping here.
    """
    open_mpi = "OMPI" in rank
    local_rank = _int(environ, local.format("RANK" if open_mpi else "RANKID"))
    local_size = _int(environ, local.format("SIZE" if open_mpi else "NRANKS"))
    world_size = _int(environ, size)
    address = environ.get("MASTER_ADDR")
    if address is None and local_size < world_size:
        raise ConfigError(
            "mpirun over several hosts needs the host of rank 0: add -x MASTER_ADDR=HOST (OpenMPI) or "
            "-genv MASTER_ADDR HOST (MPICH)"
        )
    job = environ.get("PMIX_NAMESPACE") or environ.get("OMPI_MCA_ess_base_jobid") or environ.get("PMI_PORT", "0")
    port = _int(environ, "MASTER_PORT", _port_of(job))
    return OuterLaunch(launcher, _int(environ, rank), world_size, local_rank, local_size, address or "127.0.0.1", port)


def _from_slurm(environ: Mapping[str, str]) -> OuterLaunch:
    world_size = _int(environ, "SLURM_STEP_NUM_TASKS")
    hosts = environ.get("SLURM_STEP_NODELIST") or environ.get("SLURM_JOB_NODELIST") or "127.0.0.1"
    address = environ.get("MASTER_ADDR") or first_host(hosts)
    job = f"{environ.get('SLURM_JOB_ID', '0')}.{environ.get('SLURM_STEP_ID', '0')}"
    port = _int(environ, "MASTER_PORT", _port_of(job))
    # "2(x3),1": tasks per node, run-length coded
    per_node = re.split(r"[(,]", environ.get("SLURM_STEP_TASKS_PER_NODE", str(world_size)))[0]
    local_size = int(per_node) if per_node.isdigit() else world_size
    rank, local_rank = _int(environ, "SLURM_PROCID"), _int(environ, "SLURM_LOCALID")
    return OuterLaunch("srun", rank, world_size, local_rank, local_size, address, port)


def _port_of(job: str) -> int:
    """Return a port that all ranks of a job find by themselves, below the range the kernel hands out."""
    return 15000 + zlib.crc32(job.encode()) % 15000


def first_host(nodelist: str) -> str:
    """Return the first host of a Slurm node list such as 'gpu[03-05,9],login'."""
    match = re.match(r"([^\[,]+)(?:\[([^\],-]+)[^\]]*\]([^,\[]*))?", nodelist)
    if match is None:
        raise ConfigError(f"cannot read the node list {nodelist!r}; set MASTER_ADDR to the host of rank 0")
    return match[1] + (match[2] or "") + (match[3] or "")
