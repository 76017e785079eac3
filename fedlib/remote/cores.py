"""A run on several cores: its clients are dealt out to processes, and the record is that of one process."""
import io
import multiprocessing
import os
import pickle
import signal
import time
from collections import defaultdict
from functools import partial
from itertools import pairwise

import numpy as np
import torch

from fedlib.core.errors import UserError
from fedlib.engine.loop import Simulation
from fedlib.engine.worker import Workers


def among(count: int | str):
    """What `fedlib.engine.loop.train` takes as `deal`, for so many cores; None for one. "auto": all of them, tried."""
    most = os.cpu_count() if count == "auto" else count
    return partial(Cores, count=most, tried=count == "auto") if most > 1 else None


class Away:
    """A client whose worker is in another process."""

    def __init__(self, client, place: int, cores: "Cores"):
        self.client, self.place, self.cores = client, place, cores

    def kept(self) -> dict:
        return self.cores.ask("kept", [self.place])[0]

    def restore(self, kept: dict):
        self.cores.ask("restore", [self.place], [kept])


class Cores(Workers):
    """Workers in `count` forks of this process or fewer, each with clients of about as many samples. A client stays
    where it is, and so does what it keeps; what it sends comes back in the order of clients, so that sums are the same.

    simulation: its workers are dealt out. tried: two rounds are trained in this process and two are dealt out; where
    the second took less time, the run goes on. UserError: on a GPU.
    """

    def __init__(self, simulation: Simulation, count: int, tried: bool = False):
        if str(simulation.device) != "cpu":
            raise UserError(f"{count} cores are for a CPU, not for {simulation.device}; there clients are stacked")
        super().__init__(())
        here, splits = simulation.workers, simulation.federation.splits
        count = min(count, len(here))
        self.here, self.dealt, self.starts = here, not tried, [] if tried else None
        self.homes, loads = {}, [0] * count
        for place in sorted(range(len(here)), key=lambda i: -len(here[i].client.train)):
            self.homes[place] = loads.index(min(loads))
            loads[self.homes[place]] += len(here[place].client.train)
        self.extend(Away(w.client, i, self) for i, w in enumerate(here))
        fork, self.ends = multiprocessing.get_context("fork"), []
        for _ in range(count):
            mine, theirs = fork.Pipe()
            self.ends.append(End(mine, splits))
            fork.Process(target=serve, args=(End(theirs, splits), here, list(self.ends)), daemon=True).start()
            theirs.close()

    @property
    def made(self) -> dict:
        """What a record says: how many processes trained at its end."""
        return {"cores": len(self.ends)} if self.dealt else {}

    def ask(self, verb: str, places: list[int], *what) -> list:
        """What each place answers, all homes at once. Raises what is raised there; UserError: a home has gone."""
        if not self.dealt:
            return [DO[verb](self.here, *each) for each in zip(places, *what, strict=True)]
        shares, answers = defaultdict(list), {}
        for k, place in enumerate(places):
            shares[self.homes[place]].append(k)
        try:
            for home, share in shares.items():
                self.ends[home].send((verb, [(places[k], *(each[k] for each in what)) for k in share]))
            for home, share in shares.items():
                answers |= zip(share, self.ends[home].receive(), strict=True)
        except (EOFError, ConnectionError):
            raise UserError("a process that trained clients ended without an answer; was there too little memory? "
                            "Start the run again to continue, with fewer cores") from None
        return [answers[k] for k in range(len(places))]

    def choose(self, stack, run, places, messages, number, device) -> int:
        """All of a round at once, each at home."""
        if self.starts is not None:
            self.compare()
        return len(places) if self.dealt else self.here.choose(stack, run, places, messages, number, device)

    def compare(self):
        """As each of the first five rounds begins: deal the clients out after two, compare after four."""
        self.starts.append(time.monotonic())
        if len(self.starts) == 3:
            self.move(True)
        elif len(self.starts) == 5:
            _, alone, _, dealt = (after - before for before, after in pairwise(self.starts))
            self.starts = None
            if alone < dealt:
                self.move(False)

    def move(self, dealt: bool):
        """Take all clients, with what only they have, to the other processes or back."""
        every = list(range(len(self)))
        kept, self.dealt = self.ask("kept", every), dealt
        self.ask("restore", every, kept)

    def heard(self) -> dict:
        return {} if self.dealt else self.here.heard()

    def train(self, places: list[int], messages: list[dict], number: int) -> list:
        if not self.dealt:
            return self.here.train(places, messages, number)
        return self.ask("train", places, messages, [number] * len(places))

    def test(self, places: list[int], asked) -> list:
        return self.ask("test", places, list(asked))


DO = {"train": lambda here, place, message, number: here.train([place], [message], number)[0],
      "test": lambda here, place, asked: here.at(place).test(*asked),
      "kept": lambda here, place: here[place].kept(),
      "restore": lambda here, place, kept: here[place].restore(kept)}


def serve(end: "End", here: Workers, inherited: list["End"]):
    """Answer until the other end is closed, which it is when its process ends, however it does."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for other in inherited:
        other.pipe.close()
    while True:
        try:
            verb, asked = end.receive()
        except EOFError:
            return
        try:
            end.send([DO[verb](here, *each) for each in asked])
        except Exception as error:      # it is raised where it was asked for
            end.send(error)


class End:
    """One end of a pipe. Tensors go as their bytes, and once however often a message names them; a split of the
    federation, which both ends have, as its identity.
    """

    def __init__(self, pipe, splits: dict):
        self.pipe, self.splits = pipe, splits

    def send(self, what):
        out = io.BytesIO()
        Packer(out, self.splits).dump(what)
        self.pipe.send_bytes(out.getbuffer())

    def receive(self):
        unpacker = pickle.Unpickler(io.BytesIO(self.pipe.recv_bytes()))
        unpacker.persistent_load = self.splits.__getitem__
        what = unpacker.load()
        if isinstance(what, Exception):
            raise what
        return what


class Packer(pickle.Pickler):
    """What an `End` sends."""

    def __init__(self, out, splits: dict):
        super().__init__(out, protocol=5)
        self.splits = splits

    def persistent_id(self, what):
        return id(what) if id(what) in self.splits else None

    def reducer_override(self, what):
        if type(what) is not torch.Tensor or what.dtype == torch.bfloat16:      # which numpy lacks
            return NotImplemented
        return as_tensor, (what.detach().numpy(),)


def as_tensor(array: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(array)
