"""tandem.torch.Feed on a GPU, beside PyTorch: streams, release, captures, memory.

`torch.cuda._sleep` delays a stream, so that a missing wait gives wrong bytes and not only a race.
"""

import os

import numpy
import pytest

import tandem

try:
    import torch

    import tandem.torch
except ImportError:
    if os.environ.get("TANDEM_REQUIRE_TORCH") == "1":
        raise
    torch = None

has_gpu = torch is not None and torch.cuda.is_available()
if not has_gpu and os.environ.get("TANDEM_REQUIRE_GPU") == "1":
    raise RuntimeError("TANDEM_REQUIRE_GPU is set, and PyTorch finds no GPU")
pytestmark = pytest.mark.skipif(not has_gpu, reason="batches on a GPU: PyTorch finds no GPU")

FIELDS = ["text", "text_lengths", "mel", "mel_lengths", "waveform", "speaker"]
# Some tens of milliseconds: longer than making a batch.
DELAY_CYCLES = 50_000_000


def feed_of(corpus, kind=None, **options):
    kind = kind or tandem.torch.Feed
    return kind(corpus, **{"device": "cuda:0", "batch_size": 4, "fields": FIELDS, "endless": True, **options})


@pytest.fixture(scope="module")
def expected(corpus):
    """The first batches, read one by one on the default stream."""
    with feed_of(corpus) as feed:
        batches = iter(feed)
        return [{name: tensor.cpu() for name, tensor in next(batches).items()} for _ in range(24)]


def same(found, wanted):
    return all(torch.equal(found[name].cpu(), wanted[name]) for name in wanted)


def test_batches_on_a_gpu_are_those_of_the_cpu_within_the_bounds_of_the_features(corpus, expected):
    with feed_of(corpus, device="cpu") as feed:
        for wanted, batch in zip(expected, feed):
            for name in FIELDS:
                if name == "mel":
                    assert numpy.allclose(wanted[name], batch[name], atol=1e-2)
                else:
                    assert torch.equal(wanted[name], batch[name]), name


@pytest.mark.parametrize("preset", ["hifi-gan", "tacotron2", "vocos", "whisper", "whisper-128"])
def test_every_preset_is_that_of_the_cpu(corpus, preset):
    options = {"features": preset, "fields": ["mel", "mel_lengths", "pitch", "energy"]}
    with feed_of(corpus, **options) as gpu, feed_of(corpus, device="cpu", **options) as cpu:
        for _, on_gpu, on_cpu in zip(range(6), gpu, cpu):
            assert numpy.allclose(on_gpu["mel"].cpu(), on_cpu["mel"], atol=1e-2)
            assert numpy.allclose(on_gpu["pitch"].cpu(), on_cpu["pitch"], rtol=1e-4, atol=1e-2)
            assert numpy.allclose(on_gpu["energy"].cpu(), on_cpu["energy"], rtol=1e-4, atol=1e-4)
            assert torch.equal(on_gpu["mel_lengths"].cpu(), on_cpu["mel_lengths"])


def test_a_slow_reader_is_waited_for_although_its_tensors_are_gone(corpus, expected):
    stream, copies = torch.cuda.Stream(), []
    with feed_of(corpus, prefetch=1, held=2) as feed:
        batches = iter(feed)
        for _ in expected:
            with torch.cuda.stream(stream):
                batch = next(batches)
                torch.cuda._sleep(DELAY_CYCLES)
                copies.append({name: tensor.clone() for name, tensor in batch.items()})
            del batch
    torch.cuda.synchronize()
    assert all(same(copy, wanted) for copy, wanted in zip(copies, expected))


def test_two_streams_read_one_batch(corpus, expected):
    streams, copies = [torch.cuda.Stream(), torch.cuda.Stream()], []
    with feed_of(corpus, tandem.Feed, prefetch=1, held=2) as feed:
        batches = iter(feed)
        for number in range(12):
            batch, both = next(batches), []
            for turn, stream in enumerate(streams):
                with torch.cuda.stream(stream):
                    tensors = tandem.torch.tensors(batch)
                    if (number + turn) % 2:
                        torch.cuda._sleep(DELAY_CYCLES)
                    both.append({name: tensor.clone() for name, tensor in tensors.items()})
            copies.append(both)
            del batch, tensors
    torch.cuda.synchronize()
    assert all(same(copy, wanted) for both, wanted in zip(copies, expected) for copy in both)


def test_a_recorded_stream_is_waited_for(corpus, expected):
    stream, copies = torch.cuda.Stream(), []
    with feed_of(corpus, tandem.Feed, prefetch=1, held=2) as feed:
        batches = iter(feed)
        for _ in range(12):
            batch = next(batches)
            tensors = tandem.torch.tensors(batch)
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):
                torch.cuda._sleep(DELAY_CYCLES)
                copies.append({name: tensor.clone() for name, tensor in tensors.items()})
            batch.record_stream(stream)
            del batch, tensors
    torch.cuda.synchronize()
    assert all(same(copy, wanted) for copy, wanted in zip(copies, expected))


def test_a_reader_that_synchronizes_by_itself_waits_with_synchronize(corpus, expected):
    with feed_of(corpus, tandem.Feed) as feed:
        batches = iter(feed)
        for wanted in expected[:6]:
            batch = next(batches)
            batch.synchronize()
            mel = torch.utils.dlpack.from_dlpack(batch["mel"].__dlpack__(stream=-1))
            assert torch.equal(mel.cpu(), wanted["mel"])
            del batch, mel


def test_a_tensor_that_is_alive_is_never_overwritten(corpus, expected):
    with feed_of(corpus, prefetch=2, held=2) as feed:
        batches = iter(feed)
        first = next(batches)
        for wanted in expected[1:]:
            assert same(next(batches), wanted)
            assert same(first, expected[0])


def test_the_current_device_and_a_captured_graph_stay_as_they_are(corpus, expected):
    torch.cuda.set_device(0)
    weight = torch.ones(80, 80, device="cuda")
    with feed_of(corpus, workers=8) as feed:
        batches = iter(feed)
        copies, graphs = [], []
        for number in range(20):
            copies.append({name: tensor.clone() for name, tensor in next(batches).items()})
            assert torch.cuda.current_device() == 0
            if number % 5 == 0:
                # Meanwhile the threads of the feed upload, query events and make features.
                inputs, graph = copies[-1]["mel"].clone(), torch.cuda.CUDAGraph()
                torch.cuda.synchronize()
                with torch.cuda.graph(graph):
                    product = inputs @ weight
                graphs.append((graph, inputs, product))
        for graph, inputs, product in graphs:
            graph.replay()
            torch.cuda.synchronize()
            assert torch.allclose(product, inputs @ weight)
    assert all(same(copy, wanted) for copy, wanted in zip(copies, expected))


def test_a_captured_stream_cannot_read_and_a_batch_dropped_in_a_capture_is_released(corpus):
    with feed_of(corpus, tandem.Feed, prefetch=1, held=2) as feed:
        batches = iter(feed)
        first, second = next(batches), next(batches)
        tensors = tandem.torch.tensors(first)
        x = torch.ones(8, device="cuda")
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            y = x * 2
            stream = torch.cuda.current_stream().cuda_stream
            with pytest.raises(RuntimeError, match="captured"):
                second["mel"].__dlpack__(stream=stream)
            del first, tensors
        del second
        graph.replay()
        for _ in range(6):
            next(batches)
        assert feed.stats()["held"] == 0
        assert torch.equal(y, x * 2)


def test_memory_stays_within_the_limit_beside_pytorch(corpus):
    torch.cuda.synchronize()
    limit_mb = 256
    ballast = torch.empty(64 << 20, dtype=torch.uint8, device="cuda")
    before, _ = torch.cuda.mem_get_info()
    with feed_of(corpus, limits={"data_mb": limit_mb}) as feed:
        for _, _ in zip(range(40), feed):
            pass
        after, _ = torch.cuda.mem_get_info()
        taken = feed.stats()["memory"]["data"]
        assert taken["peak_bytes"] <= limit_mb << 20
        # The driver loads the kernels of the feed into the context, which is PyTorch's too.
        assert before - after <= (limit_mb + 64) << 20
    del ballast
    with pytest.raises(ValueError, match="data_mb"):
        feed_of(corpus, limits={"data_mb": 1})


def test_two_feeds_on_one_card_do_not_disturb_each_other(corpus, expected):
    with feed_of(corpus) as one, feed_of(corpus) as other:
        for _, left, right in zip(range(8), one, other):
            assert all(torch.equal(left[name], right[name]) for name in FIELDS)


def test_a_state_continues_on_the_gpu(corpus, expected):
    with feed_of(corpus) as feed:
        batches = iter(feed)
        for _ in range(5):
            batch = next(batches)
        del batch
        state = feed.state_dict()
    with feed_of(corpus) as feed:
        feed.load_state_dict(state)
        for wanted, batch in zip(expected[5:9], feed):
            assert same(batch, wanted)
