"""What the concept pages share: samples, training in one place, a simulation's rounds step by step, questions."""
import pandas as pd
import torch
import torch.nn.functional as F
from IPython.display import HTML
from torch import nn
from torch.nn.utils import parameters_to_vector

from fedlib.core.federation import Split, batches
from fedlib.core.seeds import drawing
from fedlib.methods.base import Protocol, outputs
from fedlib.models.nets import Net


def fit(net, split: Split, epochs: int, order: torch.Generator, optimiser=None, batch: int = 16):
    """The net after epochs of cross-entropy on the split, in evaluation mode; SGD with momentum unless one is given."""
    optimiser = optimiser or torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9)
    net.train()
    for _ in range(epochs):
        for x, y in batches(split, batch, "none", order):
            optimiser.zero_grad()
            F.cross_entropy(net(x), y).backward()
            optimiser.step()
    return net.eval()


@torch.no_grad()
def accuracy(net, split: Split, batch: int = 1000) -> float:
    """How much of the split (%) the net gets right, in the mode that it is in, so many samples at a time."""
    right = [net(x).argmax(1) == y for x, y in split.parts(batch)]
    return 100 * torch.cat(right).float().mean().item()


def delivered(simulation):
    """The simulation with each client's net as it is tested: with what the server sends now."""
    for i, worker in enumerate(simulation.workers):
        worker.begin(simulation.message(i), simulation.number)
    return simulation


def by_holding(simulation) -> dict:
    """Accuracy (%) of the clients' nets, as they are now, on test samples of classes that the client trains on, and of
    those that it lacks: the mean over the clients with test samples of both.
    """
    held, lacked = [], []
    for worker in simulation.workers:
        test, own = worker.client.test, torch.isin(worker.client.test.y, worker.client.train.y)
        if own.any() and not own.all():
            net = worker.client.net.eval()
            held.append(accuracy(net, test[own]))
            lacked.append(accuracy(net, test[~own]))
    return {"classes it holds": sum(held) / len(held), "classes it lacks": sum(lacked) / len(lacked)}


def product_gaps(simulation) -> list[float]:
    """After a round of low-rank adaptation: |M - B A| / |M| (%) of each layer, M = sum_k p_k B_k A_k of the clients'
    factors, B and A the server's.
    """
    fixed = {k: p.detach() for k, p in simulation.workers[0].client.net.named_parameters() if k.endswith(".A")}
    uploads, _, _ = simulation.exchange(list(range(len(simulation.workers))))
    simulation.server.aggregate(uploads)
    n = torch.tensor([float(u["n"]) for u in uploads.values()])

    def product(params, layer):
        return (fixed | params)[f"{layer}.B"].double() @ (fixed | params)[f"{layer}.A"].double()

    found = []
    for layer in (k.removesuffix(".A") for k in fixed):
        wanted = sum(p * product(u["params"], layer) for p, u in zip(n / n.sum(), uploads.values(), strict=True))
        found.append(float(100 * (wanted - product(simulation.server.global_, layer)).norm() / wanted.norm()))
    return found


def features(net: Net, split: Split) -> torch.Tensor:
    """What the net's body makes of a split `(N, D)`, in evaluation mode, on the CPU."""
    return outputs(net.body, split, Protocol()).cpu()


def pooled(splits) -> Split:
    """All samples in one place."""
    splits = list(splits)
    return Split(torch.cat([s.x for s in splits]), torch.cat([s.y for s in splits]), splits[0].normal)


def read_off(z: torch.Tensor, y: torch.Tensor) -> float:
    """How often (%) ridge regression on one-hot labels guesses y `(N,)` from vectors `(N, D)`: the mean of five folds.

    Each number is scaled to mean 0 and deviation 1 first.
    """
    from sklearn.linear_model import RidgeClassifier
    from sklearn.model_selection import cross_val_score
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler
    reader = make_pipeline(StandardScaler(), RidgeClassifier(alpha=10.0))
    return 100 * float(cross_val_score(reader, z.flatten(1).float().numpy(), y.numpy(), cv=5).mean())


def one_of_each(split: Split, which: int = 0) -> torch.Tensor:
    """A sample of each class `(C, ...)`: the first, or the one at another place among its class."""
    return torch.stack([split.x[split.y == k][which] for k in split.y.unique()])


def class_counts(splits: dict, classes: list[str], title: str = "digit") -> pd.DataFrame:
    """How many samples of each class a split has: a line for each split, a column for each class."""
    held = {name: split.y.bincount(minlength=len(classes)).tolist() for name, split in splits.items()}
    return pd.DataFrame(held, index=pd.Index(classes, name=title)).T


def with_norms(seed: int, width: int = 16) -> Net:
    """Two convolutions and a linear layer, each with batch-norm, for 28 px and ten classes; D = 8 width."""
    with drawing(seed):
        body = nn.Sequential(
            nn.Conv2d(3, width, 5), nn.BatchNorm2d(width), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(width, 2 * width, 5), nn.BatchNorm2d(2 * width), nn.ReLU(), nn.MaxPool2d(2),
            nn.Flatten(), nn.Linear(32 * width, 8 * width), nn.BatchNorm1d(8 * width), nn.ReLU())
        return Net(body, nn.Linear(8 * width, 10))


def curve(rounds: list[dict], **same) -> pd.DataFrame:
    """Accuracy (%) by domain after each round, as `plots.curves` takes it; same: columns with one value."""
    return pd.DataFrame([{**same, "domain": domain, "round": row["round"], "mean": value}
                         for row in rounds for domain, value in row["acc"].items()])


def followed(simulation) -> tuple[torch.Tensor, dict, torch.Tensor]:
    """One round, and where everybody was: (w before, {client: its way `(T, P)`}, w after).

    w `(P,)`: the server's parameters; a way has the client's after each of its T steps.
    """
    start, ways = flat(simulation.server), {}
    for worker in simulation.workers:
        ways[worker.client.id] = way = []
        worker.method.step = noted(worker.method.step, worker.client.net, way)      # of this object, not of its class
    simulation.round()
    for worker in simulation.workers:
        del worker.method.step
    return start, {i: torch.stack(way) for i, way in ways.items()}, flat(simulation.server)


def noted(step, net: nn.Module, way: list):
    """The hook `step`; after each call the net's parameters `(P,)` are put at the end of the way."""
    def also(*arguments):
        value = step(*arguments)
        way.append(parameters_to_vector(net.parameters()).detach().cpu())
        return value
    return also


def flat(server) -> torch.Tensor:
    """The server's parameters as one vector `(P,)`, on the CPU."""
    return torch.cat([server.global_[k].flatten() for k in server.trained]).cpu()


def seeds(*results) -> HTML:
    """A line that says from how many seeds results come, and of one seed that a small lead means nothing.

    results: simulations, whose runs have a seed, or seeds themselves.
    """
    known = sorted({getattr(getattr(result, "run", None), "seed", result) for result in results})
    said = f"Mean of {len(known)} seeds." if len(known) > 1 else (
        f"<b>One seed</b> ({known[0]}): with another one, methods that lie a few points apart may change places.")
    return HTML(f'<p class="seeds">{said}</p>')


def answered(found, right, off: float = 1e-3) -> bool:
    """Whether a question's answer is right; of the dots that stand where it belongs it says so and lets them pass.

    found, right: numbers or tensors, which may differ by `off`, or words.
    """
    if found is ...:
        print("Not answered yet: put your answer where the three dots are, and run both cells.")
        return True
    good = found == right if isinstance(right, str | set) else close(*map(torch.as_tensor, (found, right)), off)
    if good:
        print("Right.")
    return good


def close(a: torch.Tensor, b: torch.Tensor, off: float) -> bool:
    return a.shape == b.shape and torch.allclose(a.double(), b.double(), rtol=0, atol=off)
