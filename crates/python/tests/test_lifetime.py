"""Signals, forks, exits, cycles: nothing hangs, leaks or crashes."""

import gc
import os
import signal
import subprocess
import threading
import weakref

import numpy
import pytest
from batches import content, hold_all, take

import tandem


def num_threads():
    return len(os.listdir("/proc/self/task"))


def resident_bytes():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def finish(process, code=0):
    try:
        output, errors = process.communicate(timeout=150)
    except subprocess.TimeoutExpired:
        process.kill()
        raise
    assert process.returncode == code, f"exit code {process.returncode}\n{output}\n{errors}"
    return output, errors


def test_ctrl_c_interrupts_the_wait_and_the_feed_stays_usable(script, small_corpus):
    process = script(
        """
        import logging, sys, threading, time, types, tandem

        # Built-in functions take the messages: no line of Python runs during the wait, and no signal is handled there.
        logging.getLogger = {"tandem": types.SimpleNamespace(warning=max)}.get
        feed = tandem.Feed({corpus}, device="cpu", batch_size=2, held=2, prefetch=1, endless=True)
        batches = iter(feed)
        held = [next(batches) for _ in range(feed.stats()["rings"][-1]["slots"])]

        def wait():
            next(batches)

        def report():
            seen = 0
            while seen < 5:
                time.sleep(0.02)
                inside = sys._current_frames()[threading.main_thread().ident].f_code is wait.__code__
                seen = seen + 1 if inside else 0
            print("waiting", flush=True)

        threading.Thread(target=report).start()
        try:
            wait()
        except KeyboardInterrupt:
            print("interrupted")
        held.clear()
        wait()
        feed.close()
        print("closed")
        """,
        corpus=small_corpus,
    )
    # The signal finds the main thread in the wait, where no line of Python runs.
    assert process.stdout.readline() == "waiting\n"
    process.send_signal(signal.SIGINT)
    assert finish(process)[0] == "interrupted\nclosed\n"


def test_a_forked_child_is_refused_and_leaves_the_parent_alone(script, small_corpus):
    process = script(
        """
        import os, sys, numpy, tandem

        feed = tandem.Feed({corpus}, device="cpu", batch_size=2, held=2, endless=True)
        batches = iter(feed)
        batch = next(batches)
        tensor = batch["mel"]
        view = numpy.from_dlpack(tensor)
        child = os.fork()
        if child == 0:
            calls = [lambda: next(batches), lambda: iter(feed), lambda: len(feed), lambda: feed.stats(), lambda: feed.epoch,
                     lambda: feed.close(), lambda: batch["mel"], lambda: batch.ids, lambda: tensor.__dlpack__(),
                     lambda: feed.state_dict()]
            for call in calls:
                try:
                    call()
                    sys.exit(3)
                except RuntimeError as error:
                    assert "forked" in str(error) and "spawn" in str(error), error
            del view, tensor, batch, batches, feed
            print("child", flush=True)
            # Through the hooks of a normal exit.
            sys.exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        del view, tensor, batch
        for _ in range(5):
            next(batches)
        feed.close()
        print("parent")
        """,
        corpus=small_corpus,
    )
    assert finish(process)[0] == "child\nparent\n"


@pytest.mark.parametrize("end", ["", "raise ValueError('in the loop')", "import sys; sys.exit(5)"])
def test_the_interpreter_exits_while_a_tokenizer_runs(script, small_corpus, end):
    process = script(
        """
        import tandem

        def tokenizer(text):
            return [sum(range(200_000)) % 100] * len(text)

        feed = tandem.Feed({corpus}, device="cpu", batch_size=2, endless=True, tokenizer=tokenizer)
        for step, batch in enumerate(feed):
            tensor = batch["mel"]
            if step == 2:
                END
                break
        """.replace("END", end or "pass"),
        corpus=small_corpus,
    )
    _, errors = finish(process, {"": 0, "i": 5, "r": 1}[end[:1]])
    assert ("in the loop" in errors) == ("raise" in end)
    assert not errors or "in the loop" in errors, errors


def test_a_feed_in_a_cycle_with_its_tokenizer_is_collected(small_corpus):
    class Model:
        def tokenizer(self, text):
            return [len(text)]

    def cycle():
        model = Model()
        model.feed = tandem.Feed(small_corpus, device="cpu", batch_size=2, endless=True, tokenizer=model.tokenizer)
        model.batches = iter(model.feed)
        next(model.batches)
        return weakref.ref(model), weakref.ref(model.feed)

    before = None
    for _ in range(3):
        references = cycle()
        gc.collect()
        assert [reference() for reference in references] == [None, None]
        # The first feed starts threads that the process keeps.
        before = before or num_threads()
        assert num_threads() <= before


def test_objects_may_be_dropped_in_any_order(small_corpus):
    for order in ["ftbv", "vbtf", "bfvt", "tvfb"]:
        feed = tandem.Feed(small_corpus, device="cpu", batch_size=2)
        batch = next(iter(feed))
        tensor = batch["mel"]
        objects = {"f": feed, "b": batch, "t": tensor, "v": numpy.from_dlpack(tensor)}
        expected = objects["v"].tobytes()
        del feed, batch, tensor
        for name in order:
            if "v" in objects:
                assert objects["v"].tobytes() == expected
            del objects[name]
            gc.collect()


def test_a_feed_may_be_dropped_and_closed_during_a_loop(small_corpus):
    feed = tandem.Feed(small_corpus, device="cpu", batch_size=2, endless=True)
    batches = iter(feed)
    del feed
    assert len([content(next(batches)) for _ in range(3)]) == 3
    feed = tandem.Feed(small_corpus, device="cpu", batch_size=2, endless=True)
    with pytest.raises(RuntimeError, match="closed"):
        for _ in feed:
            feed.close()


def test_an_exception_in_the_loop_leaves_a_feed_that_is_closed_by_its_context(small_corpus):
    with pytest.raises(ZeroDivisionError):
        with tandem.Feed(small_corpus, device="cpu", batch_size=2, endless=True) as feed:
            for _ in feed:
                1 / 0
    with pytest.raises(RuntimeError, match="closed"):
        next(iter(feed))


def test_closing_twice_is_fine_and_use_after_close_is_an_error(small_corpus):
    feed = tandem.Feed(small_corpus, device="cpu", batch_size=2)
    batch = next(iter(feed))
    feed.close()
    feed.close()
    for use in [lambda: next(iter(feed)), feed.state_dict, feed.stats]:
        with pytest.raises(RuntimeError, match="closed"):
            use()
    assert content(batch)["index"] == 0, "a batch outlives its feed"


def test_a_wait_ends_when_another_thread_closes_the_feed(small_corpus):
    feed = tandem.Feed(small_corpus, device="cpu", batch_size=2, held=2, prefetch=1, endless=True)
    batches, raised = iter(feed), []
    held = hold_all(feed, batches)

    def wait():
        try:
            next(batches)
        except RuntimeError as error:
            raised.append(str(error))

    thread = threading.Thread(target=wait)
    thread.start()
    feed.close()
    thread.join()
    assert len(raised) == 1 and "closed" in raised[0] and content(held[0])


def test_threads_do_not_accumulate(small_corpus):
    after_first = None
    for _ in range(20):
        with tandem.Feed(small_corpus, device="cpu", batch_size=2) as feed:
            take(feed, 1)
        # The first feed starts threads that the process keeps.
        after_first = after_first or num_threads()
        assert num_threads() <= after_first


def test_memory_does_not_grow(small_corpus):
    with tandem.Feed(small_corpus, device="cpu", batch_size=2) as feed:
        for epoch in range(300):
            for batch in feed:
                for tensor in batch.values():
                    numpy.from_dlpack(tensor)
            if epoch == 50:
                gc.collect()
                before = resident_bytes()
        gc.collect()
        # One batch has 100 KB and more: were one in ten lost, it would be ten times as much.
        assert resident_bytes() - before < 8 * 2**20


def test_two_feeds_and_many_threads_share_a_process(small_corpus):
    with tandem.Feed(small_corpus, device="cpu", batch_size=2) as feed:
        expected = take(feed, 6)
    found = [None, None]

    def consume(position):
        with tandem.Feed(small_corpus, device="cpu", batch_size=2) as feed:
            found[position] = take(feed, 6)
            feed.stats()

    threads = [threading.Thread(target=consume, args=(position,)) for position in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [expected, expected]
