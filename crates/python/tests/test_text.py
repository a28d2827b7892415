"""Texts through callables of the user."""

import logging
import threading

import numpy
import pytest
from batches import content

import tandem


def letters(text):
    return [ord(letter) for letter in text]


def rows(batch):
    """The ids of each row, without padding."""
    text, lengths = numpy.from_dlpack(batch["text"]), numpy.from_dlpack(batch["text_lengths"])
    return [row[:length].tolist() for row, length in zip(text, lengths)]


def test_a_tokenizer_makes_the_ids(corpus):
    threads = set()

    def tokenizer(text):
        threads.add(threading.get_ident())
        return letters(text)

    with tandem.Feed(corpus, device="cpu", batch_size=4, tokenizer=tokenizer) as feed:
        for batch in feed:
            assert rows(batch) == [letters(text) for text in batch.texts]
    assert threads - {threading.get_ident()}, "no decode thread has called the tokenizer"


def test_map_changes_the_text_before_the_tokenizer(corpus):
    with tandem.Feed(corpus, device="cpu", batch_size=4, map=str.upper, tokenizer=letters) as feed:
        batch = next(iter(feed))
        assert all(letter == ord(chr(letter).upper()) for row in rows(batch) for letter in row)


def test_ids_may_come_in_any_iterable(corpus):
    def first(tokenizer):
        with tandem.Feed(corpus, device="cpu", batch_size=4, tokenizer=tokenizer) as feed:
            return content(next(iter(feed)))

    expected = first(letters)
    assert first(lambda text: tuple(letters(text))) == expected
    assert first(lambda text: numpy.array(letters(text))) == expected
    assert first(lambda text: (ord(letter) for letter in text)) == expected


def test_an_exception_of_the_tokenizer_is_a_bad_sample_with_its_text(corpus, caplog):
    with tandem.Feed(corpus, device="cpu", batch_size=4) as feed:
        bad = next(iter(feed)).texts[0]

    def tokenizer(text):
        if text == bad:
            raise ValueError("no such letter")
        return letters(text)

    caplog.set_level(logging.INFO, "tandem")
    with tandem.Feed(corpus, device="cpu", batch_size=4, tokenizer=tokenizer, max_bad_fraction=0.5) as feed:
        texts = [text for batch in feed for text in batch.texts]
    assert bad not in texts and len(texts) > 4
    assert "ValueError: no such letter" in caplog.text


def test_a_tokenizer_that_always_fails_ends_the_feed_with_its_text(corpus):
    def tokenizer(text):
        raise KeyError("vocabulary")

    with pytest.raises((ValueError, RuntimeError), match="KeyError: 'vocabulary'"):
        with tandem.Feed(corpus, device="cpu", batch_size=4, tokenizer=tokenizer) as feed:
            for _ in feed:
                pass


@pytest.mark.parametrize("interrupt", [KeyboardInterrupt, SystemExit])
@pytest.mark.parametrize("calls", [0, 100])
def test_an_interrupt_in_the_tokenizer_is_raised_and_is_no_bad_sample(corpus, interrupt, calls):
    left = [calls]

    def tokenizer(text):
        left[0] -= 1
        if left[0] < 0:
            raise interrupt()
        return letters(text)

    # While the feed measures texts, or later in the loop.
    with pytest.raises(interrupt):
        with tandem.Feed(corpus, device="cpu", batch_size=4, endless=True, tokenizer=tokenizer) as feed:
            for _ in feed:
                pass


@pytest.mark.parametrize("ids", [["a"], 3, [1.5], [2**40]])
def test_what_is_no_list_of_ids_is_refused(corpus, ids):
    with pytest.raises((ValueError, RuntimeError)):
        with tandem.Feed(corpus, device="cpu", batch_size=4, tokenizer=lambda text: ids) as feed:
            for _ in feed:
                pass


def test_what_is_no_function_is_refused(corpus):
    with pytest.raises(TypeError, match="tokenizer= is a function of a str, found str"):
        tandem.Feed(corpus, device="cpu", tokenizer="letters")
