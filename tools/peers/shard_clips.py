"""Clips per second from tar shards to batches, with loaders of others and PyTorch's DataLoader: the peer of `tandem bench shards`.

The shards are those of WebDataset: `NAME.wav` with `NAME.json`. Workers read them, shuffle, decode the wav files and pad
them to batches, which the main process receives (in pinned memory, if there is a GPU). Each loader is set up as its
documentation says for training:

- webdataset: shards split between the workers, a shuffle buffer of 1000.
- datasets: Hugging Face, streaming, a shuffle buffer of 1000.
- lhotse: the shards are first written as Lhotse Shar, which is not timed; then a DynamicCutSampler with a buffer of 1000.

A batch is int16 samples, or log-mel of them (1024-sample frames, hop 256, 80 bands, computed in the workers). After some
batches of each worker, clips are counted until 10 seconds are over or the corpus ends. The files are read once before,
so that they are in the page cache if they fit.

Prints one line per loader and kind of batch. Needs PyTorch, NumPy, and the loaders that `--loaders` names.

    tandem bench shards --peer 'python3 tools/peers/shard_clips.py {shards} --batch-size {batch}'
"""

import argparse
import glob
import importlib.metadata
import io
import json
import os
import tarfile
import tempfile
import time
import wave

import numpy as np
import torch
from torch.utils.data import DataLoader

FRAME, HOP, BANDS, SHUFFLED = 1024, 256, 80, 1000
# Batches of each worker that are not counted, and seconds in which the others are.
WARM_UPS, COUNTED_S = 4, 10.0


def decode(data):
    """int16 samples of a mono wav. The wave module is faster than soundfile here: it copies and no more."""
    with wave.open(io.BytesIO(data), "rb") as file:
        assert file.getsampwidth() == 2 and file.getnchannels() == 1, "expected 16 bit, mono"
        return torch.from_numpy(np.frombuffer(file.readframes(file.getnframes()), dtype=np.int16).copy())


def mel_filters(rate_hz):
    """[FRAME // 2 + 1, BANDS]: triangles that are evenly spaced on the HTK mel scale."""
    top = 2595 * np.log10(1 + rate_hz / 2 / 700)
    centres = 700 * (10 ** (np.linspace(0, top, BANDS + 2) / 2595) - 1)
    bins = np.linspace(0, rate_hz / 2, FRAME // 2 + 1)[:, None]
    rising = (bins - centres[:-2]) / (centres[1:-1] - centres[:-2])
    falling = (centres[2:] - bins) / (centres[2:] - centres[1:-1])
    return torch.from_numpy(np.maximum(0, np.minimum(rising, falling)).astype(np.float32))


class Collate:
    """Pads clips to the longest. Returns the batch and the lengths."""

    def __init__(self, with_mel, rate_hz):
        self.filters = mel_filters(rate_hz) if with_mel else None
        self.window = torch.hann_window(FRAME)

    def __call__(self, clips):
        lengths = torch.tensor([len(clip) for clip in clips])
        batch = torch.nn.utils.rnn.pad_sequence(clips, batch_first=True)
        if self.filters is not None:
            audio = batch if batch.is_floating_point() else batch.float() / 32768
            spectrum = torch.stft(audio, FRAME, HOP, window=self.window, return_complex=True).abs()
            batch = torch.log(torch.clamp(spectrum.transpose(1, 2) @ self.filters, min=1e-5))
        return batch, lengths


def from_webdataset(shards, batch_size, workers, collate):
    import webdataset as wds

    dataset = wds.WebDataset(shards, shardshuffle=len(shards), empty_check=False).shuffle(SHUFFLED)
    dataset = dataset.map(lambda sample: decode(sample["wav"]))
    return DataLoader(dataset.batched(batch_size, collation_fn=collate, partial=False), batch_size=None,
                      num_workers=workers, prefetch_factor=4, pin_memory=torch.cuda.is_available())


def from_datasets(shards, batch_size, workers, collate):
    import datasets

    datasets.disable_progress_bars()
    loaded = datasets.load_dataset("webdataset", data_files={"train": shards}, split="train", streaming=True)
    # Undecoded: the package for decoding that it would use may not be there, and is slower than `decode`.
    loaded = loaded.cast_column("wav", datasets.Audio(decode=False)).shuffle(seed=0, buffer_size=SHUFFLED)
    collate_rows = lambda rows: collate([decode(row["wav"]["bytes"]) for row in rows])
    return DataLoader(loaded, batch_size=batch_size, collate_fn=collate_rows, drop_last=True, num_workers=workers,
                      prefetch_factor=4, pin_memory=torch.cuda.is_available())


def from_lhotse(shards, batch_size, workers, collate):
    from lhotse import CutSet
    from lhotse.dataset import DynamicCutSampler, IterableDatasetWrapper

    class Clips(torch.utils.data.Dataset):
        def __getitem__(self, cuts):
            return collate([torch.from_numpy(cut.load_audio()[0]) for cut in cuts])

    cuts = CutSet.from_shar(in_dir=shards, shuffle_shards=True, split_for_dataloading=True)
    sampler = DynamicCutSampler(cuts, max_cuts=batch_size, shuffle=True, shuffle_buffer_size=SHUFFLED, rank=0,
                                world_size=1, drop_last=True)
    return DataLoader(IterableDatasetWrapper(Clips(), sampler), batch_size=None, num_workers=workers,
                      prefetch_factor=4, pin_memory=torch.cuda.is_available())


def write_shar(shards, folder):
    """Writes the recordings of WebDataset shards as Lhotse Shar, in as many shards."""
    from lhotse import MonoCut, Recording, SupervisionSegment
    from lhotse.shar import SharWriter

    with tarfile.open(shards[0]) as archive:
        per_shard = sum(name.endswith(".wav") for name in archive.getnames())
    with SharWriter(folder, fields={"recording": "wav"}, shard_size=per_shard) as writer:
        for shard in shards:
            with tarfile.open(shard) as archive:
                for member in archive:
                    if not member.name.endswith(".wav"):
                        continue
                    key = member.name.removesuffix(".wav")
                    recording = Recording.from_bytes(archive.extractfile(member).read(), key)
                    text = json.load(archive.extractfile(f"{key}.json"))["text"]
                    segment = SupervisionSegment(key, key, 0, recording.duration, text=text)
                    writer.write(MonoCut(key, 0, recording.duration, 0, recording=recording, supervisions=[segment]))
    return folder


def count(loader, batch_size, workers):
    """Clips per second."""
    batches = iter(loader)
    for _ in range(WARM_UPS * workers):
        next(batches)
    begun, counted = time.perf_counter(), 0
    for batch, lengths in batches:
        assert len(batch) == len(lengths) == batch_size
        counted += batch_size
        if time.perf_counter() - begun > COUNTED_S:
            break
    return counted / (time.perf_counter() - begun)


def measure(name, shards, args, rate_hz):
    build = {"webdataset": from_webdataset, "datasets": from_datasets, "lhotse": from_lhotse}[name]
    version = importlib.metadata.version(name)
    for kind in ("samples", "log-mel"):
        loader = build(shards, args.batch_size, args.workers, Collate(kind == "log-mel", rate_hz))
        clips_per_s = count(loader, args.batch_size, args.workers)
        print(f"{name} {version} + DataLoader of PyTorch {torch.__version__}, {kind}: {args.workers} workers, "
              f"batch {args.batch_size}, {clips_per_s:.0f} clips/s", flush=True)


def main():
    parser = argparse.ArgumentParser(description="Counts the clips per second of other loaders.")
    parser.add_argument("shards", nargs="+", help="tar files or patterns of them")
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--workers", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--loaders", nargs="+", default=["webdataset"], choices=["webdataset", "datasets", "lhotse"])
    args = parser.parse_args()
    shards = sorted(path for pattern in args.shards for path in glob.glob(pattern))
    if len(shards) < args.workers:
        parser.error(f"expected at least {args.workers} shards, one for each worker, found {len(shards)}")
    # Into the page cache.
    for path in shards:
        with open(path, "rb", buffering=0) as file:
            while file.read(8 << 20):
                pass
    with tarfile.open(shards[0]) as archive:
        first = next(member for member in archive if member.name.endswith(".wav"))
        with wave.open(archive.extractfile(first)) as file:
            rate_hz = file.getframerate()
    for name in args.loaders:
        if name == "lhotse":
            with tempfile.TemporaryDirectory(prefix="shard_clips_") as folder:
                measure(name, write_shar(shards, folder), args, rate_hz)
        else:
            measure(name, shards, args, rate_hz)


if __name__ == "__main__":
    main()
