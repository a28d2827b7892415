"""One training step of the nano model in PyTorch on the CPU: the peer of `cargo run --release --example nano_step`.

The same network, batch and optimizer, written as people write it in PyTorch: padded batches, masks, SDPA, fused AdamW.
The alignment is a loop over frames with all utterances at once; a second figure leaves it out (durations are given), so
that nobody is judged by that loop alone. Prints milliseconds, the fastest and the median of several runs.

    python3 torch_nano.py [--threads 2] [--runs 12] [--compile]
"""

import argparse
import time

import torch
import torch.nn.functional as F
from torch import nn

MELS, SYMBOLS, REFERENCE = 80, 80, 400
WIDTH, VOICE, HEADS, LAYERS = 128, 64, 2, 2


def rotary(x):
    """[batch, heads, time, channels]"""
    half = x.shape[-1] // 2
    rates = 10_000 ** (-torch.arange(half, dtype=torch.float32) / half)
    angle = torch.arange(x.shape[-2], dtype=torch.float32)[:, None] * rates
    cos, sin = angle.cos(), angle.sin()
    a, b = x[..., :half], x[..., half:]
    return torch.cat([a * cos - b * sin, a * sin + b * cos], -1)


class Block(nn.Module):
    def __init__(self, width, conditioned, dropout):
        super().__init__()
        self.conditioned, self.dropout = conditioned, dropout
        norm = (lambda: nn.Linear(width, 2 * width)) if conditioned else (lambda: nn.LayerNorm(width))
        self.norms = nn.ModuleList([norm(), norm()])
        self.qkv, self.joined = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.widen, self.narrow = nn.Conv1d(width, 4 * width, 3, padding=1), nn.Linear(4 * width, width)

    def norm(self, which, x, condition):
        if not self.conditioned:
            return self.norms[which](x)
        scale, shift = self.norms[which](condition)[:, None].chunk(2, -1)
        return F.layer_norm(x, x.shape[-1:]) * (1 + scale) + shift

    def forward(self, x, mask, condition=None):
        batch, frames, width = x.shape
        qkv = self.qkv(self.norm(0, x, condition)).view(batch, frames, 3, HEADS, width // HEADS)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(rotary(q), rotary(k), v, attn_mask=mask[:, None, None])
        y = self.joined(y.transpose(1, 2).reshape(batch, frames, width))
        x = x + F.dropout(y, self.dropout)
        y = self.norm(1, x, condition) * mask[..., None]
        y = F.gelu(self.widen(y.transpose(1, 2)).transpose(1, 2))
        y = self.narrow(F.dropout(y, self.dropout))
        return x + F.dropout(y, self.dropout)


class Nano(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(SYMBOLS, WIDTH)
        self.prenet = nn.ModuleList(nn.Conv1d(WIDTH, WIDTH, 5, padding=2) for _ in range(3))
        self.prenorms = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(3))
        self.text_blocks = nn.ModuleList(Block(WIDTH, False, 0.1) for _ in range(LAYERS))
        self.text_norm = nn.LayerNorm(WIDTH)
        self.voice_enter, self.voice_leave = nn.Linear(MELS, VOICE), nn.Linear(VOICE, VOICE)
        self.voice_look = nn.Conv1d(VOICE, VOICE, 3, padding=1)
        self.voice_to_text, self.prior = nn.Linear(VOICE, WIDTH), nn.Linear(WIDTH, MELS)
        self.durations = nn.ModuleList(nn.Conv1d(WIDTH, WIDTH, 3, padding=1) for _ in range(2))
        self.duration_norms = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(2))
        self.duration_leave = nn.Linear(WIDTH, 1)
        self.heads = nn.Linear(WIDTH, 2)
        self.enter, self.tell = nn.Linear(WIDTH, WIDTH), nn.Linear(VOICE, WIDTH)
        self.blocks = nn.ModuleList(Block(WIDTH, True, 0.05) for _ in range(LAYERS))
        self.norm, self.leave = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, MELS)

    def states(self, text, mask, reference):
        x = self.embedding(text)
        for conv, norm in zip(self.prenet, self.prenorms):
            y = conv((x * mask[..., None]).transpose(1, 2)).transpose(1, 2)
            x = x + F.dropout(F.relu(norm(y)), 0.1)
        for block in self.text_blocks:
            x = block(x, mask)
        voice = F.silu(self.voice_enter(reference))
        voice = F.silu(self.voice_look(voice.transpose(1, 2))).mean(-1)
        voice = torch.tanh(self.voice_leave(voice)) * (torch.rand(len(text), 1) > 0.1)
        return self.text_norm(x) + self.voice_to_text(voice)[:, None], voice

    def forward(self, batch, path):
        text, text_mask, mel, mel_mask, reference, pitch, energy = batch
        states, voice = self.states(text, text_mask, reference)
        prior = self.prior(states)
        x = states.detach()
        for conv, norm in zip(self.durations, self.duration_norms):
            x = F.relu(conv((x * text_mask[..., None]).transpose(1, 2)).transpose(1, 2))
            x = F.dropout(norm(x), 0.1)
        guessed = self.duration_leave(x)[..., 0]
        owner = align(prior.detach(), mel, text_mask, mel_mask) if path is None else path
        take = owner[..., None]
        spread = states.gather(1, take.expand(-1, -1, WIDTH))
        spread_prior = prior.gather(1, take.expand(-1, -1, MELS))
        x, condition = self.enter(spread), F.silu(self.tell(voice))
        for block in self.blocks:
            x = block(x, mel_mask, condition)
        found = spread_prior.detach() + self.leave(self.norm(x))
        frames, tokens, valid = mel_mask.sum(), text_mask.sum(), mel_mask[..., None]
        mel_loss = ((found - mel).abs() * valid).sum() / (frames * MELS)
        prior_loss = 0.5 * ((spread_prior - mel).square() * valid).sum() / (frames * MELS)
        lasts = torch.zeros_like(guessed).scatter_add(1, owner, mel_mask.to(guessed.dtype))
        duration_loss = ((guessed - lasts.log1p()).square() * text_mask).sum() / tokens
        targets = torch.stack([(pitch / 100).log1p(), (energy / 10).log1p()], -1)
        heads_loss = 0.1 * ((self.heads(spread) - targets).square() * valid).sum() / frames
        return mel_loss + prior_loss + duration_loss + heads_loss


@torch.no_grad()
def align(prior, mel, text_mask, mel_mask):
    """Which token speaks in each frame: the best monotonic path, all utterances at once."""
    distance = (mel.square().sum(-1)[:, :, None] + prior.square().sum(-1)[:, None]) - 2 * mel @ prior.transpose(1, 2)
    score = -0.5 * distance
    batch, frames, tokens = score.shape
    low = torch.full((batch, 1), -1e30)
    best = torch.full((batch, tokens), -1e30)
    best[:, 0] = score[:, 0, 0]
    moved = torch.zeros(batch, frames, tokens, dtype=torch.bool)
    for frame in range(1, frames):
        before = torch.cat([low, best[:, :-1]], 1)
        moved[:, frame] = before > best
        best = torch.maximum(before, best) + score[:, frame]
    owner = torch.zeros(batch, frames, dtype=torch.long)
    at = text_mask.sum(1) - 1
    ends, rows = mel_mask.sum(1), torch.arange(batch)
    for frame in range(frames - 1, -1, -1):
        inside = frame < ends
        owner[:, frame] = torch.where(inside, at, owner[:, frame])
        at = torch.where(inside & moved[rows, frame, at], at - 1, at)
    return owner


def make_batch():
    frames = [128 + 18 * row for row in range(16)]
    tokens = [count // 7 for count in frames]
    mask = lambda lengths: torch.arange(max(lengths))[None] < torch.tensor(lengths)[:, None]
    text_mask, mel_mask = mask(tokens), mask(frames)
    text = torch.randint(SYMBOLS, text_mask.shape)
    mel, reference = torch.randn(*mel_mask.shape, MELS), torch.randn(16, REFERENCE, MELS)
    pitch, energy = torch.rand(mel_mask.shape) * 200, torch.rand(mel_mask.shape) * 20
    path = torch.minimum(torch.arange(max(frames))[None] // 7, torch.tensor(tokens)[:, None] - 1)
    return (text, text_mask, mel, mel_mask, reference, pitch, energy), path


def measure(model, batch, path, runs):
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    average = [parameter.detach().clone() for parameter in model.parameters()]
    times = []
    for _ in range(runs + 3):
        begun = time.perf_counter()
        loss = model(batch, path)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=True)
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)
        torch._foreach_lerp_(average, [parameter.detach() for parameter in model.parameters()], 0.001)
        times.append(time.perf_counter() - begun)
    times = sorted(times[3:])
    return f"{times[0] * 1e3:.1f} ms (median {times[len(times) // 2] * 1e3:.1f})"


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--runs", type=int, default=12)
    parser.add_argument("--compile", action="store_true")
    given = parser.parse_args()
    if given.threads:
        torch.set_num_threads(given.threads)
    torch.manual_seed(1)
    batch, path = make_batch()
    model = Nano()
    count = sum(parameter.numel() for parameter in model.parameters())
    print(f"PyTorch {torch.__version__}, {torch.get_num_threads()} threads, {count} parameters")
    print("step, durations given      ", measure(model, batch, path, given.runs))
    print("step, with the alignment   ", measure(model, batch, None, given.runs))
    if given.compile:
        compiled = torch.compile(model)
        print("compiled, durations given  ", measure(compiled, batch, path, given.runs))


if __name__ == "__main__":
    main()
