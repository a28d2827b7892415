"""A training step of the benchmark transformers in PyTorch as one CUDA graph: the fastest peer of `tandem bench step`.

Three kinds: eager kernels with pure bf16 (weights and moments too), eager kernels with bf16 autocast over f32 weights,
and forward and backward compiled by `torch.compile` with autocast. Each size is compiled separately, with static
shapes. Gradients are dropped before each backward pass, which therefore writes them into place: it neither clears nor
adds. The whole step (forward, backward, fused AdamW) is one graph. After 5 steps on a side stream, the capture and 5
replays, the host waits for each of 30 replays. Prints one line per model: the median and, if compiled, the seconds of
the first 5 steps, which include compilation.

    python3 tools/peers/torch_graph.py [--max-autotune]
"""

import argparse

import torch

from captured_graph import capture, median_replay_ms
from transformer import SIZES, forward_context, prepare

WARM_UPS, ROUNDS = 5, 30
MAX_AUTOTUNE = "max-autotune-no-cudagraphs"


def training_step(forward, optimizer, batch, precision):
    def step():
        with forward_context(precision):
            loss = forward(*batch)
        # Backward writes a gradient into place where there is none to add to.
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()

    return step


def measure_eager(size, precision):
    model, optimizer, batch = prepare(size, precision, capturable=True)
    graph, _ = capture(training_step(model, optimizer, batch, precision), WARM_UPS)
    median_ms = median_replay_ms(graph, WARM_UPS, ROUNDS)
    print(f"torch CUDAGraph {precision} {size.label}: median {median_ms:.3f} ms", flush=True)


def measure_compiled(size, mode=None):
    # Without a reset, sizes compiled before make later ones compile with dynamic shapes.
    torch._dynamo.reset()
    model, optimizer, batch = prepare(size, "autocast", capturable=True)
    forward = torch.compile(model, mode=mode)
    graph, warm_up_s = capture(training_step(forward, optimizer, batch, "autocast"), WARM_UPS)
    median_ms = median_replay_ms(graph, WARM_UPS, ROUNDS)
    kind = f"compile({mode})" if mode else "compile"
    print(f"torch {kind}+CUDAGraph autocast {size.label}: median {median_ms:.3f} ms, compile {warm_up_s:.0f} s",
          flush=True)


def main():
    parser = argparse.ArgumentParser(description="Times PyTorch's training step as one CUDA graph.")
    parser.add_argument("--max-autotune", action="store_true",
                        help=f"also compile small and middle with the mode {MAX_AUTOTUNE}")
    given = parser.parse_args()
    for precision in ("bf16", "autocast"):
        for size in SIZES:
            measure_eager(size, precision)
    for size in SIZES:
        measure_compiled(size)
    if given.max_autotune:
        for size in SIZES[:2]:
            measure_compiled(size, MAX_AUTOTUNE)


if __name__ == "__main__":
    main()
