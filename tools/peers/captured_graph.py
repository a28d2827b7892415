"""Captures work in a CUDA graph and times its replays. Not a script."""

import time

import torch


def capture(work, warm_ups):
    """Runs `work` on a side stream `warm_ups` times, then captures it. Returns the graph and the warm-up's seconds."""
    side_stream = torch.cuda.Stream()
    side_stream.wait_stream(torch.cuda.current_stream())
    begun = time.perf_counter()
    with torch.cuda.stream(side_stream):
        for _ in range(warm_ups):
            work()
    torch.cuda.current_stream().wait_stream(side_stream)
    torch.cuda.synchronize()
    warm_up_s = time.perf_counter() - begun
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        work()
    return graph, warm_up_s


def median_replay_ms(graph, warm_ups, rounds):
    """The median of `rounds` replays by the host's clock, which waits for each, after `warm_ups` more."""
    for _ in range(warm_ups):
        graph.replay()
    torch.cuda.synchronize()
    times = []
    for _ in range(rounds):
        begun = time.perf_counter()
        graph.replay()
        torch.cuda.synchronize()
        times.append(time.perf_counter() - begun)
    times.sort()
    return 1e3 * times[rounds // 2]
