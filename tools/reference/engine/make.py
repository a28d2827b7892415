"""Makes the reference numbers of crates/model/tests/data with PyTorch: a small causal transformer over twenty steps.

    python -m venv venv && venv/bin/pip install -r tools/reference/engine/requirements.txt
    venv/bin/python tools/reference/engine/make.py crates/model/tests/data/reference_transformer.json

On the CPU, one thread, deterministic algorithms, once in float64 and once in float32. Weights and tokens are not stored:
both sides make them from `scrambled`, whose fractions float32 holds exactly. `crates/model/tests/reference` has the same
formula and the same list of parameters; a parameter's key is its place in that list.

Stored, for each precision: the loss of every step before its update, and for every parameter the norm and three entries of
its gradient at step 0, before clipping.
"""

import json
import sys

import torch
import torch.nn.functional as F

WIDTH, LAYERS, HEADS, VOCABULARY, BATCH, LENGTH, STEPS = 48, 2, 3, 50, 3, 17, 20
TOKENS_KEY, TARGETS_KEY, ENTRIES_KEY = 1000, 1001, 2000


def scrambled(key, i):
    """A 32-bit number for a place: two odd multipliers, two folds."""
    x = (key * 0x9E3779B1 + i * 0x85EBCA77 + 0xC2B2AE3D) & 0xFFFFFFFF
    x ^= x >> 15
    x = (x * 0x2C1B3C6D) & 0xFFFFFFFF
    return x ^ (x >> 13)


def fraction(key, i):
    """In [-1/8, 1/8), a multiple of 2^-18: exact in float32, also with 1 added."""
    return ((scrambled(key, i) >> 16) - 32768) / 262144


def declared():
    """Names and shapes, in the order that gives the keys. Gains are 1 + fraction, all else is the fraction."""
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


def parameters(dtype):
    made = {}
    for key, (name, shape) in enumerate(declared()):
        count = torch.Size(shape).numel()
        one = 1.0 if name.endswith("gain") else 0.0
        values = torch.tensor([one + fraction(key, i) for i in range(count)], dtype=dtype)
        made[name] = values.reshape(shape).requires_grad_()
    return made


def tokens(key):
    return torch.tensor([scrambled(key, i) % VOCABULARY for i in range(BATCH * LENGTH)])


def loss_of(p):
    x = F.embedding(tokens(TOKENS_KEY), p["embedding"]).reshape(BATCH, LENGTH, WIDTH)
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
    return F.cross_entropy(logits, tokens(TARGETS_KEY))


def gradients(p):
    reference = []
    for key, (name, parameter) in enumerate(p.items()):
        flat = parameter.grad.flatten()
        places = [scrambled(ENTRIES_KEY + key, j) % flat.numel() for j in range(3)]
        entries = [{"at": at, "value": flat[at].item()} for at in places]
        reference.append({"name": name, "norm": flat.double().norm().item(), "entries": entries})
    return reference


def train(dtype):
    p = parameters(dtype)
    decays = [value for value in p.values() if value.dim() > 1]
    stays = [value for value in p.values() if value.dim() == 1]
    groups = [{"params": decays, "weight_decay": 0.01}, {"params": stays, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=1e-3, betas=(0.9, 0.98), eps=1e-8, foreach=False)
    losses, first = [], None
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = loss_of(p)
        loss.backward()
        losses.append(loss.item())
        first = first or gradients(p)
        torch.nn.utils.clip_grad_norm_(list(p.values()), 1.0)
        optimizer.step()
    return {"losses": losses, "gradients": first}


def main():
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    reference = {"torch": torch.__version__, "f64": train(torch.float64), "f32": train(torch.float32)}
    with open(sys.argv[1], "w", encoding="utf-8") as file:
        json.dump(reference, file, indent=1)
        file.write("\n")
    for name in ("f64", "f32"):
        losses = reference[name]["losses"]
        print(f"{name}: loss {losses[0]:.6f} -> {losses[-1]:.6f}")


if __name__ == "__main__":
    main()
