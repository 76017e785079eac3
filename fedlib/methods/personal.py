"""A model of one's own: methods that keep a whole personal net beside the shared one."""
import copy

from torch.func import functional_call

from fedlib.methods.base import FedAvg, method
from fedlib.params import load, read, sq_dist


@method
class Ditto(FedAvg):
    """v_k <- argmin F_k(v) + mu/2 |v - w|^2 beside FedAvg's w; v_k is what the client uses.

    The personal net trains first, against the w just received, then the shared one. mu = 0 (the default of much
    released code) is local training. Li et al., ICML 2021, arXiv:2012.04221.
    """
    mu: float = 1.0
    personal_epochs: int = 1             # of the personal net; FedAvg's part follows the protocol
    limit = dict(mu=0.0), "Local"        # with as many personal_epochs as the protocol's epochs
    personal = True

    def local(self, client):
        personal = load(copy.deepcopy(client.net), client.state.get("personal", client.got["params"]))
        self.fit(personal, client, self.near_global, self.personal_epochs)
        client.state["personal"] = read(personal)
        super().local(client)

    def near_global(self, net, x, y, client):
        """F_k(v) + mu/2 |v - w|^2."""
        return self.loss(net, x, y, client) + self.mu / 2 * sq_dist(net, client.got["params"])

    def predict(self, net, x, client):
        return functional_call(net, client.state.get("personal", {}), x)
