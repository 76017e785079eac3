"""Methods for domains that nobody holds: each rule by hand, and against torch's own gradients and distances."""
import pytest
import torch
import torch.nn.functional as F
from by_hand import client_of, draw, equal
from conftest import refusal, small_run
from torch.distributions import Normal, kl_divergence

from fedlib.core.federation import Client, Split
from fedlib.engine.loop import Simulation
from fedlib.engine.run import plan
from fedlib.methods import make
from fedlib.methods.base import Protocol, outputs
from fedlib.methods.unseen import divergence, slope
from fedlib.models.nets import Arch, Net, build


def averaged(name, values, said, extra=(), start=0.0):
    """The server's entries after a round in which each client says one number for all of them."""
    method, net = make(name, values), build(Arch("linear"), 2, (3,), 0)
    method.setup(net)
    method.global_ = {k: torch.full_like(v, start) for k, v in method.global_.items()}
    uploads = {str(i): {"params": {k: torch.full_like(v, s) for k, v in method.global_.items()}, "n": torch.tensor(1),
                        **{k: torch.tensor(each[i]) for k, each in extra}} for i, s in enumerate(said)}
    method.aggregate(uploads)
    got = {round(float(v), 6) for entry in method.global_.values() for v in entry.flatten()}
    assert len(got) == 1
    return got.pop(), method, uploads


def test_who_loses_more_weighs_more_and_goes_on_from_there():
    """q = 1/2, 1/2; losses log 3 and 0 with eta = 1 make it 3/4, 1/4, and in a second round 9/10, 1/10."""
    losses = [("before", [float(torch.tensor(3.0).log()), 0.0])]
    mean, method, uploads = averaged("GroupDRO", {"eta": 1.0}, [4.0, 0.0], losses)
    assert mean == pytest.approx(3.0) and float(method.q_["0"]) == pytest.approx(0.75)
    method.aggregate(uploads)
    assert float(method.global_["head.bias"][0]) == pytest.approx(3.6)
    method.aggregate({"1": uploads["1"], "2": uploads["0"]})        # one stays away, another comes
    assert set(method.q_) == {"0", "1", "2"}


def test_groupdro_says_the_loss_of_the_net_that_came():
    simulation = Simulation(small_run("GroupDRO"))
    worker, message = simulation.workers[0], simulation.message(0)
    worker.begin(message, 0)
    client = worker.client
    before = F.cross_entropy(outputs(client.net, client.train, worker.method.protocol), client.train.y)
    upload, _ = worker.train(message, 0)
    assert torch.equal(upload["before"], before)


@pytest.mark.parametrize(("tau", "said", "step"), [
    (0.4, [1.0, 2.0, 3.0], 2.0),                    # one direction: the mean
    (0.4, [3.0, 3.0, -3.0], 1 / 3),                 # agreement 1/3 below tau: a third of the mean of 1
    (0.3, [3.0, 3.0, -3.0], 1.0), (1.0, [1.0, -1.0, 3.0, 5.0], 1.0), (0.4, [2.0, -1.0], 0.0)])
def test_a_step_is_as_long_as_the_clients_agree(tau, said, step):
    assert averaged("FedGMA", {"tau": tau}, [5 + s for s in said], start=5.0)[0] == pytest.approx(5 + step)


def stepped(name, values, net, x, y, **protocol):
    """The net's parameters after one step, and the loss that it says."""
    method = make(name, values, Protocol(lr=0.1, **protocol))
    client = Client("0", "", Split(x, y), Split(x, y))
    client.net = net
    opt = torch.optim.SGD(net.parameters(), 0.1, weight_decay=protocol.get("weight_decay", 0.0))
    said = method.step(net, x, y, client, opt, method.loss)
    return {k: p.detach().clone() for k, p in net.named_parameters()}, said


def test_a_step_has_the_gradient_of_a_point_uphill():
    gen = torch.Generator().manual_seed(0)
    x, y = torch.randn(8, 3, generator=gen), torch.arange(8) % 2
    net = build(Arch("linear"), 2, (3,), 0)
    start = {k: p.detach().clone() for k, p in net.named_parameters()}
    names = list(start)

    def gradient(params):
        held = [params[k].clone().requires_grad_() for k in names]
        loss = F.cross_entropy(torch.func.functional_call(net, dict(zip(names, held)), x), y)
        return dict(zip(names, torch.autograd.grad(loss, held))), loss.detach()

    slopes, here = gradient(start)
    length = sum(g.square().sum() for g in slopes.values()).sqrt()
    up, _ = gradient({k: start[k] + 0.5 * slopes[k] / length for k in names})
    got, said = stepped("FedSAM", {"rho": 0.5}, net, x, y, weight_decay=0.1)
    for k in names:
        assert torch.allclose(got[k], start[k] - 0.1 * (up[k] + 0.1 * start[k]), atol=1e-6), k
        assert not torch.allclose(up[k], slopes[k], atol=1e-3)
    assert said == here


def test_the_slope_of_a_head_is_its_gradient():
    gen = torch.Generator().manual_seed(0)
    head, z, y = torch.nn.Linear(5, 3), torch.randn(7, 5, generator=gen), torch.arange(7) % 3
    F.cross_entropy(head(z), y).backward()
    got = slope(z, head(z), y)
    assert torch.allclose(got["weight"], head.weight.grad, atol=1e-6)
    assert torch.allclose(got["bias"], head.bias.grad, atol=1e-6)


def test_fediir_sends_the_received_nets_slope_and_the_server_remembers():
    simulation = Simulation(small_run("FedIIR", {"ema": 0.9}))
    worker, message = simulation.workers[0], simulation.message(0)
    assert all((v == 0).all() for v in message["slope"].values())
    upload, _ = worker.train(message, 0)
    simulation.server.aggregate({"0": upload})
    for k, v in simulation.server.slope_.items():
        assert torch.allclose(v, 0.1 * upload["slope"][k]) and v.abs().sum() > 0


def test_the_loss_of_fediir_by_hand():
    net, x, y = Net(torch.nn.Linear(3, 5), torch.nn.Linear(5, 4)), draw(8, 3), torch.arange(8) % 4
    common = {"weight": draw(4, 5), "bias": draw(4)}
    inner = F.cross_entropy(net(x), y)
    own = torch.autograd.grad(inner, [net.head.weight, net.head.bias], retain_graph=True)
    far = sum((a - b).square().sum() for a, b in zip(own, common.values()))
    found = make("FedIIR", {"gamma": 0.3}).loss(net, x, y, client_of(net, x, y, got={"slope": common}))
    equal(found, inner + 0.3 * far)


def test_fediir_needs_a_linear_head():
    run = plan("FedIIR", {}, {"name": "tiny_digits"}, {"net": "resnet10", "width": 4, "head": "hidden"}, {}, 0)
    refusal(lambda: Simulation(run), "FedIIR needs a linear head")


def test_the_divergence_is_that_of_gaussians():
    gen = torch.Generator().manual_seed(0)
    m, m_y = torch.randn(2, 4, 6, generator=gen)
    s, s_y = torch.rand(2, 4, 6, generator=gen) + 0.1
    wanted = kl_divergence(Normal(m, s), Normal(m_y, s_y)).sum(1)
    assert torch.allclose(divergence(m, s, m_y, s_y), wanted, atol=1e-4)
    assert divergence(m, s, m, s).abs().max() < 1e-6


def test_fedsr_draws_in_training_only_and_keeps_its_aims_at_home():
    simulation = Simulation(small_run("FedSR"))
    worker, message = simulation.workers[0], simulation.message(0)
    assert "code.weight" in message["params"] and not any(k.startswith("aim.") for k in message["params"])
    upload, _ = worker.train(message, 0)
    assert not any(k.startswith("aim.") for k in upload["params"])
    net, method, x = worker.client.net.eval(), worker.method, torch.rand(3, 3, 28, 28)
    assert torch.equal(method.predict(net, x, worker.client), method.predict(net, x, worker.client))
    worker.client.scratch["gen"] = torch.Generator().manual_seed(0)
    y = torch.arange(3)
    assert method.loss(net, x, y, worker.client) != method.loss(net, x, y, worker.client)
    assert net.aim["m"].abs().sum() > 0         # they moved from 0
    def loss(scale):
        worker.client.scratch["gen"] = torch.Generator().manual_seed(0)
        net.aim["C"].data.fill_(scale)
        net.aim["m"].data.zero_()
        return method.loss(net, x, y, worker.client)
    assert torch.equal(loss(-0.5), loss(0.5)) and loss(0.0).isfinite()       # a learned C may pass 0: C m, C^2 s^2


def test_fedsr_counts_the_square_or_the_length():
    simulation = Simulation(small_run("FedSR", {"cmi": 0.0, "l2": 1.0}))
    worker = simulation.workers[0]
    worker.train(simulation.message(0), 0)
    net, x, y, sizes = worker.client.net.eval(), torch.rand(3, 3, 28, 28), torch.arange(3), []
    for released in (False, True):
        for l2 in (1.0, 0.0):
            method = make("FedSR", {"cmi": 0.0, "l2": l2, "released": released})
            worker.client.scratch["gen"] = torch.Generator().manual_seed(0)
            sizes.append(method.loss(net, x, y, worker.client).item())
    m, s = net.code(net.body(x)).detach().chunk(2, 1)
    z = m + F.softplus(s) * torch.randn(m.shape, generator=torch.Generator().manual_seed(0))
    assert sizes[0] - sizes[1] == pytest.approx(float(z.square().sum(1).mean()), rel=1e-4)
    assert sizes[2] - sizes[3] == pytest.approx(float(z.norm(dim=1).mean()), rel=1e-4)


def test_fedsr_adds_the_divergence_from_the_aim_of_the_class():
    simulation = Simulation(small_run("FedSR"))
    worker = simulation.workers[0]
    worker.train(simulation.message(0), 0)
    net, x, y, losses = worker.client.net.eval(), torch.rand(3, 3, 28, 28), torch.tensor([0, 1, 1]), []
    with torch.no_grad():
        for p in net.aim.values():
            p.add_(0.5)
        for cmi in (2.0, 0.0):
            worker.client.scratch["gen"] = torch.Generator().manual_seed(0)
            losses.append(make("FedSR", {"cmi": cmi, "l2": 0.0}).loss(net, x, y, worker.client).item())
        m, s = net.code(net.body(x)).chunk(2, 1)
        C, aim = net.aim["C"], Normal(net.aim["m"][y], F.softplus(net.aim["s"])[y])
        far = kl_divergence(Normal(C * m, C * F.softplus(s)), aim).sum(1).mean()
    assert losses[0] - losses[1] == pytest.approx(2 * far.item(), rel=1e-4) and far > 0.1
