"""Two hosts on one machine: network namespaces joined by a veth pair whose both ends are slowed. Needs root.

In: a rate such as "100mbit". Out: `run`, which starts a module on both as two ranks. Cleans up after itself.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

ADDRESS, PORT = "10.231.7.{}", 29571


@dataclass(frozen=True)
class TwoHosts:
    """names: of the namespaces."""

    names: tuple[str, str]

    def run(self, module: str, args: Sequence[str], log: Path, timeout_s: float, env: Mapping[str, str]) -> None:
        """`python -m module args` on both, output to log/rank{0,1}.{stdout,stderr}; AssertionError if one fails."""
        processes = [self._start(rank, [module, *args], log, env) for rank in (0, 1)]
        try:
            codes = [process.wait(timeout_s) for process in processes]
        finally:
            for process in processes:
                process.kill()
                process.wait()
        tails = "\n".join((log / f"rank{rank}.stderr").read_text()[-2000:] for rank in (0, 1))
        assert codes == [0, 0], tails

    def _start(self, rank: int, command: list[str], log: Path, env: Mapping[str, str]) -> subprocess.Popen[bytes]:
        ranks = {"RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}
        place = {"MASTER_ADDR": ADDRESS.format(1), "MASTER_PORT": str(PORT), "GLOO_SOCKET_IFNAME": "eth0"}
        whole = ["ip", "netns", "exec", self.names[rank], sys.executable, "-m", *command]
        environment = {**os.environ, **ranks, **place, **env}
        with (log / f"rank{rank}.stderr").open("wb") as stderr, (log / f"rank{rank}.stdout").open("wb") as stdout:
            return subprocess.Popen(whole, env=environment, stdout=stdout, stderr=stderr)


@contextmanager
def two_hosts(rate: str) -> Iterator[TwoHosts]:
    """Both hosts, each with one interface, eth0; CalledProcessError or OSError where they cannot be made."""
    names = (f"vsprobe{os.getpid()}a", f"vsprobe{os.getpid()}b")
    made: list[str] = []
    try:
        for name in names:
            _ip("netns", "add", name)
            made.append(name)
        _ip("link", "add", "eth0", "netns", names[0], "type", "veth", "peer", "name", "eth0", "netns", names[1])
        for number, name in enumerate(names, start=1):
            _ip("-n", name, "link", "set", "lo", "up")
            _ip("-n", name, "addr", "add", f"{ADDRESS.format(number)}/24", "dev", "eth0")
            _ip("-n", name, "link", "set", "eth0", "up")
            limit = ["tbf", "rate", rate, "burst", "256kb", "latency", "400ms"]
            _run("ip", "netns", "exec", name, "tc", "qdisc", "add", "dev", "eth0", "root", *limit)
        yield TwoHosts(names)
    finally:
        for name in made:
            _ip("netns", "del", name)


def why_not() -> str | None:
    """Why two hosts cannot be made here, or None."""
    try:
        with two_hosts("1gbit"):
            return None
    except OSError as error:
        return f"two hosts take iproute2: {error}"
    except subprocess.CalledProcessError as error:
        return f"two hosts take root and tbf: {error.stderr.decode().strip()}"


def _ip(*args: str) -> None:
    _run("ip", *args)


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True, timeout=20)
