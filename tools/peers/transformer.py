"""The causal transformer of the PyTorch peers, its three sizes, and the start of a training run. Not a script.

`tandem bench step` trains the same model: the same sizes, one batch of random symbols, AdamW without clipping or EMA.
Importing this module allows TF32 in f32 matmuls, for every peer alike.
"""

import contextlib
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import nn

SYMBOLS = 1024

torch.backends.cuda.matmul.allow_tf32 = True


class Size(NamedTuple):
    """A model and its batch."""

    name: str
    width: int
    layers: int
    heads: int
    batch: int
    length: int

    @property
    def label(self):
        """The label of the row in `tandem bench step`; a peer's line is matched by it."""
        return f"{self.name} d{self.width} l{self.layers} b{self.batch} t{self.length}"


SIZES = (
    Size("small", width=256, layers=4, heads=4, batch=32, length=400),
    Size("middle", width=768, layers=12, heads=12, batch=16, length=512),
    Size("large", width=1024, layers=30, heads=16, batch=8, length=512),
)


class Block(nn.Module):
    """Causal attention and a feed-forward network, each behind a layer norm and added to its input."""

    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.attention_norm = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.projection = nn.Linear(width, width)
        self.feed_forward_norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, x):
        batch, length, width = x.shape
        qkv = self.qkv(self.attention_norm(x)).view(batch, length, 3, self.heads, width // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.projection(y.transpose(1, 2).reshape(batch, length, width))
        return x + self.down(F.gelu(self.up(self.feed_forward_norm(x))))


class Transformer(nn.Module):
    """Symbols and targets in, mean cross-entropy out."""

    def __init__(self, width, layers, heads):
        super().__init__()
        self.embedding = nn.Embedding(SYMBOLS, width)
        self.blocks = nn.ModuleList([Block(width, heads) for _ in range(layers)])
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, SYMBOLS)

    def forward(self, symbols, targets):
        x = self.embedding(symbols)
        for block in self.blocks:
            x = block(x)
        return F.cross_entropy(self.head(self.norm(x)).flatten(0, 1).float(), targets)


def prepare(size, precision, capturable=False):
    """A model, its optimizer and its batch, the same in every call.

    Weights are f32, or bf16 if `precision` is "bf16". `capturable` is AdamW's flag for use in a CUDA graph.
    """
    torch.manual_seed(0)
    model = Transformer(size.width, size.layers, size.heads).cuda()
    if precision == "bf16":
        model = model.bfloat16()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True, capturable=capturable)
    symbols = torch.randint(0, SYMBOLS, (size.batch, size.length), device="cuda")
    targets = torch.randint(0, SYMBOLS, (size.batch * size.length,), device="cuda")
    return model, optimizer, (symbols, targets)


def forward_context(precision):
    """The context of the forward pass: bf16 autocast if `precision` is "autocast", else none."""
    if precision == "autocast":
        return torch.autocast("cuda", torch.bfloat16)
    return contextlib.nullcontext()
