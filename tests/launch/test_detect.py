"""The variables of each outer launcher, as that launcher sets them, become one set of names."""

from __future__ import annotations

import pytest

from vitscale.errors import ConfigError
from vitscale.launch.detect import OuterLaunch, adopt, detect, first_host

TORCHRUN = {
    "RANK": "5",
    "WORLD_SIZE": "8",
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "4",
    "MASTER_ADDR": "node0",
    "MASTER_PORT": "29400",
    "TORCHELASTIC_RUN_ID": "none",
}
DEEPSPEED = {
    "RANK": "1",
    "WORLD_SIZE": "2",
    "LOCAL_RANK": "1",
    "LOCAL_SIZE": "2",
    "CROSS_RANK": "0",
    "CROSS_SIZE": "1",
    "MASTER_ADDR": "127.0.0.1",
    "MASTER_PORT": "29500",
}
OPENMPI = {
    "OMPI_COMM_WORLD_RANK": "1",
    "OMPI_COMM_WORLD_SIZE": "2",
    "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
    "PMIX_NAMESPACE": "123456789",
}
HYDRA = {"PMI_RANK": "1", "PMI_SIZE": "2", "MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "2", "PMI_PORT": "host:4711"}
SRUN = {
    "SLURM_PROCID": "3",
    "SLURM_LOCALID": "1",
    "SLURM_STEP_NUM_TASKS": "4",
    "SLURM_STEP_TASKS_PER_NODE": "2(x2)",
    "SLURM_STEP_NODELIST": "gpu[03-04]",
    "SLURM_JOB_ID": "77",
    "SLURM_STEP_ID": "0",
    "PMI_RANK": "3",
    "PMI_SIZE": "4",
}


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        (TORCHRUN, OuterLaunch("torchrun", 5, 8, 1, 4, "node0", 29400)),
        (DEEPSPEED, OuterLaunch("deepspeed", 1, 2, 1, 2, "127.0.0.1", 29500)),
    ],
)
def test_torch_names(environ: dict[str, str], expected: OuterLaunch) -> None:
    assert detect(environ) == expected


@pytest.mark.parametrize("environ", [OPENMPI, HYDRA])
def test_mpi_on_one_host(environ: dict[str, str]) -> None:
    found = detect(environ)
    assert found is not None
    assert (found.rank, found.world_size, found.local_rank, found.local_world_size) == (1, 2, 1, 2)
    assert found.master_addr == "127.0.0.1"
    assert 15000 <= found.master_port < 30000
    assert detect({**environ, "MASTER_PORT": "1234"}).master_port == 1234  # type: ignore[union-attr]


def test_mpi_over_hosts_needs_an_address() -> None:
    environ = {**OPENMPI, "OMPI_COMM_WORLD_LOCAL_SIZE": "1"}
    with pytest.raises(ConfigError, match="-x MASTER_ADDR=HOST"):
        detect(environ)
    found = detect({**environ, "MASTER_ADDR": "10.0.0.1"})
    assert found is not None
    assert found.master_addr == "10.0.0.1"


def test_srun() -> None:
    found = detect(SRUN)
    assert found is not None
    assert (found.launcher, found.rank, found.world_size) == ("srun", 3, 4)
    assert (found.local_rank, found.local_world_size, found.master_addr) == (1, 2, "gpu03")
    other_rank = detect({**SRUN, "SLURM_PROCID": "0", "SLURM_LOCALID": "0"})
    assert other_rank is not None
    assert other_rank.master_port == found.master_port


@pytest.mark.parametrize(
    "environ",
    [
        {},
        {"SLURM_PROCID": "0", "SLURM_NTASKS": "4", "SLURM_JOB_ID": "7"},  # the batch script itself
        {**SRUN, "SLURM_STEP_NUM_TASKS": "1", "PMI_SIZE": "1"},  # one task that starts its own ranks
        {**OPENMPI, "OMPI_COMM_WORLD_SIZE": "1"},
    ],
)
def test_alone(environ: dict[str, str]) -> None:
    assert detect(environ) is None


@pytest.mark.parametrize("name", ["LOCAL_RANK", "MASTER_ADDR"])
def test_half_set_variables_are_refused(name: str) -> None:
    environ = {key: value for key, value in TORCHRUN.items() if key != name}
    with pytest.raises(ConfigError, match=name):
        detect(environ)


def test_a_number_that_is_none_is_refused() -> None:
    with pytest.raises(ConfigError, match="LOCAL_RANK='x' is not a whole number"):
        detect({**TORCHRUN, "LOCAL_RANK": "x"})


def test_adopt_writes_torch_names() -> None:
    environ: dict[str, str] = {}
    found = detect(SRUN)
    assert found is not None
    adopt(found, environ)
    assert environ["RANK"] == "3"
    assert environ["MASTER_ADDR"] == "gpu03"
    assert detect(environ) is not None


@pytest.mark.parametrize(
    ("nodelist", "host"),
    [
        ("gpu03", "gpu03"),
        ("gpu[03-05,9],login", "gpu03"),
        ("a[1,4]-ib", "a1-ib"),
        ("n1,n2", "n1"),
        ("rack-1-[12-14]", "rack-1-12"),
    ],
)
def test_first_host(nodelist: str, host: str) -> None:
    assert first_host(nodelist) == host
