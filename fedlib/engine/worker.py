"""What happens at a client's place: a download, local training, an upload, tests."""
import copy

import torch
import torch.nn.functional as F

from fedlib.core import machine
from fedlib.core.errors import UserError
from fedlib.core.federation import Client, Federation
from fedlib.core.params import load_params, snapshot, to_device
from fedlib.engine import graphs
from fedlib.engine import stack as stacked
from fedlib.engine.run import Run
from fedlib.methods import make
from fedlib.methods.base import autocast
from fedlib.models import encoders
from fedlib.models.nets import Net, build
from fedlib.models.prompt_head import PromptHead, Tower

CACHED = 128        # images of a test batch on a CPU: a larger one leaves its cache, and takes memory
LIVE = 64           # times the numbers of an image that a net holds at once in a test: ResNet-18 with a 3x3 stem


class Worker:
    """Everything that happens at one client's place. It has a method of its own, without the server's state.

    net: the client's own; None where it takes one in turns with others like it. Then `held` has the entries that it
    begins with: those of the first net, and what only this client has.
    """

    def __init__(self, run: Run, client: Client, net, device="cpu", like: "Worker | None" = None):
        self.method = make(run.method, run.settings, run.protocol)
        self.client, self.device, self.held = client, device, like and like.held
        self.method.seed, self.method.classes, self.method.domains = client.seed, client.classes, client.domains
        self.heads = run.net.head == "own"
        if net is not None:
            net = self.method.equip(net).to(device)
            if machine.channels_last(run.protocol.precision, device):
                net.to(memory_format=torch.channels_last)
            if self.method.replayable and machine.graphs(device):
                graphs.Replayed(net.body)
            self.take(net)
        self.stays = like.stays if like else [k for k, v in net.state_dict().items()
                                              if k in self.method.stays(net) and v.is_floating_point()]

    def take(self, net):
        """Sit down at a net, which becomes this client's."""
        self.client.net = load_params(net, self.held or {})
        if self.heads:
            net.head.weight = self.client.head.to(self.device)

    def leave(self):
        """Give the net away; what only this client has is held."""
        self.held = self.held | {k: v.clone() for k, v in self.own().items()}
        net, self.client.net = self.client.net, None
        return net

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
        if self.method.protocol.tests(client.round + 1) and self.method.protocol.evaluate != "before":
            said["after"] = self.score(client.test)
        return self.method.upload(client), said

    def test(self, got: dict, unseen: dict, others: dict | None = None) -> dict:
        """Accuracy and loss after a download, on the client's test and validation splits, on unseen domains and on
        other splits by client.

        Nothing of it stays: the client goes on as if it had not been tested.
        """
        client = self.client
        entries = client.net.state_dict() if self.held is None else self.own()
        kept, state, had = {k: v.clone() for k, v in entries.items()}, copy.deepcopy(client.state), client.got
        client.got = to_device(got, self.device)
        self.method.receive(client, client.got)
        self.method.adapt(client)
        scores = {"test": self.score(client.test), "unseen": {d: self.score(s) for d, s in unseen.items()},
                  "others": {i: self.score(s)["acc"] for i, s in (others or {}).items()}}
        if client.val is not None:
            scores["val"] = self.score(client.val)
        load_params(client.net, kept)
        client.state, client.got = state, had
        return scores

    @torch.inference_mode()
    def score(self, split) -> dict:
        """{"acc": percent, "loss": mean cross-entropy} of the client's predictions, in evaluation mode."""
        client = self.client
        batch = self.method.at_once
        if split.x.dim() == 4:
            most = machine.size(self.device) / 16 / (LIVE * 4 * split.x[0].numel())     # not what is free: that varies
            batch = min(batch, CACHED if split.y.device.type == "cpu" else max(1, int(most)))
        client.net.eval()
        right, loss = [], []        # they stay where they are until all is computed
        for x, y in split.parts(batch):
            with autocast(self.method.protocol, y):
                logits = self.method.predict(client.net, x, client).float()
            right.append((logits.argmax(1) == y).sum())
            loss.append(F.cross_entropy(logits, y, reduction="sum"))
        right, loss = (sum(torch.stack(parts).tolist()) for parts in (right, loss))
        return {"acc": round(100 * right / len(split), 4), "loss": round(loss / len(split), 6)}

    def own(self) -> dict:
        """The net's entries that only this client has, as they are now and not copies."""
        entries = self.held if self.client.net is None else self.client.net.state_dict() if self.stays else {}
        return {k: entries[k] for k in self.stays}

    def kept(self) -> dict:
        """What only this client has: entries that stay, and its state."""
        return {"net": self.own(), "state": self.client.state}

    def restore(self, kept: dict):
        """The inverse of `kept`. ValueError: what is kept is of another net."""
        net, own = to_device(kept.get("net", {}), self.device), self.own()
        if net.keys() != own.keys() or any((net[k].dtype, net[k].shape) != (v.dtype, v.shape) for k, v in own.items()):
            raise ValueError(f"what client {self.client.id} keeps is of another net")
        if self.client.net is None:
            self.held = self.held | net
        else:
            load_params(self.client.net, net)
        self.client.state = to_device(kept.get("state", {}), self.device)


class Workers(list):
    """The workers of all clients, in this process; `fedlib.remote.flower.Nodes` reaches those on other machines.

    seated: the places of those that have a net.
    """
    made = {}       # what a record says of how they are reached
    together = 0    # how many train at once
    spare = 30      # times what a checkpoint takes lie between two

    def __init__(self, workers):
        super().__init__(workers)
        self.seated = [i for i, w in enumerate(self) if w.client.net is not None]

    def seat(self, places: list[int]):
        """See that these clients have nets: one that another of them leaves, or a copy where all are taken."""
        standing = [i for i in places if self[i].client.net is None]
        free = [i for i in self.seated if i not in places] if standing else []
        for i in standing:
            if free:
                self.seated.remove(free[-1])
            self[i].take(self[free.pop()].leave() if free else copy.deepcopy(self[self.seated[0]].client.net))
            self.seated.append(i)

    def choose(self, stack: str | int, run, places: list[int], messages, number: int, device) -> int:
        """How many train at once, chosen in the first round."""
        if not self.together and stack == "auto":
            self.seat(places[:stacked.MOST])
        self.together = self.together or stacked.choose(stack, run, [self[i] for i in places], messages, number, device)
        return self.together

    def train(self, places: list[int], messages: list[dict], number: int) -> list[tuple[dict, dict] | None]:
        """What `Worker.train` gives at these places; None for one that does not answer."""
        self.seat(places)
        some = [self[i] for i in places]
        return stacked.train(some, messages, number) if len(some) > 1 else [some[0].train(messages[0], number)]

    def test(self, places: list[int], asked) -> list[dict | None]:
        """What `Worker.test` gives at these places for each tuple of its arguments; None: no answer."""
        return [self.at(i).test(*each) for i, each in zip(places, asked, strict=True)]

    def at(self, place: int) -> Worker:
        """The worker of this client, with a net."""
        self.seat([place])
        return self[place]

    def heard(self) -> dict:
        """What a round's record says beside what it measured."""
        return {"stack": self.together} if self.together > 1 else {}


def workers(run: Run, clients: list[Client], net, device, share: bool) -> Workers:
    """A worker for each client. share: they take nets in turns, as many as train at once; else each has its own."""
    if not share:
        return Workers(Worker(run, c, copy.deepcopy(net), device) for c in clients)
    first = Worker(run, clients[0], copy.deepcopy(net), device)
    first.held = snapshot(first.client.net)
    return Workers([first, *(Worker(run, c, None, device, first) for c in clients[1:])])


def initial_net(run: Run, federation: Federation) -> Net:
    """The net that the federation starts from; each client gets a copy."""
    shape = tuple(federation.clients[0].train.x.shape[1:])
    return build(run.net, len(federation.classes), shape, run.seed, federation.words, federation.head,
                 prompted(run, federation.classes))


def prompted(run: Run, classes: list[str]) -> PromptHead | None:
    """The text tower of the data's encoder as a head, where the net asks for one. UserError: it has none."""
    if run.net.head != "prompts":
        return None
    if not run.data.encoder:
        raise UserError("a head of prompts needs the text tower of an encoder: name one in the data (encoder = ...)")
    encoder = encoders.load_encoder(run.data.encoder.partition("#")[0])
    return PromptHead(Tower(encoder.model, encoder.tokenizer), classes, encoder.dim)
