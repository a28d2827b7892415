"""Batches of speech for any training loop: mel, pitch, energy, text and speakers as DLPack tensors.

    import tandem

    feed = tandem.Feed("corpus/", batch_size=32)
    for batch in feed:
        mel = numpy.from_dlpack(batch["mel"])

`tandem.torch.Feed` gives tensors of PyTorch. `python -m tandem` is the tandem program.
"""

from tandem import _native
from tandem._native import Batch, Tensor, __version__, plan

__all__ = ["Batch", "Feed", "Tensor", "__version__", "plan"]


class Feed(_native.Feed):
    """The batches of a corpus, one epoch for each loop."""

    __slots__ = ()

    def __del__(self):
        # The garbage collector calls this before it takes any object of a cycle apart. The class in Rust cannot have a
        # finalizer, and its destructor would run after a tokenizer of the same cycle is gone.
        self._finalize()


Feed.__module__ = "tandem"
