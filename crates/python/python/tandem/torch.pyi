from collections.abc import Iterator

import torch

import tandem

__all__ = ["Feed", "tensors"]

def tensors(batch: tandem.Batch) -> dict[str, torch.Tensor]: ...

class Feed(tandem.Feed):
    def __iter__(self) -> Iterator[dict[str, torch.Tensor]]: ...  # type: ignore[override]
