"""Learned prompts: the text tower with contexts, equiangular frames, and what each of FedDEAP's prompts follows."""
import copy
import math

import pytest
import torch
import torch.nn.functional as F
from conftest import interrupted, result, small_run
from torch import nn

from fedlib.core import params
from fedlib.core.errors import UserError
from fedlib.core.federation import Split, as_input, batches
from fedlib.core.losses import frame, lmmd
from fedlib.core.seeds import generator
from fedlib.datasets.partition import federate
from fedlib.engine.loop import Simulation
from fedlib.engine.worker import prompted
from fedlib.methods import make
from fedlib.methods.prompts import Writer
from fedlib.models import encoders
from fedlib.models.nets import Arch, build
from fedlib.models.prompt_head import PromptHead, Tower

pytest.importorskip("open_clip")
NAMES = [str(k) for k in range(10)]


@pytest.fixture(scope="module")
def mini():
    return encoders.load_encoder("mini_clip")


@pytest.fixture
def head(mini):
    made = PromptHead(Tower(mini.model, mini.tokenizer), NAMES, mini.dim)
    made.context = made.learn(4, True, generator(0))
    return made


def worker(method, values=None, place=1, **protocol):
    """A client of the small federation with its net, and a batch of it. The domain of place 3 is not the first."""
    made = Simulation(small_run(method, values, **protocol)).workers[place]
    return made, as_input(made.client.train.x[:16]), made.client.train.y[:16]


# the tower

def test_without_a_context_the_prompts_are_the_names(mini, head):
    head.context = None
    assert torch.allclose(F.normalize(head.texts(None)), mini.texts([f"{n}." for n in NAMES]), atol=1e-6)
    assert not list(head.parameters())


def test_a_context_of_words_is_those_words(mini, head):
    words, _ = head.tower.words(["a photo of the"])
    context = words[:, 1:5]
    wanted = mini.texts([f"a photo of the {n}." for n in NAMES])
    assert torch.allclose(F.normalize(head.texts(context)), wanted, atol=1e-6)


def test_names_of_several_words_end_where_they_end(mini):
    made = PromptHead(Tower(mini.model, mini.tokenizer), ["alarm_clock", "7", "a large old mug"], mini.dim)
    wanted = mini.texts(["alarm clock.", "7.", "a large old mug."])
    assert torch.allclose(F.normalize(made.texts(None)), wanted, atol=1e-6)


@pytest.mark.parametrize("specific", [True, False])
def test_cutting_the_tower_is_exact_in_value_and_gradient(mini, head, specific):
    context, found = head.learn(5, specific, generator(3)), {}
    for cut in (True, False):
        tower = Tower(mini.model, mini.tokenizer, cut=cut)
        made = PromptHead(tower, NAMES, mini.dim)
        t = made.texts(context)
        found[cut] = t.detach(), torch.autograd.grad(t.sin().sum(), context)[0]
    assert torch.allclose(found[True][0], found[False][0], atol=1e-4)
    assert torch.allclose(found[True][1], found[False][1], rtol=1e-3, atol=1e-3)
    assert context.shape == (10 if specific else 1, 5, 128)


def test_contexts_of_several_clients_at_once_are_each_alone(head):
    many = torch.stack([head.learn(3, True, generator(k)).detach() for k in range(3)])
    together = head.texts(many)
    assert together.shape == (3, 10, 128)
    assert all(torch.allclose(together[k], head.texts(many[k]), atol=1e-5) for k in range(3))


def test_the_tower_is_shared_frozen_and_no_entry_of_the_net(head):
    assert list(head.state_dict()) == ["context"] and copy.deepcopy(head).tower is head.tower
    head(torch.randn(4, 128)).sum().backward()
    assert head.context.grad.abs().sum() > 0
    assert all(p.grad is None and not p.requires_grad for p in head.tower.text.parameters())


def test_texts_of_a_test_follow_the_context(head):
    z = torch.randn(4, 128)
    with torch.inference_mode():
        first, again = head(z), head(z)
    params.load_params(head, {"context": torch.randn(head.context.shape, generator=generator(1))})    # not a mere shift
    with torch.inference_mode():
        moved = head(z)
    assert torch.equal(first, again) and not torch.allclose(first, moved)
    assert torch.allclose(moved, head(z).detach(), atol=1e-5)


def test_too_many_tokens_are_refused_in_one_line(head):
    with pytest.raises(UserError, match="has 24 places"):
        head.texts(head.learn(21, True, generator(0)))


def test_prompts_need_a_text_tower_and_a_head_of_prompts():
    run = small_run("PromptFL", data={"encoder": ""})
    with pytest.raises(UserError, match="name one in the data"):
        prompted(run, NAMES)
    with pytest.raises(UserError, match="head = prompts"):
        make("PromptFL").equip(build(Arch("identity"), 10, (8,), 0))


# frames

@pytest.mark.parametrize("dim, count", [(512, 126), (128, 10), (4, 4), (9, 2)])
def test_a_frame_has_unit_vectors_with_equal_angles(dim, count):
    e = frame(dim, count, generator(0))
    angles = e @ e.T
    wanted = torch.full((count, count), -1 / (count - 1)).fill_diagonal_(1)
    assert e.shape == (count, dim) and torch.allclose(angles, wanted, atol=1e-5)


def test_no_frame_of_more_vectors_than_dimensions():
    with pytest.raises(UserError, match="no frame of 5 vectors in 4 dimensions"):
        frame(4, 5, generator(0))


# FedDEAP

def gradients(made, x, y):
    """The loss's gradient by name."""
    net = made.client.net
    made.client.round, made.client.scratch = 0, {}
    grads = torch.autograd.grad(made.method.loss(net, x, y, made.client), list(net.parameters()), allow_unused=True)
    return {k: g for (k, _), g in zip(net.named_parameters(), grads, strict=True)}


def contrastive(made, x, y, **which):
    net = made.client.net
    z = net.body(x)
    return F.cross_entropy(net.head.logits(z, made.method.texts(net, z.mean(0), **which)), y)


def test_in_paper_mode_the_alignment_reaches_the_prompts_and_as_released_it_does_not():
    reached = {}
    for mode in ("paper", "as_released"):
        found = [gradients(*worker("FedDEAP", {"mode": mode, "lam1": lam, "lam2": lam})) for lam in (0.0, 5.0)]
        reached[mode] = {k: float((found[1][k] - found[0][k]).abs().sum()) for k in ("head.context", "head.local")}
        nets = [k for k in found[0] if k.startswith(("semantic", "domain"))]
        assert len(nets) == 8 and all(torch.allclose(found[0][k], found[1][k]) for k in nets)      # held networks
    assert min(reached["paper"].values()) > 1e-4 and reached["as_released"] == {"head.context": 0.0, "head.local": 0.0}


def test_as_released_the_local_prompt_gets_the_contrastive_gradient_twice():
    made, x, y = worker("FedDEAP", {"mode": "as_released"})
    net = made.client.net
    both = torch.autograd.grad(contrastive(made, x, y), [net.head.context, net.head.local])
    once = dict(zip(("context", "local"), both))
    found = gradients(made, x, y)
    assert torch.allclose(found["head.local"], 2 * once["local"], rtol=1e-3, atol=1e-5)
    assert torch.allclose(found["head.context"], once["context"], rtol=1e-3, atol=1e-5)
    paper = worker("FedDEAP", {"lam1": 0.0, "lam2": 0.0})
    assert torch.allclose(gradients(*paper)["head.local"], once["local"], rtol=1e-3, atol=1e-5)


def test_each_prompt_follows_its_own_loss():
    a, b = (gradients(*worker("FedDEAP", {"lam1": lam, "lam2": 0.0})) for lam in (3.0, 0.0))
    assert not torch.allclose(a["head.context"], b["head.context"]) and torch.allclose(a["head.local"], b["head.local"])


def test_the_networks_turn_images_to_their_class_and_domain():
    made, x, y = worker("FedDEAP")
    net, client = made.client.net, made.client
    k = client.domains.index(client.domain)
    wanted = F.cross_entropy(F.normalize(net.domain(x)) @ net.domain.frame.T, torch.full_like(y, k))
    assert torch.allclose(net.domain.away(x, torch.full_like(y, k)), wanted, atol=1e-5)
    assert net.semantic.frame.shape == (10, 128) and net.domain.frame.shape == (4, 128)
    assert sum(p.numel() for p in net.semantic.parameters()) == 128 * 64 + 64 + 64 * 128 + 128


def test_feddeaps_loss_by_hand():
    made, x, y = worker("FedDEAP", {"lam1": 2.0, "lam2": 3.0, "etf_temp": 0.5}, place=3)
    net, k = made.client.net, torch.tensor(2)      # "blended" is the third domain
    t = made.method.texts(net, x.mean(0))

    def away(network, v, of):
        return F.cross_entropy(F.normalize(network(v)) @ network.frame.T / 0.5, of)

    # Each prompt follows the first loss once, with the other held: in its value it stands twice.
    wanted = (2 * F.cross_entropy(net.head.logits(x, t), y) + away(net.semantic, x, y)
              + away(net.domain, x, k.expand(len(x))) + 2 * away(net.semantic, t, torch.arange(10))
              + 3 * away(net.domain, t, k.expand(10)))
    assert made.method.loss(net, x, y, made.client).item() == pytest.approx(wanted.item(), rel=1e-4)


def test_only_the_local_prompt_stays():
    made, *_ = worker("FedDEAP")
    sent = made.method.upload(made.client)["params"]
    assert "head.local" not in sent and {"head.context", "semantic.0.weight", "domain.2.bias"} <= set(sent)
    assert not any("frame" in k or "tower" in k or "words" in k for k in sent)
    assert made.method.private(made.client.net) == {"head.local"} and made.method.personal


MODULATIONS = ("train_mean", "batch_sorted", "batch_shuffled", "per_sample", "none")


def test_modulations_differ_and_each_is_what_it_says(monkeypatch):
    logits = {}
    for how in MODULATIONS:
        made, *_ = worker("FedDEAP", {"modulation": how})
        with torch.no_grad():
            made.client.net.head.local.mul_(20)     # far enough that a product shows
            x = as_input(made.client.test.x)
            logits[how] = made.method.predict(made.client.net, x, made.client)
    assert all(not torch.allclose(logits[a], logits[b], atol=1e-3) for i, a in enumerate(MODULATIONS)
               for b in MODULATIONS[:i] if {a, b} != {"batch_sorted", "batch_shuffled"})
    made, *_ = worker("FedDEAP", {"modulation": "per_sample"})
    net = made.client.net
    with torch.no_grad():
        net.head.local.mul_(20)
        alone = net.head.logits(x[5:6], made.method.texts(net, x[5]))
    assert torch.allclose(logits["per_sample"][5], alone[0], atol=1e-3)


def test_shuffled_batches_answer_in_the_order_of_the_images(monkeypatch):
    monkeypatch.setattr("fedlib.methods.prompts.TEST_BATCH", 8)
    made, *_ = worker("FedDEAP", {"modulation": "batch_shuffled"})
    x = as_input(made.client.test.x)
    with torch.no_grad():
        found = made.method.predict(made.client.net, x, made.client)
        order = torch.randperm(len(x), generator=generator(made.client.seed, "test order", made.client.id))
        first = order[:8]
        wanted = made.client.net.head.logits(x[first], made.method.texts(made.client.net, x[first].mean(0)))
    assert torch.allclose(found[first], wanted, atol=1e-4)


# KgCoOp, FedPGP

def test_what_a_tower_says_in_words_is_a_text_of_words(mini, head):
    wanted = mini.texts([f"a photo of a {n}." for n in NAMES])
    assert torch.allclose(F.normalize(head.said("a photo of a")), wanted, atol=1e-6)


def test_kgcoops_loss_by_hand(mini):
    made, x, y = worker("KgCoOp", {"lam": 3.0})
    net = made.client.net
    with torch.no_grad():
        t, t0 = F.normalize(net.head.texts(net.head.context)), mini.texts([f"a photo of a {n}." for n in NAMES])
        away = 1 - sum(float(t[c] @ t0[c]) for c in range(10)) / 10
        wanted = F.cross_entropy(mini.scale * F.normalize(x) @ t.T, y) + 3 * away
        assert 0.05 < away < 2
        assert float(made.method.loss(net, x, y, made.client)) == pytest.approx(float(wanted), abs=1e-4)
    assert set(made.method.upload(made.client)["params"]) == {"head.context"}


def test_fedpgps_loss_by_hand_and_what_stays(mini):
    made, x, y = worker("FedPGP", {"mu": 2.0, "rank": 3})
    net = made.client.net
    assert net.head.left.shape == (10, 4, 3) and net.head.right.shape == (10, 3, 128)
    assert set(made.method.upload(made.client)["params"]) == {"head.context"} and made.method.personal
    with torch.no_grad():
        net.head.left.mul_(500)      # so that what is the client's own says something else
        v = net.head.context
        t, own = (F.normalize(net.head.texts(c)) for c in (v, v + torch.einsum("cmr,crw->cmw", net.head.left,
                                                                               net.head.right)))
        t0 = mini.texts([f"a photo of a {n}." for n in NAMES])
        near, far = (t * t0).sum(1) / 0.5, (t * own).sum(1) / 0.5
        assert (far < 1.9).any()
        contrast = -(near.exp() / (near.exp() + far.exp())).log().mean()
        wanted = F.cross_entropy(mini.scale * F.normalize(x) @ own.T, y) + 2 * contrast
        assert float(made.method.loss(net, x, y, made.client)) == pytest.approx(float(wanted), abs=1e-4)
        assert torch.allclose(made.method.predict(net, x, made.client), mini.scale * F.normalize(x) @ own.T, atol=1e-3)


# FedAPT, FedCLIP, FACMIC

def test_fedtpgs_writer_by_hand():
    torch.manual_seed(0)
    writer, t = Writer(3, 8, 12, 0), torch.randn(5, 12)
    for norm in (writer.before, writer.of_texts, writer.between):
        nn.init.normal_(norm.weight), nn.init.normal_(norm.bias)
    x, seen, part = writer.before(writer.queries[0]), writer.of_texts(t), writer.attend
    q, k, v = x @ part.q_proj_weight.T, seen @ part.k_proj_weight.T, seen @ part.v_proj_weight.T
    q, k, v = (m + b for m, b in zip((q, k, v), part.in_proj_bias.chunk(3)))
    heads = [(q[:, i:i + 2] @ k[:, i:i + 2].T / 2 ** 0.5).softmax(1) @ v[:, i:i + 2] for i in range(0, 8, 2)]
    x = part.out_proj(torch.cat(heads, 1))
    h, gate = writer.gated(writer.between(x)).chunk(2, 1)
    assert torch.allclose(writer(t)[0], x + writer.out(h * F.gelu(gate)), atol=1e-5) and writer(t).shape == (1, 3, 8)


def test_fedtpg_writes_one_context_from_the_names_and_sends_no_context(mini):
    made, x, y = worker("FedTPG", {"tokens": 4})
    net, method = made.client.net, made.method
    assert {k.split(".")[0] for k, p in net.named_parameters() if p.requires_grad} == {"writer"}
    assert {k.split(".")[0] for k in method.upload(made.client)["params"]} == {"writer"}
    names = mini.texts([f"{n}." for n in NAMES])
    context = net.writer(names)
    wanted = net.head.logits(x, net.head.texts(context))
    assert torch.allclose(method.predict(net, x, made.client), wanted, atol=1e-4)
    assert method.loss(net, x, y, made.client).item() == pytest.approx(F.cross_entropy(wanted, y).item(), rel=1e-4)
    assert not torch.allclose(net.writer(names.roll(1, 1)), context, atol=1e-4)      # other names, another context
    assert torch.allclose(net.writer(names.flip(0)), context, atol=1e-5)             # in whatever order they come


def test_fedapts_keys_are_alike_everywhere_and_do_not_travel():
    one, other = worker("FedAPT")[0], worker("FedAPT")[0]
    assert torch.equal(one.client.net.keys, other.client.net.keys) and one.client.net.keys.shape == (4, 1, 4, 128)
    assert set(one.method.upload(one.client)["params"]) == {"head.context", "query.weight"}


def test_fedapt_takes_the_key_of_the_nearest_domain_and_mixes_alike_when_it_is_sure():
    made, x, _ = worker("FedAPT")
    net = made.client.net
    with torch.no_grad():
        near = made.method.predict(net, x, made.client)
        best = net.query(x).argmax(1)
        wanted = torch.stack([net.head.logits(x[i:i + 1], net.head.texts(net.head.context * (1 + net.keys[k])))[0]
                              for i, k in enumerate(best)])
        each = worker("FedAPT", {"mix": "each", "t": 1e-4})[0]
        mixed = each.method.predict(each.client.net, x, each.client)
    assert torch.allclose(near, wanted, atol=1e-3) and torch.allclose(near, mixed, atol=1e-3)


def test_fedapts_loss_by_hand():
    made, x, y = worker("FedAPT", place=3)
    net, k = made.client.net, 2      # "blended" is the third domain
    t = net.head.texts(net.head.context * (1 + net.keys[k]))
    wanted = F.cross_entropy(net.head.logits(x, t), y) - net.query(x).log_softmax(1)[:, k].mean()
    assert made.method.loss(net, x, y, made.client).item() == pytest.approx(wanted.item(), rel=1e-4)


def test_fedclips_loss_by_hand():
    logits, y = torch.randn(4, 3, generator=torch.Generator().manual_seed(0)), torch.tensor([0, 2, 1, 2])
    pairs = torch.stack([torch.stack([logits[i, y[j]] for j in range(4)]) for i in range(4)])
    wanted = sum(-pairs[i].log_softmax(0)[i] - pairs[:, i].log_softmax(0)[i] for i in range(4)) / 8
    assert torch.allclose(make("FedCLIP").matched(logits, y), wanted, atol=1e-6)


def test_facmics_loss_by_hand():
    """Its unlabelled images are the client's own test images."""
    simulation = Simulation(small_run("FACMIC", {"lam": 0.7}, net="cnn4"))
    made = simulation.workers[0]
    made.begin(simulation.message(0), 3)
    client, net, x, y = made.client, made.client.net.eval(), made.client.train.input()[:6], made.client.train.y[:6]
    some = torch.randint(len(client.test), (6,), generator=generator(client.seed, "unlabelled", 3, client.id, 0))
    z, other = net.body(x), net.body(client.test.input(some))
    far = lmmd(z, F.one_hot(y, 10).float(), other, net.head(other).softmax(1))
    wanted = made.method.matched(net.head(z), y) + 0.7 * far
    assert far > 0.01 and made.method.loss(net, x, y, client).item() == pytest.approx(wanted.item(), rel=1e-5)


def test_lmmd_by_hand():
    """One class, one sample on each side at 0 and 2: d^2 = h = 4, so k(0, 0) = 5 and k(0, 2) = sum_i e^{-2^(2 - i)}."""
    one, across = torch.ones(1, 1), sum(math.exp(-2.0 ** (2 - i)) for i in range(5))
    assert lmmd(0 * one, one, 2 * one, one).item() == pytest.approx(2 * 5 - 2 * across, rel=1e-5)


def test_lmmd_is_zero_for_equal_samples_and_grows_with_their_distance():
    x = torch.randn(20, 5, generator=torch.Generator().manual_seed(0))
    p = F.one_hot(torch.arange(20) % 4, 4).float()
    near, far = lmmd(x, p, x + 0.1, p), lmmd(x, p, x + 3.0, p)
    assert abs(float(lmmd(x, p, x, p))) < 1e-6 < float(near) < float(far)
    swapped = lmmd(x, p, x, p.roll(1, 1))       # the same samples under other classes
    assert float(swapped) > float(near)
    assert float(lmmd(x, p, x, torch.zeros(20, 4))) == 0


def test_tuning_moves_a_prompt_for_the_test_only():
    made, x, _ = worker("PromptFL", {"tune_epochs": 1}, lr=0.5)
    before = made.client.net.head.context.detach().clone()
    made.test({"params": {}}, {})
    assert made.method.personal and torch.equal(made.client.net.head.context, before)
    made.client.got = {}
    made.method.adapt(made.client)
    assert not torch.equal(made.client.net.head.context, before)


def test_a_client_that_was_left_out_tunes_in_its_own_order_after_an_interruption(tmp_path):
    """The order is that of its last round, which a process that was started afresh has from its state."""
    run = small_run("PromptFL", {"tune_epochs": 1}, rounds=4, participation=0.4)
    whole = result(run, tmp_path / "whole")
    for _ in range(3):
        interrupted(run, tmp_path / "cut")
    assert result(run, tmp_path / "cut") == whole


def test_heads_have_no_layers_that_could_train():
    assert not [m for m in worker("ZeroShot")[0].client.net.modules() if isinstance(m, nn.Linear)]


# the order of images

def test_class_by_class_is_the_order_of_the_labels_in_every_epoch():
    client = federate(small_run("FedDEAP").data, 0).clients[2]
    epochs = [torch.cat([y for _, y in batches(client.train, 7, "none", generator(0, k), "classes")]) for k in (0, 1)]
    assert torch.equal(*epochs) and torch.equal(epochs[0], client.train.y.sort(stable=True).values)
    some = [torch.cat([y for _, y in batches(client.train, 7, "none", generator(0, k))]) for k in (0, 1)]
    assert not torch.equal(*some) and torch.equal(some[0].sort().values, epochs[0])


def test_batches_of_a_test_are_cut_from_the_whole_of_it(monkeypatch):
    made, *_ = worker("FedDEAP", {"modulation": "batch_shuffled"})
    seen = []
    monkeypatch.setattr(type(made.method), "predict", lambda self, net, x, client: seen.append(len(x)) or x[:, :10])
    many = Split(torch.zeros(2500, 128), torch.zeros(2500, dtype=torch.int64))
    made.score(many)
    assert seen == [2500]
