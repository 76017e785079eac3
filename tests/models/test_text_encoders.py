"""FedDTR's text encoders: what they read, parameters as printed, CLIP's own tower."""

import pytest
import torch

from fedlib.core.errors import UserError
from fedlib.models import clip_package, text_encoders
from fedlib.models.text_encoders import class_prompts, text_encoder

NAMES = ["cat", "dog", "horse"]


def test_prompts_name_the_classes_or_code_them():
    assert class_prompts(NAMES) == ["This is a cat", "This is a dog", "This is a horse"]
    digits, letters = (class_prompts(["x"] * 200, labels) for labels in ("digits", "alphanumeric"))
    codes = [p.removeprefix("This is a ") for p in digits]
    assert len(set(digits)) == len(set(letters)) == 200
    assert all(c.isdigit() and 3 <= len(c) <= 5 for c in codes) and {len(c) for c in codes} == {3, 4, 5}
    assert all(len(p.removeprefix("This is a ")) == 5 for p in letters)
    assert class_prompts(["y"] * 7, "digits") == digits[:7]      # the class's number decides, not its name


@pytest.mark.parametrize(("layers", "printed"), [(1, 0.26), (5, 1.31), (10, 2.63)])
def test_the_mlp_has_the_printed_number_of_parameters(layers, printed):
    made = text_encoder("mlp", class_prompts(NAMES), 512, layers)
    assert round(sum(p.numel() for p in made.parameters()) / 1e6, 2) == printed


def test_the_mlp_reads_the_prompt_and_nothing_else():
    cat, dog = "This is a cat", "This is a dog"
    one, two = text_encoders.drawn([cat, dog]), text_encoders.drawn([dog, cat])
    assert torch.equal(one[0], two[1]) and not torch.equal(one[0], one[1])
    made = text_encoder("mlp", NAMES, 20, 3)
    assert made().shape == (3, 20) and [m.out_features for m in made.layers if hasattr(m, "bias")] == [512, 512, 20]
    assert set(made.state_dict()) == {f"layers.{i}.{k}" for i in (0, 2, 4) for k in ("weight", "bias")}


def test_a_table_is_one_free_vector_for_each_class():
    torch.manual_seed(0)
    made = text_encoder("embedding", class_prompts(["x"] * 100), 512)
    assert made() is made.weight and made().shape == (100, 512) and abs(float(made().detach().std()) - 1) < 0.02


def test_the_tiny_transformer_reads_the_words():
    pytest.importorskip("open_clip")
    torch.manual_seed(0)
    made = text_encoder("transformer_tiny", class_prompts([*NAMES, "small brown horse"]), 512).eval()
    assert sum(p.numel() for p in made.parameters()) == 9_236_960
    assert made().shape == (4, 512) and not torch.allclose(made()[0], made()[1])
    alone = text_encoders.TinyTransformer(class_prompts(["cat"]), 512).eval()
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
    made = text_encoder("clip", class_prompts(NAMES), 512).eval()
    with torch.no_grad():
        tokens = text_encoders.open_clip().get_tokenizer(text_encoders.CLIP)(class_prompts(NAMES))
        theirs = untrained_clip.encode_text(tokens)
        assert torch.allclose(made(), theirs, atol=1e-5)
    assert sum(p.numel() for p in made.parameters()) == 63_428_096      # Table 9 prints 89 M
    frozen = text_encoder("clip_frozen", class_prompts(NAMES), 32)
    assert sum(p.numel() for p in frozen.parameters()) == 512 * 32 + 32 and frozen().shape == (3, 32)
    assert torch.allclose(frozen.prompts, theirs, atol=1e-5)


def test_without_open_clip_or_its_weights_it_says_so(monkeypatch):
    def gone(*args, pretrained, force_quick_gelu):
        assert force_quick_gelu         # what OpenAI's weights were trained with
        raise OSError("no route. More words.")
    monkeypatch.setattr(pytest.importorskip("open_clip"), "create_model", gone)
    clip_package.clip.cache_clear()
    with pytest.raises(UserError, match=r"could not be loaded \(no route\)"):
        clip_package.clip("openai")
    monkeypatch.undo()
    monkeypatch.setitem(__import__("sys").modules, "open_clip", None)
    with pytest.raises(UserError, match="pip install open_clip_torch"):
        clip_package.open_clip()
