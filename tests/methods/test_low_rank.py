"""Low-rank adaptation: what is trained, what travels, and what averaging does to a product."""
import copy

import pytest
import torch
from conftest import refusal, small_run

from fedlib.core.federation import as_input
from fedlib.engine.loop import Simulation
from fedlib.engine.run import plan
from fedlib.methods import make
from fedlib.methods.low_rank import LowRank
from fedlib.models.encoders import load_encoder
from fedlib.models.nets import Arch, build
from fedlib.report import lessons

NETS = {"linear layers": (Arch("adapter"), (12,)), "kernels": (Arch("cnn4", 4), (3, 28, 28)),
        "attention": (Arch("vit", 64), (3, 28, 28)), "a tower": (Arch("tower"), (3, 28, 28))}


@pytest.mark.parametrize("kind", NETS)
def test_a_net_starts_as_it_was_and_learns_a_difference_of_low_rank(kind):
    arch, shape = NETS[kind]
    net, x, y = build(arch, 3, shape, 0).eval(), torch.randn(6, *shape), torch.arange(6) % 3
    plain = copy.deepcopy(net)
    method = make("LoRA", {"r": 2})
    method.equip(method.equip(net))         # twice is once
    net.eval()
    assert torch.allclose(net(x), plain(x), atol=1e-6)
    weights = {k: p for k, p in plain.body.named_parameters() if p.dim() > 1 and k.endswith("weight")}
    low = {k: m for k, m in net.body.named_modules() if isinstance(m, LowRank)}
    assert low and len(low) <= len(weights)
    opt = torch.optim.SGD(net.parameters(), lr=0.02)
    for _ in range(3):
        opt.zero_grad()
        torch.nn.functional.cross_entropy(net(x), y).backward()
        opt.step()
    for name, module in low.items():
        old = net.get_parameter(f"body.{name.rpartition('.')[0]}.original")
        change = module(torch.zeros_like(old)).flatten(1).double()
        assert not old.requires_grad and 1 <= torch.linalg.matrix_rank(change, rtol=1e-5) <= 2
    trained = {k for k, p in net.named_parameters() if p.requires_grad}
    assert {k.rpartition(".")[2] for k in trained if k.startswith("body.")} == {"A", "B"}
    assert {k for k in trained if not k.startswith("body.")} == {"head.weight", "head.bias"}
    assert not torch.allclose(net(x), plain(x), atol=1e-3)


@pytest.mark.parametrize("name", ["LoRA", "FFALoRA", "LoRAFAIR"])
def test_weights_that_stay_do_not_travel(name):
    simulation = Simulation(small_run(name))
    before = {k: v.clone() for k, v in simulation.workers[0].client.net.state_dict().items()}
    simulation.round()
    message = simulation.message(0)["params"]
    factors = {k.rpartition(".")[2] for k in message if ".parametrizations." in k}
    assert factors == ({"B"} if name == "FFALoRA" else {"A", "B"})
    after = simulation.workers[0].client.net.state_dict()
    assert all(torch.equal(before[k], after[k]) for k in before if k.endswith("original"))
    plain = sum(v.numel() for v in Simulation(small_run()).message(0)["params"].values())
    assert sum(v.numel() for v in message.values()) < plain


def test_the_product_of_means_is_not_the_mean_of_products():
    plain, fixed, fair, pulled = (lessons.product_gaps(Simulation(small_run(*how))) for how in (
        ("LoRA",), ("FFALoRA",), ("LoRAFAIR", {"lam": 1e-9}), ("LoRAFAIR", {"lam": 1e30})))
    assert min(plain) > 1e-3        # per cent
    assert max(fixed) < 1e-4
    assert all(a < b for a, b in zip(fair, plain, strict=True))
    assert pulled == pytest.approx(plain)


def test_lorafair_solves_its_least_squares():
    gen = torch.Generator().manual_seed(0)
    server = make("LoRAFAIR", {"lam": 0.3})
    server.trained = ["x.A", "x.B", "head.weight"]
    uploads = {str(i): {"params": {"x.A": torch.randn(2, 5, generator=gen), "x.B": torch.randn(4, 2, generator=gen),
                                   "head.weight": torch.zeros(1)}, "n": torch.tensor(i + 1)} for i in range(3)}
    server.aggregate(uploads)
    p = torch.tensor([1, 2, 3]) / 6
    A, B = (sum(w * u["params"][k] for w, u in zip(p, uploads.values())) for k in ("x.A", "x.B"))
    R = sum(w * u["params"]["x.B"] @ u["params"]["x.A"] for w, u in zip(p, uploads.values())) - B @ A
    D = (server.global_["x.B"] - B).requires_grad_()
    ((R - D @ A).square().sum() + 0.3 * D.square().sum()).backward()
    assert D.grad.abs().max() < 1e-4 and D.abs().max() > 0.1


def test_a_tower_gives_the_encoders_features():
    encoder = load_encoder("mini_clip")
    net = build(Arch("tower"), 10, (3, 32, 32), 0).eval()
    x = torch.randint(0, 256, (5, 3, 32, 32), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        assert torch.allclose(net.body(as_input(x, "half")), encoder(x), atol=1e-5)
        assert net.body(as_input(x[:, :, 2:30, 2:30], "half")).shape == (5, encoder.dim)
    assert all(p.requires_grad for p in net.parameters())
    assert not any(p.requires_grad for p in encoder.net.parameters())


def test_a_tower_of_an_unknown_model_is_refused():
    run = plan("LoRA", {}, {"name": "tiny_digits"}, {"net": "tower", "tower": "no_such_model"}, {}, 0)
    refusal(lambda: Simulation(run), "no_such_model")
