"""One PyTorch model fed four ways: by `tandem.Feed`, by a tuned and by an untuned DataLoader, and not at all.

The corpus is noise of speech's lengths (6.5 s on average), written as wav files to memory. The model is a causal transformer
that predicts the next mel frame, small and middle, in bf16 autocast with fused AdamW. With static shapes, the step is one
CUDA graph per shape, captured when the shape is first met. After the warm-up, every way runs the same number of steps,
in turns, so that a machine that gets slower does so for all of them; the host waits for every step.

| row | what it is |
|---|---|
| model-only | the same step on batches that are already on the device: the ceiling |
| feed | `tandem.torch.Feed`: mel on the device, shapes of its buckets |
| tuned | DataLoader: mel on the GPU, batches of similar length padded to one of about nine lengths, pinned, many workers |
| untuned | DataLoader: mel in the workers, batches padded to their longest row, so that shapes rarely repeat |

Prints steps per second and frames per second, padding included: DataLoaders have other shapes than the feed. The share of
model-only is that of the feed, whose shapes it has. The last line is the time to take a batch in Python, waits included. On
the CPU (`--device cpu`) steps are not captured, and a model there tells nothing about feeds: `--feeds-only` leaves it out and
times the batches alone.

    python3 tools/peers/torch_feeds.py
"""

import argparse
import pathlib
import statistics
import tempfile
import time

import numpy as np
import torch
from torch.utils.data import DataLoader

import tandem.torch
from torch_pipe import (HOP, STATIC_FRAMES, Collate, FramePredictor, Recordings, batches_of_an_epoch, log_mel,
                        mel_transform, write_recordings)

ROUNDS = 3
EPOCHS = 40


class Trainer:
    """A model with its optimizer. On a GPU, a captured step for every shape if shapes repeat."""

    def __init__(self, sizes, device, captures, feeds_only):
        width, layers, heads, _ = sizes
        torch.manual_seed(0)
        self.device, self.captures, self.graphs = device, captures and device.type == "cuda", {}
        self.model = None
        if feeds_only:
            return
        self.model = FramePredictor(width, layers, heads).to(device)
        fused = device.type == "cuda"
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4, fused=fused, capturable=self.captures)

    def eager(self, mel):
        with torch.autocast(self.device.type, torch.bfloat16):
            loss = self.model(mel)
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)

    def step(self, mel):
        if self.model is None:
            return
        if not self.captures:
            self.eager(mel)
            return
        shape = tuple(mel.shape)
        if shape not in self.graphs:
            self.graphs[shape] = self.capture(mel)
        graph, batch = self.graphs[shape]
        batch.copy_(mel)
        graph.replay()

    def capture(self, mel):
        batch = mel.clone()
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):
                self.eager(batch)
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        # Threads of the DataLoaders allocate pinned memory meanwhile.
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):
            self.eager(batch)
        return graph, batch

    def wait(self):
        if self.device.type == "cuda":
            torch.cuda.synchronize()


class OneEpochAfterAnother:
    """Mel of a feed, over the ends of epochs."""

    def __init__(self, feed):
        self.feed, self.batches, self.taken_ns = feed, iter(feed), []

    def __call__(self):
        begun = time.perf_counter_ns()
        batch = next(self.batches, None)
        if batch is None:
            self.batches = iter(self.feed)
            batch = next(self.batches)
        self.taken_ns.append(time.perf_counter_ns() - begun)
        return batch["mel"]


def data_loader(paths, seconds, batch, device, tuned, workers):
    """Mel of a DataLoader. Tuned: padded audio comes from the workers, and its mel is made on the device."""
    rng = np.random.default_rng(0)
    order = [indices for _ in range(EPOCHS) for indices in batches_of_an_epoch(seconds, batch, rng)]
    on_device = tuned and device.type == "cuda"
    dataset = Recordings(paths, None if on_device else mel_transform())
    multiple = (STATIC_FRAMES * (HOP if on_device else 1)) if tuned else 0
    loader = iter(DataLoader(dataset, batch_sampler=order, num_workers=workers, collate_fn=Collate(multiple),
                             pin_memory=device.type == "cuda", prefetch_factor=4 if workers else None))
    transform = mel_transform().to(device)

    def next_mel():
        rows, _ = next(loader)
        rows = rows.to(device, non_blocking=True)
        return log_mel(transform, rows) if on_device else rows

    return next_mel


def timed(trainer, next_mel, steps):
    """Steps and frames per second."""
    trainer.wait()
    begun, frames = time.perf_counter(), 0
    for _ in range(steps):
        mel = next_mel()
        frames += mel.shape[0] * mel.shape[1]
        trainer.step(mel)
        trainer.wait()
    seconds = time.perf_counter() - begun
    return steps / seconds, frames / seconds


def measure(name, sizes, folder, paths, seconds, arguments):
    device, batch = torch.device(arguments.device), sizes[3]
    feed = tandem.torch.Feed(str(folder / "corpus.jsonl"), device=arguments.device, batch_size=batch,
                             fields=["mel", "mel_lengths"], workers=arguments.workers or None, cache=arguments.cache, seed=1)

    def trainer(captures):
        return Trainer(sizes, device, captures, arguments.feeds_only)

    ways = {
        "feed": (trainer(True), OneEpochAfterAnother(feed)),
        "tuned": (trainer(True), data_loader(paths, seconds, batch, device, True, arguments.workers)),
        "untuned": (trainer(False), data_loader(paths, seconds, batch, device, False, arguments.workers)),
    }
    # Copies: what a feed hands out is its own memory.
    cached = [ways["feed"][1]().clone() for _ in range(arguments.cached)]
    turn = iter(range(1 << 62))
    if not arguments.feeds_only:
        ways = {"model-only": (trainer(True), lambda: cached[next(turn) % len(cached)])} | ways
    for trainer, next_mel in ways.values():
        timed(trainer, next_mel, arguments.warm_ups)
    rates = {way: [] for way in ways}
    for _ in range(ROUNDS):
        for way, (trainer, next_mel) in ways.items():
            rates[way].append(timed(trainer, next_mel, arguments.steps))
    ceiling = statistics.median(steps for steps, _ in rates.get("model-only", [(0, 0)]))
    for way, found in rates.items():
        steps, frames = (sorted(rate[number] for rate in found) for number in (0, 1))
        rate = statistics.median(steps)
        share = f"  share {rate / ceiling:.3f}" if ceiling and way in ("model-only", "feed") else ""
        print(f"{name} {way}: {rate:.2f} steps/s ({steps[0]:.2f}-{steps[-1]:.2f})  "
              f"{statistics.median(frames) / 1e3:.1f} k frames/s{share}", flush=True)
    taken = sorted(ways["feed"][1].taken_ns[arguments.cached + arguments.warm_ups:])
    stats = feed.stats()
    print(f"{name} taking a batch in Python: p50 {taken[len(taken) // 2] / 1e3:.1f} us, "
          f"p99 {taken[len(taken) * 99 // 100] / 1e3:.1f} us; stall {stats['stall_s']:.3f} s", flush=True)
    feed.close()


def main():
    parser = argparse.ArgumentParser(description="Times one PyTorch model with tandem.Feed and with DataLoaders.")
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--workers", type=int, default=14, help="of the DataLoaders, and decode threads of the feed")
    parser.add_argument("--recordings", type=int, default=2000)
    parser.add_argument("--steps", type=int, default=150, help="of a round; there are three")
    parser.add_argument("--warm-ups", type=int, default=80)
    parser.add_argument("--cached", type=int, default=20, help="batches of the model-only row")
    parser.add_argument("--folder", default="/dev/shm", help="where the recordings are written")
    parser.add_argument("--cache", default="auto", help="of the feed: `none` decodes in every epoch, as DataLoaders do")
    parser.add_argument("--feeds-only", action="store_true", help="batches without a model")
    parser.add_argument("--tiny", action="store_true", help="a model of one layer, to see that everything runs")
    arguments = parser.parse_args()
    models = {"tiny d64 l1 B4": (64, 1, 2, 4)} if arguments.tiny else {
        "small d256 l4 B32": (256, 4, 4, 32), "middle d768 l12 B16": (768, 12, 12, 16)}
    rng = np.random.default_rng(0)
    seconds = np.clip(rng.gamma(9, 0.73, arguments.recordings), 1.5, 10.0)
    with tempfile.TemporaryDirectory(prefix="torch_feeds_", dir=arguments.folder) as folder:
        folder = pathlib.Path(folder)
        paths = write_recordings(folder, seconds, rng)
        lines = [f'{{"audio_filepath": "{path}", "text": "noise", "duration": {length:.6f}}}\n'
                 for path, length in zip(paths, (int(22_050 * s) / 22_050 for s in seconds))]
        (folder / "corpus.jsonl").write_text("".join(lines))
        for name, sizes in models.items():
            measure(name, sizes, folder, paths, seconds, arguments)


if __name__ == "__main__":
    main()
