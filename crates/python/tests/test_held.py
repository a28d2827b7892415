"""A tensor that is still in use keeps its slot."""

import logging
import threading
import time

import numpy
import pytest
from batches import hold_all

import tandem


@pytest.fixture
def stalled(small_corpus):
    """A feed whose slots are all held, a thread that waits for one more batch, and what the feed has logged."""
    logged = threading.Event()
    messages, result = [], []

    class Handler(logging.Handler):
        def emit(self, record):
            messages.append(record.getMessage())
            logged.set()

    handler = Handler()
    logging.getLogger("tandem").addHandler(handler)
    with tandem.Feed(small_corpus, device="cpu", batch_size=2, held=2, prefetch=1, endless=True) as feed:
        batches = iter(feed)
        # Not what was said about the corpus before.
        messages.clear(), logged.clear()
        held = hold_all(feed, batches)
        thread = threading.Thread(target=lambda: result.append(next(batches)))
        thread.start()
        turns = 0
        while not logged.is_set():
            time.sleep(0.01)
            turns += 1
        yield held, thread, messages, result, turns
        held.clear()
        thread.join()
        result.clear()
    logging.getLogger("tandem").removeHandler(handler)


def test_a_held_batch_stalls_the_feed_which_names_it_and_never_overwrites_it(stalled):
    held, thread, messages, result, turns = stalled
    # With the GIL in the hands of the thread that waits, this one would not have run before the message.
    assert turns > 3, turns
    views = [numpy.from_dlpack(batch["mel"]) for batch in held]
    before = [view.tobytes() for view in views]
    assert thread.is_alive() and not result, "a batch came although every slot is held"
    assert all(f"epoch {batch.epoch}, batch {batch.index}" in messages[0] for batch in held), messages
    # The batches are gone, and the views of numpy keep their slots.
    held.clear()
    assert thread.is_alive() and not result
    assert [view.tobytes() for view in views] == before
    del views[0]
    thread.join()
    assert len(result) == 1 and [view.tobytes() for view in views] == before[1:]
