"""What FedDEAP's pages compute: gradients at the start, sizes of messages, times, maps of accuracies, guesses."""
import functools
import time

import pandas as pd
import torch

from fedlib.core.losses import cosines
from fedlib.core.seeds import generator
from fedlib.datasets import feature_cache, prepare
from fedlib.engine.loop import Simulation
from fedlib.experiments import named_partitions, tables
from fedlib.methods import make
from fedlib.methods.prompts import TEST_BATCH
from fedlib.models import encoders
from fedlib.models.nets import Arch, build
from fedlib.models.prompt_head import PromptHead, Tower
from fedlib.probes.cost import floats
from fedlib.report import plots, printed

TEST_IMAGES = {"pacs": {"art_painting": 411, "cartoon": 471, "photo": 337, "sketch": 788},      # its released lists
               "office_caltech": {"amazon": 194, "caltech": 228, "dslr": 36, "webcam": 63}}     # a fifth of each class
CLASSES, WIDTH = 126, 512       # of DomainNet-126; numbers of a token and of a feature in CLIP's ViT-B/32
MIB = 2 ** 20                   # bytes of a printed M


def begun(row: str = "FedDEAP", seed: int = 0, protocol: dict | None = None, device: str = "cpu",
          **settings) -> Simulation:
    """mini_digits with mini_clip before the first round of a row of Table 1: each client has the server's message.

    protocol, settings: instead of the row's.
    """
    feature_cache.ensure_features("mini_digits", None, "mini_clip", say=lambda line: None)
    table = tables.load_table("feddeap/table1")
    line = next(r for r in table.rows if r["name"] == row)
    line = line | {"settings": line.get("settings", {}) | settings,
                   "protocol": line.get("protocol", {}) | (protocol or {})}
    simulation = Simulation(table.plan(line, "mini", "mini", seed), device=device)
    for place, worker in enumerate(simulation.workers):
        worker.begin(simulation.message(place), 0)
    return simulation


# gradients

def gradient(worker, images: int = 64) -> dict[str, torch.Tensor]:
    """FedDEAP's gradient by part, of a batch evenly drawn from the client's training images, which lie by class.

    P_G, P_D: the prompts `(C, m, W)`; T_S, T_D: the first layers of the networks.
    """
    client, net = worker.client, worker.client.net
    split = client.train[torch.arange(images) * (len(client.train) // images)]
    parts = {"P_G": net.head.context, "P_D": net.head.local, "T_S": net.semantic[0].weight, "T_D": net.domain[0].weight}
    loss = worker.method.loss(net, split.input(), split.y, client)
    return dict(zip(parts, torch.autograd.grad(loss, list(parts.values())), strict=True))


def lengths(seed: int = 0) -> pd.DataFrame:
    """How long the gradient is that each loss sends to each part at the start, in both modes.

    Rows: client and part; columns: mode and loss. L_con is the loss without alignment, with those of the networks; as
    the loss is linear in lam1 and lam2, that of an alignment is the gradient with weight 1 minus that with 0.
    """
    made = {}
    for mode in ("paper", "as_released"):
        weights = {"L_con": (0.0, 0.0), "L_sem": (1.0, 0.0), "L_dom": (0.0, 1.0)}
        several = {k: begun(seed=seed, mode=mode, lam1=a, lam2=b).workers for k, (a, b) in weights.items()}
        for trio in zip(*several.values(), strict=True):
            plain, *others = map(gradient, trio)
            for loss, slope in zip(several, [plain, *({k: v[k] - plain[k] for k in v} for v in others)], strict=True):
                made |= {(trio[0].client.domain, part, mode, loss): float(v.norm()) for part, v in slope.items()}
    return pd.Series(made).rename_axis(["client", "part", "mode", "loss"]).unstack(["mode", "loss"], sort=False)


# the two networks alone

def pooled(simulation: Simulation, part: str = "train") -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Features `(N, D)` of all clients' images of a part, their classes and the numbers of their domains, `(N,)`."""
    splits = [getattr(w.client, part) for w in simulation.workers]
    return (torch.cat([s.input() for s in splits]), torch.cat([s.y for s in splits]),
            torch.cat([torch.full_like(s.y, k) for k, s in enumerate(splits)]))


def fit(turn, z: torch.Tensor, target: torch.Tensor, draws: torch.Generator, steps: int = 300, batch: int = 128):
    """Steps of Adam (rate 0.002) on CE(cos(T(z), E), target), batches of features drawn with replacement."""
    adam = torch.optim.Adam(turn.parameters(), 2e-3)
    for _ in range(steps):
        index = torch.randint(len(z), (batch,), generator=draws)
        loss = turn.away(z[index], target[index])
        adam.zero_grad()
        loss.backward()
        adam.step()


@torch.no_grad()
def angles(turn, z: torch.Tensor, target: torch.Tensor) -> dict[str, float]:
    """Where a network turns features to: mean cosines with the own vector and with the others, hits (%), loss."""
    near = cosines(turn(z), turn.frame)
    own = near[torch.arange(len(z)), target]
    return {"cos with own E": float(own.mean()),
            "with the others": float(((near.sum(1) - own) / (near.shape[1] - 1)).mean()),
            "nearest E is own (%)": 100 * float((near.argmax(1) == target).float().mean()),
            "loss": float(turn.away(z, target))}


# what a client sends

class Shapes:
    """In the place of a text tower: what travels depends on its widths alone."""
    places, scale = 77, 100.0

    def __init__(self, width: int):
        self.width = width

    def words(self, texts: list[str]):
        return torch.zeros(len(texts), 4, self.width), torch.full((len(texts),), 4)


def numbers(method: str, values: dict | None = None, classes: int = CLASSES, width: int = WIDTH) -> int:
    """How many floating-point numbers a client gets in a round, and sends; counted in the method's own message."""
    adapter, server = method == "FACMIC", make(method, values)
    prompts = None if adapter else PromptHead(Shapes(width), [str(k) for k in range(classes)], width)
    arch = Arch(net="attention_bn", head="frozen") if adapter else Arch(net="identity", head="prompts")
    server.domains = list("cprs")
    server.setup(build(arch, classes, (width,), 0, head=torch.ones(classes, width) if adapter else None,
                       prompts=prompts))
    return floats(server.broadcast("0")) // 4


def context(tokens: int, classes: int = CLASSES, width: int = WIDTH) -> int:
    """Numbers of a context of m tokens for each class: K m W."""
    return classes * tokens * width


def network(hidden: int, width: int = WIDTH) -> int:
    """Numbers of a network of D, hidden and D units with biases."""
    return width * hidden + hidden + hidden * width + width


def readings() -> pd.DataFrame:
    """Which shapes have the printed megabytes? MiB at two and at four bytes a number; equal: to the last digit."""
    keys = numbers("FedAPT", {"tokens": 24})        # a context and the query
    tried = [("PromptFL", "16 tokens, as the text has it for FedDEAP", context(16)),
             ("PromptFL", "24 tokens", context(24)),
             ("FedAPT", "24 tokens and the query", keys),
             ("FedAPT", "24 tokens, the query, and the keys of one domain", keys + 24 * WIDTH),
             ("FedDEAP", "16 tokens, two networks of 512, 256, 512: the released code", context(16) + 2 * network(256)),
             ("FedDEAP", "24 tokens, one such network", context(24) + network(256)),
             ("FedDEAP", "24 tokens, two such networks", context(24) + 2 * network(256)),
             ("FedDEAP", "20 tokens, two such networks", context(20) + 2 * network(256)),
             ("FedDEAP", "16 tokens, two networks of 512, 384, 512", context(16) + 2 * network(384)),
             ("FACMIC", "the adapter of its released code", numbers("FACMIC"))]
    frame = pd.DataFrame(tried, columns=["row", "what is sent", "numbers"])
    frame = frame.assign(**{f"{size} bytes": size * frame.numbers / MIB for size in (2, 4)},
                         printed=frame.row.map(costs().MB)).drop(columns="numbers")
    equal = frame[["2 bytes", "4 bytes"]].round(2).eq(frame.printed, axis=0).any(axis=1)
    return frame.assign(equal=equal.map({True: "yes", False: "no"}))


def costs() -> pd.DataFrame:
    """Table 4 as printed, on DomainNet-126: a line for each method; M, seconds of a test batch, mean accuracy (%)."""
    return pd.DataFrame({metric: printed.of_paper("feddeap", metric).loc["table4"].loc["domainnet_126"]["all"]
                         for metric in ("MB", "seconds", "mean")})


# seconds

def shortest(work, times: int = 5) -> float:
    """Seconds of the shortest of some calls."""
    took = []
    for _ in range(times):
        start = time.perf_counter()
        work()
        took.append(time.perf_counter() - start)
    return min(took)


@torch.no_grad()
def batch_times(seed: int = 0, images: int = TEST_BATCH) -> pd.DataFrame:
    """Milliseconds of a test of a batch of mini_digits with mini_clip, untrained, texts made anew.

    The image tower stands first; the others come behind it. passes: of the text tower, each with a text of each class.
    """
    x, encoder = prepare.load_set("mini_digits").tensors["street/x"][:images], encoders.load_encoder("mini_clip")
    z, lines = encoder(x), [("all", "the image tower", 0, 1000 * shortest(lambda: encoder(x)))]
    for row, what, passes, values in (
            ("FACMIC", "an adapter, no texts", 0, {}), ("PromptFL", "texts once", 1, {}),
            ("FedDEAP", "texts once, twice the tokens", 1, {}),
            ("FedAPT", "the nearest key: texts for each domain", 4, {}),
            ("FedAPT", "keys mixed for each image", images, {"mix": "each"})):
        worker = begun(row, seed, **values).workers[0]
        net = worker.client.net.eval()
        work = functools.partial(worker.method.predict, net, z, worker.client)
        if row == "PromptFL":       # its head would keep the texts
            work = functools.partial(anew, net.head, z)
        lines.append((row, what, passes, 1000 * shortest(work, 5 if passes < 10 else 2)))
    return pd.DataFrame(lines, columns=["row", "at a test", "text passes", "ms"])


def anew(head, z: torch.Tensor) -> torch.Tensor:
    """Logits of features `(B, D)`, with texts made for them."""
    return head.logits(z, head.texts(head.context))


def tower_times(tokens: int = 8) -> pd.DataFrame:
    """Milliseconds of mini_clip's text tower, forward and backward, whole and cut behind the last token that matters.

    features, gradient: the largest difference to the whole tower's, as a part of the largest value.
    """
    encoder, found = encoders.load_encoder("mini_clip"), {}
    for name, cut in (("whole", False), ("cut", True)):
        head = PromptHead(Tower(encoder.model, encoder.tokenizer, cut=cut), [str(k) for k in range(10)], encoder.dim)
        v = head.learn(tokens, True, torch.Generator().manual_seed(0))
        found[name] = 1000 * shortest(functools.partial(back, head, v)), *back(head, v)
    far = [[float((a - b).abs().max() / b.abs().max()) for a, b in zip(some[1:], found["whole"][1:], strict=True)]
           for some in found.values()]
    return pd.DataFrame([[some[0], *apart] for some, apart in zip(found.values(), far, strict=True)], list(found),
                        ["ms", "features", "gradient"])


def back(head, v: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The texts' features under contexts v, and the gradient of their sum of squares."""
    t = head.texts(v)
    return t.detach(), torch.autograd.grad(t.square().sum(), v)[0]


# Figure 3: prompts of one domain on images of another

def maps(page) -> dict[tuple, dict[int, pd.DataFrame]]:
    """Accuracies (%) of the last round by (block, row) and seed; lines: the prompts' domains, columns: the images'."""
    made = {}
    for planned, record in page.found:
        names = list(page.table.blocks[planned.block]["columns"])
        frame = pd.DataFrame(record["rounds"][-1]["cross"]).T.reindex(index=names, columns=names).astype(float)
        made.setdefault((planned.block, planned.row), {})[planned.seed] = frame
    return made


def heat(maps: dict, block: str, row: str):
    """A figure of the mean over seeds, in the same colours for all rows of the block; None where there is no record."""
    low = min((f.min().min() for (b, _), some in maps.items() if b == block for f in some.values()), default=0)
    if some := maps.get((block, row)):
        mean = sum(some.values()) / len(some)
        return plots.matrix(mean.rename_axis(index="prompt of", columns="images of"), low=10 * (low // 10), form=".1f")


def lead(a: pd.DataFrame) -> pd.Series:
    """a_jj - mean_{i != j} a_ij for each column j: what the own prompt has over the others on the same images."""
    return pd.Series({d: a.loc[d, d] - a[d].drop(d).mean() for d in a})


def elsewhere(a: pd.DataFrame) -> float:
    """The mean of all cells off the diagonal."""
    return sum(a[d].drop(d).mean() for d in a) / len(a)


def leads(maps: dict) -> pd.DataFrame:
    """`lead` of every map and its mean ("all"): a line for each block, method and domain, a column for each seed."""
    made = {key: pd.DataFrame({seed: lead(a) for seed, a in some.items()}) for key, some in maps.items()}
    made = {key: pd.concat([frame, frame.mean().rename("all").to_frame().T]) for key, frame in made.items()}
    return pd.concat(made, names=["block", "method", "images of"]) if made else pd.DataFrame()


# the mean feature at a test

def shuffle(client) -> torch.Tensor:
    """The order in which FedDEAP's shuffled batches take a client's test images."""
    return torch.randperm(len(client.test), generator=generator(client.seed, "test order", client.id))


def batch_classes(y: torch.Tensor, names: list[str]) -> pd.DataFrame:
    """How many images of each class the batches of a test hold, in the order of the labels `(N,)`."""
    return pd.DataFrame([part.bincount(minlength=len(names)).tolist() for part in y.split(TEST_BATCH)],
                        pd.RangeIndex(1, -(-len(y) // TEST_BATCH) + 1, name="batch"), pd.Index(names, name="digit"))


def guess(counts: list[int], seed: int = 0) -> dict[str, float]:
    """How many images (%) one gets right who knows the number of the batch alone: its largest class, always.

    counts: of the classes, in the order of the files, which is sorted; and shuffled.
    """
    y = torch.arange(len(counts)).repeat_interleave(torch.tensor(counts))
    orders = {"sorted": y, "shuffled": y[torch.randperm(len(y), generator=generator(seed, "guess"))]}
    right = {k: sum(int(part.bincount().max()) for part in v.split(TEST_BATCH)) for k, v in orders.items()}
    return {"images": len(y), "batches": -(-len(y) // TEST_BATCH), "largest class": 100 * max(counts) / len(y)} | {
        k: 100 * n / len(y) for k, n in right.items()}


def guesses(clients, seed: int = 0) -> pd.DataFrame:
    """`guess` for each client's test images, and for those of the paper's PACS and Office-Caltech10.

    There a test holds a fifth of each class, so its counts follow from those of the stored training images.
    """
    lines, kept = {}, named_partitions.stored()
    for c in clients:
        lines["mini_digits", c.domain] = guess(c.test.y.bincount(minlength=len(c.classes)).tolist(), seed)
    for name, title in (("feddeap_pacs", "PACS"), ("feddeap_office", "Office-Caltech10")):
        for c in kept[name]["clients"]:
            lines[title, c["domain"]] = guess([-(-n // 4) for n in c["per_class"]], seed)
    return pd.DataFrame(lines).T.rename_axis(["data", "client"])


def batch_means(z: torch.Tensor) -> torch.Tensor:
    """The mean feature of each batch of a test, `(N, D)` -> `(N / 64, D)`."""
    return torch.stack([part.mean(0) for part in z.split(TEST_BATCH)])


def mean_cosine(v: torch.Tensor) -> float:
    """The mean cosine of two different rows of `(n, D)`."""
    return float(cosines(v, v)[~torch.eye(len(v)).bool()].mean())
