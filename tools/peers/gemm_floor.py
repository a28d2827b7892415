"""The floor of a training step of the benchmark transformers: its GEMMs and its attention alone, in PyTorch.

The GEMMs of forward and backward (bf16, cuBLAS, no bias) are one CUDA graph; causal flash attention with its backward
pass is another. After 2 runs on a side stream, the capture and 3 replays, the host waits for each of 20 replays. Prints
the median of each graph; `tandem bench step` adds the two up.

    python3 tools/peers/gemm_floor.py
"""

import argparse

import torch
import torch.nn.functional as F

from captured_graph import capture, median_replay_ms
from transformer import SIZES, SYMBOLS


def random_bf16(*shape, requires_grad=False):
    return torch.randn(*shape, device="cuda", dtype=torch.bfloat16, requires_grad=requires_grad)


def gemms_of(size):
    """Every linear layer of a step: the output, the gradient of the input, the gradient of the weights."""
    width, tokens = size.width, size.batch * size.length
    shapes = [(width, 3 * width), (width, width), (width, 4 * width), (4 * width, width)]
    activations = {channels: random_bf16(tokens, channels) for channels in {width, 3 * width, 4 * width, SYMBOLS}}
    layers = [[0.02 * random_bf16(*shape) for shape in shapes] for _ in range(size.layers)]
    head = random_bf16(width, SYMBOLS)

    def linear(weights):
        x, gradient = (activations[channels] for channels in weights.shape)
        torch.mm(x, weights)
        torch.mm(gradient, weights.T)
        torch.mm(x.T, gradient)

    def gemms():
        for layer in layers:
            for weights in layer:
                linear(weights)
        linear(head)

    return gemms


def attention_of(size):
    """Attention of every layer, forward and backward."""
    shape = (size.batch, size.heads, size.length, size.width // size.heads)
    q, k, v = (random_bf16(*shape, requires_grad=True) for _ in range(3))
    gradient = random_bf16(*shape)

    def attention():
        for _ in range(size.layers):
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
            torch.autograd.grad(y, (q, k, v), gradient)

    return attention


def measure(size):
    for part, work in (("gemm", gemms_of(size)), ("attn", attention_of(size))):
        graph, _ = capture(work, warm_ups=2)
        median_ms = median_replay_ms(graph, warm_ups=3, rounds=20)
        print(f"floor {size.label} {part}: {median_ms:.3f} ms", flush=True)


def main():
    argparse.ArgumentParser(description="Times the GEMMs and the attention of a training step alone.").parse_args()
    for size in SIZES:
        measure(size)


if __name__ == "__main__":
    main()
