"""The loop: rounds of download, local training, upload and aggregation; tests; checkpoints; the record."""
import math
import time
from pathlib import Path

import torch

from fedlib.core import machine
from fedlib.core.errors import UserError
from fedlib.core.federation import Federation
from fedlib.core.files import locked, write_bytes
from fedlib.core.params import nbytes
from fedlib.core.seeds import generator
from fedlib.datasets.partition import federate
from fedlib.engine import records
from fedlib.engine.checkpoint import between, checkpoint, resume, tidy
from fedlib.engine.evaluate import asked, measure_round, stalled
from fedlib.engine.run import Run
from fedlib.engine.worker import Workers, initial_net
from fedlib.engine.worker import workers as make_workers
from fedlib.methods import make


class OutOfTime(Exception):
    """The time budget is spent; the checkpoint holds what was done."""


class Diverged(UserError):
    """A loss is not finite."""


class Simulation:
    """A federation in progress: the server, the clients' workers, and what each round measured.

    run: what to train; federation: who holds what, drawn as the run says where none is given; workers: those of clients
    on other machines; stack: how many clients train at once, as `fedlib.engine.stack.choose` takes it; net: to start
    from, the one that the run describes where none is given; share: clients take nets in turns.
    UserError: data, net and method that do not fit.
    """

    def __init__(self, run: Run, federation: Federation | None = None, device: str = "cpu", workers=None,
                 stack: str | int = 1, net=None, share: bool = False):
        self.run, self.device, self.stack, self.rounds, self.made = run, device, stack, [], {}
        self.federation = federation or federate(run.data, run.seed)
        self.streamed = not workers and self.federation.place(device, machine.room(device))
        machine.settle(device, run.protocol.precision == "tf32")
        net = net or initial_net(run, self.federation)
        workers = workers or make_workers(run, self.federation.clients, net, device, share)
        self.workers = workers if isinstance(workers, Workers) else Workers(workers)
        self.server = make(run.method, run.settings, run.protocol)
        self.server.seed, self.server.classes = run.seed, self.federation.classes
        self.server.domains = self.federation.domains
        self.server.setup(net.to(device))

    @property
    def number(self) -> int:
        """How many rounds are done."""
        return self.rounds[-1]["round"] if self.rounds else 0

    @property
    def over(self) -> bool:
        """Are all rounds of the protocol done, or has it stopped early?"""
        return self.number >= self.run.protocol.rounds or stalled(self.rounds, self.run.protocol)

    def test(self) -> dict:
        """Round 0: a test before any training."""
        self.rounds.append({"round": 0, **measure_round(self, []), "bytes_up": 0, "bytes_down": 0,
                            **self.workers.heard(), "seconds": 0.0})
        return self.rounds[-1]

    def round(self) -> dict:
        """One round: clients download, train and upload, the server aggregates, what comes out is tested.

        Returns its row of the record. Raises Diverged; UserError where no client answers.
        """
        start, run = time.monotonic(), self.run
        uploads, said, down = self.exchange(sample(len(self.workers), run.protocol, run.seed, self.number))
        up = sum(map(nbytes, uploads.values()))
        test = run.protocol.tests(self.number + 1)
        if test and run.protocol.evaluate != "before":      # who does not train: with what the round began with
            rest = [i for i in asked(self) if self.federation.clients[i].id not in uploads]
            tested = self.workers.test(rest, ((self.message(i), {}, {}) for i in rest))
            said += [(self.federation.clients[i], {"after": t["test"]}) for i, t in zip(rest, tested, strict=True) if t]
        self.server.aggregate(uploads)
        del uploads     # a net for each client: a test has the room
        row = {"round": self.number + 1, **measure_round(self, said, test), "bytes_up": up, "bytes_down": down}
        row |= ({"server": self.server.measured} if self.server.measured else {}) | self.workers.heard()
        if not all(map(math.isfinite, (row.get("loss", 0.0), row["train_loss"]))):
            raise Diverged(f"{run.method} (seed {run.seed}) diverged in round {row['round']}: the loss is not finite; "
                           f"lower lr ({run.protocol.lr}) or the method's weights")
        self.rounds.append({**row, "seconds": round(time.monotonic() - start, 3)})
        return self.rounds[-1]

    def play(self, rounds: int | None = None) -> "Simulation":
        """So many rounds, or all that the protocol has left; returns the simulation. Raises what `round` raises."""
        end = None if rounds is None else self.number + rounds
        while not self.over if end is None else self.number < end:
            self.round()
        return self

    def exchange(self, chosen: list[int]) -> tuple[dict, list, int]:
        """The chosen clients download and train: (uploads by client id, [(client, what training said)], bytes down).

        Nothing is aggregated yet. UserError: nobody answers.
        """
        uploads, said, down = {}, [], 0
        together = self.workers.choose(self.stack, self.run, chosen, map(self.message, chosen), self.number,
                                       self.device)
        for some in (chosen[i:i + together] for i in range(0, len(chosen), together)):
            messages = list(map(self.message, some))
            down += sum(map(nbytes, messages))
            for i, end in zip(some, self.workers.train(some, messages, self.number), strict=True):
                if end:
                    uploads[self.federation.clients[i].id] = end[0]
                    said.append((self.federation.clients[i], end[1]))
        if not uploads:
            raise UserError(f"no client gave an answer that counts in round {self.number + 1}; "
                            "start it again to continue")
        return uploads, said, down

    def message(self, place: int) -> dict:
        """What travels down to the client at this place."""
        return self.server.broadcast(self.federation.clients[place].id)


def train(run: Run, results: Path, device: str = "cpu", say=lambda event: None, deadline: float | None = None,
          workers=None, after=None, stack: str | int = 1, deal=None,
          federation: Federation | None = None) -> Path:
    """Train and write the record; returns its path. A record that exists is not trained again.

    Checkpoints are written beside it (`.partial`) after a round, as often as costs a thirtieth of the time; a run that
    was interrupted continues from there and gives the same record in every number but times; what was another
    machine's or another code's is listed in `made`, other data are refused. `say` gets {"round", "rounds", "test": the
    last accuracy} after each round, `after` the simulation before the record is written; clients then have nets of
    their own, else they take them in turns. stack: as in `fedlib.engine.stack.choose`; deal: the workers of a
    simulation -> those that train in their place, see `fedlib.remote.cores`. Workers on other machines come with a
    federation whose clients hold no data.
    Raises Busy, OutOfTime (time.monotonic() would pass `deadline`), UserError (loss not finite, disk full).
    """
    path = run.path(results)
    if path.exists():
        records.read_record(path)
        tidy(path)
        return path
    federation = federation or federate(run.data, run.seed)     # finds mistakes in the data before anything is written
    if run.protocol.patience and (run.protocol.evaluate == "after" or any(c.val is None for c in federation.clients)):
        raise UserError(f"patience stops on validation: {run.data.name} needs a validation split, "
                        f"and evaluate must not be 'after'")
    if run.protocol.cross and run.protocol.evaluate == "after":
        raise UserError("cross tests what came down: evaluate must not be 'after'")
    with locked(path):
        if path.exists():
            return path
        simulation = Simulation(run, federation, device, workers, stack, share=after is None)
        simulation.workers = deal(simulation) if deal else simulation.workers
        held = {} if workers else federation.about      # nodes come and go
        simulation.made = machine.described(device) | {"precision": run.protocol.precision, "data": held}
        rounds = all_rounds(simulation, path.with_suffix(".partial"), say, deadline)
        if after:
            after(simulation)
        made = simulation.made | {"data": federation.about, **simulation.workers.made, "peak_mb": machine.peak(device),
                                  "seconds": round(sum(r["seconds"] for r in rounds), 3),
                                  **({"streamed": True} if simulation.streamed else {})}
        records.write_record(path, {"run": run.spec, "rounds": rounds, "made": made})
        path.with_suffix(".partial").unlink(missing_ok=True)
    return path


def all_rounds(simulation: Simulation, partial: Path, say, deadline: float | None) -> list[dict]:
    """The rounds that a checkpoint does not hold yet; returns what all measured."""
    resume(partial, simulation)
    protocol, spare = simulation.run.protocol, between(simulation.workers.spare)
    due = 0.0 if spare < math.inf else math.inf
    if protocol.initial and not simulation.rounds:
        simulation.test()
    while not simulation.over:
        usual = simulation.rounds[-1]["seconds"] if simulation.rounds else 0
        if deadline and time.monotonic() + usual > deadline:
            if simulation.rounds:
                checkpoint(partial, simulation)
            raise OutOfTime(f"stopped after round {simulation.number} of {protocol.rounds}; run it again to continue")
        try:
            row = simulation.round()
        except Diverged:
            partial.unlink(missing_ok=True)     # every start would end here
            raise
        if (start := time.monotonic()) >= due and not simulation.over:
            checkpoint(partial, simulation)
            took = time.monotonic() - start
            due = start + (1 + spare) * took
            row["seconds"] = round(row["seconds"] + took, 3)
        acc = next((r["acc"].values() for r in reversed(simulation.rounds) if "acc" in r), ())
        say({"round": row["round"], "rounds": protocol.rounds, "test": f"{sum(acc) / len(acc):.1f} %" if acc else "–"})
    return simulation.rounds


def train_beside(run: Run, results: Path, kind: str, content, device="cpu", say=lambda event: None,
                 deadline=None, stack: str | int = 1) -> Path:
    """Train the run and write the bytes `content(simulation)` beside its record; returns where.

    A record does not hold the net, so a run that has one is trained once more, aside; without one this training's is
    kept. A run that was interrupted continues. Raises what `train` raises.
    """
    here, path, aside = run.beside(results, kind), run.path(results), run.path(Path(results) / f".{kind}")
    lock = here.with_name(f"{here.name}.lock")
    if here.exists() and path.exists():
        tidy(aside, aside, lock)
        return here
    with locked(lock):
        if not here.exists():
            aside.unlink(missing_ok=True)       # it was removed, so it must be measured again
        record = train(run, Path(results) / f".{kind}", device, say, deadline, stack=stack,
                       after=lambda simulation: write_bytes(here, content(simulation)))
        if not path.exists():
            write_bytes(path, record.read_bytes())
        record.unlink()
    return here


def sample(clients: int, protocol, seed: int, number: int) -> list[int]:
    """Positions of the clients that take part in a round; at least one.

    With `participation_low` their number is drawn each round, uniformly between the two shares (PFLlib, FedDTR).
    """
    take = min(protocol.cohort, clients) or max(1, round(protocol.participation * clients))
    if protocol.participation_low:
        low = min(take, max(1, int(protocol.participation_low * clients)))
        take = int(torch.randint(low, take + 1, (), generator=generator(seed, "participants", number)))
    return sorted(torch.randperm(clients, generator=generator(seed, "participation", number))[:take].tolist())
