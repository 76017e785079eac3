"""A Slurm cluster on this host: munged, slurmctld and slurmd with ports, sockets and state of their own, two GPUs."""
import contextlib
import os
import shutil
import socket
import subprocess
import time
from pathlib import Path

DAEMONS = ("munged", "slurmctld", "slurmd")
PATH = os.environ["PATH"] + ":/usr/sbin:/sbin"
# No accounting, no cgroups, no systemd. `urgent` preempts `main`: its jobs are queued again.
CONF = """
ClusterName=here
SlurmctldHost={node}(127.0.0.1)
SlurmctldPort={ctld_port}
SlurmdPort={slurmd_port}
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CredType=cred/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
SlurmdParameters=config_overrides
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SwitchType=switch/none
MpiDefault=none
MailProg=/bin/true
ReturnToService=2
MinJobAge=300
KillWait=2
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
SchedulerParameters=sched_interval=2,bf_interval=2,batch_sched_delay=1,sched_min_interval=0
GresTypes=gpu
NodeName={node} NodeAddr=127.0.0.1 CPUs=8 CoresPerSocket=8 RealMemory=8000 Gres=gpu:2
PartitionName=main Nodes={node} Default=YES State=UP PriorityTier=1
PartitionName=urgent Nodes={node} State=UP PriorityTier=10
"""


def missing() -> str:
    """Why there can be no cluster here; "" where there can."""
    absent = [d for d in (*DAEMONS, "sbatch") if not shutil.which(d, path=PATH)]
    return f"needs {', '.join(absent)}" if absent else "" if os.getuid() == 0 else "needs root"


def free_ports(n: int) -> list[int]:
    """Ports nobody listens on now."""
    taken = [socket.socket() for _ in range(n)]
    for s in taken:
        s.bind(("127.0.0.1", 0))
    ports = [s.getsockname()[1] for s in taken]
    for s in taken:
        s.close()
    return ports


class Cluster:
    """Started on entry, all daemons ended on exit."""

    def __init__(self, folder: Path):
        self.folder, self.running = folder, {}
        for name in ("", "state", "spool"):
            (folder / name).mkdir(parents=True, exist_ok=True)
        ctld_port, slurmd_port = free_ports(2)
        (folder / "slurm.conf").write_text(CONF.format(node=socket.gethostname(), folder=folder, ctld_port=ctld_port,
                                                       slurmd_port=slurmd_port))
        # Slurm wants real character devices; these two are everywhere, and nothing opens them.
        (folder / "gres.conf").write_text("Name=gpu File=/dev/null\nName=gpu File=/dev/zero\n")
        key = folder / "munge.key"
        key.write_bytes(os.urandom(128))
        key.chmod(0o400)
        # Snakemake's plugin starts srun without SLURM_CONF, which is right where there is /etc/slurm.
        srun = folder / "bin/srun"
        srun.parent.mkdir(exist_ok=True)
        srun.write_text(f'#!/bin/sh\nSLURM_CONF={folder}/slurm.conf exec {shutil.which("srun", path=PATH)} "$@"\n')
        srun.chmod(0o755)
        self.env = {"SLURM_CONF": str(folder / "slurm.conf"), "PATH": f"{srun.parent}:{PATH}"}

    def start(self, daemon: str):
        options = {"slurmctld": ["-D"], "slurmd": ["-D"],
                   "munged": ["--foreground", "--force", f"--key-file={self.folder}/munge.key",
                              *(f"--{k}-file={self.folder}/munge.{k}" for k in ("pid", "log", "seed")),
                              f"--socket={self.folder}/munge.socket"]}[daemon]
        with open(self.folder / f"{daemon}.out", "a") as out:
            self.running[daemon] = subprocess.Popen([shutil.which(daemon, path=PATH), *options], stdout=out,
                                                    stderr=subprocess.STDOUT, env=os.environ | self.env)

    def stop(self, daemon: str):
        process = self.running.pop(daemon)
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def call(self, *command: str, check=True) -> str:
        """What a Slurm command says, errors too."""
        done = subprocess.run(command, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=60,
                              env=os.environ | self.env)
        if check and done.returncode:
            raise RuntimeError(f"{' '.join(command)}: {done.stdout}")
        return done.stdout.strip()

    def __enter__(self):
        self.start("munged")
        wait_for(lambda: (self.folder / "munge.socket").exists(), 20, "munged")
        self.start("slurmctld")
        self.start("slurmd")
        wait_for(lambda: self.call("sinfo", "-h", "-o", "%T", check=False).split("\n")[0] == "idle", 40, "the node")
        return self

    def __exit__(self, *error):
        self.call("scancel", "--user", "root", check=False)
        with contextlib.suppress(RuntimeError):     # else their processes outlive the daemons
            wait_for(lambda: not self.call("squeue", "-h", check=False), 10, "an empty queue")
        for daemon in reversed(list(self.running)):
            self.stop(daemon)


def wait_for(there, seconds: float, what: str):
    """What `there()` gives as soon as it is true; RuntimeError after so many seconds."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        if found := there():
            return found
        time.sleep(0.1)
    raise RuntimeError(f"no sign of {what} in {seconds:.0f} s")
