"""Tensors through DLPack, as numpy, JAX and a consumer in C see them."""

import ctypes
import gc
import threading

import capsules
import jax
import numpy
import pytest

import tandem

CODES = {"float32": (2, 32), "int32": (0, 32)}


@pytest.fixture
def feed(corpus):
    with tandem.Feed(corpus, device="cpu", batch_size=4) as feed:
        yield feed


@pytest.fixture
def batch(feed):
    return next(iter(feed))


class LegacyOnly:
    """A tensor as a producer from before DLPack 1.0 offers it."""

    def __init__(self, tensor):
        self.tensor = tensor

    def __dlpack__(self, *, stream=None):
        return self.tensor.__dlpack__(stream=stream)

    def __dlpack_device__(self):
        return self.tensor.__dlpack_device__()


def test_numpy_and_jax_read_the_same_bytes(batch):
    assert {"mel", "mel_lengths", "text", "text_lengths"} <= set(batch)
    for name, tensor in batch.items():
        array = numpy.from_dlpack(tensor)
        assert (array.shape, str(array.dtype)) == (tensor.shape, tensor.dtype), name
        legacy = numpy.from_dlpack(LegacyOnly(tensor))
        assert legacy.ctypes.data == array.ctypes.data and legacy.tobytes() == array.tobytes(), name
        if hasattr(jax, "dlpack"):
            assert numpy.asarray(jax.dlpack.from_dlpack(tensor)).tobytes() == array.tobytes(), name
    assert numpy.from_dlpack(batch["mel"]).any(), "the mel spectrogram is all zeros"


def test_two_views_share_memory_and_a_write_is_seen(batch):
    one, other = numpy.from_dlpack(batch["mel"]), numpy.from_dlpack(batch["mel"])
    one[0, 0, 0] = 12.5
    assert other[0, 0, 0] == 12.5


@pytest.mark.parametrize("max_version", [None, (0, 8), (1, 0), (1, 3), (2, 0)])
def test_a_capsule_has_every_field_of_the_specification(batch, max_version):
    for name, tensor in batch.items():
        capsule = tensor.__dlpack__(max_version=max_version)
        is_versioned = max_version is not None and max_version >= (1, 0)
        assert capsules.name(capsule) == (b"dltensor_versioned" if is_versioned else b"dltensor")
        managed = capsules.managed(capsule)
        if is_versioned:
            assert (managed.version.major, managed.flags) == (1, 0)
        seen = managed.tensor
        assert (seen.device.device_type, seen.device.device_id) == tensor.__dlpack_device__() == (1, 0)
        assert tuple(seen.shape[: seen.ndim]) == tensor.shape, name
        assert tuple(seen.strides[: seen.ndim]) == tensor.strides, name
        assert (seen.dtype.code, seen.dtype.bits) == CODES[tensor.dtype], name
        assert (seen.dtype.lanes, seen.byte_offset) == (1, 0)
        assert seen.data % 256 == 0, f"{name} is not aligned"
        size = numpy.from_dlpack(tensor).nbytes
        contiguous = numpy.ascontiguousarray(numpy.from_dlpack(tensor)).strides
        if contiguous == numpy.from_dlpack(tensor).strides:
            assert ctypes.string_at(seen.data, size) == numpy.from_dlpack(tensor).tobytes(), name


@pytest.mark.parametrize("max_version", [None, (1, 0)])
def test_a_capsule_that_nobody_consumes_is_freed(small_corpus, max_version):
    # There are three slots: were capsules not freed, the fourth batch would never come.
    with tandem.Feed(small_corpus, device="cpu", batch_size=2, held=2, prefetch=1, endless=True) as feed:
        batches = iter(feed)
        for _ in range(20):
            batch = next(batches)
            capsule = batch["mel"].__dlpack__(max_version=max_version)
            assert capsules.managed(capsule).tensor.data
            del batch, capsule


@pytest.mark.parametrize("max_version", [None, (1, 0)])
def test_a_consumed_capsule_is_freed_by_the_consumer_on_any_thread(small_corpus, max_version):
    with tandem.Feed(small_corpus, device="cpu", batch_size=2, held=2, prefetch=1, endless=True) as feed:
        batches = iter(feed)
        for _ in range(5):
            batch = next(batches)
            before = numpy.from_dlpack(batch["mel"]).tobytes()
            capsule = batch["mel"].__dlpack__(max_version=max_version)
            tensor = capsules.managed(capsule).tensor
            address, deleter = capsules.consume(capsule)
            # The capsule and the batch are gone, and the memory is still the consumer's.
            del capsule, batch
            gc.collect()
            assert ctypes.string_at(tensor.data, len(before)) == before
            thread = threading.Thread(target=deleter, args=(address,))
            thread.start()
            thread.join()


def test_a_copy_and_another_device_are_refused_with_what_to_do(batch):
    tensor = batch["mel"]
    with pytest.raises(BufferError, match="without a copy.*clone"):
        tensor.__dlpack__(copy=True)
    with pytest.raises(BufferError, match=r"is on cpu .*not copied to DLPack device \(2, 0\).*device="):
        tensor.__dlpack__(dl_device=(2, 0))
    assert capsules.name(tensor.__dlpack__(copy=False, dl_device=(1, 0))) == b"dltensor"


@pytest.mark.parametrize("stream", [0, 1, 2, 12345])
def test_a_stream_is_refused_on_the_cpu(batch, stream):
    with pytest.raises(ValueError, match="stream"):
        batch["mel"].__dlpack__(stream=stream)


def test_a_reader_that_synchronizes_by_itself_waits_for_the_batch(batch):
    capsule = batch["mel"].__dlpack__(stream=-1)
    batch.synchronize()
    assert capsules.name(capsule) == b"dltensor"


def test_a_tensor_outlives_its_batch_and_its_feed(corpus):
    feed = tandem.Feed(corpus, device="cpu", batch_size=4)
    tensor = next(iter(feed))["mel"]
    view = numpy.from_dlpack(tensor)
    before = view.tobytes()
    feed.close()
    del feed
    gc.collect()
    assert view.tobytes() == before == numpy.from_dlpack(tensor).tobytes()


def test_a_batch_is_a_mapping(batch):
    from collections.abc import Mapping

    assert isinstance(batch, Mapping)
    assert list(batch) == batch.keys() == [name for name, _ in batch.items()] == [t.name for t in batch.values()]
    assert len(batch) == len(batch.keys()) and "mel" in batch and "nothing" not in batch and 3 not in batch
    assert batch.get("nothing") is None and batch.get("nothing", 7) == 7 and batch.get("mel").name == "mel"
    assert dict(batch).keys() == set(batch)
    with pytest.raises(KeyError, match="nothing"):
        batch["nothing"]
    assert len(batch.ids) == len(batch.texts) == batch["mel"].shape[0] == 4
    assert "mel" in repr(batch) and "float32" in repr(batch["mel"])
