"""FedDTR and its text encoders: the loss against its formula, who moves what, messages, parameters as printed."""
import copy

import pytest
import torch
import torch.nn.functional as F
from conftest import small_run

from fedlib.core.errors import UserError
from fedlib.core.federation import Client, as_input
from fedlib.core.params import nbytes
from fedlib.engine import loop, records
from fedlib.engine.cost import random
from fedlib.engine.worker import Worker
from fedlib.methods import make
from fedlib.methods.class_texts import frequencies
from fedlib.models import text_encoders
from fedlib.models.nets import Arch, build

NAMES = ["cat", "dog", "horse"]


def a_client(values=None, count=12, dim_width=2, arch="cnn4"):
    """A worker of FedDTR with random images of three classes and what the server sent it."""
    run = small_run("FedDTR", values, net=arch)
    net, split = build(Arch(arch, dim_width), 3, (3, 28, 28), 0), random(count, 3, (3, 28, 28))
    server, client = make("FedDTR", values), Client("0", "a", split, split, classes=NAMES)
    server.classes = NAMES
    server.setup(copy.deepcopy(net))
    worker = Worker(run, client, net)
    client.got = server.broadcast("0")
    worker.method.receive(client, client.got)
    return server, worker


# texts

def test_prompts_name_the_classes_or_code_them():
    assert text_encoders.class_prompts(NAMES) == ["This is a cat", "This is a dog", "This is a horse"]
    digits, letters = (text_encoders.class_prompts(["x"] * 200, labels) for labels in ("digits", "alphanumeric"))
    codes = [p.removeprefix("This is a ") for p in digits]
    assert len(set(digits)) == len(set(letters)) == 200
    assert all(c.isdigit() and 3 <= len(c) <= 5 for c in codes) and {len(c) for c in codes} == {3, 4, 5}
    assert all(len(p.removeprefix("This is a ")) == 5 for p in letters)
    assert text_encoders.class_prompts(["y"] * 7, "digits") == digits[:7]      # the class's number decides, not its name


@pytest.mark.parametrize(("layers", "printed"), [(1, 0.26), (5, 1.31), (10, 2.63)])
def test_the_mlp_has_the_printed_number_of_parameters(layers, printed):
    made = text_encoders.text_encoder("mlp", text_encoders.class_prompts(NAMES), 512, layers)
    assert round(sum(p.numel() for p in made.parameters()) / 1e6, 2) == printed


def test_the_mlp_reads_the_prompt_and_nothing_else():
    one, two = text_encoders.drawn(["This is a cat", "This is a dog"]), text_encoders.drawn(["This is a dog", "This is a cat"])
    assert torch.equal(one[0], two[1]) and not torch.equal(one[0], one[1])
    made = text_encoders.text_encoder("mlp", NAMES, 20, 3)
    assert made().shape == (3, 20) and [m.out_features for m in made.layers if hasattr(m, "bias")] == [512, 512, 20]
    assert set(made.state_dict()) == {f"layers.{i}.{k}" for i in (0, 2, 4) for k in ("weight", "bias")}


def test_a_table_is_one_free_vector_for_each_class():
    torch.manual_seed(0)
    made = text_encoders.text_encoder("embedding", text_encoders.class_prompts(["x"] * 100), 512)
    assert made() is made.weight and made().shape == (100, 512) and abs(float(made().detach().std()) - 1) < 0.02


def test_the_tiny_transformer_reads_the_words():
    pytest.importorskip("open_clip")
    torch.manual_seed(0)
    made = text_encoders.text_encoder("transformer_tiny", text_encoders.class_prompts([*NAMES, "small brown horse"]), 512).eval()
    assert sum(p.numel() for p in made.parameters()) == 9_236_960
    assert made().shape == (4, 512) and not torch.allclose(made()[0], made()[1])
    alone = text_encoders.TinyTransformer(text_encoders.class_prompts(["cat"]), 512).eval()
    alone.load_state_dict(made.state_dict())
    assert torch.allclose(alone()[0], made()[0], atol=1e-6)     # padding behind the end of a text does not matter


@pytest.fixture
def untrained_clip(monkeypatch):
    """The tower without its weights, which are a download."""
    pytest.importorskip("open_clip")
    original = text_encoders.clip
    monkeypatch.setattr(text_encoders, "clip", lambda pretrained: original(None))
    return original(None).eval()


def test_clips_text_tower_is_clips(untrained_clip):
    made = text_encoders.text_encoder("clip", text_encoders.class_prompts(NAMES), 512).eval()
    with torch.no_grad():
        theirs = untrained_clip.encode_text(text_encoders.open_clip().get_tokenizer(text_encoders.CLIP)(text_encoders.class_prompts(NAMES)))
        assert torch.allclose(made(), theirs, atol=1e-5)
    assert sum(p.numel() for p in made.parameters()) == 63_428_096      # Table 9 prints 89 M
    frozen = text_encoders.text_encoder("clip_frozen", text_encoders.class_prompts(NAMES), 32)
    assert sum(p.numel() for p in frozen.parameters()) == 512 * 32 + 32 and frozen().shape == (3, 32)
    assert torch.allclose(frozen.prompts, theirs, atol=1e-5)


def test_without_open_clip_or_its_weights_it_says_so(monkeypatch):
    def gone(*args, pretrained, force_quick_gelu):
        assert force_quick_gelu         # what OpenAI's weights were trained with
        raise OSError("no route. More words.")
    monkeypatch.setattr(text_encoders, "open_clip", lambda: type("", (), {"create_model": staticmethod(gone)}))
    text_encoders.clip.cache_clear()
    with pytest.raises(UserError, match=r"could not be loaded \(no route\)"):
        text_encoders.clip("openai")
    monkeypatch.undo()
    monkeypatch.setitem(__import__("sys").modules, "open_clip", None)
    with pytest.raises(UserError, match="pip install open_clip_torch"):
        text_encoders.open_clip()


# the method

@pytest.mark.parametrize("values", [{}, {"scale": 1.0}, {"text": "mlp"}, {"u": 0.5}])
def test_the_loss_by_its_formula(values):
    _, worker = a_client(values)
    client, method, net = worker.client, worker.method, worker.client.net
    torch.manual_seed(1)
    for p in (*net.text.parameters(), *net.head.parameters()):
        p.data += 0.1 * torch.randn_like(p)         # so that own and global differ
    anchors = client.scratch["anchors"] = torch.randn(3, net.dim)
    x, y = as_input(client.train.x), client.train.y
    z, own = net.body(x).double(), net.text().double()
    got, scale = {k: v.double() for k, v in client.got["head"].items()}, values.get("scale", 100.0)
    prior = torch.bincount(y, minlength=3).double() / len(y) @ own
    h = net.head.double()
    logits = F.linear(z + prior, h.weight, h.bias) + F.linear(z, got["weight"], got["bias"])
    pull = [-torch.log_softmax(scale * F.cosine_similarity(z[:, None], t[None], dim=2), 1)[range(len(y)), y].mean()
            for t in (anchors.double(), own)]
    wanted = -torch.log_softmax(logits, 1)[range(len(y)), y].mean() + values.get("u", 1.0) * sum(pull)
    net.float()
    assert torch.allclose(method.loss(net, x, y, client).double(), wanted, rtol=1e-4)


def slopes(values, part):
    """The gradient that the loss gives a part of the net, after its texts and head moved away from the server's."""
    _, worker = a_client(values)
    client, net = worker.client, worker.client.net
    torch.manual_seed(1)
    for p in (*net.text.parameters(), *net.head.parameters()):
        p.data += 0.1 * torch.randn_like(p)
    client.scratch["anchors"] = torch.randn(3, net.dim)
    worker.method.loss(net, as_input(client.train.x), client.train.y, client).backward()
    return torch.cat([p.grad.flatten() if p.grad is not None else torch.zeros(p.numel())
                      for p in getattr(net, part).parameters()])


def test_texts_learn_from_fixed_features_only():
    assert slopes({}, "text").abs().sum() > 0
    assert slopes({"u": 0.0}, "text").abs().sum() == 0                              # P_k is fixed in the loss
    assert slopes({"u": 0.0, "detach": False}, "text").abs().sum() > 0
    assert torch.equal(slopes({}, "head"), slopes({"u": 0.0}, "head"))              # the texts do not move the head
    assert not torch.equal(slopes({}, "body"), slopes({"detach": False}, "body"))   # through the averaged head
    assert torch.allclose(slopes({"freeze": False, "prior": False}, "text"), slopes({"prior": False}, "text"),
                          rtol=1e-3, atol=1e-7)                                     # Eq. 1 or Eq. 2: the same for T_k
    assert not torch.allclose(slopes({"freeze": False}, "body"), slopes({}, "body"), rtol=1e-3)


def test_the_prior_is_the_clients_mean_text():
    _, worker = a_client(count=8)                    # classes 0, 1, 2, 0, 1, 2, 0, 1
    assert frequencies(worker.client, 4).tolist() == pytest.approx([3 / 8, 3 / 8, 2 / 8, 0])


def test_what_travels_is_body_texts_and_head():
    server, worker = a_client()
    net, client = worker.client.net, worker.client
    up, _ = worker.train(server.broadcast("0"), 0)
    counted = sum(p.numel() for part in (net.body, net.text, net.head) for p in part.parameters())
    assert nbytes(server.broadcast("0")) == 4 * counted and nbytes(up) == 4 * counted + 8      # and the count n
    assert set(server.broadcast("0")["params"]) == {k for k in net.state_dict() if not k.startswith("head.")}
    own = copy.deepcopy(net.head.state_dict())
    server.aggregate({"0": up, "1": {k: {n: v + 1 for n, v in d.items()} if isinstance(d, dict) else d
                                     for k, d in up.items()}})
    assert torch.allclose(server.head_["bias"], up["head"]["bias"] + 0.5)
    worker.method.receive(client, server.broadcast("0"))
    assert torch.equal(net.head.weight, own["weight"])      # the own head stays as it was
    assert torch.allclose(net.text.weight, up["params"]["text.weight"] + 0.5)


def test_the_anchors_of_a_round_are_the_servers_texts():
    server, worker = a_client()
    sent = server.broadcast("0")
    worker.train(sent, 0)
    assert torch.equal(worker.client.scratch["anchors"], sent["params"]["text.weight"])
    assert not torch.equal(worker.client.net.text.weight, sent["params"]["text.weight"])


def test_alone_without_texts_is_local(tmp_path):
    bare = {"u": 0.0, "prior": False, "dual": False, "alone": True}
    ours, theirs = (records.read_record(loop.train(small_run(*which), tmp_path))["rounds"]
                    for which in (("FedDTR", bare), ("Local",)))
    assert [r["acc"] for r in ours] == [r["acc"] for r in theirs]
    up, _ = a_client({"alone": True, "dual": False})[1].train({}, 0)
    assert set(up) == {"params", "n"} and not up["params"]


def test_texts_without_text_do_not_care_for_labels(tmp_path):
    """Table 6 with the released encoder is a tautology; with the paper's, the vectors at least differ."""
    def accuracies(**values):
        rounds = records.read_record(loop.train(small_run("FedDTR", values), tmp_path))["rounds"]
        return [r["acc"] for r in rounds], [r["train_loss"] for r in rounds]
    assert accuracies() == accuracies(labels="digits") == accuracies(labels="alphanumeric")
    assert accuracies(text="mlp")[1] != accuracies(text="mlp", labels="digits")[1]
