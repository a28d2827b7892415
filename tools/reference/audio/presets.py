"""Makes crates/audio/tests/data/preset_*.npy: the log-mel frames of published models, by the code that those models use.

    python -m venv venv && venv/bin/pip install -r tools/reference/audio/requirements-presets.txt
    venv/bin/python tools/reference/audio/presets.py crates/audio/tests/data

Samples are int16, the pipeline's format. Every model's steps run in double precision with the filterbank that the model has, in
single precision where the model stores it so. The same steps also run in single precision, as published, and the largest
difference is printed: it is what the model's own rounding does.

- hifi-gan: the steps of `mel_spectrogram` in meldataset.py of jik876/hifi-gan, with torch.stft and librosa.filters.mel.
- tacotron2: the steps of `TacotronSTFT` in layers.py and stft.py of NVIDIA/tacotron2: a convolution with a windowed Fourier basis.
- vocos: `torchaudio.transforms.MelSpectrogram` with the arguments of feature_extractors.py of gemelo-ai/vocos.
- whisper, whisper-128: the steps of `log_mel_spectrogram` of the openai-whisper package with the filters in that package; in single
  precision the function itself.
"""

import math
import sys
from pathlib import Path

import librosa
import numpy as np
import torch
import torchaudio
import whisper.audio


def hifi_gan(wave):
    n_fft, hop = 1024, 256
    basis = librosa.filters.mel(sr=22050, n_fft=n_fft, n_mels=80, fmin=0, fmax=8000)
    pad = (n_fft - hop) // 2
    padded = torch.nn.functional.pad(wave[None, None], (pad, pad), mode="reflect")[0]
    window = torch.hann_window(n_fft, dtype=wave.dtype)
    spectrum = torch.stft(padded, n_fft, hop_length=hop, win_length=n_fft, window=window, center=False, return_complex=True)
    magnitude = torch.sqrt(torch.view_as_real(spectrum).pow(2).sum(-1) + 1e-9)
    return torch.log(torch.clamp(torch.from_numpy(basis).to(wave) @ magnitude[0], min=1e-5))


def tacotron2(wave):
    n_fft, hop, bins = 1024, 256, 513
    basis = librosa.filters.mel(sr=22050, n_fft=n_fft, n_mels=80, fmin=0.0, fmax=8000.0)
    fourier = np.fft.fft(np.eye(n_fft))[:bins]
    fourier = np.concatenate([fourier.real, fourier.imag])[:, None] * (0.5 - 0.5 * np.cos(2 * np.pi * np.arange(n_fft) / n_fft))
    padded = torch.nn.functional.pad(wave[None, None], (n_fft // 2, n_fft // 2), mode="reflect")
    parts = torch.nn.functional.conv1d(padded, torch.from_numpy(fourier).to(wave), stride=hop)[0]
    magnitude = torch.sqrt(parts[:bins] ** 2 + parts[bins:] ** 2)
    return torch.log(torch.clamp(torch.from_numpy(basis).to(wave) @ magnitude, min=1e-5))


def vocos(wave):
    mel = torchaudio.transforms.MelSpectrogram(sample_rate=24000, n_fft=1024, hop_length=256, n_mels=100, center=True, power=1,
                                               window_fn=lambda n: torch.hann_window(n, dtype=wave.dtype))
    return torch.log(torch.clip(mel.to(wave.dtype)(wave), min=1e-7))


def whisper_with(n_mels):
    def log_mel(wave):
        if wave.dtype == torch.float32:
            return whisper.audio.log_mel_spectrogram(wave, n_mels)
        window = torch.hann_window(400, dtype=wave.dtype)
        power = torch.stft(wave, 400, 160, window=window, return_complex=True)[:, :-1].abs() ** 2
        logs = torch.clamp(whisper.audio.mel_filters("cpu", n_mels).to(wave) @ power, min=1e-10).log10()
        return (torch.maximum(logs, logs.max() - 8.0) + 4.0) / 4.0
    return log_mel


MODELS = {
    "hifi-gan": hifi_gan,
    "tacotron2": tacotron2,
    "vocos": vocos,
    "whisper": whisper_with(80),
    "whisper-128": whisper_with(128),
}


def int16(wave):
    return np.clip(np.round(wave * 32768), -32768, 32767).astype(np.int16)


def clips(folder):
    """Short ones: a voice, tones and a sweep, a tone at full scale before silence, silence with one step of noise, and the shortest
    clip that every model takes. Each is read at the rate of the model."""
    rng = np.random.default_rng(5)
    t = np.arange(3000) / 22050
    loud = int16(np.sin(2 * np.pi * 1234.5 * t)) * (t < 0.1)
    soft = rng.integers(-1, 2, 1999).astype(np.int16) * (np.arange(1999) >= 1000)
    shortest = int16(0.2 * rng.standard_normal(513))
    speech, tones = np.load(folder / "speech.npy"), np.load(folder / "tones.npy")
    return [speech[:5003], tones[1500:5499], loud.astype(np.int16), soft.astype(np.int16), shortest]


def main():
    folder = Path(sys.argv[1])
    samples = clips(folder)
    print("samples:", [len(clip) for clip in samples])
    np.save(folder / "preset_clips.npy", np.concatenate(samples))
    for name, model in MODELS.items():
        frames, worst = [], 0.0
        for clip in samples:
            wave = torch.from_numpy(clip.astype(np.float64) / 32768)
            mel = model(wave).T.contiguous()
            assert mel.dtype == torch.float64
            published = model(wave.float()).T
            worst = max(worst, float((mel - published).abs().max()))
            frames.append(mel.numpy())
        scale = math.log(10) * 4 if name.startswith("whisper") else 1
        print(f"{name}: frames {[len(mel) for mel in frames]}, in single precision {worst * scale:.2g} off, in natural logarithms")
        np.save(folder / f"preset_{name}.npy", np.concatenate(frames).astype(np.float32))
    for module in (np, librosa, torch, torchaudio, whisper):
        print(module.__name__, module.__version__)


main()
