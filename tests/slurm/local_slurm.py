"""A real Slurm on this one host: a controller and some nodes, for tests, demonstrations and CI.

    with LocalSlurm(nodes=2) as cluster:
        subprocess.run(["sbatch", ...], env={**os.environ, **cluster.environment})

or `python local_slurm.py [NODES]`, which prints the variable to export and runs until it is interrupted. It needs root,
and installs Debian's slurm-wlm and munge when they are missing. Every daemon is a child of this process, with a key,
sockets and ports of its own; all of them are gone at the end. There is no accounting, so no sacct.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import Self

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "squeue", "scontrol", "scancel")
PACKAGES = ("slurm-wlm", "munge")
START_SECONDS = 60

CONFIG = """\
ClusterName=local
SlurmctldHost={host}(127.0.0.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge/socket
CredType=cred/munge
SlurmctldPort={ports[0]}
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmdSpoolDir={folder}/spool-%n
StateSaveLocation={folder}/state
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerType=sched/backfill
SchedulerParameters=sched_interval=1,bf_interval=1
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SwitchType=switch/none
MpiDefault=none
ReturnToService=2
KillWait=2
OverTimeLimit=0
MinJobAge=3600
MessageTimeout=5
JobRequeue=1
{nodes}
PartitionName=batch Nodes=ALL Default=YES MaxTime=01:00:00 State=UP
"""


class CannotStartError(Exception):
    """Slurm cannot be had here, and why."""


def install() -> None:
    """Install what is missing. Raises CannotStartError where that cannot be done."""
    missing = [name for name in PROGRAMS if not shutil.which(name, path=_path())]
    if os.geteuid() != 0:
        raise CannotStartError("a local Slurm needs root")
    if not missing:
        return
    if not shutil.which("apt-get"):
        raise CannotStartError(f"{', '.join(missing)} are missing, and there is no apt-get to install them")
    quiet = {"capture_output": True, "text": True, "check": False}
    subprocess.run(["apt-get", "update", "-qq"], **quiet)
    done = subprocess.run(
        ["apt-get", "install", "-y", "-qq", "--no-install-recommends", *PACKAGES],
        env={**os.environ, "DEBIAN_FRONTEND": "noninteractive"},
        **quiet,
    )
    if done.returncode:
        raise CannotStartError(f"{' and '.join(PACKAGES)} cannot be installed: {done.stderr.strip()[-300:]}")


class LocalSlurm:
    """A cluster that lives as long as the `with` block."""

    def __init__(self, nodes: int = 2, cpus: int = 2) -> None:
        """Take how many nodes there are, all of them this host, and how many CPUs each says it has."""
        self.names = [f"n{number}" for number in range(1, nodes + 1)]
        self._cpus = cpus
        self._daemons: dict[str, subprocess.Popen[bytes]] = {}
        self.folder = Path()

    @property
    def environment(self) -> dict[str, str]:
        """The variables by which Slurm's commands find this cluster."""
        return {"SLURM_CONF": str(self.folder / "slurm.conf"), "PATH": _path()}

    def __enter__(self) -> Self:
        """Start everything and wait until all nodes are idle."""
        install()
        self.folder = Path(tempfile.mkdtemp(prefix="local-slurm-"))
        try:
            self._write_config()
            self._start_munge()
            self.start_controller()
            for name in self.names:
                self._start(name, "slurmd", "-D", "-N", name, "-f", str(self.folder / "slurm.conf"))
            self._wait_until_idle()
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Cancel all jobs and end every daemon."""
        self._end()

    def start_controller(self) -> None:
        """Start the controller, as after `stop_controller`; it remembers its jobs."""
        self._start("slurmctld", "slurmctld", "-D", "-f", str(self.folder / "slurm.conf"))
        self._wait(lambda: self._run("scontrol", "ping").returncode == 0, "the controller does not answer")

    def stop_controller(self) -> None:
        """End the controller, which writes its state down; jobs go on."""
        self._stop("slurmctld")

    def _end(self) -> None:
        if "slurmctld" in self._daemons:
            self._run("scancel", "--user=root", "--signal=KILL", "--full")
            self._run("scancel", "--user=root")
            with contextlib.suppress(CannotStartError):
                self._wait(lambda: not self._run("squeue", "--noheader").stdout.strip(), "jobs do not end")
        for name in [*reversed(self._daemons)]:
            self._stop(name)
        self._end_step_daemons()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _write_config(self) -> None:
        for name in ("state", "munge"):
            (self.folder / name).mkdir(mode=0o755)
        host = socket.gethostname().partition(".")[0]
        ports = _free_ports(len(self.names) + 1)
        nodes = "\n".join(
            f"NodeName={name} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} CPUs={self._cpus} "
            "RealMemory=1000 State=UNKNOWN"
            for name, port in zip(self.names, ports[1:], strict=True)
        )
        text = CONFIG.format(host=host, folder=self.folder, ports=ports, nodes=nodes)
        (self.folder / "slurm.conf").write_text(text)

    def _start_munge(self) -> None:
        place = self.folder / "munge"
        key = place / "key"
        key.write_bytes(secrets.token_bytes(128))
        key.chmod(0o400)
        words = ("munged", "--foreground", "--force", f"--key-file={key}", f"--socket={place}/socket")
        words += (f"--log-file={place}/log", f"--pid-file={place}/pid", f"--seed-file={place}/seed")
        self._start("munged", *words)
        self._wait((place / "socket").exists, "munged does not start")

    def _start(self, name: str, *words: str) -> None:
        log = (self.folder / f"{name}.log").open("ab")
        with log:
            self._daemons[name] = subprocess.Popen(
                words, env={**os.environ, **self.environment}, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )

    def _stop(self, name: str) -> None:
        daemon = self._daemons.pop(name)
        daemon.terminate()
        try:
            daemon.wait(10)
        except subprocess.TimeoutExpired:
            daemon.kill()
            daemon.wait()

    def _end_step_daemons(self) -> None:
        """Kill what a node's daemon started for a step and left, known by the cluster's config in its environment."""
        mark = b"SLURM_CONF=" + os.fsencode(self.folder / "slurm.conf")
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit() and int(entry.name) != os.getpid():
                with contextlib.suppress(OSError):
                    if mark in (entry / "environ").read_bytes().split(b"\0"):
                        os.kill(int(entry.name), signal.SIGKILL)

    def _run(self, *words: str) -> subprocess.CompletedProcess[str]:
        environment = {**os.environ, **self.environment}
        return subprocess.run(words, env=environment, capture_output=True, text=True, check=False)

    def _wait_until_idle(self) -> None:
        def idle() -> bool:
            states = self._run("sinfo", "--noheader", "--Node", "--format=%T").stdout.split()
            return states == ["idle"] * len(self.names)

        self._wait(idle, "the nodes do not become idle")

    def _wait(self, condition: object, complaint: str) -> None:
        deadline = time.monotonic() + START_SECONDS
        while not condition():  # type: ignore[operator]
            dead = [name for name, daemon in self._daemons.items() if daemon.poll() is not None]
            if dead or time.monotonic() > deadline:
                logs = "; ".join(path.read_text()[-500:] for path in self.folder.glob("*.log") if path.stem in dead)
                raise CannotStartError(f"{complaint}; ended: {', '.join(dead) or 'nothing'} {logs}")
            time.sleep(0.1)


def _path() -> str:
    return os.pathsep.join((os.environ.get("PATH", ""), "/usr/sbin", "/sbin"))


def _free_ports(number: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(number)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]


def main() -> None:
    """Run a cluster until interrupted."""
    with LocalSlurm(int(sys.argv[1]) if len(sys.argv) > 1 else 2) as cluster:
        print(f"export SLURM_CONF={cluster.environment['SLURM_CONF']}", flush=True)
        with contextlib.suppress(KeyboardInterrupt):
            signal.pause()


if __name__ == "__main__":
    main()
