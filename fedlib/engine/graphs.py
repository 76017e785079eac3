"""A net's body as CUDA graphs: the kernels of a pass are launched as one, forward and backward.

A small net waits for its launches: on an H200 a step of ResNet-10 has 125, and 26 with graphs. A graph is recorded once
for a net and a shape of batch, and replayed from then on: the same kernels, so the same numbers. The loss, the
optimiser and all that a method does around them go on as ever.
"""
import copy
import warnings
import weakref
from collections import Counter

import torch
from torch import nn

SEEN = 4        # batches of a shape before it is recorded


class Replayed:
    """In the place of body.forward: training batches are replayed where that is the same, else computed as ever.

    It is not where the body's entries are others than those recorded (functional_call, vmap), where a slope in x is
    asked for, or where a pass still waits for its way back: a graph has one place for what it computes, and none is
    recorded then.
    """

    def __init__(self, body: nn.Module):
        self.body, self.entries = weakref.ref(body), []     # a copy ends with its last user, and its memory with it
        self.seen, self.graphs, self.waiting = Counter(), {}, set()
        body.forward = self

    def __deepcopy__(self, memo):
        return Replayed(copy.deepcopy(self.body(), memo))       # the body's copy, which is in the memo already

    def plain(self, *x):
        """The body's own forward."""
        return type(self.body()).forward(self.body(), *x)

    def __call__(self, x, *more):
        body = self.body()
        if more or x.requires_grad or not (body.training and torch.is_grad_enabled()):
            return self.plain(x, *more)
        now = [*body.parameters(), *body.buffers()]
        self.entries = self.entries or now
        key = (x.shape, x.stride(), *(v.requires_grad for v in now))
        if not any(key[2:]) or [*map(id, now)] != [*map(id, self.entries)]:
            return self.plain(x)
        self.seen[key] += 1
        if self.seen[key] >= SEEN and key not in self.graphs and not self.waiting:
            self.graphs[key] = self.recorded(x)
        replay = self.graphs.get(key) if key not in self.waiting else None
        z = replay(x).clone() if replay else self.plain(x)      # the next replay writes to the same place
        if z.requires_grad:
            self.waiting.add(key)
            z.register_hook(lambda grad: self.waiting.discard(key))
        return z

    def recorded(self, x):
        """The body for batches like x; None where something in it cannot be recorded. Its statistics stay."""
        kept, stream = [b.clone() for b in self.body().buffers()], torch.cuda.current_stream(x.device)
        warnings.filterwarnings("ignore", "The AccumulateGrad node's stream")      # torch waits for it by itself
        try:
            with torch.cuda.stream(stream):     # a recording that fails leaves another one behind
                return torch.cuda.make_graphed_callables(Pass(self), (x.clone(),))
        except RuntimeError:
            return None
        finally:
            for b, value in zip(self.body().buffers(), kept, strict=True):
                b.data.copy_(value)     # a pass on its way may have noted which version it saw


class Pass(nn.Module):
    """What is recorded: the body's own forward, with the body's parameters."""

    def __init__(self, replayed: Replayed):
        super().__init__()
        self.body, self.plain = replayed.body(), replayed.plain

    def forward(self, x):
        return self.plain(x)
