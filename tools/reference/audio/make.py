"""Makes the reference numbers of crates/audio/tests/data with numpy, scipy, librosa and libsndfile.

    python -m venv venv && venv/bin/pip install -r tools/reference/audio/requirements.txt
    venv/bin/python tools/reference/audio/make.py crates/audio/tests/data

Everything is seeded: the same versions write the same bytes (mp3 and ogg files apart, whose encoders may stamp them).
All features are computed in double precision from samples that were rounded to int16 first, the pipeline's format.
"""

import math
import sys
from pathlib import Path

import librosa
import numpy as np
import scipy.signal
import soundfile

RATE = 22050
N_FFT, HOP, N_MELS, FMIN, FMAX, FLOOR = 1024, 256, 80, 0.0, 8000.0, 1e-5
PITCH_MIN, PITCH_MAX, TROUGH = 65.0, 600.0, 0.1


def int16(wave):
    return np.clip(np.round(wave * 32768), -32768, 32767).astype(np.int16)


def speech_like(seconds=1.2, seed=1):
    """A voice of sorts: pulses at a moving pitch through moving resonances, a hiss, a pause, room noise."""
    rng = np.random.default_rng(seed)
    n = int(seconds * RATE)
    t = np.arange(n) / RATE
    pitch = 180 + 40 * np.sin(2 * np.pi * 0.9 * t) + 3 * np.sin(2 * np.pi * 5.5 * t)
    turns = np.cumsum(pitch) / RATE
    wave = np.diff(np.floor(turns), prepend=0) + 0.01 * rng.standard_normal(n)
    vowels = [(730, 1090, 2440), (270, 2290, 3010), (300, 870, 2240), (530, 1840, 2480)]
    out = np.zeros(n)
    edges = np.linspace(0, n, len(vowels) + 1).astype(int)
    for (lo, hi), formants in zip(zip(edges[:-1], edges[1:]), vowels):
        piece = wave[lo:hi]
        for hz, width in zip(formants, (80, 110, 160)):
            r = math.exp(-math.pi * width / RATE)
            piece = scipy.signal.lfilter([1 - r], [1, -2 * r * math.cos(2 * math.pi * hz / RATE), r * r], piece)
        out[lo:hi] += piece / np.max(np.abs(piece))
    hiss = scipy.signal.lfilter(*scipy.signal.butter(4, 4000, "high", fs=RATE), rng.standard_normal(n))
    envelope = np.ones(n)
    envelope[int(0.52 * RATE):int(0.62 * RATE)] = 0.0
    voiced = out * envelope
    voiced[int(0.52 * RATE):int(0.58 * RATE)] += 0.3 * hiss[int(0.52 * RATE):int(0.58 * RATE)]
    voiced[-int(0.08 * RATE):] = 0.0
    return int16(0.4 * voiced + 2e-4 * rng.standard_normal(n))


def tones_and_sweep():
    """Steady tones, soft and loud, then a sweep, then digital silence."""
    def tone(hz, seconds, amplitude):
        t = np.arange(int(seconds * RATE)) / RATE
        return amplitude * sum(np.sin(2 * np.pi * hz * k * t) / k for k in (1, 2, 3))
    t = np.arange(int(0.25 * RATE)) / RATE
    sweep = 0.5 * np.sin(2 * np.pi * (100 * t + (500 - 100) / 0.5 * t * t))
    return int16(np.concatenate([tone(110, 0.12, 0.3), tone(440, 0.1, 0.01), sweep, np.zeros(int(0.08 * RATE))]))


def padded(samples):
    pad = (N_FFT - HOP) // 2
    return np.pad(samples.astype(np.float64) / 32768, pad, mode="reflect")


def log_mel(samples):
    magnitudes = np.abs(librosa.stft(padded(samples), n_fft=N_FFT, hop_length=HOP, win_length=N_FFT, center=False))
    basis = librosa.filters.mel(sr=RATE, n_fft=N_FFT, n_mels=N_MELS, fmin=FMIN, fmax=FMAX, dtype=np.float64)
    assert magnitudes.dtype == np.float64
    return np.log(np.maximum(basis @ magnitudes, FLOOR)).T, np.linalg.norm(magnitudes, axis=0)


def yin(samples):
    return librosa.yin(padded(samples), fmin=PITCH_MIN, fmax=PITCH_MAX, sr=RATE, frame_length=N_FFT, hop_length=HOP,
                       trough_threshold=TROUGH, center=False)


def taps(up, down, zeros=32, cutoff=0.9, beta=10.06):
    """The resampler's filter, designed here once more with numpy's sinc and Kaiser window."""
    half = zeros * max(up, down)
    h = np.sinc(cutoff / max(up, down) * np.arange(-half, half + 1)) * np.kaiser(2 * half + 1, beta)
    return h / h.sum()


def resampling(save):
    rng = np.random.default_rng(2)
    for rate, n in ((44100, 3001), (48000, 3000), (16000, 1111)):
        # Anything up to half the rate: aliases, if there were any, would show.
        x = int16(0.3 * rng.standard_normal(n))
        divisor = math.gcd(rate, RATE)
        up, down = RATE // divisor, rate // divisor
        wave = x.astype(np.float64) / 32768
        y = scipy.signal.resample_poly(wave, up, down, window=taps(up, down))
        assert len(y) == math.ceil(n * up / down)
        save(f"resample_{rate}_in", x)
        save(f"resample_{rate}_out", y.astype(np.float32))
    # Against another resampler altogether: a tone mixture that both must keep.
    t = np.arange(4800) / 48000
    x = int16(sum(0.15 * np.sin(2 * np.pi * hz * t + hz) for hz in (200.0, 1234.5, 4000.0, 7900.0)) * np.hanning(4800))
    soxr = librosa.resample(x.astype(np.float64) / 32768, orig_sr=48000, target_sr=RATE, res_type="soxr_vhq")
    save("resample_soxr_in", x)
    save("resample_soxr_out", soxr.astype(np.float32))


def encoded(folder, save):
    """Small files as other programs write them, with what libsndfile decodes."""
    voice = speech_like(0.5, seed=3)
    wave = voice / 32768
    stereo = np.stack([wave, np.roll(wave, 40) * 0.5], axis=1)
    soundfile.write(folder / "voice.ogg", wave, RATE, format="OGG", subtype="VORBIS", compression_level=0.6)
    soundfile.write(folder / "voice.mp3", wave, RATE, format="MP3", compression_level=0.6)
    soundfile.write(folder / "voice.flac", voice, RATE, format="FLAC", subtype="PCM_16")
    soundfile.write(folder / "stereo24.flac", stereo, 48000, format="FLAC", subtype="PCM_24")
    soundfile.write(folder / "stereo.ogg", stereo, 44100, format="OGG", subtype="VORBIS", compression_level=0.8)
    long = speech_like(4.0, seed=4) / 32768
    soundfile.write(folder / "long.ogg", long, RATE, format="OGG", subtype="VORBIS", compression_level=1.0)
    soundfile.write(folder / "opus.ogg", wave[:4000], 24000, format="OGG", subtype="OPUS")
    soundfile.write(folder / "adpcm.wav", voice[:8000], RATE, format="WAV", subtype="IMA_ADPCM")
    soundfile.write(folder / "mu_law.wav", voice[:2000], RATE, format="WAV", subtype="ULAW")
    save("voice", voice)
    for name in ("voice.ogg", "voice.mp3", "adpcm.wav", "mu_law.wav"):
        decoded, _ = soundfile.read(folder / name, dtype="float64")
        save(name.replace(".", "_") + "_decoded", int16(decoded))


def main():
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)

    def save(name, array):
        np.save(folder / f"{name}.npy", np.ascontiguousarray(array))

    for name, samples in (("speech", speech_like()), ("tones", tones_and_sweep())):
        mel, energy = log_mel(samples)
        pitch = yin(samples)
        assert len(mel) == len(energy) == len(pitch) == len(samples) // HOP
        save(name, samples)
        save(f"{name}_mel", mel.astype(np.float32))
        save(f"{name}_energy", energy.astype(np.float32))
        save(f"{name}_yin", pitch.astype(np.float32))
    resampling(save)
    encoded(folder, save)
    save("two_by_three", np.array([[0, 1.5, -2], [3.25, 1e-5, np.finfo(np.float32).max]], dtype=np.float32))
    total = sum(file.stat().st_size for file in folder.iterdir())
    print(f"{total / 1024:.0f} KiB in {folder}")
    for module in (np, scipy, librosa, soundfile):
        print(module.__name__, module.__version__)


main()
