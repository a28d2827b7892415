"""torchaudio's log-mel on the GPU, timed as `tandem bench mel` times ours: device events, median of many runs.

Prints one JSON object per shape: {"rows", "seconds", "us", "spread_us", "hours_per_s"}. The batch is f32 and already on
the GPU, which spares torchaudio the conversion from int16 that ours does.
"""

import json
import statistics
import sys

import torch
import torchaudio

RATE_HZ = 22_050


def time_us(work, rounds):
    for _ in range(10):
        work()
    times = []
    for _ in range(rounds):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        work()
        end.record()
        end.synchronize()
        times.append(1000 * start.elapsed_time(end))
    times.sort()
    return statistics.median(times), times[len(times) * 3 // 4] - times[len(times) // 4]


def main():
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 50
    mel = torchaudio.transforms.MelSpectrogram(RATE_HZ, n_fft=1024, hop_length=256, n_mels=80).cuda()
    for rows, seconds in ((512, 8.0), (8, 8.0), (32, 6.5)):
        audio = 0.1 * torch.randn(rows, int(RATE_HZ * seconds), device="cuda")
        us, spread_us = time_us(lambda: torch.log(torch.clamp(mel(audio), min=1e-5)), rounds)
        hours_per_s = rows * seconds / 3600 / (us * 1e-6)
        print(json.dumps({"rows": rows, "seconds": seconds, "us": round(us, 1), "spread_us": round(spread_us, 1),
                          "hours_per_s": round(hours_per_s, 1)}))


main()
