"""librosa on a folder of recordings: decoding and log-mel as multiples of real time, one thread, best of some rounds.

    venv/bin/python tools/reference/audio/throughput.py FOLDER [ROUNDS]

The counterpart of `cargo run --release -p tandem-audio --example decode_and_mel`. librosa.load decodes with libsndfile;
log-mel is what a Python trainer does with it, in single precision, with the filterbank and the window made beforehand.
"""

import io
import os
import sys
import time
from pathlib import Path

for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS"):
    os.environ[name] = "1"

import librosa  # noqa: E402
import numpy as np  # noqa: E402

RATE, N_FFT, HOP = 22050, 1024, 256
BASIS = librosa.filters.mel(sr=RATE, n_fft=N_FFT, n_mels=80, fmin=0, fmax=8000)


def log_mel(wave):
    pad = (N_FFT - HOP) // 2
    padded = np.pad(wave, pad, mode="reflect")
    magnitudes = np.abs(librosa.stft(padded, n_fft=N_FFT, hop_length=HOP, center=False))
    return np.log(np.maximum(BASIS @ magnitudes, 1e-5))


def pitch(wave):
    padded = np.pad(wave, (N_FFT - HOP) // 2, mode="reflect")
    return librosa.yin(padded, fmin=65, fmax=600, sr=RATE, frame_length=N_FFT, hop_length=HOP, center=False)


def best_of(rounds, work):
    times = []
    for _ in range(rounds):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return min(times)


def main():
    folder, rounds = Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 3
    files = [path.read_bytes() for path in sorted(folder.iterdir()) if path.is_file()]
    waves = [librosa.load(io.BytesIO(file), sr=None)[0] for file in files]
    seconds = sum(len(wave) for wave in waves) / RATE
    print(f"{len(files)} files, {seconds / 60:.1f} minutes; librosa {librosa.__version__}, numpy {np.__version__}")

    def report(name, best):
        print(f"{name:<24} {seconds / best:>7.0f} x real time")

    report("decode", best_of(rounds, lambda: [librosa.load(io.BytesIO(file), sr=None) for file in files]))
    report("log-mel", best_of(rounds, lambda: [log_mel(wave) for wave in waves]))
    report("pitch (yin)", best_of(1, lambda: [pitch(wave) for wave in waves]))


main()
