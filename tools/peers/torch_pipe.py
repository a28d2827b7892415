"""A PyTorch text-to-speech input pipeline with its training step: the peer of `tandem bench pipeline`.

2000 generated wav files (6.5 s on average) in memory, batches of similar length, DataLoader workers that live through
one long epoch, pinned memory. Log-mel is computed in the workers or on the GPU. Batches are padded to their longest row
(dynamic shapes), or to one of about nine lengths, so that shapes repeat (static shapes). The model is a small and a
middle transformer that predicts the next mel frame: eager, bf16 autocast, fused AdamW. After 80 steps, 150 steps on the
last 20 batches, which stay on the GPU, give the model-only throughput; 150 more on new batches give the throughput of
the pipeline. The host waits for every step.

Prints one line per model and set-up: both throughputs, their ratio, the standard deviation of the step time ÷ its mean
(CV), and its 99th percentile ÷ its median.

    python3 tools/peers/torch_pipe.py
"""

import argparse
import pathlib
import tempfile
import time
import wave
from collections import deque

import numpy as np
import torch
import torch.nn.functional as F
import torchaudio
from torch import nn
from torch.utils.data import DataLoader, Dataset

from transformer import Block

RATE_HZ, HOP, MELS = 22_050, 256, 80
RECORDINGS, EPOCHS = 2000, 40
WARM_UPS, STEPS, CACHED = 80, 150, 20
# Padded lengths are multiples of this.
STATIC_FRAMES = 100

# Width, layers, heads, batch.
MODELS = ((256, 4, 4, 32), (768, 12, 12, 16))
# Workers, log-mel on the GPU, static shapes.
SETUPS = ((14, False, False), (14, False, True), (8, True, False), (8, True, True))


def write_recordings(folder, seconds, rng):
    """Writes noise of these lengths. Returns the paths."""
    paths = []
    for index, length in enumerate(seconds):
        path = str(folder / f"{index}.wav")
        samples = (rng.standard_normal(int(RATE_HZ * length)) * 3000).astype(np.int16)
        with wave.open(path, "wb") as file:
            file.setnchannels(1)
            file.setsampwidth(2)
            file.setframerate(RATE_HZ)
            file.writeframes(samples.tobytes())
        paths.append(path)
    return paths


def read_recording(path):
    with wave.open(path, "rb") as file:
        samples = np.frombuffer(file.readframes(file.getnframes()), dtype=np.int16)
    return torch.from_numpy(samples.astype(np.float32) / 32768)


def batches_of_an_epoch(seconds, batch, rng):
    """Lists of indices: each eighth of a shuffled epoch, sorted by length, in batches. Their order is random."""
    batches = []
    for part in np.array_split(rng.permutation(len(seconds)), 8):
        part = part[np.argsort(seconds[part])]
        batches += [part[start:start + batch].tolist() for start in range(0, len(part) - batch + 1, batch)]
    rng.shuffle(batches)
    return batches


def mel_transform():
    return torchaudio.transforms.MelSpectrogram(RATE_HZ, n_fft=1024, hop_length=HOP, n_mels=MELS)


def log_mel(transform, audio):
    """[…, samples] to […, frames, mels]"""
    return torch.log(torch.clamp(transform(audio), min=1e-5)).transpose(-1, -2)


class Recordings(Dataset):
    """Audio, or its log-mel if there is a transform."""

    def __init__(self, paths, transform):
        self.paths, self.transform = paths, transform

    def __len__(self):
        return len(self.paths)

    def __getitem__(self, index):
        audio = read_recording(self.paths[index])
        return audio if self.transform is None else log_mel(self.transform, audio)


class Collate:
    """Pads rows to the longest and, if `multiple` is not 0, to a multiple of it. Returns the batch and the lengths."""

    def __init__(self, multiple):
        self.multiple = multiple

    def __call__(self, rows):
        lengths = [row.shape[0] for row in rows]
        batch = nn.utils.rnn.pad_sequence(rows, batch_first=True)
        if self.multiple:
            other_dims = (0, 0) * (batch.dim() - 2)
            batch = F.pad(batch, other_dims + (0, -batch.shape[1] % self.multiple))
        return batch, torch.tensor(lengths)


class FramePredictor(nn.Module):
    """Log-mel in, the mean absolute error of the predicted next frames out."""

    def __init__(self, width, layers, heads):
        super().__init__()
        self.enter = nn.Linear(MELS, width)
        self.blocks = nn.ModuleList([Block(width, heads) for _ in range(layers)])
        self.leave = nn.Linear(width, MELS)

    def forward(self, mel):
        x = self.enter(mel)
        for block in self.blocks:
            x = block(x)
        return F.l1_loss(self.leave(x).float()[:, :-1], mel[:, 1:])


def measure(sizes, setup, paths, seconds, rng):
    (width, layers, heads, batch), (workers, gpu_mel, static) = sizes, setup
    model = FramePredictor(width, layers, heads).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    gpu_transform = mel_transform().cuda()
    multiple = STATIC_FRAMES * (HOP if gpu_mel else 1) if static else 0
    order = [indices for _ in range(EPOCHS) for indices in batches_of_an_epoch(seconds, batch, rng)]
    loader = iter(DataLoader(Recordings(paths, None if gpu_mel else mel_transform()), batch_sampler=order,
                             num_workers=workers, collate_fn=Collate(multiple), pin_memory=True, prefetch_factor=4))

    def next_mel():
        x, _ = next(loader)
        x = x.cuda(non_blocking=True)
        return log_mel(gpu_transform, x) if gpu_mel else x

    def step(mel):
        with torch.autocast("cuda", torch.bfloat16):
            loss = model(mel)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    cached = deque(maxlen=CACHED)
    for _ in range(WARM_UPS):
        mel = next_mel()
        step(mel)
        cached.append(mel)
    torch.cuda.synchronize()

    begun = time.perf_counter()
    for index in range(STEPS):
        step(cached[index % CACHED])
        torch.cuda.synchronize()
    model_only = STEPS / (time.perf_counter() - begun)

    ends = [time.perf_counter()]
    for _ in range(STEPS):
        mel = next_mel()
        step(mel)
        torch.cuda.synchronize()
        ends.append(time.perf_counter())
    pipeline = STEPS / (ends[-1] - ends[0])
    times = np.diff(ends)
    print(f"d{width} l{layers} B{batch} workers={workers} gpu_mel={gpu_mel} static={static}: "
          f"model-only {model_only:.2f} it/s  pipeline {pipeline:.2f} it/s  ratio {pipeline / model_only:.3f}  "
          f"CV {times.std() / times.mean():.3f} p99/p50 {np.percentile(times, 99) / np.median(times):.2f}", flush=True)


def main():
    argparse.ArgumentParser(description="Times PyTorch's DataLoader with a training step.").parse_args()
    rng = np.random.default_rng(0)
    seconds = np.clip(rng.gamma(9, 0.73, RECORDINGS), 1.5, 10.0)
    with tempfile.TemporaryDirectory(prefix="torch_pipe_", dir="/dev/shm") as folder:
        paths = write_recordings(pathlib.Path(folder), seconds, rng)
        for sizes in MODELS:
            for setup in SETUPS:
                measure(sizes, setup, paths, seconds, rng)


if __name__ == "__main__":
    main()
