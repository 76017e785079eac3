"""What happens at a client's place: a download, local training, an upload, tests."""
import copy

import torch
import torch.nn.functional as F

from fedlib.core.errors import UserError
from fedlib.core.federation import Client, Federation, as_input
from fedlib.core.params import load_params, snapshot, to_device
from fedlib.engine import stack as stacked
from fedlib.engine.run import Run
from fedlib.methods import make
from fedlib.methods.base import autocast
from fedlib.models import encoders
from fedlib.models.nets import Net, build
from fedlib.models.prompt_head import PromptHead, Tower


class Worker:
    """Everything that happens at one client's place. It has a method of its own, without the server's state."""

    def __init__(self, run: Run, client: Client, net, device="cpu"):
        self.method = make(run.method, run.settings, run.protocol)
        self.client, self.device = client, device
        self.method.seed, self.method.classes, self.method.domains = client.seed, client.classes, client.domains
        if run.net.head == "own":
            net.head.weight = client.head
        client.net = self.method.equip(net).to(device)
        if run.protocol.precision == "bf16":        # on processors with bfloat16 units it halves a convolution's time
            client.net.to(memory_format=torch.channels_last)
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
        batch, client = self.method.at_once, self.client
        client.net.eval()
        right, loss = [], []        # they stay where they are until all is computed
        for x, y in zip(split.x.split(batch), split.y.split(batch), strict=True):
            x, y = x.to(self.device), y.to(self.device)
            with autocast(self.method.protocol, y):
                logits = self.method.predict(client.net, as_input(x, split.normal), client).float()
            right.append((logits.argmax(1) == y).sum())
            loss.append(F.cross_entropy(logits, y, reduction="sum"))
        right, loss = (sum(torch.stack(parts).tolist()) for parts in (right, loss))
        return {"acc": round(100 * right / len(split), 4), "loss": round(loss / len(split), 6)}

    def kept(self) -> dict:
        """What only this client has: entries that stay, and its state."""
        stays = self.method.stays(self.client.net)
        own = {k: v for k, v in snapshot(self.client.net).items() if k in stays}
        return {"net": own, "state": self.client.state}

    def restore(self, kept: dict):
        """The inverse of `kept`. ValueError: what is kept is of another net."""
        net, own = kept.get("net", {}), self.kept()["net"]
        if net.keys() != own.keys() or any((net[k].dtype, net[k].shape) != (v.dtype, v.shape) for k, v in own.items()):
            raise ValueError(f"what client {self.client.id} keeps is of another net")
        load_params(self.client.net, to_device(kept.get("net", {}), self.device))
        self.client.state = to_device(kept.get("state", {}), self.device)


class Workers(list):
    """The workers of all clients, in this process; `fedlib.remote.flower.Nodes` reaches those on other machines."""
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
