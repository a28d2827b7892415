from tandem import _native
from tandem._native import Batch as Batch
from tandem._native import Tensor as Tensor
from tandem._native import __version__ as __version__
from tandem._native import plan as plan

__all__ = ["Batch", "Feed", "Tensor", "__version__", "plan"]

class Feed(_native.Feed):
    def __del__(self) -> None: ...
