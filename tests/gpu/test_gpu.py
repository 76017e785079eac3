"""Everything that trains, on a pretended GPU: nothing that CUDA would refuse, and the same numbers as on the CPU."""
import json

import pretend_gpu
import pytest
import torch
from conftest import METHOD_NAMES, close, interrupted, result, small_run
from pretend_gpu import GPU
from safetensors.torch import load_file

from fedlib.core import federation, machine
from fedlib.core.seeds import generator
from fedlib.datasets import feature_cache, prepare
from fedlib.engine import loop, records, stack
from fedlib.experiments import batch, tables
from fedlib.models import encoders
from fedlib.probes import grad_cam, inversion, leakage


@pytest.fixture(autouse=True)
def gpu(monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device=None: "a pretended GPU")
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda device=None: 2**20)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device=None: pretend_gpu.count("sync"))
    yield
    torch.use_deterministic_algorithms(False)


def tiny(method, **how):
    """Two rounds of two clients with two steps each."""
    data = {"clients": (1, 1), "domains": ("scans", "street"), "fraction": 0.2, **how.pop("data", {})}
    return small_run(method, data=data, **{"lr": 2e-4, "batch": 5} | how)


def same(run, tmp_path, **how):
    """Attention is fused on a CPU, so it is rounded differently there."""
    for one, other in zip(result(run, tmp_path / "gpu", device=GPU, **how), result(run, tmp_path / "cpu", **how),
                          strict=True):
        close(one, other)


@pytest.mark.parametrize("refused", [
    lambda x, y: x + y, lambda x, y: x @ y, lambda x, y: torch.cat([x, y]), lambda x, y: x.numpy(),
    lambda x, y: y[x.long()], lambda x, y: torch.nn.functional.linear(x, y), lambda x, y: torch.where(x > 0, x, y),
    lambda x, y: torch.randn(2, 2, device=GPU, generator=torch.Generator())])
def test_the_device_refuses_what_cuda_refuses(refused):
    with pytest.raises((RuntimeError, TypeError), match="device|generator"):
        refused(torch.ones(2, 2).to(GPU), torch.ones(2, 2))


def test_it_counts_what_waits_and_what_travels():
    x = torch.ones(4).to(GPU)
    pretend_gpu.clear()
    assert (x * 2).sum().item() == 8
    assert pretend_gpu.counts == {"launch": 2, "sync": 1, "d2h": 4}


@pytest.mark.parametrize("together", [1, 2])
@pytest.mark.parametrize("name", METHOD_NAMES)
def test_every_method_gives_what_it_gives_on_the_cpu(name, together, tmp_path):
    run = tiny(name)
    same(run, tmp_path, stack=together)


@pytest.mark.parametrize("how", [{"precision": "bf16"}, {"buffers": "keep"}, {"evaluate": "both"}, {"cross": True},
                                 {"optimiser": "adamw", "keep_optimiser": True}, {"clip": 0.1},
                                 {"augment": "flip_rotate"}, {"data": {"unseen": ("printed",)}},
                                 {"net": "linear", "precision": "bf16"}], ids=str)
def test_every_protocol_does(how, tmp_path):
    same(tiny("FedAvg", **how), tmp_path)


def test_an_unseen_domain_is_sent_once(tmp_path):
    sent = []
    for rounds in (1, 3):
        run = tiny("FedAvg", data={"unseen": ("printed",)}, rounds=rounds)
        pretend_gpu.clear()
        result(run, tmp_path, device=GPU)
        sent.append(pretend_gpu.counts["h2d"])
    printed = prepare.load_set("tiny_digits").tensors["printed/x"].nbytes * 3 // 10
    assert sent[1] - sent[0] < printed


@pytest.mark.parametrize("name, together", [("FedAvg", 2), *((m, 1) for m in (
    "FedAvg", "FedFomo", "FedPHP", "IFCA", "FedAS", "FedIIR", "FedPall", "I2PFL"))])
def test_images_that_the_device_cannot_hold_are_sent_batch_by_batch(name, together, tmp_path, monkeypatch):
    """The same numbers, and nothing of a split stays there."""
    run, room = tiny(name, data={"unseen": ("printed",)}), machine.room(GPU)
    whole = result(run, tmp_path / "whole", device=GPU, stack=together)
    images = []
    monkeypatch.setattr(machine, "room", lambda device: 9000)      # what the two splits take is more
    monkeypatch.setattr(loop.Federation, "place", lambda self, device, room, place=loop.Federation.place:
                        images.append(self) or place(self, device, room))
    for one, other in zip(result(run, tmp_path / "sent", device=GPU, stack=together), whole, strict=True):
        close(one, other)
    client = images[0].clients[0]
    assert room > 2**31 and (client.train.x.device.type, client.train.y.device.type) == ("cpu", "gpu")
    assert records.read_record(run.path(tmp_path / "sent"))["made"]["streamed"]
    assert "streamed" not in records.read_record(run.path(tmp_path / "whole"))["made"]


def test_more_batches_are_prepared_at_once_there():
    """The same batches; a launch on a GPU takes as long for many as for one."""
    images = torch.arange(200 * 3 * 32 * 32).view(200, 3, 32, 32).to(torch.uint8)
    split, launches, made = federation.Split(images, torch.arange(200) % 5), [], []
    for device, pieces in (("cpu", 7), (GPU, 1)):
        here = split.to(device)
        assert len([*federation.pieces(here, 32, "crop_flip", generator(0), "random", 2)]) == pieces
        pretend_gpu.clear()
        made.append([x.cpu() for x, _ in federation.batches(here, 32, "crop_flip", generator(0))])
        launches.append(pretend_gpu.counts["launch"])
    assert len(made[0]) == 7 and all(map(torch.equal, *made)) and 0 == launches[0] < launches[1] < 60


def test_a_run_that_was_interrupted_goes_on_there(tmp_path):
    run = tiny("FedDyn", rounds=3)
    whole = result(run, tmp_path / "whole", device=GPU)
    interrupted(run, tmp_path / "cut", device=GPU)
    assert result(run, tmp_path / "cut", device=GPU) == whole
    made = records.read_record(run.path(tmp_path / "cut"))["made"]
    assert made["device"] == "cuda:0" and made["deterministic"] and made["peak_mb"] == 1


def test_features_and_texts_are_computed_there(tmp_path, monkeypatch):
    encoder, made = encoders.load_encoder("mini_clip"), []
    for device in ("cpu", GPU):
        monkeypatch.setattr(feature_cache, "path_of", lambda about, name=str(device): tmp_path / name[:3])
        made.append(load_file(feature_cache.make_features("tiny_digits", None, encoder.to(device), say=print)))
    encoder.to("cpu")
    assert made[0].keys() == made[1].keys() and len(made[0]) > 4
    for name, z in made[0].items():
        torch.testing.assert_close(z.float(), made[1][name].float(), rtol=2e-3, atol=2e-3)


def test_probes_take_the_device_that_they_are_given(tmp_path):
    monitored = tiny("FedPall")
    both = [json.loads(leakage.collect(monitored, tmp_path / str(d), device=d).read_text()) for d in ("cpu", GPU)]
    assert both[0] == both[1]
    run = tiny("FedAvg", net="adapter", data={"encoder": "mini_clip", "fraction": 0.5})
    feature_cache.ensure_features("tiny_digits", None, "mini_clip", say=print)
    attacks = []
    for device in ("cpu", GPU):
        attacks.append(inversion.collect(run, tmp_path / f"attack {device}", steps=2, device=device).read_text())
        assert encoders.load_encoder("mini_clip").device.type == torch.device(device).type
    encoders.load_encoder("mini_clip").to("cpu")
    one, other = (json.loads(text)["attacks"] for text in attacks)
    assert len(one) == 6 and [(a["client"], a["kind"]) for a in one] == [(a["client"], a["kind"]) for a in other]
    for a, b in zip(one, other, strict=True):
        close(a["rows"][-1], b["rows"][-1])


def test_maps_of_attention_are_computed_there(tmp_path):
    pytest.importorskip("pytorch_grad_cam")
    run = tiny("FedDEAP")
    one, other = (load_file(grad_cam.collect(run, tmp_path / str(d), device=d)) for d in ("cpu", GPU))
    encoders.load_encoder("mini_clip").to("cpu")
    assert one.keys() == other.keys() and all((one[k].float() - other[k].float()).abs().max() < 8 for k in one)


def test_a_gpu_without_room_for_a_stack_trains_one_after_the_other(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDLIB_DATA", str(tmp_path / "data"))

    def full(workers):
        raise torch.OutOfMemoryError("CUDA out of memory")
    monkeypatch.setattr(stack, "gain", full)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    run = tiny("FedAvg")
    monkeypatch.setattr(stack.prepare, "folder", lambda: tmp_path)
    assert result(run, tmp_path / "a", device=GPU, stack="auto") == result(run, tmp_path / "b")
    assert not (tmp_path / "stack.json").exists()


def test_two_measurements_that_disagree_are_not_remembered(tmp_path, monkeypatch):
    monkeypatch.setattr(stack.prepare, "folder", lambda: tmp_path)
    gains = iter([2.0, 1.0, 2.0, 2.0])
    monkeypatch.setattr(stack, "gain", lambda workers: next(gains))
    assert "stack" not in result(tiny("FedAvg"), tmp_path / "a", device=GPU, stack="auto")[-1]
    assert not (tmp_path / "stack.json").exists()
    assert result(tiny("FedAvg"), tmp_path / "b", device=GPU, stack="auto")[-1]["stack"] == 2


def test_runs_are_spread_over_the_gpus(monkeypatch, tmp_path):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert machine.places("cuda") == ["cuda:0", "cuda:1"] and machine.places("cuda:1") == ["cuda:1"]
    assert batch.together("cuda") == 2
    places = []

    class Started:
        def __init__(self, planned, results, device, left, together):
            self.planned, self.last = planned, ""
            assert together == "auto"
            places.append(device)

        def poll(self):
            return 0 if len(places) == 4 else None
    monkeypatch.setattr(batch, "_start", Started)
    monkeypatch.setattr(batch, "_end", lambda child, code, outcome, results, device: None)
    todo = [tables.Planned("FedAvg", "digits", seed, tiny("FedAvg", seed=seed)) for seed in range(4)]
    batch.execute(todo, tmp_path, 4, "cuda", say=lambda line: None)
    assert sorted(places) == ["cuda:0", "cuda:0", "cuda:1", "cuda:1"]


def test_new_tensors_are_not_filled_for_the_order_of_sums():
    """Deterministic torch fills each new tensor unless it is told not to: a launch, and nobody reads what it wrote."""
    machine.settle("cuda")
    assert torch.are_deterministic_algorithms_enabled()
    with torch.profiler.profile() as seen:
        torch.empty(9).add(1)
    done = {e.key for e in seen.key_averages()}
    assert "aten::add" in done and not any("fill" in name for name in done)


def test_sums_in_any_order_are_no_false_alarm(tmp_path, monkeypatch):
    """Records of one GPU and one torch must be equal only where sums were computed in one order."""
    run = tiny("FedAvg")
    for folder, change, order in (("a", 0, "1"), ("b", 1, "1"), ("c", 0, "0")):
        monkeypatch.setenv("FEDLIB_DETERMINISTIC", order)
        result(run, tmp_path / folder, device=GPU)
        record = records.read_record(run.path(tmp_path / folder))
        record["rounds"][-1]["acc"]["scans"] += change
        run.path(tmp_path / folder).unlink()
        records.write_record(run.path(tmp_path / folder), record)
    assert batch.differences(tmp_path / "a", tmp_path / "b")[0][2] == float("inf")
    assert batch.differences(tmp_path / "c", tmp_path / "b")[0][2] < 1
