"""Uploads of which the server learns the mean and no more: Flower's SecAgg+ around a round's training.

Every two nodes agree on a mask that one adds and the other subtracts, so that the masks are gone from the sum of all;
shares of the keys, held by the others, let the sum be read when a node is lost on the way. Bonawitz et al., CCS 2017
(eprint 2017/281); Bell et al., CCS 2020 (eprint 2020/704).

What it hides is the upload. The server still sees how many samples a client has, its loss and its scores, and Flower's
masks come from a generator with a seed of 32 bits: they stop a look, not an attack by somebody with a cluster. Nobody
sees who spoils a mean, either.
"""
import copy
import json
from logging import INFO
from types import SimpleNamespace

import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Error, Message, RecordDict
from flwr.client.mod import secaggplus_mod
from flwr.common import Code, FitIns, FitRes, Parameters, Status, ndarrays_to_parameters, parameters_to_ndarrays
from flwr.common import recorddict_compat as legacy
from flwr.common.logger import log
from flwr.common.secure_aggregation.secaggplus_constants import RECORD_KEY_CONFIGS, Key
from flwr.common.serde import recorddict_to_proto
from flwr.server import LegacyContext
from flwr.server.workflow import SecAggPlusWorkflow
from safetensors.torch import load

from fedlib.core.errors import UserError
from fedlib.core.params import each, flatten, mean, unflatten
from fedlib.remote import wire
from fedlib.remote.messages import content, opened

RANGE = 32.0        # no number of an upload may be further than this from what came down: batch-norm's variances go far
FEWEST = 3          # of two, each knows what the other sent


# at a node

def masked(message: Message, context: Context, answer) -> Message:
    """A mod of Flower's client app: training is answered behind masks, where the run or this node asks for it."""
    try:
        if context.run_config.get("secure"):
            plan = message.content.config_records[RECORD_KEY_CONFIGS]
            few = plan.get(Key.SAMPLE_NUMBER, FEWEST) < FEWEST
            if few or 2 * plan.get(Key.THRESHOLD, 2) <= plan.get(Key.SHARE_NUMBER, 3):
                raise UserError("a sum of so few, or read by so few, would hide nothing")
            return secaggplus_mod(message, context, lambda m, c: step(m, c, answer))
        if context.node_config.get("secure"):
            raise UserError("this node sends nothing without masks: `fedlib flower --secure`")
        return answer(message, context)
    except Exception as error:      # its text may hold what must not leave this machine
        log(INFO, "train not answered: %s", error if isinstance(error, UserError) else type(error).__name__)
        return Message(Error(0, "its own log says why"), reply_to=message)


def step(message: Message, context: Context, answer) -> Message:
    """The answer as Flower's masks want it: a list of arrays, w_k - w by name, and the client's weight."""
    asked = legacy.recorddict_to_fitins(message.content, True).config
    message.content = content(json.loads(asked["about"]), asked["block"])
    said, block = opened(answer(message, context))
    if said.get("failed"):
        raise UserError("training failed")
    sent, got = load(block), load(asked["block"])
    n = int(sent.pop("n"))
    # flat: Flower's sum of arrays without a dimension comes out wrong
    steps = [(sent[k].double() - got[k].double()).flatten().numpy() for k in sorted(sent)]
    if any(abs(s).max(initial=0.0) > RANGE for s in steps):
        raise UserError(f"a number changed by more than {RANGE:g} in one round, which masks cannot carry")
    result = FitRes(Status(Code.OK, ""), ndarrays_to_parameters(steps), 1 if asked["equal"] else n,
                    {"said": json.dumps(said), "n": n})
    return Message(legacy.fitres_to_recorddict(result, False), reply_to=message)


# at the server

class Masked:
    """A grid that answers training with the mean of the uploads instead of each."""

    def __init__(self, grid):
        self.grid, self.equal, self.carried = grid, False, {}       # do all weigh alike? bytes of the last mean

    def __getattr__(self, name):
        return getattr(self.grid, name)

    def send_and_receive(self, messages: list[Message], timeout: float) -> list[Message]:
        if not messages or messages[0].metadata.message_type != "train":
            return list(self.grid.send_and_receive(messages, timeout=timeout))
        if len(messages) < FEWEST:
            raise UserError(f"{len(messages)} clients are there: a mean of fewer than {FEWEST} tells what each sent")
        asked = {m.metadata.dst_node_id: opened(m) for m in messages}
        most = next(about["samples"] for about, _ in asked.values())
        heard = self.mean(asked, int(messages[0].metadata.group_id), 1 if self.equal else most, timeout)
        replies = []
        for m in messages:
            m.metadata.__dict__["_message_id"] = str(m.metadata.dst_node_id)
            if m.metadata.dst_node_id in heard:
                replies.append(Message(content(*heard[m.metadata.dst_node_id]), reply_to=m))
        return replies

    def mean(self, asked: dict, number: int, most: int, timeout: float) -> dict[int, tuple[dict, bytes]]:
        """{node: (what training said, w + sum_k n_k (w_k - w) / sum_k n_k as a block)}; {} when too many are lost."""
        fits = [(SimpleNamespace(node_id=i), FitIns(Parameters([], ""), {
                    "about": json.dumps(about), "block": bytes(block), "equal": self.equal}))
                for i, (about, block) in asked.items()]
        levels = 2 ** (31 - (len(fits) - 1).bit_length())       # as fine as 32 bits allow: of 4 clients, to 1e-7
        plan = RecordDict({"config": ConfigRecord({"current_round": number}), "parameters": ArrayRecord()})
        found, self.carried = {}, {"down": 0, "up": 0}

        def collect(_, results, failures):
            found.update({proxy.node_id: result for proxy, result in results})
            return None, {}

        context = LegacyContext(
            Context(0, 0, {}, plan, {}),
            strategy=SimpleNamespace(configure_fit=lambda *_: fits, aggregate_fit=collect),
            client_manager=SimpleNamespace(num_available=lambda: len(fits)))
        try:
            SecAggPlusWorkflow(1.0, 2 / 3, max_weight=float(most), clipping_range=RANGE, quantization_range=levels,
                               timeout=timeout)(SimpleNamespace(send_and_receive=self.counted), context)
        except Exception as error:      # whatever one says: its masks are in the sum, so the round is lost
            log(INFO, "the masked sum cannot be read: %s", type(error).__name__)
            return {}
        return {i: (json.loads(result.metrics["said"]), moved(asked[i][1], result)) for i, result in found.items()}

    def counted(self, messages: list[Message], timeout: float) -> list[Message]:
        """One of the four exchanges of a mean: keys, shares, masked numbers (8 bytes each), shares again."""
        replies = list(self.grid.send_and_receive(messages, timeout=timeout))
        for way, some in (("down", messages), ("up", replies)):
            self.carried[way] += sum(recorddict_to_proto(m.content).ByteSize() for m in some if m.has_content())
        return replies


def moved(block: bytes, result: FitRes) -> bytes:
    """An upload: the weights of this download, moved by the mean step; names in alphabetical order."""
    got, steps = load(bytes(block)), parameters_to_ndarrays(result.parameters)
    new = {k: (got[k].double() + torch.from_numpy(s).view_as(got[k])).to(got[k].dtype)
           for k, s in zip(sorted(got), steps, strict=True)}
    return wire.pack(unflatten(new) | {"n": torch.tensor(result.metrics["n"])})


def check(run, clients: list[str], classes: list[str], shape: tuple, words: int = 0) -> bool:
    """Do all clients weigh alike? UserError unless the server needs no more of the uploads than their mean.

    Seen in a rehearsal on made-up data: it must make the same of the mean, once for each client, as of what they sent.
    The steps have very different lengths, so that what a method cuts is cut.
    """
    small, every = wire.rehearsal(run, clients, classes, shape, words), list(range(len(clients)))
    for _ in range(2):
        down = {name: small.message(i) for i, name in enumerate(clients)}
        up, _, _ = small.exchange(every)
        for more in sorted({k for message in (*down.values(), *up.values()) for k in message} - {"params", "n"}):
            raise UserError(f"{run.method} exchanges '{more}' beside the weights: its server needs each upload")
        n = [1 if small.server.weights == "equal" else int(u["n"]) for u in up.values()]
        was = {i: message.get("params", {}) for i, message in down.items()}
        steps = {i: each("mul", each("sub", u["params"], was[i]), 4.0 ** k) for k, (i, u) in enumerate(up.items())}
        other, usual = copy.deepcopy(small.server), mean(list(steps.values()), n)
        for server, taken in ((small.server, steps), (other, dict.fromkeys(steps, usual))):
            server.aggregate({i: u | {"params": each("add", was[i], taken[i])} for i, u in up.items()})
        small.rounds.append({"round": small.number + 1})
        for name in clients:
            one, two = (flatten(server.broadcast(name)) for server in (small.server, other))
            if any((one[k] - two[k]).abs().max() > 1e-3 * one[k].abs().max().clamp_min(1e-3) for k in one):
                raise UserError(f"{run.method}'s server looks at each upload, not only at their mean")
    return len(set(n)) == 1
