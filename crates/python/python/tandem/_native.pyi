from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from os import PathLike
from types import TracebackType
from typing import Any, Literal, TypeVar, final, overload

from typing_extensions import CapsuleType, Self, disjoint_base

__all__ = ["Batch", "Feed", "FeedIterator", "Tensor", "__version__", "plan"]

__version__: str

_T = TypeVar("_T")
_Source = str | PathLike[str] | Sequence[str | PathLike[str]]
_Split = Literal["all", "train", "validation"]
_Cache = Literal["auto", "none", "memory", "disk"]

@final
class Tensor:
    """Memory of a batch. It is yours until the last tensor of the batch, and everything made from one, is gone."""

    @property
    def name(self) -> str: ...
    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def strides(self) -> tuple[int, ...]:
        """Elements, not bytes, from one position of a dimension to the next."""
    @property
    def dtype(self) -> str:
        """As numpy and PyTorch name it: `float32`, `int32`."""
    @property
    def device(self) -> str:
        """`cpu`, or `cuda:0`."""
    def __dlpack__(
        self,
        *,
        stream: int | None = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> CapsuleType: ...
    def __dlpack_device__(self) -> tuple[int, int]: ...

@final
class Batch(Mapping[str, Tensor]):
    """The tensors of a batch by name. The batch, and each tensor of it, keeps the slot of the batch."""

    @property
    def ids(self) -> list[str]: ...
    @property
    def texts(self) -> list[str]: ...
    @property
    def epoch(self) -> int: ...
    @property
    def index(self) -> int:
        """The position of the batch in its epoch, from 0, over all ranks."""
    @property
    def bucket(self) -> int:
        """Batches of a bucket have the same static shapes."""
    def synchronize(self) -> None:
        """Blocks until the batch is there: for readers that passed stream -1."""
    def record_stream(self, stream: Any, /) -> None:
        """The slot is reused only after what is queued on this stream when the batch is released.

        An integer pointer, `torch.cuda.Stream`, `cupy.cuda.Stream`, or an object with `__cuda_stream__`.
        """
    def __getitem__(self, name: str, /) -> Tensor: ...
    def __iter__(self) -> Iterator[str]: ...
    def __len__(self) -> int: ...
    def keys(self) -> list[str]: ...  # type: ignore[override]
    def values(self) -> list[Tensor]: ...  # type: ignore[override]
    def items(self) -> list[tuple[str, Tensor]]: ...  # type: ignore[override]
    @overload
    def get(self, name: str, /) -> Tensor | None: ...
    @overload
    def get(self, name: str, default: _T, /) -> Tensor | _T: ...

@final
class FeedIterator:
    def __iter__(self) -> Self: ...
    def __next__(self) -> Batch: ...

@disjoint_base
class Feed:
    """The batches of a corpus, one epoch for each loop.

    source: what `tandem train --train-data` takes: a folder, shards, a table, a manifest, a URL, or a list of them.
    device: where batches are: "cpu", "cuda", "cuda:1", or "auto".
    data_device: where features are computed; the same device by default.
    batch_size: rows of a batch.
    buckets: the most batch shapes.
    static_shapes: every batch of a bucket has the same shapes; False gives each batch the lengths of its longest row.
    fields: the names of the tensors to make; all that the corpus has by default.
    features: a mel preset, or a dict with `preset` and what differs from it.
    channels_first: mel as (rows, mels, frames) instead of (rows, frames, mels).
    text: {"lang", "phonemizer", "harakat", "lexicon", "pad_id"} for the text front ends of Tandem.
    tokenizer: a function from a text to token ids, instead of those. Several threads call it.
    map: a function from a text to a text, called before the tokenizer.
    max_frames, max_tokens: longer utterances are left out.
    limits: {"data_mb", "model_mb"}: the most device memory of each role, in MiB.
    prefetch: batches that are made ahead.
    held: batches that you may hold at once, at least 2; a loop holds one while it asks for the next.
    workers: decode threads; chosen while the feed runs by default.
    rank, world_size: this process and the number of processes; RANK and WORLD_SIZE of the environment, else 0 and 1.
    seed: the order of the batches.
    split: all rows, those that train, or those that are held out.
    split_seed: what decides which rows are held out, if the corpus does not say it; the same for every feed by default.
    endless: epochs follow each other without an end.
    cache: where decoded recordings are cached.
    cache_dir: the folder of a cache on disk.
    exclude_ids: a file with the ids of utterances to leave out.
    columns: {"audio", "text", "speaker", "id", "lang", "duration"}: the columns of a table.
    speaker_id_pattern: a pattern that finds the speaker in the id of an utterance.
    read_ahead_mb: memory for reading ahead from object stores, in MiB.
    max_bad_fraction: the share of bad recordings that ends the feed.
    verify_transfers: one batch in this many is verified after its transfer between two cards.
    log_dir: a folder for the run log, `feed.jsonl` there; an earlier log stays, and each rank has its own.
    tensorboard_dir: a folder for event files.
    sim: simulated cards, as `--sim` takes them: "2x24GiB".
    """

    def __new__(
        cls,
        source: _Source,
        *,
        device: str | None = None,
        data_device: str | None = None,
        batch_size: int | None = None,
        buckets: int | None = None,
        static_shapes: bool | None = None,
        fields: Sequence[str] | None = None,
        features: str | dict[str, Any] | None = None,
        channels_first: bool | None = None,
        text: dict[str, Any] | None = None,
        tokenizer: Callable[[str], Iterable[int]] | None = None,
        map: Callable[[str], str] | None = None,
        max_frames: int | None = None,
        max_tokens: int | None = None,
        limits: dict[str, int] | None = None,
        prefetch: int | None = None,
        held: int | None = None,
        workers: int | None = None,
        rank: int | None = None,
        world_size: int | None = None,
        seed: int | None = None,
        split: _Split | None = None,
        split_seed: int | None = None,
        endless: bool | None = None,
        cache: _Cache | None = None,
        cache_dir: str | PathLike[str] | None = None,
        exclude_ids: str | PathLike[str] | None = None,
        columns: dict[str, str] | None = None,
        speaker_id_pattern: str | None = None,
        read_ahead_mb: int | None = None,
        max_bad_fraction: float | None = None,
        verify_transfers: int | None = None,
        log_dir: str | PathLike[str] | None = None,
        tensorboard_dir: str | PathLike[str] | None = None,
        sim: str | None = None,
    ) -> Self: ...
    def __iter__(self) -> Iterator[Batch]:
        """The batches that are left of this epoch; the next loop has the next epoch."""
    def __len__(self) -> int:
        """The number of batches of the current epoch, on this rank."""
    @property
    def epoch(self) -> int:
        """The current epoch, from 0: the next one begins when a loop has reached the end of this one."""
    @property
    def speakers(self) -> list[str]:
        """The names of the speakers; `speaker` holds positions in this list."""
    @property
    def languages(self) -> list[str]:
        """The tags of the languages; `language` holds positions in this list."""
    @property
    def symbols(self) -> list[str]:
        """The symbols of the text; `text` holds positions in this list. Empty with a tokenizer of your own."""
    def state_dict(self) -> dict[str, Any]:
        """Where the feed is, as a dict that JSON and pickle can hold."""
    def load_state_dict(self, state_dict: Mapping[str, Any], /) -> None:
        """Resumes where `state_dict` was called. The next batches are the same bytes, also with another number of ranks."""
    def stats(self) -> dict[str, Any]:
        """Counters since the start."""
    def profile(self) -> dict[str, Any]:
        """The bottleneck, and what would remove it."""
    def plan(self) -> dict[str, Any]:
        """What the feed takes: memory, slots, threads, shapes."""
    def close(self) -> None:
        """Ends the threads and frees the memory, except that of tensors which are still in use."""
    def __enter__(self) -> Self: ...
    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None, /
    ) -> None: ...

def plan(
    source: _Source,
    *,
    device: str | None = None,
    data_device: str | None = None,
    batch_size: int | None = None,
    buckets: int | None = None,
    static_shapes: bool | None = None,
    fields: Sequence[str] | None = None,
    features: str | dict[str, Any] | None = None,
    channels_first: bool | None = None,
    text: dict[str, Any] | None = None,
    tokenizer: Callable[[str], Iterable[int]] | None = None,
    map: Callable[[str], str] | None = None,
    max_frames: int | None = None,
    max_tokens: int | None = None,
    limits: dict[str, int] | None = None,
    prefetch: int | None = None,
    held: int | None = None,
    workers: int | None = None,
    rank: int | None = None,
    world_size: int | None = None,
    seed: int | None = None,
    split: _Split | None = None,
    split_seed: int | None = None,
    endless: bool | None = None,
    cache: _Cache | None = None,
    cache_dir: str | PathLike[str] | None = None,
    exclude_ids: str | PathLike[str] | None = None,
    columns: dict[str, str] | None = None,
    speaker_id_pattern: str | None = None,
    read_ahead_mb: int | None = None,
    max_bad_fraction: float | None = None,
    verify_transfers: int | None = None,
    log_dir: str | PathLike[str] | None = None,
    tensorboard_dir: str | PathLike[str] | None = None,
    sim: str | None = None,
) -> dict[str, Any]:
    """What `Feed` with these arguments would take and do. Opens no device and decodes nothing."""
