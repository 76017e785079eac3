"""Grad-CAM of FedDEAP's networks: the formula by hand, which layer, what lies beside a record."""
import pytest
import torch
import torch.nn.functional as F
from conftest import small_run
from torch import nn

from fedlib.core.errors import UserError
from fedlib.core.losses import cosines
from fedlib.datasets import prepare
from fedlib.engine import records
from fedlib.experiments import tables
from fedlib.methods.prompts import Turn
from fedlib.models import encoders
from fedlib.probes import grad_cam

open_clip = pytest.importorskip("open_clip")
pytest.importorskip("pytorch_grad_cam")
DIGITS = torch.randint(256, (3, 3, 28, 28), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)


def by_hand(encoder, turn, x, target, layer):
    """relu(sum_k a_k A^k) at the layer's own size, before any scaling."""
    kept = {}
    hook = layer.register_forward_hook(lambda _, inputs, out: kept.update(maps=out))
    levels = encoders.resized(x, encoder.side, encoder.mode).requires_grad_()
    scores = cosines(turn(encoder.features(levels)), turn.frame)
    hook.remove()
    grads = torch.autograd.grad(scores[torch.arange(len(x)), target].sum(), kept["maps"])[0]
    return F.relu((grads.mean((2, 3), keepdim=True) * kept["maps"]).sum(1)).detach()


def test_a_map_is_the_formula():
    encoder, target = encoders.load_encoder("mini_clip"), torch.tensor([3, 0, 9])
    turn = Turn(128, 10, 0, "semantic")
    layer, reshape = grad_cam.last_map(encoder.net)
    found = grad_cam.heat(encoder, turn, DIGITS, target)
    wanted = by_hand(encoder, turn, DIGITS, target, layer)
    assert reshape is None and wanted.shape == (3, 4, 4) and found.shape == (3, 32, 32) and found.dtype == torch.uint8
    for mine, theirs in zip(found.float(), wanted, strict=True):
        large = F.interpolate((theirs - theirs.min())[None, None], (32, 32), mode="bilinear")[0, 0]
        assert torch.corrcoef(torch.stack([mine.flatten(), large.flatten()]))[0, 1] > 0.99
    other = grad_cam.heat(encoder, turn, DIGITS, torch.tensor([4, 1, 8]))
    assert not torch.equal(found, other)


def test_a_vision_transformers_tokens_become_maps():
    vision = {"image_size": 32, "patch_size": 8, "layers": 2, "width": 32, "head_width": 16}
    text = {"context_length": 8, "width": 16, "heads": 2, "layers": 1, "vocab_size": 20}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        net = open_clip.CLIP(24, vision, text).visual
    encoder = encoders.Encoder("small", net, 24, 32, [0.5] * 3, [0.5] * 3, "bilinear")
    layer, reshape = grad_cam.last_map(net)
    tokens = torch.arange(2 * 17 * 32).float().view(2, 17, 32)
    maps = reshape(tokens)
    assert maps.shape == (2, 32, 4, 4) and torch.equal(maps[1, :, 2, 3], tokens[1, 1 + 2 * 4 + 3])
    turn = Turn(24, 4, 0, "domain")
    found = grad_cam.heat(encoder, turn, DIGITS, torch.tensor([0, 1, 2]))
    assert found.shape == (3, 32, 32) and layer is net.transformer.resblocks[-1].ln_1 and found.max() == 255


@pytest.mark.parametrize("side,layer", [(32, 2), (64, 3), (224, 4), (16, 1)])
def test_the_deepest_map_that_is_large_enough_is_taken(side, layer):
    net = nn.Module()
    net.image_size, net.layer4 = side, nn.Identity()
    for k in (1, 2, 3):
        setattr(net, f"layer{k}", nn.Identity())
    assert grad_cam.last_map(net)[0] is getattr(net, f"layer{layer}")


def test_another_tower_is_named():
    with pytest.raises(UserError, match="image tower"):
        grad_cam.last_map(nn.Linear(2, 2))


def test_maps_lie_beside_the_record(tmp_path):
    run = small_run("FedDEAP", rounds=1)
    with pytest.raises(UserError, match="fedlib run"):
        grad_cam.read(run, tmp_path)
    grad_cam.collect(run, tmp_path)
    found = grad_cam.read(run, tmp_path)
    assert set(found) == {"scans", "blended", "printed", "street"} and run.path(tmp_path).exists()
    tensors = prepare.load_set("tiny_digits").tensors
    for domain, kept in found.items():
        assert kept["semantic"].shape == kept["domain"].shape == (grad_cam.IMAGES, 32, 32)
        assert torch.equal(kept["y"], tensors[f"{domain}/y"][kept["index"]])
        assert len(kept["y"].unique()) == grad_cam.IMAGES
        assert (tensors[f"{domain}/part"][kept["index"]] == prepare.TEST).all()
        assert not torch.equal(kept["semantic"], kept["domain"])
    assert records.read_record(run.path(tmp_path))["rounds"][-1]["acc"]


def test_figure_5_asks_for_maps():
    planned = tables.load_table("feddeap/figure5").runs("mini", [0])
    assert {p.measure for p in planned} == {"cams"} and {p.run.method for p in planned} == {"FedDEAP"}
