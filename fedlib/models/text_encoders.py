"""Text encoders: class names -> prompts -> one vector per class `(C, D)`, as a module that is called without input."""
import copy
from typing import Literal

import torch
from torch import Tensor, nn

from fedlib.core.seeds import generator
from fedlib.models.clip_package import CLIP, clip, open_clip

Encoder = Literal["embedding", "mlp", "transformer_tiny", "clip", "clip_frozen"]
Labels = Literal["names", "digits", "alphanumeric"]
PROMPT = "This is a {}"      # FedDTR's
PROMPT_DIM = 512             # length of the fixed vector that stands for a prompt


def text_encoder(kind: Encoder, prompts: list[str], dim: int, layers: int = 1) -> nn.Module:
    """A module that gives the texts' vectors `(C, D)` when it is called; see the classes for what each kind is."""
    return {"embedding": lambda: Table(len(prompts), dim), "mlp": lambda: PromptMLP(drawn(prompts), dim, layers),
            "transformer_tiny": lambda: TinyTransformer(prompts, dim), "clip": lambda: ClipText(prompts, dim),
            "clip_frozen": lambda: PromptMLP(read_by_clip(prompts), dim, layers)}[kind]()


def class_prompts(classes: list[str], labels: Labels = "names") -> list[str]:
    """"This is a cat" for every class; or a code in the name's place, 3 to 5 digits or 5 letters and digits.

    Codes depend on the class's number only, and no two classes have the same one (FedDTR, Table 6).
    """
    if labels == "names":
        return [PROMPT.format(name) for name in classes]
    signs, codes = {"digits": "0123456789", "alphanumeric": "0123456789abcdefghijklmnopqrstuvwxyz"}[labels], []
    for number in range(len(classes)):
        draws = generator("label", labels, number)
        while len(codes) == number:
            length = 5 if labels == "alphanumeric" else int(torch.randint(3, 6, (), generator=draws))
            code = "".join(signs[i] for i in torch.randint(len(signs), (length,), generator=draws))
            codes += [code] if code not in codes else []
    return [PROMPT.format(code) for code in codes]


class Table(nn.Embedding):
    """A free vector for each class, N(0, 1) at first: no text at all. What FedDTR's released code trains."""

    def forward(self) -> Tensor:
        return self.weight


def drawn(prompts: list[str]) -> Tensor:
    """A vector for each prompt that depends on its letters only: N(0, 1) draws `(C, 512)`, keyed by the prompt."""
    return torch.stack([torch.randn(PROMPT_DIM, generator=generator("prompt", p)) for p in prompts])


@torch.no_grad()
def read_by_clip(prompts: list[str]) -> Tensor:
    """What CLIP's text tower makes of the prompts `(C, 512)`."""
    return ClipText(prompts, PROMPT_DIM).eval()()


class PromptMLP(nn.Module):
    """A fixed vector for each prompt, then linear layers of width 512 with ReLU between them: 512 to D in the last.

    FedDTR does not say how its prompts become vectors; that its encoder has 0.26 M parameters, 1.31 M with five layers
    and 2.63 M with ten, fixes 512 x 512 and a bias for each layer.
    """

    def __init__(self, prompts: Tensor, dim: int, layers: int):
        super().__init__()
        self.register_buffer("prompts", prompts, persistent=False)      # all clients know it: it does not travel
        widths = [PROMPT_DIM] * layers + [dim]
        steps = [m for a, b in zip(widths, widths[1:]) for m in (nn.Linear(a, b), nn.ReLU())][:-1]
        self.layers = nn.Sequential(*steps)

    def forward(self) -> Tensor:
        return self.layers(self.prompts)


class TinyTransformer(nn.Module):
    """CLIP's tokens, 4 causal layers of width 160, the vector of the end-of-text token, a linear layer to D.

    9.2 M parameters, of which 7.9 M are the table of 49,408 tokens. FedDTR's Table 9 has a "Transformer-tiny" of 9.3 M
    parameters and does not say what it is.
    """
    width, depth, heads = 160, 4, 4

    def __init__(self, prompts: list[str], dim: int):
        super().__init__()
        tokens, end = tokenised(prompts)
        self.register_buffer("tokens", tokens, persistent=False)
        self.register_buffer("end", end, persistent=False)
        self.embedding = nn.Embedding(49_408, self.width)
        self.positions = nn.Parameter(0.01 * torch.randn(77, self.width))
        layer = nn.TransformerEncoderLayer(self.width, self.heads, 4 * self.width, 0.0, "gelu", batch_first=True,
                                           norm_first=True)
        self.layers = nn.TransformerEncoder(layer, self.depth, nn.LayerNorm(self.width), enable_nested_tensor=False)
        self.project = nn.Linear(self.width, dim, bias=False)

    def forward(self) -> Tensor:
        length = self.tokens.shape[1]
        x = self.embedding(self.tokens) + self.positions[:length]
        x = self.layers(x, nn.Transformer.generate_square_subsequent_mask(length, x.device, x.dtype), is_causal=True)
        return self.project(x[torch.arange(len(x), device=x.device), self.end])


class ClipText(nn.Module):
    """The text tower of open_clip's ViT-B/32 with OpenAI's weights, trainable; a linear layer where D is not 512.

    UserError where open_clip is not installed or the weights cannot be had.
    """

    def __init__(self, prompts: list[str], dim: int, pretrained: str | None = "openai"):
        super().__init__()
        tokens, _ = tokenised(prompts, cut=False)
        model = clip(pretrained)
        self.register_buffer("tokens", tokens, persistent=False)
        for name in ("token_embedding", "transformer", "ln_final", "positional_embedding", "text_projection"):
            setattr(self, name, copy.deepcopy(getattr(model, name)))
        self.register_buffer("attn_mask", model.attn_mask, persistent=False)
        width = self.text_projection.shape[1]
        self.project = nn.Identity() if width == dim else nn.Linear(width, dim, bias=False)

    def forward(self) -> Tensor:
        x = self.token_embedding(self.tokens) + self.positional_embedding
        x = self.ln_final(self.transformer(x, attn_mask=self.attn_mask))
        last = x[torch.arange(len(x), device=x.device), self.tokens.argmax(1)]      # the end has the largest number
        return self.project(last @ self.text_projection)


def tokenised(prompts: list[str], cut: bool = True) -> tuple[Tensor, Tensor]:
    """CLIP's tokens `(C, L)` and the place of each end-of-text `(C,)`. cut: L is as long as the longest prompt."""
    tokens = open_clip().get_tokenizer(CLIP)(prompts)
    end = tokens.argmax(1)
    return (tokens[:, :int(end.max()) + 1] if cut else tokens), end
