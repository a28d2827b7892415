"""Arguments that cannot work are refused before anything runs."""

import pathlib

import pytest

import tandem


@pytest.fixture(params=[tandem.Feed, tandem.plan], ids=["Feed", "plan"])
def call(request):
    return request.param


def test_an_unknown_argument_is_refused_with_the_nearest_known_one(call, corpus):
    with pytest.raises((TypeError, ValueError), match="batchsize.*batch_size"):
        call(corpus, batchsize=4)


@pytest.mark.parametrize(
    "options",
    [
        {"batch_size": 0},
        {"batch_size": "four"},
        {"batch_size": -1},
        {"device": "gpu"},
        {"fields": ["mel", "nothing"]},
        {"features": "no-such-preset"},
        {"features": {"n_mels": 80, "nothing": 1}},
        {"rank": 2, "world_size": 2},
        {"split": "test"},
        {"cache": "tape"},
        {"limits": {"data": 1}},
        {"max_bad_fraction": 2.0},
        {"held": 0},
        {"seed": -1},
    ],
    ids=str,
)
def test_a_wrong_value_is_refused(call, corpus, options):
    with pytest.raises(ValueError) as refused:
        call(corpus, **options)
    name = next(iter(options))
    assert name in str(refused.value) or name.replace("_", " ") in str(refused.value), refused.value


def test_a_value_of_a_wrong_type_is_refused_by_name(call, corpus):
    with pytest.raises(TypeError, match="seed= has a value of type object"):
        call(corpus, seed=object())
    with pytest.raises(ValueError, match="max_bad_fraction= is not a finite number"):
        call(corpus, max_bad_fraction=float("nan"))
    with pytest.raises(ValueError, match="seed= does not fit into 64 bits"):
        call(corpus, seed=2**64)


def test_a_missing_corpus_is_a_missing_file(call, tmp_path):
    with pytest.raises(FileNotFoundError, match="nowhere"):
        call(tmp_path / "nowhere")


def test_a_source_is_a_path_a_string_or_a_list(corpus):
    for source in [corpus, str(corpus), [str(corpus)], [pathlib.Path(corpus)], (corpus,)]:
        assert tandem.plan(source, batch_size=4)


def test_none_is_the_default(corpus):
    assert tandem.plan(corpus, batch_size=4, seed=None, device=None) == tandem.plan(corpus, batch_size=4)
