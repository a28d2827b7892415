"""A training step of the benchmark transformers in PyTorch, eager and compiled: a peer of `tandem bench step`.

Eager runs with TF32 matmuls, with pure bf16 (weights and moments too), and with bf16 autocast over f32 weights;
`torch.compile` runs with autocast. A step is forward, backward and fused AdamW on one batch; the host waits for each.
Prints one line per model: the first step (with compilation), the median and the fastest of the second half of the
steps, and the peak of allocated memory.

    python3 tools/peers/torch_bench.py [30]
"""

import argparse
import time

import torch

from transformer import SIZES, forward_context, prepare


def measure(size, precision, compiled, steps):
    model, optimizer, batch = prepare(size, precision)
    forward = torch.compile(model) if compiled else model
    times = []
    for _ in range(steps):
        begun = time.perf_counter()
        with forward_context(precision):
            loss = forward(*batch)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        torch.cuda.synchronize()
        times.append(time.perf_counter() - begun)
    settled = sorted(times[steps // 2:])
    median_ms, min_ms = 1e3 * settled[len(settled) // 2], 1e3 * settled[0]
    peak_gib = torch.cuda.max_memory_allocated() / 2**30
    print(f"torch {precision} compile={compiled} {size.label}: first {times[0]:.2f}s median {median_ms:.3f} ms "
          f"min {min_ms:.3f} mem {peak_gib:.2f} GiB", flush=True)


def main():
    parser = argparse.ArgumentParser(description="Times PyTorch's training step, eager and compiled.")
    parser.add_argument("steps", type=int, nargs="?", default=30, help="steps of each model; the second half counts")
    given = parser.parse_args()
    runs = [("tf32", False), ("bf16", False), ("autocast", False), ("autocast", True)]
    for precision, compiled in runs:
        for size in SIZES:
            # Without a reset, sizes compiled before make later ones compile with dynamic shapes.
            torch._dynamo.reset()
            torch.cuda.reset_peak_memory_stats()
            measure(size, precision, compiled, given.steps)


if __name__ == "__main__":
    main()
