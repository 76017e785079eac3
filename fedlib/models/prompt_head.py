"""The text tower of an open_clip model with learned contexts instead of words: what prompt learning trains."""
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedlib.core.errors import UserError


class Tower:
    """g: token embeddings `(n, L, W)` -> text features `(n, D)`, frozen. One for all nets: it is copied with none.

    CLIP's tower is causal and reads the vector at the end-of-text token, so what follows the last of these ends can be
    cut off: exact, and most of the 77 places. cut = False keeps them, to measure what that costs.
    """

    def __init__(self, model: nn.Module, tokenizer, cut: bool = True):
        text = getattr(model, "text", model)
        if getattr(text, "text_pool_type", getattr(text, "pool_type", "argmax")) != "argmax" or text.attn_mask is None:
            raise UserError("prompts need a causal text tower that reads the end-of-text token, as CLIP's")
        self.text, self.tokenizer, self.cut = text.requires_grad_(False).eval(), tokenizer, cut
        self.places, self.width = text.positional_embedding.shape
        self.scale = model.logit_scale.exp().item()

    def __deepcopy__(self, memo):
        return self

    def __reduce__(self):
        raise TypeError("a text tower is not stored with a net")

    def words(self, texts: list[str]) -> tuple[Tensor, Tensor]:
        """Embeddings `(n, L, W)` of start, words and end, without positions, and how many there are of each `(n,)`."""
        tokens = self.tokenizer(texts).to(self.text.positional_embedding.device)
        ends = tokens.argmax(1)     # the end-of-text token has the largest number
        return self.text.token_embedding(tokens[:, :int(ends.max()) + 1]).detach(), ends + 1

    def __call__(self, x: Tensor, length: Tensor) -> Tensor:
        """Text features `(n, D)`, not normalised, of sequences whose last vector, at length - 1, is the end of text.

        UserError: sequences longer than the tower has places.
        """
        if x.shape[1] > self.places:
            raise UserError(f"prompts of {x.shape[1]} tokens do not fit: the text tower has {self.places} places; "
                            "take fewer tokens")
        if self.text.positional_embedding.device != x.device:
            self.text.to(x.device)      # looks at every module
        if not self.cut:
            x = F.pad(x, (0, 0, 0, self.places - x.shape[1]))
        places = x.shape[1]
        x = self.text.transformer(x + self.text.positional_embedding[:places],
                                  attn_mask=self.text.attn_mask[:places, :places])
        x = self.text.ln_final(x)[torch.arange(len(x), device=x.device), length - 1]
        projection = self.text.text_projection
        return x if projection is None else projection(x) if isinstance(projection, nn.Linear) else x @ projection


class PromptHead(nn.Module):
    """logits = s cos(z, g([V, e_c])): start, m context vectors V, the class's name, ".", end; s: CLIP's scale.

    context `(C, m, W)`, or `(1, m, W)` for all classes, is the only entry; None: the prompts are the names alone.
    Zhou et al., IJCV 2022, arXiv:2109.01134 (CoOp).
    """

    def __init__(self, tower: Tower, names: list[str], dim: int):
        super().__init__()
        self.tower, self.in_features, self.out_features = tower, dim, len(names)
        words, lengths = tower.words([f"{name.replace('_', ' ')}." for name in names])
        self.register_buffer("words", words, persistent=False)
        self.register_buffer("lengths", lengths, persistent=False)
        self.context = None
        self._kept = None, None

    def learn(self, tokens: int, specific: bool, gen: torch.Generator) -> nn.Parameter:
        """Contexts N(0, 0.02^2), `(C, tokens, W)` or `(1, tokens, W)`."""
        shape = self.out_features if specific else 1, tokens, self.tower.width
        return nn.Parameter((0.02 * torch.randn(shape, generator=gen)).to(self.words.device))

    def texts(self, context: Tensor | None) -> Tensor:
        """g of every class: contexts `(C or 1, m, W)` give `(C, D)`, N of them `(N, C or 1, m, W)` give `(N, C, D)`."""
        if context is None:
            return self.tower(self.words, self.lengths)
        many = context if context.dim() == 4 else context[None]
        start, rest = self.words[:, :1], self.words[:, 1:]
        rows = [torch.cat([start, v.expand(self.out_features, -1, -1), rest], 1) for v in many]
        t = self.tower(torch.cat(rows), (self.lengths + many.shape[2]).repeat(len(many)))
        t = t.view(len(many), self.out_features, -1)
        return t if context.dim() == 4 else t[0]

    @torch.no_grad()
    def said(self, words: str) -> Tensor:
        """g("words name.") of every class `(C, D)`: what the tower says without learning."""
        tokens, lengths = self.tower.words([words])
        return self.texts(tokens[:, 1:int(lengths) - 1].to(self.words.device))

    def logits(self, z: Tensor, t: Tensor) -> Tensor:
        """s cos(z, t): features `(B, D)` and texts `(C, D)`, or `(B, C, D)` for texts of each sample."""
        z, t = F.normalize(z.float(), dim=-1), F.normalize(t.float(), dim=-1)
        return self.tower.scale * (z @ t.T if t.dim() == 2 else torch.einsum("bd,bcd->bc", z, t))

    def train(self, mode: bool = True):
        """As a module's; texts are computed anew (a fused optimiser's step leaves no trace in a tensor's version)."""
        self._kept = None, None
        return super().train(mode)

    def forward(self, z: Tensor) -> Tensor:
        """Logits under the own context; the texts of a test are computed once, not for each batch."""
        if torch.is_grad_enabled():
            return self.logits(z, self.texts(self.context))
        state = None if self.context is None else (id(self.context), self.context._version)
        if self._kept[0] != (state, str(z.device)):
            self._kept = (state, str(z.device)), self.texts(self.context)
        return self.logits(z, self._kept[1])
