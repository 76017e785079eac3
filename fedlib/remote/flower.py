"""Any method across machines, on Flower: its server app runs `fedlib.train`, its client app is one client's place.

What travels is what `broadcast` and `upload` return (`fedlib.remote.wire`). Samples, private entries and a client's
state stay on its node; the server knows of a client its domain, its classes, the shape of a sample and how many it has.
"""
import dataclasses
import json
import math
import secrets
import shlex
import statistics
import time
from collections import Counter
from logging import INFO
from pathlib import Path

import flwr
import torch
from flwr.app import Context, Message
from flwr.clientapp import ClientApp
from flwr.common.logger import log
from flwr.serverapp import Grid, ServerApp
from safetensors.torch import load_file, save

from fedlib.core import machine
from fedlib.core.errors import UserError, pick
from fedlib.core.federation import Client, Federation, Split
from fedlib.core.files import write_bytes
from fedlib.core.params import flatten, unflatten
from fedlib.datasets.partition import federate
from fedlib.datasets.registry import reader_of
from fedlib.datasets.splits import RULES
from fedlib.engine.loop import train
from fedlib.engine.run import Run, run_in_words
from fedlib.engine.worker import Worker, Workers, initial_net
from fedlib.remote import secure, wire
from fedlib.remote.messages import content, opened

MOST = 10 ** 9      # samples or words that a node may speak of
LARGEST = 2 ** 22   # numbers of a sample: an image of 1,024 x 1,024 has 3 million
FAR = 100.0         # times the median norm of the round's uploads: beyond it none counts
client, server = ClientApp(), ServerApp()


def planned(config: dict) -> Run:
    """The run that an app's configuration describes. UserError: it cannot be had with a client on each machine."""
    run = run_in_words(config["method"], config["data"], config["rounds"], config["seed"], shlex.split(config["set"]))
    for name, meaning in {"clients": "several clients in a domain", "unseen": "domains without a client",
                          "mixed": "mixed domains", "spread": "spread domains", "natural": "a client for each user",
                          "tuning": "samples held out by the clients' places in the federation",
                          "head": "heads made of all domains"}.items():
        if getattr(run.data, name):
            raise UserError(f"{name}: {meaning} cannot be had when every machine holds one domain")
    if RULES[run.data.split].own_test:
        raise UserError(f"split: under {run.data.split} clients draw their tests by their places in the federation, "
                        "which cannot be had when every machine holds one domain")
    if run.protocol.cross:
        raise UserError("cross tests on the samples of other clients, which stay where they are")
    return run


# at a node

class Place:
    """A node's part of the run: its domain, and the folder where its client's state lies between messages.

    config: the node's: domain, state (a folder), and where wanted data (the dataset's name here), device, threads.
    """

    def __init__(self, run: Run, config: dict):
        for name in ("domain", "state"):
            if not config.get(name):
                raise UserError(f"""a node needs {name}: fedlib node --node-config 'domain="..." state="..."'""")
        torch.set_num_threads(int(config.get("threads", 1)))
        self.run, self.device = run, config.get("device", "cpu")
        self.folder = Path(config["state"]) / f"{run.method}-{run.digest}"
        own = dataclasses.replace(run.data, name=config.get("data", run.data.name), domains=(config["domain"],))
        self.federation = federate(own, run.seed)
        self.federation.place(self.device, machine.room(self.device))
        self.client = self.federation.clients[0]

    def hello(self) -> dict:
        """What the server learns of this client."""
        c, about = self.client, self.federation.about
        return {"domain": c.domain, "classes": c.classes, "shape": list(c.train.x.shape[1:]),
                "words": self.federation.words, "train": len(c.train), "test": len(c.test),
                "val": len(c.val) if c.val else 0, "data": about["digest"], "held": about["clients"][0]["digest"]}

    def answer(self, verb: str, asked: dict, block: bytes) -> tuple[dict, bytes]:
        """The answer to a download: ("train") what training said, and the upload; ("evaluate") scores, and nothing.

        asked: the client's id, all domains, how many samples there are, the round, and the last round of this client
        that counts. Its state after that round is taken up, so that a round can be repeated.
        """
        client, clients = self.client, [str(i) for i in range(len(asked["domains"]))]
        client.id, client.domains = pick("client", asked["client"], clients), asked["domains"]
        shape = tuple(client.train.x.shape[1:])
        self.folder.mkdir(parents=True, exist_ok=True)
        self.folder.chmod(0o700)        # a client's state is its own
        client.secret = secret_of(self.folder)
        expected = self.expected(clients, shape)
        worker = Worker(self.run, client, initial_net(self.run, self.federation), self.device)
        number, since = int(asked["round"]), int(asked["since"])
        if since >= 0:
            if not self.kept(since).exists():
                raise UserError(f"the state after round {since + 1} is not in {self.folder}: this client cannot go on")
            worker.restore(unflatten(load_file(self.kept(since))))
        message = wire.unpack(block, expected, int(asked["samples"]), len(client.classes))
        if verb == "evaluate":
            return worker.test(message, {}, {}), b""
        upload, said = worker.train(message, number)
        state = {k: v.detach().cpu().contiguous().clone() for k, v in flatten(worker.kept()).items()}
        write_bytes(self.kept(number), save(state))
        for old in self.folder.glob("*.safetensors"):
            if old not in (self.kept(since), self.kept(number)):
                old.unlink()
        return said, wire.pack(upload)

    def kept(self, number: int) -> Path:
        """Where the client's state after a round lies."""
        return self.folder / f"{number}.safetensors"

    def expected(self, clients: list[str], shape: tuple) -> dict[str, wire.Entry]:
        """What a download can hold; worked out once."""
        file = self.folder / "down.json"
        if not file.exists():
            found = wire.rehearse(self.run, clients, self.client.classes, shape, self.federation.words)["down"]
            write_bytes(file, json.dumps(found).encode())
        return {k: wire.Entry(e[0], tuple(e[1]), tuple(e[2]), e[3]) for k, e in json.loads(file.read_text()).items()}


def secret_of(folder: Path) -> tuple:
    """A key of this node's noise, drawn once for the run: a round that is asked for again shows the same noise."""
    file = folder / "secret"
    if not file.exists():
        write_bytes(file, secrets.token_bytes(32))
    file.chmod(0o600)
    return (file.read_bytes().hex(),)


@client.query()
@client.train(mods=[secure.masked])
@client.evaluate()
def answer(message: Message, context: Context) -> Message:
    """A node's answer. What goes wrong here is said here: the server learns only that it did."""
    verb = message.metadata.message_type
    try:
        place = Place(planned(context.run_config), context.node_config)
        said, block = (place.hello(), b"") if verb == "query" else place.answer(verb, *opened(message))
    except Exception as error:      # its text may hold what must not leave this machine
        log(INFO, "%s not answered: %s", verb, error if isinstance(error, UserError) else type(error).__name__)
        said, block = {"failed": True}, b""
    return Message(content(said, block), reply_to=message)


# at the server

class Node:
    """What the server knows of a client and of the node that speaks for it."""

    def __init__(self, client: Client):
        self.client, self.address, self.hello, self.counted = client, None, None, -1

    def kept(self) -> dict:
        """Its state stays at the node; the server keeps which round of it counts."""
        return {"state": {"counted": torch.tensor(self.counted)}}

    def restore(self, kept: dict):
        self.counted = int(kept.get("state", {}).get("counted", -1))


class Nodes(Workers):
    """The clients' workers on their nodes. A batch of messages goes to all at once; who is silent is left out."""
    spare = 0       # a checkpoint after each round: a node keeps its state of the last one only

    def __init__(self, grid: Grid, run: Run, timeout: float, bound: dict[str, int] | None = None):
        domains = list(run.data.domains or reader_of(run.data.name).DOMAINS)
        super().__init__(Node(Client(str(i), d, None, None, seed=run.seed, domains=domains))
                         for i, d in enumerate(domains))
        self.grid, self.run, self.timeout, self.round, self.agreed = grid, run, timeout, -1, None
        self.bound = {pick("domain", d, domains): int(address) for d, address in (bound or {}).items()}
        self.asked, self.pending, self.absent, self.bytes = set(), {}, {}, Counter()
        self.made = {"transport": f"flower {flwr.__version__}" + ", SecAgg+" * isinstance(grid, secure.Masked)}

    def gather(self) -> Federation:
        """Wait until every domain has a node, or the time is over; returns the federation, whose splits are empty.

        Classes and shapes are what most nodes have; others are turned away.
        """
        end = time.monotonic() + self.timeout
        while any(n.address is None for n in self) and time.monotonic() < end:
            self.meet()
            time.sleep(1)
        kinds = Counter(kind(n.hello) for n in self if n.address is not None)
        if not kinds:
            raise UserError(f"no node came within {self.timeout:g} s")
        self.agreed = kinds.most_common(1)[0][0]
        classes, shape, words = list(self.agreed[0]), self.agreed[1], self.agreed[2]
        for node in self:
            hello, node.hello, address, node.address = node.hello, None, node.address, None
            node.client.classes, node.client.train, node.client.test = classes, nothing(0, shape), nothing(0, shape)
            if hello:
                self.admit(address, hello)
        log(INFO, "nodes of %s", ", ".join(n.client.domain for n in self if n.address is not None))
        rehearsed = self.run, [n.client.id for n in self], classes, shape, words
        self.expected = wire.rehearse(*rehearsed)["up"]
        if isinstance(self.grid, secure.Masked):
            self.grid.equal = secure.check(*rehearsed)
        data = {n.hello["data"] for n in self if n.hello}
        about = {"name": self.run.data.name, "digest": data.pop() if len(data) == 1 else "by client",
                 "clients": [{"id": n.client.id, "domain": n.client.domain, "train": len(n.client.train),
                              "test": len(n.client.test), **({"digest": n.hello["held"]} if n.hello else {})}
                             for n in self]}
        return Federation([n.client for n in self], classes, {}, about, words=words)

    def meet(self):
        """Ask nodes that are new who they are, and take in who has answered since. It does not wait."""
        here = set(self.grid.get_node_ids())
        new = [Message(content({}, b""), dst_node_id=i, message_type="query") for i in here - self.asked]
        sent = list(self.grid.push_messages(new)) if new else []
        self.pending |= {name: m.metadata.dst_node_id for name, m in zip(sent, new, strict=True) if name}
        self.asked |= here
        for node in self:
            node.address = node.address if node.address in here else None
        for reply in self.grid.pull_messages(list(self.pending)) if self.pending else ():
            address = self.pending.pop(reply.metadata.reply_to_message_id, None)
            if reply.has_error():       # Flower's: the node has left; it is asked again when it is back
                self.asked.discard(address)
                continue
            try:
                self.admit(address, greeting(reply, [n.client.domain for n in self]))
            except Exception as error:      # whatever one says, the others go on
                log(INFO, "node %s turned away: %s", address, refused(error))

    def admit(self, address: int, hello: dict):
        """A node speaks for its domain from now on; not if its data are of another kind, or while another one does."""
        if self.agreed and kind(hello) != self.agreed:
            log(INFO, "node %s turned away: %s has other classes or shapes than most", address, hello["domain"])
            return
        if self.bound.get(hello["domain"], address) != address:
            log(INFO, "node %s turned away: %s is node %s", address, hello["domain"], self.bound[hello["domain"]])
            return
        node, shape = next(n for n in self if n.client.domain == hello["domain"]), hello["shape"]
        if node.address not in (None, address):
            log(INFO, "node %s turned away: node %s speaks for %s", address, node.address, hello["domain"])
            self.asked.discard(address)         # it is asked again
            return
        node.address, node.hello = address, hello
        node.client.train, node.client.test = nothing(hello["train"], shape), nothing(hello["test"], shape)
        node.client.val = nothing(hello["val"], shape) if hello["val"] else None

    def choose(self, stack, run, places, messages, number, device) -> int:
        """All at once, each on its machine."""
        return len(self)

    def train(self, places: list[int], messages: list[dict], number: int) -> list:
        """(upload, said) of the nodes that answer well, None of the others."""
        self.round = number

        def check(node, said, block):
            upload = wire.unpack(block, self.expected, len(node.client.train), len(node.client.classes))
            said = {"loss": figure(said.get("loss"))} | ({"after": score(said["after"])} if "after" in said else {})
            self.bytes["up"] += len(block)
            return upload, said

        found = self.ask("train", "down", places, messages, check)
        for i, times in excess({i: a[0] for i, a in zip(places, found, strict=True) if a}).items():
            found[places.index(i)] = None
            self.absent["train"][self[i].client.domain] = f"its numbers are {times:.0e} times those of the others"
        for i in [i for i, answer in zip(places, found, strict=True) if answer]:
            self[i].counted = number
        return found

    def test(self, places: list[int], asked) -> list:
        """Scores of the nodes that answer well, None of the others."""
        def check(node, said, block):
            if ("val" in said) != (node.client.val is not None):
                raise UserError("scores of other splits than it has")
            return {"unseen": {}, "others": {}, "test": score(said.get("test")),
                    **({"val": score(said["val"])} if "val" in said else {})}

        return self.ask("evaluate", "test", places, [message for message, *_ in asked], check)

    def ask(self, verb: str, count: str, places: list[int], messages: list[dict], check) -> list:
        """What `check` makes of the answers at these places; None: none that counts, and `absent` says why."""
        self.meet()
        about = {"domains": [n.client.domain for n in self], "round": self.round,
                 "samples": sum(len(n.client.train) for n in self)}
        absent = self.absent.setdefault(verb, {})
        absent |= {self[i].client.domain: "not connected" for i in places}
        batch = {}
        for i, message in zip(places, messages, strict=True):
            if self[i].address is not None:
                block = wire.pack(message)
                batch[i] = Message(content(about | {"client": self[i].client.id, "since": self[i].counted}, block),
                                   dst_node_id=self[i].address, message_type=verb, group_id=str(self.round + 1))
                absent[self[i].client.domain] = f"no answer in {self.timeout:g} s"
                self.bytes[count] += len(block)
        replies = self.grid.send_and_receive(list(batch.values()), timeout=self.timeout) if batch else ()
        found, sender = {}, {m.metadata.message_id: i for i, m in batch.items()}
        silent = set(batch)
        for reply in replies:
            node = self[i := sender[reply.metadata.reply_to_message_id]]
            silent.discard(i)
            try:
                found[i] = check(node, *heard(reply))
                del absent[node.client.domain]
            except Exception as error:      # whatever one says, the others go on
                absent[node.client.domain] = refused(error)
        for node in (self[i] for i in silent):      # it is heard again when it says who it is
            self.asked.discard(node.address)
            node.address = None
        for domain, why in absent.items():
            log(INFO, "%s, round %d, %s: %s", verb, self.round + 1, domain, why)
        return [found.get(i) for i in places]

    def heard(self) -> dict:
        """Bytes of the blocks (tests' downloads apart), and who did not answer, by what was asked."""
        absent = {k: v for k, v in self.absent.items() if v}
        counted = dict(self.bytes) | getattr(self.grid, "carried", {})      # behind masks more goes to and fro
        self.bytes, self.absent = Counter(), {}
        return {"wire": counted} | ({"absent": absent} if absent else {})


def nothing(count: int, shape) -> Split:
    """A split of which only the sizes are known."""
    return Split(torch.empty(count, *shape, device="meta"), torch.empty(count, device="meta"))


def excess(uploads: dict[int, dict]) -> dict[int, float]:
    """How many times the median norm of all that is sent each upload's is, of those beyond FAR; of three or more."""
    norms = {i: float(sum(t.double().square().sum() for t in flatten(u).values() if t.is_floating_point())) ** 0.5
             for i, u in uploads.items()}
    usual = statistics.median(norms.values()) if len(norms) > 2 else 0.0
    return {i: norm / usual for i, norm in norms.items() if usual and norm > FAR * usual}


def refused(error: Exception) -> str:
    """What is said of an answer that cannot be used."""
    return str(error) if isinstance(error, UserError) else f"an answer that makes no sense ({type(error).__name__})"


def heard(reply: Message) -> tuple[dict, bytes]:
    """What a reply holds. UserError: the node, or Flower in its place, says that there is no answer."""
    if reply.has_error():
        raise UserError(f"no answer (Flower's code {reply.error.code})")
    about, block = opened(reply)
    if about.get("failed"):
        raise UserError("it could not answer; its own log says why")
    return about, block


def greeting(reply: Message, domains: list[str]) -> dict:
    """What a node says of itself. UserError: it cannot be so."""
    hello, _ = heard(reply)
    sizes = [hello.get(k) for k in ("train", "test", "val", "words")]
    classes, shape = (hello.get(k) if isinstance(hello.get(k), list) else [] for k in ("classes", "shape"))
    texts = [hello.get("data"), hello.get("held"), *classes]
    if hello.get("domain") not in domains:
        raise UserError(f"its domain is none of {', '.join(domains)}")
    if not (all(type(n) is int and 0 <= n <= MOST for n in sizes + shape) and min(sizes[:2]) and 0 < len(shape) < 4
            and math.prod(shape) <= LARGEST and classes and all(isinstance(t, str) and len(t) < 200 for t in texts)):
        raise UserError(f"what {hello['domain']} says of its data cannot be")
    return hello


def kind(hello: dict) -> tuple:
    """What must be the same everywhere: classes, the shape of a sample, the size of the vocabulary."""
    return tuple(hello["classes"]), tuple(hello["shape"]), hello["words"]


def score(said) -> dict:
    """{"acc", "loss"} as a node says it. UserError: an accuracy below 0 or above 100, or none."""
    if not isinstance(said, dict) or not 0 <= figure(said.get("acc")) <= 100:
        raise UserError("a score that is none")
    return {"acc": figure(said["acc"]), "loss": figure(said.get("loss"))}


def figure(value) -> float:
    """A finite number. UserError: something else."""
    if type(value) not in (int, float) or not abs(value) < math.inf:
        raise UserError("a score or loss that is no finite number")
    return float(value)


@server.main()
def main(grid: Grid, context: Context):
    """Train the run over the nodes and write its record on this machine; a run that was stopped continues."""
    run, results = planned(context.run_config), Path(context.run_config["results"])
    torch.set_num_threads(1)
    if not run.path(results).exists():
        grid = secure.Masked(grid) if context.run_config.get("secure") else grid
        bound = json.loads(context.run_config.get("nodes", "{}"))
        nodes = Nodes(grid, run, float(context.run_config["timeout"]), bound)
        train(run, results, workers=nodes, federation=nodes.gather(), say=said)
    log(INFO, "record: %s", run.path(results).relative_to(results))


def said(event: dict):
    """A round in one line."""
    log(INFO, "round %d of %d: %s", event["round"], event["rounds"], event["test"])
