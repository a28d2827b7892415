"""Peak device memory of a training step of the benchmark transformers in PyTorch, eager and with `torch.compile`.

Under bf16 autocast, with f32 weights and fused AdamW: 4 steps, then the peak of 3 more. Prints one line per model: the
peak of allocated memory, which is compared with the arena of `tandem bench step`, and the memory that PyTorch's
allocator has reserved at the end.

    python3 tools/peers/torch_memory.py
"""

import argparse

import torch

from transformer import SIZES, forward_context, prepare


def measure(size, compiled):
    torch._dynamo.reset()
    torch.cuda.empty_cache()
    model, optimizer, batch = prepare(size, "autocast")
    forward = torch.compile(model) if compiled else model

    def step():
        with forward_context("autocast"):
            loss = forward(*batch)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    for _ in range(4):
        step()
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    for _ in range(3):
        step()
    torch.cuda.synchronize()
    allocated_mib, reserved_mib = torch.cuda.max_memory_allocated() / 2**20, torch.cuda.memory_reserved() / 2**20
    print(f"peak compile={compiled} {size.name}: allocated {allocated_mib:.0f} MiB, reserved {reserved_mib:.0f} MiB",
          flush=True)


def main():
    argparse.ArgumentParser(description="Measures the peak memory of PyTorch's training step.").parse_args()
    for compiled in (False, True):
        for size in SIZES:
            measure(size, compiled)


if __name__ == "__main__":
    main()
