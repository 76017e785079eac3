"""The loop: rounds of download, local training, upload and aggregation; tests; checkpoints; the record."""
import copy
import fcntl
import json
import os
import time
import zlib
from contextlib import contextmanager, suppress
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors import SafetensorError, safe_open
from safetensors.torch import save

from fedlib import encoders, forms, machine, records, transfer
from fedlib import stack as stacked
from fedlib.data import Client, Federation, as_input
from fedlib.errors import UserError
from fedlib.methods.base import autocast, make
from fedlib.nets import build
from fedlib.params import flatten, load, nbytes, read, to_device, unflatten
from fedlib.partition import federate
from fedlib.seeds import generator
from fedlib.tower import PromptHead, Tower

CHECKPOINT = 2      # format of the partial files; another number is not continued
DAMAGED = (SafetensorError, ValueError, TypeError, AttributeError, IndexError, RuntimeError, OSError)


class Busy(UserError):
    """Another process works on the same run."""


class OutOfTime(Exception):
    """The time budget is spent; the checkpoint holds what was done."""


class Worker:
    """Everything that happens at one client's place. It has a method of its own, without the server's state."""

    def __init__(self, run: records.Run, client: Client, net, device="cpu"):
        self.method = make(run.method, run.settings, run.protocol)
        self.client, self.device = client, device
        self.method.seed, self.method.classes, self.method.domains = client.seed, client.classes, client.domains
        if run.net.head == "own":
            net.head.weight = client.head
        client.net = self.method.equip(net).to(device)
        client.train, client.test = client.train.to(device), client.test.to(device)
        client.val = client.val and client.val.to(device)
        self.evaluate_after = run.protocol.evaluate != "before"

    def train(self, got: dict, number: int) -> tuple[dict, dict]:
        """One round: (upload, {"loss", "after"?})."""
        self.begin(got, number)
        self.method.local(self.client)
        return self.end()

    def begin(self, got: dict, number: int):
        """The download of a round."""
        client = self.client
        client.got, client.round, client.scratch = to_device(got, self.device), number, {}
        self.method.receive(client, client.got)

    def end(self) -> tuple[dict, dict]:
        """What a round gives after local training."""
        client = self.client
        losses = client.scratch.pop("losses", [])
        said = {"loss": float(torch.stack(losses).mean()) if losses else 0.0}
        if self.evaluate_after:
            said["after"] = self.score(client.test)
        return self.method.upload(client), said

    def test(self, got: dict, unseen: dict, others: dict | None = None) -> dict:
        """Accuracy and loss after a download, on the client's test and validation splits, on unseen domains and on
        other splits by client.

        Nothing of it stays: the client goes on as if it had not been tested.
        """
        client = self.client
        kept = copy.deepcopy((client.net.state_dict(), client.state)), client.got
        client.got = to_device(got, self.device)
        self.method.receive(client, client.got)
        self.method.adapt(client)
        scores = {"test": self.score(client.test), "unseen": {d: self.score(s) for d, s in unseen.items()},
                  "others": {i: self.score(s)["acc"] for i, s in (others or {}).items()}}
        if client.val is not None:
            scores["val"] = self.score(client.val)
        client.net.load_state_dict(kept[0][0])
        client.state, client.got = kept[0][1], kept[1]
        return scores

    @torch.inference_mode()
    def score(self, split) -> dict:
        """{"acc": percent, "loss": mean cross-entropy} of the client's predictions, in evaluation mode."""
        batch = getattr(self.method, "at_once", 1024)
        client = self.client
        client.net.eval()
        right, loss = [], []        # they stay where they are until all is computed
        for x, y in zip(split.x.split(batch), split.y.split(batch), strict=True):
            with autocast(self.method.protocol, y):
                logits = self.method.predict(client.net, as_input(x.to(self.device), split.normal), client).float()
            y = y.to(self.device)
            right.append((logits.argmax(1) == y).sum())
            loss.append(F.cross_entropy(logits, y, reduction="sum"))
        right, loss = (sum(torch.stack(parts).tolist()) for parts in (right, loss))
        return {"acc": round(100 * right / len(split), 4), "loss": round(loss / len(split), 6)}

    def kept(self) -> dict:
        """What only this client has: entries that stay, and its state."""
        stays = self.method.stays(self.client.net)
        own = {k: v for k, v in read(self.client.net).items() if k in stays}
        return {"net": own, "state": self.client.state}

    def restore(self, kept: dict):
        """The inverse of `kept`. ValueError: what is kept is of another net."""
        net, own = kept.get("net", {}), self.kept()["net"]
        if net.keys() != own.keys() or any((net[k].dtype, net[k].shape) != (v.dtype, v.shape) for k, v in own.items()):
            raise ValueError(f"what client {self.client.id} keeps is of another net")
        load(self.client.net, to_device(kept.get("net", {}), self.device))
        self.client.state = to_device(kept.get("state", {}), self.device)


class Workers(list):
    """The workers of all clients, here in this process; `fedlib.flower.Nodes` reaches those on other machines."""
    made = {}       # what a record says of how they are reached
    together = 0    # how many train at once

    def choose(self, stack: str | int, run, places: list[int], messages, number: int, device) -> int:
        """How many train at once, chosen in the first round."""
        self.together = self.together or stacked.choose(stack, run, [self[i] for i in places], messages, number, device)
        return self.together

    def train(self, places: list[int], messages: list[dict], number: int) -> list[tuple[dict, dict] | None]:
        """What `Worker.train` gives at these places; None for one that does not answer."""
        some = [self[i] for i in places]
        return stacked.train(some, messages, number) if len(some) > 1 else [some[0].train(messages[0], number)]

    def test(self, places: list[int], asked) -> list[dict | None]:
        """What `Worker.test` gives at these places for each tuple of its arguments; None: no answer."""
        return [self[i].test(*each) for i, each in zip(places, asked, strict=True)]

    def heard(self) -> dict:
        """What a round's record says beside what it measured."""
        return {"stack": self.together} if self.together > 1 else {}


def train(run: records.Run, results: Path, device: str = "cpu", say=lambda event: None, deadline: float | None = None,
          workers=None, after=lambda server, workers, rounds: None, stack: str | int = 1,
          federation: Federation | None = None) -> Path:
    """Train and write the record; returns its path. A record that exists is not trained again.

    After every round a checkpoint is written beside it (`.partial`); a run that was interrupted continues from there
    and gives the same record in every number but times. `say` gets {"round", "rounds", "acc"} after each round, `after`
    the server, the workers and the rounds before the record is written. stack: as in `fedlib.stack.choose`. Workers on
    other machines come with a federation whose clients hold no data.
    Raises Busy, OutOfTime (time.monotonic() would pass `deadline`), UserError (loss not finite, disk full).
    """
    path = run.path(results)
    if path.exists():
        records.read(path)
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
        net = build(run.net, len(federation.classes), tuple(federation.clients[0].train.x.shape[1:]), run.seed,
                    federation.words, federation.head, prompted(run, federation.classes))
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = run.protocol.precision == "tf32"
        workers = workers or [Worker(run, c, copy.deepcopy(net), device) for c in federation.clients]
        made = provenance(run, federation, device) | getattr(workers, "made", {})
        rounds = loop(run, federation, net, workers, path.with_suffix(".partial"), device, say, deadline, after, stack)
        made |= {"seconds": round(sum(r["seconds"] for r in rounds), 3), "peak_mb": machine.peak(device)}
        records.write(path, {"run": run.spec, "rounds": rounds, "made": made})
        path.with_suffix(".partial").unlink(missing_ok=True)
    return path


def beside(run: records.Run, results: Path, kind: str, content, device="cpu", say=lambda event: None,
           deadline=None, stack: str | int = 1) -> Path:
    """Train the run and write the bytes `content(server, workers, rounds)` beside its record; returns where.

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
                       after=lambda *end: records.write_bytes(here, content(*end)))
        if not path.exists():
            records.write_bytes(path, record.read_bytes())
        record.unlink()
    return here


def loop(run, federation: Federation, net, workers: list, partial: Path, device, say, deadline,
         after=lambda server, workers, rounds: None, stack: str | int = 1) -> list[dict]:
    """The rounds; returns what each measured."""
    workers = workers if isinstance(workers, Workers) else Workers(workers)
    server = make(run.method, run.settings, run.protocol)
    server.seed, server.classes, server.domains = run.seed, federation.classes, federation.domains
    server.setup(net.to(device))
    rounds = resume(partial, run, server, workers, device)
    if run.protocol.initial and not rounds:
        rounds.append({"round": 0, **measure(server, workers, federation, []), "bytes_up": 0, "bytes_down": 0,
                       **workers.heard(), "seconds": 0.0})
    for number in range(rounds[-1]["round"] if rounds else 0, run.protocol.rounds):
        if stalled(rounds, run.protocol):
            break
        start = time.monotonic()
        if deadline and start + (rounds[-1]["seconds"] if rounds else 0) > deadline:
            raise OutOfTime(f"stopped after round {number} of {run.protocol.rounds}; run it again to continue")
        chosen = sample(len(workers), run.protocol, run.seed, number)
        uploads, said, down = {}, [], 0
        downloads = (server.broadcast(federation.clients[i].id) for i in chosen)
        together = workers.choose(stack, run, chosen, downloads, number, device)
        for some in (chosen[i:i + together] for i in range(0, len(chosen), together)):
            messages = [server.broadcast(federation.clients[i].id) for i in some]
            down += sum(map(nbytes, messages))
            for i, end in zip(some, workers.train(some, messages, number), strict=True):
                if end:
                    uploads[federation.clients[i].id] = end[0]
                    said.append((federation.clients[i], end[1]))
        if not uploads:
            raise UserError(f"no client gave an answer that counts in round {number + 1}; start it again to continue")
        up = sum(nbytes(u) for u in uploads.values())
        if run.protocol.evaluate != "before":       # who does not train is tested with what the round began with
            rest = [i for i, c in enumerate(federation.clients) if c.id not in uploads]
            tested = workers.test(rest, ((server.broadcast(federation.clients[i].id), {}, {}) for i in rest))
            said += [(federation.clients[i], {"after": t["test"]}) for i, t in zip(rest, tested, strict=True) if t]
        server.aggregate(uploads)
        row = {"round": number + 1, **measure(server, workers, federation, said), "bytes_up": up, "bytes_down": down}
        row |= ({"server": server.measured} if server.measured else {}) | workers.heard()
        if not all(map(_finite, (row["loss"], row["train_loss"]))):
            partial.unlink(missing_ok=True)     # every start would end here
            raise UserError(f"{run.method} (seed {run.seed}) diverged in round {number + 1}: the loss is not finite; "
                            f"lower lr ({run.protocol.lr}) or the method's weights")
        rounds.append({**row, "seconds": round(time.monotonic() - start, 3)})
        checkpoint(partial, run, server, workers, rounds)
        say({"round": number + 1, "rounds": run.protocol.rounds, "acc": sum(row["acc"].values()) / len(row["acc"])})
    after(server, workers, rounds)
    return rounds


def sample(clients: int, protocol, seed: int, number: int) -> list[int]:
    """Positions of the clients that take part in a round; at least one.

    With `participation_low` their number is drawn each round, uniformly between the two shares (PFLlib, FedDTR).
    """
    take = max(1, round(protocol.participation * clients))
    if protocol.participation_low:
        low = min(take, max(1, int(protocol.participation_low * clients)))
        take = int(torch.randint(low, take + 1, (), generator=generator(seed, "participants", number)))
    return sorted(torch.randperm(clients, generator=generator(seed, "participation", number))[:take].tolist())


def measure(server, workers, federation: Federation, said: list) -> dict:
    """Accuracy per domain (%), test loss and mean training loss of one round.

    A personal method is tested with every client's model on its domain, and a domain's value is the mean over its
    clients. Otherwise all clients hold the same model and the first client of each domain speaks for it, unless the
    clients have test splits of their own: then each counts by its size.
    """
    workers = workers if isinstance(workers, Workers) else Workers(workers)
    def weight(client):
        return len(client.test) if federation.own_tests else 1

    protocol = server.protocol
    losses = [i["loss"] for _, i in said if "loss" in i]
    row = {"train_loss": round(sum(losses) / len(losses), 6) if losses else 0.0}
    if protocol.evaluate != "before":
        row["after"] = _by_domain((c.domain, i["after"]["acc"], weight(c)) for c, i in said)
    if protocol.evaluate == "after":
        tested = _by_domain((c.domain, i["after"]["loss"], weight(c)) for c, i in said)
        return {"acc": row["after"], "loss": _mean(tested), **row}
    personal = server.personal or protocol.buffers == "keep"
    clients = federation.clients
    speakers = list(range(len(clients)))
    if not personal and not federation.own_tests:
        speakers = list({clients[i].domain: i for i in reversed(speakers)}.values())[::-1]
    others = {c.id: c.test for c in clients} if protocol.cross else {}
    tested = workers.test(speakers, ((server.broadcast(clients[i].id), *((federation.unseen, others)
                                      if personal or k == 0 else ({}, {}))) for k, i in enumerate(speakers)))
    scores = [(clients[i], s) for i, s in zip(speakers, tested, strict=True) if s]
    if not scores:
        raise UserError("no client answered a test; start it again to continue")
    row["acc"] = _by_domain((c.domain, s["test"]["acc"], weight(c)) for c, s in scores)
    row["loss"] = _mean(_by_domain((c.domain, s["test"]["loss"], weight(c)) for c, s in scores))
    if all("val" in s for _, s in scores):
        row["val"] = _by_domain((c.domain, s["val"]["acc"], 1) for c, s in scores)
        row["val_loss"] = _by_domain(("", s["val"]["loss"], len(c.val)) for c, s in scores)[""]
    if protocol.cross:
        row |= transfer.measured(federation.clients, [s["others"] for _, s in scores if s["others"]])
    if federation.unseen:
        row["unseen"] = _by_domain((d, s["acc"], 1) for _, every in scores for d, s in every["unseen"].items())
    return row


def _mean(values: dict) -> float:
    """Over the domains with a finite value: batch-norm may overflow in one of them and recover in the next round."""
    values = [v for v in values.values() if _finite(v)] or [float("nan")]
    return round(sum(values) / len(values), 6)


def _by_domain(scores) -> dict:
    """Weighted means of (domain, value, weight)."""
    sums = {}
    for domain, value, weight in scores:
        total, weights = sums.get(domain, (0, 0))
        sums[domain] = total + weight * value, weights + weight
    return {d: round(total / weights, 6) for d, (total, weights) in sums.items()}


def _finite(value: float) -> bool:
    return value == value and abs(value) != float("inf")


def stalled(rounds: list[dict], protocol) -> bool:
    """Has validation accuracy (mean over domains) or loss (over samples) not improved in the last `patience` rounds?"""
    if not protocol.patience or not rounds or "val" not in rounds[-1]:
        return False
    marks = [-r["val_loss"] if protocol.stop == "loss" else sum(r["val"].values()) for r in rounds]
    return len(marks) - 1 - marks.index(max(marks)) >= protocol.patience


# checkpoints

def checkpoint(partial: Path, run, server, workers, rounds: list[dict]):
    """The whole state after a round in one file, written whole or not at all."""
    state = {"server": {k: v for k, v in vars(server).items() if k.endswith("_")},
             "clients": {w.client.id: w.kept() for w in workers}}
    tensors = {k: v.detach().cpu().contiguous().clone() for k, v in flatten(state).items()}
    about = {"format": CHECKPOINT, "digest": run.digest, "sum": checksum(tensors, rounds), "rounds": rounds}
    records.write_bytes(partial, save(tensors, {"about": json.dumps(about)}))


def resume(partial: Path, run, server, workers, device) -> list[dict]:
    """The rounds done so far, with server and clients as they were after them; [] when there is no checkpoint."""
    if not partial.exists():
        return []
    try:
        with safe_open(partial, "pt") as file:
            about = forms.parsed((file.metadata() or {}).get("about", "{}"))
            tensors = {k: file.get_tensor(k) for k in file.keys()}
        if not isinstance(about, dict) or (about.get("format"), about.get("digest")) != (CHECKPOINT, run.digest):
            raise UserError(f"{partial} belongs to another run or version; delete it to start the run afresh")
        records.check(forms.check(about, {"rounds": list})["rounds"])
        if about.get("sum") != checksum(tensors, about["rounds"]):
            raise ValueError("its numbers are not those that were written")
        restore(unflatten(tensors), server, workers, device)
    except DAMAGED as error:
        why = " ".join(str(error).split())
        raise UserError(f"{partial} is not a checkpoint ({why}); delete it to start the run afresh") from error
    return about["rounds"]


def checksum(tensors: dict, rounds: list[dict]) -> int:
    """CRC-32 over all of a checkpoint: a disk that lost its power may keep a file's length and not what was in it."""
    crc = zlib.crc32(json.dumps(rounds).encode())
    for k, v in sorted(tensors.items()):
        crc = zlib.crc32(f"{k} {v.dtype} {tuple(v.shape)} ".encode(), crc)
        crc = zlib.crc32(v.reshape(-1).view(torch.uint8).numpy(), crc)
    return crc


def restore(state: dict, server, workers, device):
    """Server and clients as a checkpoint has them. ValueError: it is of another server, or of other clients or nets."""
    kept, clients = state.pop("server", {}), state.pop("clients", {})
    own = {k: v for k, v in vars(server).items() if k.endswith("_")}
    if state or kept.keys() - own.keys() or clients.keys() - {w.client.id for w in workers}:
        raise ValueError("it has parts that the run has not")
    same_entries(flatten(kept), flatten(own))
    for k, v in kept.items():
        setattr(server, k, to_device(v, device) if isinstance(v, dict) else v.to(device))
    for worker in workers:
        worker.restore(clients.get(worker.client.id, {}))


def same_entries(kept: dict, own: dict):
    """ValueError unless everything that is there at the start is kept, of the same type and number of dimensions, and,
    where it has entries by name, of the same shape."""
    for k, v in own.items():
        if k not in kept:
            raise ValueError(f"it lacks {k}")
        if (kept[k].dtype, kept[k].dim()) != (v.dtype, v.dim()) or "/" in k and kept[k].shape != v.shape:
            raise ValueError(f"its {k} is {kept[k].dtype} {tuple(kept[k].shape)}, not {v.dtype} {tuple(v.shape)}")


def tidy(path: Path, *more: Path):
    """Remove what a process has left that was killed after it wrote all; it stays where nothing can be written."""
    with suppress(OSError):
        for left in (path.with_suffix(".partial"), path.with_suffix(".lock"), *more):
            left.unlink(missing_ok=True)


@contextmanager
def locked(path: Path):
    """Hold the run's lock file; Busy when another process has it."""
    lock = path.with_suffix(".lock")
    try:
        lock.parent.mkdir(parents=True, exist_ok=True)
        file = open(lock, "w")
    except OSError as error:
        raise UserError(f"cannot write {lock}: {error.strerror}") from error
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise Busy(f"{path.stem} is being trained by another process") from error
        if not os.fstat(file.fileno()).st_nlink:        # it was unlinked between the two calls
            raise Busy(f"{path.stem} was just finished by another process")
        try:
            yield
        finally:
            lock.unlink(missing_ok=True)


def prompted(run: records.Run, classes: list[str]) -> PromptHead | None:
    """The text tower of the data's encoder as a head, where the net asks for one. UserError: it has none."""
    if run.net.head != "prompts":
        return None
    if not run.data.encoder:
        raise UserError("a head of prompts needs the text tower of an encoder: name one in the data (encoder = ...)")
    encoder = encoders.load(run.data.encoder.partition("#")[0])
    return PromptHead(Tower(encoder.model, encoder.tokenizer), classes, encoder.dim)


def provenance(run, federation: Federation, device: str) -> dict:
    """How a record is made: code, software, hardware, data."""
    return {**machine.described(device), "precision": run.protocol.precision, "data": federation.about}
