"""tandem.torch.Feed, where PyTorch is installed."""

import os

import pytest
from batches import take

import tandem

try:
    import torch

    import tandem.torch
except ImportError:
    if os.environ.get("TANDEM_REQUIRE_TORCH") == "1":
        raise
    torch = None

needs_torch = pytest.mark.skipif(torch is None, reason="tandem.torch.Feed: PyTorch is not installed")


@needs_torch
def test_batches_are_dicts_of_torch_tensors_with_the_same_bytes(corpus):
    with tandem.Feed(corpus, device="cpu", batch_size=4) as feed:
        expected = take(feed, 2 * len(feed))
    with tandem.torch.Feed(corpus, device="cpu", batch_size=4) as feed:
        for epoch in range(2):
            for batch in feed:
                assert all(isinstance(tensor, torch.Tensor) for tensor in batch.values())
                wanted = expected.pop(0)
                for name, tensor in batch.items():
                    assert (tuple(tensor.shape), tensor.numpy().tobytes()) == wanted[name][1:], name
    assert not expected


@needs_torch
def test_the_feed_holds_no_batch_of_its_own(small_corpus):
    # There are three slots, and the loop holds one while it asks for the next.
    with tandem.torch.Feed(small_corpus, device="cpu", batch_size=2, held=2, prefetch=1, endless=True) as feed:
        for step, batch in enumerate(feed):
            if step == 20:
                break


@needs_torch
def test_a_tensor_of_torch_outlives_the_feed(small_corpus):
    with tandem.torch.Feed(small_corpus, device="cpu", batch_size=2) as feed:
        mel = next(iter(feed))["mel"]
        before = mel.clone()
    assert torch.equal(mel, before)
