"""A Flower node that has loaded torch once: each message starts from a fork of it, and does not load it again.

    flower-supernode --isolation process        holds the connection to the server
    └ python -m fedlib.remote.node ADDRESS PID         asks it for messages, as Flower's SuperExec does
      └ a fork server with fedlib loaded
        └ a process for each message, ended with its answer
"""
import multiprocessing
import os
import subprocess
import sys
import threading
from multiprocessing import forkserver

from flwr.proto.clientappio_pb2_grpc import ClientAppIoStub
from flwr.supercore.superexec.plugin import ClientAppExecPlugin
from flwr.supercore.superexec.run_superexec import run_superexec
from flwr.supernode.cli import flower_supernode
from flwr.supernode.runtime.run_clientapp import run_clientapp

from fedlib.core.errors import UserError

processes = multiprocessing.get_context("forkserver")


class Warm(ClientAppExecPlugin):
    """Flower's launcher of a message's process, by a fork."""

    def launch_app(self, token: str, run_id: int):
        multiprocessing.active_children()       # takes leave of those that have ended
        processes.Process(target=run_clientapp, args=(self.appio_api_address, token, None, os.getpid())).start()


def connect(words: list[str], port: int):
    """Be a Flower node with these words of `flower-supernode`; its processes meet on this port of the loopback.

    A server that starts may answer a call by an error (its first calls, when they come at once). At such an answer
    Flower's node ends as if all were well, or its heartbeat does, and the server then sends it no message. Both end
    this process by an error here, so that its service manager starts it again. UserError: the first of the two.
    """
    address = f"127.0.0.1:{port}"
    launcher = subprocess.Popen([sys.executable, "-m", "fedlib.remote.node", address, str(os.getpid())])

    def lost(failure):
        threading.__excepthook__(failure)
        launcher.terminate()
        os._exit(1)

    threading.excepthook = lost
    sys.argv = ["flower-supernode", "--isolation", "process", "--clientappio-api-address", address, *words]
    try:
        flower_supernode()          # one that is asked to end leaves by SystemExit
        raise UserError("the server answered by an error, or went away: start the node again")
    finally:
        launcher.terminate()        # its calls would keep a node alive that was turned away


if __name__ == "__main__":
    processes.set_forkserver_preload(["fedlib.remote.flower", "flwr.supernode.runtime.run_clientapp"])
    forkserver.ensure_running()         # it loads while the node waits for its first message
    run_superexec(Warm, ClientAppIoStub, sys.argv[1], parent_pid=int(sys.argv[2]))
