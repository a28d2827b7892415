"""Copy speeds of the GPU in PyTorch, and how far PyTorch exceeds a memory cap.

Copies: 1 GiB on the GPU (bytes read and written), and 256 MiB from pinned memory to the GPU and back; device events,
median of 30 after 5. Cap: `set_per_process_memory_fraction` for 4 GiB in a process that has computed log-mel, then
blocks of 64 MiB until PyTorch refuses. Use is total minus free memory as CUDA reports it, so nothing else may use the
card. Prints one JSON object per figure.

    python3 tools/peers/torch_device.py
"""

import argparse
import json
import statistics

import torch
import torchaudio

RATE_HZ = 22_050
CAP_BYTES, BLOCK_BYTES = 4 << 30, 64 << 20


def median_ms(work):
    for _ in range(5):
        work()
    torch.cuda.synchronize()
    times = []
    for _ in range(30):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        work()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end))
    return statistics.median(times)


def report(**figure):
    print(json.dumps(figure), flush=True)


def measure_copies():
    source = torch.empty(1 << 30, dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    report(m="d2d_copy_TBps_rw", v=2 * source.numel() / median_ms(lambda: target.copy_(source)) / 1e9)
    host = torch.empty(256 << 20, dtype=torch.uint8, pin_memory=True)
    device = torch.empty_like(host, device="cuda")
    report(m="h2d_pinned_GBps", v=host.numel() / median_ms(lambda: device.copy_(host, non_blocking=True)) / 1e6)
    report(m="d2h_pinned_GBps", v=host.numel() / median_ms(lambda: host.copy_(device, non_blocking=True)) / 1e6)


def compute_log_mel():
    """Loads kernels and libraries, which count towards the process's memory, as those of a training process do."""
    mel = torchaudio.transforms.MelSpectrogram(RATE_HZ, n_fft=1024, hop_length=256, n_mels=80).cuda()
    for rows, seconds in ((1, 8), (8, 8), (32, 8), (128, 8), (512, 8), (1024, 15)):
        torch.log(torch.clamp(mel(torch.randn(rows, RATE_HZ * seconds, device="cuda")), min=1e-5))
        torch.cuda.empty_cache()


def measure_cap():
    torch.cuda.empty_cache()
    _, total = torch.cuda.mem_get_info()
    torch.cuda.set_per_process_memory_fraction(CAP_BYTES / total)
    blocks = []
    try:
        while True:
            blocks.append(torch.empty(BLOCK_BYTES, dtype=torch.uint8, device="cuda"))
    except torch.cuda.OutOfMemoryError:
        pass
    free, total = torch.cuda.mem_get_info()
    used = total - free
    report(m="fraction_cap", cap=CAP_BYTES, allocator=torch.cuda.memory_allocated(), device_used_all_procs=used,
           overshoot=used - CAP_BYTES)


def main():
    argparse.ArgumentParser(description="Measures copies and the memory cap of PyTorch.").parse_args()
    measure_copies()
    compute_log_mel()
    measure_cap()


if __name__ == "__main__":
    main()
