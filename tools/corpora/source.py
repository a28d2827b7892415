"""The source of every test corpus: an LJSpeech folder, read as Tandem reads it.

A module of the scripts beside it.
"""

import pathlib
from typing import NamedTuple, Optional

import soundfile

# The endings that a recording may have, in the order they are tried.
ENDINGS = ("wav", "flac")


class Row(NamedTuple):
    """One utterance. `path` is absolute."""

    id: str
    text: str
    speaker: Optional[str]
    lang: Optional[str]
    path: pathlib.Path
    num_samples: int
    rate_hz: int

    @property
    def duration(self):
        """Seconds: the exact quotient, rounded once to a float."""
        return self.num_samples / self.rate_hz

    @property
    def ending(self):
        """The ending of the recording, without the dot."""
        return self.path.suffix[1:]

    @property
    def labels(self):
        """Speaker and language, as far as the source has them."""
        labels = {"speaker": self.speaker, "lang": self.lang}
        return {name: value for name, value in labels.items() if value is not None}


def read_rows(folder):
    """The rows of `metadata.csv`, in its order: `id|text`, and perhaps `|normalized`, `|speaker`, `|lang`."""
    folder = pathlib.Path(folder).resolve()
    lines = (folder / "metadata.csv").read_text(encoding="utf-8").split("\n")
    rows = [read_row(folder, line) for line in lines if line.strip()]
    if not rows:
        raise ValueError(f"expected rows, found none in {folder / 'metadata.csv'}")
    return rows


def read_row(folder, line):
    """One line. The normalised text counts where it is not empty."""
    columns = [column.strip() for column in line.split("|")]
    if not 2 <= len(columns) <= 5:
        raise ValueError(f"expected id|text|normalized|speaker|lang or the first columns of it, found {line!r}")
    name, text, normalized, speaker, lang = columns + [""] * (5 - len(columns))
    path = find_recording(folder, name)
    info = soundfile.info(path)
    return Row(name, normalized or text, speaker or None, lang or None, path, info.frames, info.samplerate)


def find_recording(folder, name):
    """`wavs/NAME.wav` or `wavs/NAME.flac`, whichever exists."""
    candidates = [folder / "wavs" / f"{name}.{ending}" for ending in ENDINGS]
    for path in candidates:
        if path.is_file():
            return path
    raise FileNotFoundError(f"expected one of {', '.join(map(str, candidates))}, found none")
