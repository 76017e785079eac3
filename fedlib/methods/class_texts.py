"""Texts stand for the classes: features are drawn to what an encoder makes of the classes' names."""
import torch
import torch.nn.functional as F
from torch.func import functional_call

from fedlib.core.losses import cosines
from fedlib.core.params import mean, snapshot
from fedlib.core.seeds import drawing, key
from fedlib.methods.base import method
from fedlib.methods.sharing import FedPer
from fedlib.models.text_encoders import Encoder, Labels, class_prompts, text_encoder


@method
class FedDTR(FedPer):
    """CE(h_k(z + sg P_k) + sg h(z), y) + u (CE(s cos(z, T), y) + CE(s cos(sg z, T_k), y)); P_k = sum_c pi_k(c) T_k^c.

    z: features `(B, D)`; T_k: what the client's text encoder makes of the classes' names `(C, D)`, T: the same at the
    start of the round, fixed; pi_k: the client's class frequencies; sg: no gradient. FedAvg of bodies and text
    encoders; each client keeps its head h_k, and the average h of what all sent stands beside it, fixed.

    The defaults are the released code, FibonacciZ/FedDTR, where s is 100 (the paper prints none) and text = "embedding"
    is a free vector for each class: no text goes in. The paper's encoder is text = "mlp". freeze = False: T_k in the
    place of T (Eq. 1). detach = False: gradients pass through P_k and h (open in the paper). alone: nothing
    is shared but the average head.
    Zhang et al., FedDTR (no preprint).
    """
    text: Encoder = "embedding"
    layers: int = 1                      # of the mlp
    labels: Labels = "names"             # what stands for a class in its prompt
    scale: float = 100.0                 # s
    u: float = 1.0
    prior: bool = True
    dual: bool = True                    # the averaged head beside the own one
    freeze: bool = True
    detach: bool = True
    alone: bool = False
    limit = dict(u=0.0, prior=False, dual=False), "FedPer"
    least = dict(layers=1)

    def equip(self, net):
        if (self.u or self.prior) and not hasattr(net, "text"):
            names = self.classes or [str(c) for c in range(net.head.out_features)]
            with drawing(key(self.seed, "text")):
                made = text_encoder(self.text, class_prompts(names, self.labels), net.dim, self.layers)
            net.text = made.to(next(net.parameters()).device)
        return net

    # server

    def setup(self, net):
        super().setup(net)
        self.head_ = snapshot(net.head)

    def broadcast(self, client_id):
        return super().broadcast(client_id) | ({"head": self.head_} if self.dual else {})

    def aggregate(self, uploads):
        super().aggregate(uploads)
        if self.dual:
            self.head_ = mean([u["head"] for u in uploads.values()], self.client_weights(uploads))

    # client

    def private(self, net):
        return set(net.state_dict()) if self.alone else super().private(net)

    def upload(self, client):
        return super().upload(client) | ({"head": snapshot(client.net.head)} if self.dual else {})

    def local(self, client):
        if self.u and self.freeze:
            with torch.no_grad():
                client.scratch["anchors"] = client.net.text().clone()
        super().local(client)

    def loss(self, net, x, y, client):
        z, own = net.body(x), net.text() if self.u or self.prior else None
        value = F.cross_entropy(self.logits(net, z, own, client), y)
        if self.u and self.freeze:
            value = value + self.u * (self.aligned(z, client.scratch["anchors"], y) + self.aligned(z.detach(), own, y))
        elif self.u:
            value = value + self.u * self.aligned(z, own, y)
        return value

    def aligned(self, z, texts, y):
        """CE(s cos(z, T), y)."""
        return F.cross_entropy(self.scale * cosines(z, texts), y)

    def logits(self, net, z, texts, client):
        """h_k(z + P_k) + h(z)."""
        inside = z + self.fixed(frequencies(client, net.head.out_features) @ texts) if self.prior else z
        if not self.dual:
            return net.head(inside)
        return net.head(inside) + self.fixed(functional_call(net.head, client.got["head"], z))

    def fixed(self, value):
        return value.detach() if self.detach else value

    def predict(self, net, x, client):
        return self.logits(net, net.body(x), net.text() if self.prior else None, client)


def frequencies(client, classes: int) -> torch.Tensor:
    """pi(c) = n_c / n in the client's training split, `(C,)`; counted once a round."""
    if "pi" not in client.scratch:
        client.scratch["pi"] = client.train.y.bincount(minlength=classes) / len(client.train)
    return client.scratch["pi"]
