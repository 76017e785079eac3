"""Kernels as forks of one process that has loaded PyTorch, Jupyter and fedlib: most pages take a third of the time.

Jupyter starts a kernel through a provisioner; this one forks where Jupyter's own starts a program.
"""
import multiprocessing
import os
import signal
import threading
from importlib.metadata import EntryPoint

import figures
from jupyter_client.provisioning import KernelProvisionerFactory, LocalProvisioner

INLINE = "module://matplotlib_inline.backend_inline"        # whatever the shell has
processes = multiprocessing.get_context("forkserver")
LOADED = ["open_clip", "__main__", "ipykernel.kernelapp", "IPython", "pandas", "scipy.stats", "seaborn",
          "sklearn.manifold", "fedlib.experiments.batch", "fedlib.report.zoo", "fedlib.report.plots"]
# what is not installed is left out


def ready(threads: int, limit: float):
    """From now on this process's kernels are forks. Each computes with `threads` and ends after `limit` seconds."""
    Forked.limit = limit
    os.environ["MPLBACKEND"] = INLINE       # matplotlib reads it when it is loaded
    os.environ.setdefault("OMP_NUM_THREADS", str(threads))
    processes.set_forkserver_preload(LOADED)
    factory = KernelProvisionerFactory.instance()
    factory.provisioners["fork"] = EntryPoint("fork", f"{__name__}:Forked", "jupyter_client.kernel_provisioners")
    factory.default_provisioner_name = "fork"


def kernel(arguments: list[str], environment: dict, folder: str, limit: float):
    """A notebook's kernel, in a process of its own."""
    import matplotlib
    from ipykernel.kernelapp import launch_new_instance
    matplotlib.rcParams.update(figures.RC)
    threading.Thread(target=follow, args=(multiprocessing.parent_process(),), daemon=True).start()
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_REAL, limit)
    launch_new_instance(arguments, config=figures.SETTINGS)


def follow(parent):
    """A kernel without a build ends."""
    parent.join()
    os._exit(1)


class Forked(LocalProvisioner):
    """Jupyter's provisioner on this machine, with a fork instead of a program."""

    limit = 0.0

    async def launch_kernel(self, cmd: list[str], **kwargs):
        arguments = [*cmd[cmd.index("-f"):], "--log-level=CRITICAL"]
        self.process = Fork(kernel, arguments, kwargs["env"], kwargs["cwd"], self.limit)
        self.pid, self.pgid = self.process.pid, None
        return self.connection_info


class Fork:
    """A forked process with the words of subprocess.Popen."""

    stdin = stdout = stderr = None

    def __init__(self, target, *arguments):
        self.process = processes.Process(target=target, args=arguments, daemon=True)
        self.process.start()
        self.pid, self.kill, self.terminate = self.process.pid, self.process.kill, self.process.terminate

    def poll(self):
        return self.process.exitcode

    def wait(self):
        self.process.join()
        return self.process.exitcode

    def send_signal(self, number: int):
        if self.poll() is None:
            os.kill(self.pid, number)
