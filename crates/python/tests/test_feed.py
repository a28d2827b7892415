"""Epochs, state and ranks."""

import json
import pickle

import pytest
from batches import content, take

import tandem


def test_a_loop_is_an_epoch_and_the_next_loop_is_the_next_one(corpus):
    with tandem.Feed(corpus, device="cpu", batch_size=4) as feed:
        first = [content(batch) for batch in feed]
        assert len(first) == len(feed) > 2
        assert [batch["index"] for batch in first] == list(range(len(feed)))
        assert {batch["epoch"] for batch in first} == {0} and feed.epoch == 1
        second = [content(batch) for batch in feed]
        assert len(second) == len(feed) and {batch["epoch"] for batch in second} == {1}
        ids = [sorted(id for batch in epoch for id in batch["ids"]) for epoch in (first, second)]
        assert len(set(ids[0])) == len(ids[0]), "an utterance is there twice"
        assert [batch["ids"] for batch in first] != [batch["ids"] for batch in second], "the order is the same"


def test_a_loop_that_leaves_after_the_last_batch_is_followed_by_a_whole_epoch(corpus):
    with tandem.Feed(corpus, device="cpu", batch_size=4) as feed:
        # `range` ends first: the end of the epoch is never asked for.
        assert len([content(batch) for _, batch in zip(range(len(feed)), feed)]) == len(feed)
        second = [content(batch) for batch in feed]
        assert len(second) == len(feed) and {batch["epoch"] for batch in second} == {1}


def test_a_loop_that_leaves_early_is_followed_by_the_rest_of_its_epoch(corpus):
    with tandem.Feed(corpus, device="cpu", batch_size=4) as feed:
        for batch in feed:
            if batch.index == 1:
                break
        del batch
        assert [batch["index"] for batch in map(content, feed)] == list(range(2, len(feed)))


def test_an_iterator_that_has_ended_stays_ended(corpus):
    with tandem.Feed(corpus, device="cpu", batch_size=4) as feed:
        iterator = iter(feed)
        assert iter(iterator) is iterator
        for _ in iterator:
            pass
        assert next(iterator, None) is None and next(iterator, None) is None


def test_an_endless_feed_does_not_stop(corpus):
    with tandem.Feed(corpus, device="cpu", batch_size=4, endless=True) as feed:
        batches = iter(feed)
        epochs = [content(next(batches))["epoch"] for _ in range(2 * len(feed) + 1)]
        assert epochs == sorted(epochs) and epochs[-1] == 2


def test_the_same_arguments_give_the_same_bytes_and_another_seed_others(corpus):
    def first(**options):
        with tandem.Feed(corpus, device="cpu", batch_size=4, **options) as feed:
            return take(feed, 3)

    assert first() == first(workers=1) == first(seed=1234)
    assert first() != first(seed=1)


@pytest.mark.parametrize("after", [0, 3, "epoch", "epoch and 2"])
def test_a_feed_resumes_with_the_same_bytes(corpus, after):
    with tandem.Feed(corpus, device="cpu", batch_size=4) as feed:
        done = {"epoch": len(feed), "epoch and 2": len(feed) + 2}.get(after, after)
        take(feed, done)
        # Through JSON and pickle, as checkpoints store it.
        state = pickle.loads(pickle.dumps(json.loads(json.dumps(feed.state_dict()))))
        expected = take(feed, len(feed) + 2)
    with tandem.Feed(corpus, device="cpu", batch_size=4) as feed:
        feed.load_state_dict(state)
        assert take(feed, len(expected)) == expected


def test_a_feed_goes_back_to_a_state_of_its_own(corpus):
    with tandem.Feed(corpus, device="cpu", batch_size=4) as feed:
        take(feed, 1)
        state = feed.state_dict()
        expected = take(feed, 4)
        feed.load_state_dict(state)
        assert take(feed, 4) == expected


def test_a_state_of_another_corpus_or_order_is_refused(corpus, small_corpus):
    with tandem.Feed(small_corpus, device="cpu", batch_size=4) as feed:
        state = feed.state_dict()
    with tandem.Feed(corpus, device="cpu", batch_size=4) as feed:
        with pytest.raises((ValueError, RuntimeError)):
            feed.load_state_dict(state)
        with pytest.raises((ValueError, RuntimeError)):
            feed.load_state_dict({"nothing": 1})
        assert len(take(feed, 1)) == 1, "a refused state leaves the feed as it was"


@pytest.mark.parametrize("done", [0, 2, 5])
def test_two_ranks_have_the_batches_of_one(corpus, done):
    with tandem.Feed(corpus, device="cpu", batch_size=4) as feed:
        take(feed, done)
        state = feed.state_dict()
        expected = take(feed, 2 * len(feed))
    for rank in range(2):
        with tandem.Feed(corpus, device="cpu", batch_size=4, rank=rank, world_size=2) as feed:
            feed.load_state_dict(state)
            assert take(feed, len(expected) // 2) == expected[rank::2]


def test_two_ranks_are_resumed_by_one(corpus):
    with tandem.Feed(corpus, device="cpu", batch_size=4) as feed:
        expected = take(feed, 8)
    states = []
    for rank in range(2):
        with tandem.Feed(corpus, device="cpu", batch_size=4, rank=rank, world_size=2) as feed:
            assert take(feed, 2) == expected[rank:4:2]
            states.append(feed.state_dict())
    assert states[0] == states[1]
    with tandem.Feed(corpus, device="cpu", batch_size=4) as feed:
        feed.load_state_dict(states[0])
        assert take(feed, 4) == expected[4:]


def test_ranks_are_read_from_the_environment(corpus, monkeypatch):
    with tandem.Feed(corpus, device="cpu", batch_size=4, rank=1, world_size=2) as feed:
        expected = take(feed, 2)
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with tandem.Feed(corpus, device="cpu", batch_size=4) as feed:
        assert take(feed, 2) == expected
    monkeypatch.setenv("RANK", "one")
    with pytest.raises(ValueError, match='RANK is not a number: "one"'):
        tandem.Feed(corpus)


def test_a_feed_describes_itself(corpus):
    with tandem.Feed(corpus, device="cpu", batch_size=4) as feed:
        take(feed, 40)
        for description in [feed.stats(), feed.profile(), feed.plan(), tandem.plan(corpus, batch_size=4)]:
            assert isinstance(description, dict) and description
            json.dumps(description)
        assert len(feed.speakers) == 6 and feed.symbols and all(isinstance(name, str) for name in feed.languages)


def test_static_shapes_are_few_and_exact_shapes_have_no_padding(corpus):
    with tandem.Feed(corpus, device="cpu", batch_size=4, buckets=2) as feed:
        shapes = {(batch.bucket, batch["mel"].shape) for batch in feed}
        assert len(shapes) <= 2
    with tandem.Feed(corpus, device="cpu", batch_size=4, static_shapes=False) as feed:
        for batch in feed:
            import numpy

            assert batch["mel"].shape[1] == numpy.from_dlpack(batch["mel_lengths"]).max()
