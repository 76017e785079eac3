"""How much what a client sends says about its images: a lower bound on their mutual information, held out."""
import json
from pathlib import Path

import torch
from torch import nn

from fedlib.core.seeds import drawing, generator, key
from fedlib.engine import records
from fedlib.engine.loop import train_beside
from fedlib.engine.run import Run
from fedlib.methods.base import outputs

WIDTH = 128         # of the critic's two embeddings


def collect(run: Run, results: Path, **how) -> Path:
    """Train the run and store what its clients would send says about their images after the last round: {"nats",
    "pairs" held out, "round"}; returns the path. `how` and what it raises: as `train_beside`.
    """
    def content(simulation):
        x, z = sent(simulation)
        found = {"digest": run.digest, "round": simulation.number, "pairs": len(x) - len(x) // 2}
        return json.dumps(found | {"nats": round(information(x, z, run.seed), 4)}).encode()

    return train_beside(run, results, "leakage", content, **how)


def read(run: Run, results: Path) -> dict:
    """What `collect` stored. UserError when it was not measured."""
    return records.read_measured(run, results, "leakage", {"nats": float, "pairs": int, "round": int})


def information(x, z, seed: int = 0, steps: int = 1500, batch: int = 256, lr: float = 5e-4, every: int = 25) -> float:
    """I(X; Z) >= mean_i T(x_i, z_i) - log mean_j e^{T(x_i, z_j)}, in nats: InfoNCE with T = <f(x), g(z)>, held out.

    x: images `(N, C, H, W)` or vectors `(N, D)`, z: vectors `(N, D')`, paired. Half of the pairs train the critic
    (Adam), the other half is measured every few steps, and the best measurement counts: slightly optimistic. The bound
    cannot exceed log of the number of held-out pairs. As DEMINE (Lin et al., 2019, arXiv:1905.03319) it measures on
    pairs that the critic has not seen; FedPall names DEMINE but no critic, so its numbers compare by their order only.
    """
    order = torch.randperm(len(x), generator=generator(seed, "halves")).to(x.device)
    train, held = order[:len(x) // 2], order[len(x) // 2:]
    z = (z - z[train].mean(0)) / z[train].std(0).clamp(min=1e-6)
    with drawing(key(seed, "critic")):
        f, g = (embedding(v).to(x.device) for v in (x, z))
    opt = torch.optim.Adam([*f.parameters(), *g.parameters()], lr)
    gen, best = generator(seed, "pairs"), 0.0
    for step in range(steps):
        some = train[torch.randint(len(train), (min(batch, len(train)),), generator=gen).to(x.device)]
        opt.zero_grad(set_to_none=True)
        (-bound(f(x[some]), g(z[some]))).backward()
        opt.step()
        if (step + 1) % every == 0:
            best = max(best, measured(f, g, x[held], z[held]))
    return best


def bound(u, v) -> torch.Tensor:
    """mean_i <u_i, v_i> - log mean_j e^{<u_i, v_j>} of embeddings `(B, W)`."""
    scores = u @ v.T
    return (scores.diagonal() - scores.logsumexp(1)).mean() + torch.tensor(float(len(u))).log().to(u.device)


@torch.no_grad()
def measured(f, g, x, z) -> float:
    """The bound on pairs held out."""
    f.eval(), g.eval()
    value = float(bound(torch.cat([f(part) for part in x.split(512)]), g(z)))
    f.train(), g.train()
    return value


def embedding(x) -> nn.Module:
    """Images: two strided convolutions; vectors: one hidden layer; to `(B, WIDTH)`."""
    if x.dim() == 2:
        return nn.Sequential(nn.Linear(x.shape[1], 256), nn.ReLU(), nn.Linear(256, WIDTH))
    return nn.Sequential(nn.Conv2d(x.shape[1], 32, 4, 2, 1), nn.ReLU(), nn.Conv2d(32, 64, 4, 2, 1), nn.ReLU(),
                         nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(64 * 16, WIDTH))


def sent(simulation) -> tuple[torch.Tensor, torch.Tensor]:
    """All clients' training images, normalised, and what each of them would send for it now."""
    pairs = []
    for worker in simulation.workers:
        client, method = worker.client, worker.method
        client.got = simulation.server.broadcast(client.id)
        z = outputs(client.net.body, client.train, method.protocol)
        pairs.append((client.train.input(), method.noisy(z, client.train.y, client)))
    return torch.cat([x for x, _ in pairs]), torch.cat([z for _, z in pairs])
