"""The feed with tensors of PyTorch. Only this module imports torch."""

import torch

import tandem

__all__ = ["Feed", "tensors"]


def tensors(batch):
    """The tensors of a batch, without a copy. The current stream of their device waits for them; the host does not."""
    return {name: torch.from_dlpack(tensor) for name, tensor in batch.items()}


class Feed(tandem.Feed):
    """As `tandem.Feed`; a batch is a dict of `torch.Tensor`."""

    __slots__ = ()

    def __iter__(self):
        # `map` holds no batch between two calls; a generator would keep the slot of the last one.
        return map(tensors, super().__iter__())
