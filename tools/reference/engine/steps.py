"""Trains the small reference transformer with PyTorch on the card at hand, for the tests that take one.

    python tools/reference/engine/steps.py FILE
    TANDEM_TORCH_REFERENCE=FILE cargo test -p tandem-model --test reference -- --ignored --nocapture

Six runs of 200 steps on one batch: one in float32 with TF32 off and attention as plain products, and five under bf16 autocast,
whose initial weights are the same but for one unit in the last place of every second one or so. The losses of all steps are
written, each before its update.

Weights and tokens are made by the formula of `make.py`, with fractions times 1/2 (gains stay 1 + fraction / 2): between -1/16
and 1/16, which is how PyTorch itself starts matrices of 256 columns. `crates/model/tests/reference/on_card.rs` has the same.
"""

import contextlib
import json
import sys

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

WIDTH, LAYERS, HEADS, VOCABULARY, BATCH, LENGTH, STEPS = 256, 4, 4, 1024, 32, 400, 200
SCALE, LEARNING_RATE, RUNS = 0.5, 1e-4, 5
TOKENS_KEY, TARGETS_KEY = 1000, 1001
DEVICE = "cuda"


def scrambled(key, count):
    """`make.py`'s number of every place below `count`, in 64 bits because PyTorch has few operations on unsigned ones."""
    i = torch.arange(count, dtype=torch.int64)
    x = (key * 0x9E3779B1 + i * 0x85EBCA77 + 0xC2B2AE3D) & 0xFFFFFFFF
    x ^= x >> 15
    x = (x * 0x2C1B3C6D) & 0xFFFFFFFF
    return x ^ (x >> 13)


def declared():
    """Names and shapes, in the order that gives the keys."""
    yield "embedding", (VOCABULARY, WIDTH)
    for layer in range(LAYERS):
        for name, shape in [
            ("norm1.gain", (WIDTH,)),
            ("norm1.bias", (WIDTH,)),
            ("qkv.weight", (3 * WIDTH, WIDTH)),
            ("qkv.bias", (3 * WIDTH,)),
            ("proj.weight", (WIDTH, WIDTH)),
            ("proj.bias", (WIDTH,)),
            ("norm2.gain", (WIDTH,)),
            ("norm2.bias", (WIDTH,)),
            ("up.weight", (4 * WIDTH, WIDTH)),
            ("up.bias", (4 * WIDTH,)),
            ("down.weight", (WIDTH, 4 * WIDTH)),
            ("down.bias", (WIDTH,)),
        ]:
            yield f"layer{layer}.{name}", shape
    yield "norm.gain", (WIDTH,)
    yield "norm.bias", (WIDTH,)
    yield "head.weight", (VOCABULARY, WIDTH)
    yield "head.bias", (VOCABULARY,)


def parameters(run):
    """Run 0 has the formula's weights; in others some are the next number above or below."""
    drawn = torch.Generator().manual_seed(run)
    made = {}
    for key, (name, shape) in enumerate(declared()):
        count = torch.Size(shape).numel()
        one = 1.0 if name.endswith("gain") else 0.0
        fraction = ((scrambled(key, count) >> 16) - 32768).double() / 262144
        values = (one + SCALE * fraction).float()
        if run > 0:
            towards = torch.randint(0, 4, (count,), generator=drawn)
            values = torch.where(towards == 0, torch.nextafter(values, torch.tensor(torch.inf)), values)
            values = torch.where(towards == 1, torch.nextafter(values, torch.tensor(-torch.inf)), values)
        made[name] = values.reshape(shape).to(DEVICE).requires_grad_()
    return made


def tokens(key):
    return (scrambled(key, BATCH * LENGTH) % VOCABULARY).to(DEVICE)


def loss_of(p, given, wanted):
    x = F.embedding(given, p["embedding"]).reshape(BATCH, LENGTH, WIDTH)
    for layer in range(LAYERS):
        def at(name):
            return p[f"layer{layer}.{name}"]

        h = F.layer_norm(x, (WIDTH,), at("norm1.gain"), at("norm1.bias"), 1e-5)
        h = F.linear(h, at("qkv.weight"), at("qkv.bias"))
        q, k, v = h.view(BATCH, LENGTH, 3, HEADS, WIDTH // HEADS).permute(2, 0, 3, 1, 4)
        h = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(BATCH, LENGTH, WIDTH)
        x = x + F.linear(h, at("proj.weight"), at("proj.bias"))
        h = F.layer_norm(x, (WIDTH,), at("norm2.gain"), at("norm2.bias"), 1e-5)
        h = F.gelu(F.linear(h, at("up.weight"), at("up.bias")))
        x = x + F.linear(h, at("down.weight"), at("down.bias"))
    x = F.layer_norm(x, (WIDTH,), p["norm.gain"], p["norm.bias"], 1e-5)
    logits = F.linear(x, p["head.weight"], p["head.bias"]).flatten(0, 1)
    return F.cross_entropy(logits.float(), wanted)


def train(run, around):
    p = parameters(run)
    decays = [value for value in p.values() if value.dim() > 1]
    stays = [value for value in p.values() if value.dim() == 1]
    groups = [{"params": decays, "weight_decay": 0.01}, {"params": stays, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=LEARNING_RATE, betas=(0.9, 0.98), eps=1e-8, fused=False, foreach=False)
    given, wanted = tokens(TOKENS_KEY), tokens(TARGETS_KEY)
    losses = []
    for _ in range(STEPS):
        optimizer.zero_grad()
        with around():
            loss = loss_of(p, given, wanted)
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return torch.stack(losses).tolist()


@contextlib.contextmanager
def plain_attention():
    with sdpa_kernel(SDPBackend.MATH):
        yield


def autocast():
    return torch.autocast("cuda", torch.bfloat16)


def main():
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
    torch.set_float32_matmul_precision("highest")
    reference = {"torch": torch.__version__, "device": torch.cuda.get_device_name(), "scale": SCALE}
    reference["f32"] = train(0, plain_attention)
    reference["autocast"] = [train(run, autocast) for run in range(RUNS)]
    with open(sys.argv[1], "w", encoding="utf-8") as file:
        json.dump(reference, file)
        file.write("\n")
    for name, losses in [("f32", reference["f32"])] + [(f"autocast {i}", run) for i, run in enumerate(reference["autocast"])]:
        print(f"{name}: loss {losses[0]:.6f} -> {losses[19]:.6f} (20) -> {losses[-1]:.6f} ({STEPS})")


if __name__ == "__main__":
    main()
