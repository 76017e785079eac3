"""What the pages of concepts share: a net trained in one place, its accuracy, a federation run to its end."""
import torch
import torch.nn.functional as F

from fedlib.core.federation import Split, as_input, batches


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
    right = [net(as_input(part.x, part.normal)).argmax(1) == part.y
             for part in (split[i:i + batch] for i in range(0, len(split), batch))]
    return 100 * torch.cat(right).float().mean().item()


def finished(simulation):
    """The simulation after all of its rounds."""
    while not simulation.over:
        simulation.round()
    return simulation
