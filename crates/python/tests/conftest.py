"""What the tests share: a corpus, and the list of skipped tests."""

import os
import pathlib
import subprocess
import sys
import textwrap

import pytest

@pytest.fixture(scope="session", autouse=True)
def environment(tmp_path_factory):
    """Tests write into folders of their own, and no launcher started them."""
    for name in ["RANK", "WORLD_SIZE", "LOCAL_RANK"]:
        os.environ.pop(name, None)
    os.environ["XDG_CACHE_HOME"] = str(tmp_path_factory.mktemp("cache"))


def run(*words):
    """The program of the wheel."""
    return subprocess.run(
        [sys.executable, "-m", "tandem", *words], check=True, stdout=subprocess.PIPE, text=True
    ).stdout


@pytest.fixture(scope="session")
def corpus(tmp_path_factory):
    """Two minutes of synthetic speech in six voices."""
    folder = tmp_path_factory.mktemp("corpus") / "demo"
    run("corpus", "demo", "--minutes", "2", "--quiet", "-o", str(folder))
    return folder


@pytest.fixture(scope="session")
def small_corpus(tmp_path_factory):
    """A few utterances of one voice: an epoch takes little time."""
    folder = tmp_path_factory.mktemp("corpus") / "small"
    run("corpus", "demo", "--minutes", "0.3", "--voices", "1", "--quiet", "-o", str(folder))
    return folder


@pytest.fixture
def script(tmp_path):
    """Runs a Python program of its own. `{name}` in the text is the value of `name`."""

    def start(text, **values):
        path = tmp_path / "program.py"
        text = textwrap.dedent(text)
        for name, value in values.items():
            text = text.replace("{" + name + "}", repr(str(value)))
        path.write_text(text)
        return subprocess.Popen(
            [sys.executable, str(path)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )

    return start


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item):
    """Lists skipped tests where `./check` lists those of all crates."""
    outcome = yield
    report = outcome.get_result()
    listed = os.environ.get("TANDEM_SKIPPED_TESTS")
    if listed and report.skipped:
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        what, _, why = reason.removeprefix("Skipped: ").partition(": ")
        with pathlib.Path(listed).open("a") as file:
            file.write("\t".join(["skipped", f"python: {item.name}", what, why or "no reason given"]) + "\n")
