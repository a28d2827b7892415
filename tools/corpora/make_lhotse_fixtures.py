"""Writes the fixtures of crates/corpus/tests/data/lhotse: one small corpus as Lhotse's cuts and as Lhotse Shar.

    python3 -m venv venv && venv/bin/pip install -r tools/corpora/lhotse_requirements.txt
    venv/bin/python tools/corpora/make_lhotse_fixtures.py crates/corpus/tests/data/lhotse

Run once by hand, because Lhotse imports PyTorch, which is too large for CI. The folder must not exist yet. It becomes
an LJSpeech folder, the source for make_corpora.py, so that tests compare Lhotse with every other format. README.md
lists the rest. At the end, Lhotse reads everything back.
"""

import argparse
import json
import pathlib

import numpy as np
import soundfile
from lhotse import CutSet, MonoCut, Recording, SupervisionSegment

from source import read_rows

RATE_HZ = 22050
NUM_ROWS = 8
ROWS_PER_SHARD = 5
# Short, because a text needs more frames than tokens.
TEXTS = ["One.", "Two!", "Café.", "Four?", "Five;", "Six.", "Seven.", "Eight!"]


def write_source(out):
    """An LJSpeech folder of tones, of lengths that are no round durations."""
    (out / "wavs").mkdir(parents=True)
    lines = []
    for index in range(NUM_ROWS):
        speaker = ("ada", "ben")[index % 2]
        name = f"{speaker}_{index:05d}"
        time_s = np.arange(5501 + 331 * index) / RATE_HZ
        tone = 6000 * np.sin(2 * np.pi * (140 + 25 * index) * time_s) + 2500 * np.sin(2 * np.pi * 1900 * time_s)
        soundfile.write(out / "wavs" / f"{name}.wav", np.round(tone).astype(np.int16), RATE_HZ, subtype="PCM_16")
        lines.append(f"{name}|{TEXTS[index]}|{TEXTS[index]}|{speaker}|en\n")
    (out / "metadata.csv").write_text("".join(lines), encoding="utf-8")


def supervision_of(row, name, start_s, duration_s, text):
    return SupervisionSegment(id=name, recording_id=row.id, start=start_s, duration=duration_s, text=text,
                              speaker=row.speaker, language=row.lang)


def cut_of(row):
    """A cut that is the whole recording, with one supervision. Its path begins beside the manifest."""
    recording = Recording.from_file(row.path, recording_id=row.id, relative_path_depth=2)
    supervision = supervision_of(row, row.id, 0, recording.duration, row.text)
    return MonoCut(id=row.id, start=0, duration=recording.duration, channel=0, recording=recording,
                   supervisions=[supervision])


def parts_of(row):
    """Two cuts of a recording, as `trim_to_supervisions` makes them. Some samples are in neither."""
    recording = Recording.from_file(row.path, recording_id=row.id, relative_path_depth=2)
    middle = row.num_samples // 2
    bounds = [(0, middle - 7), (middle + 3, middle - 11)]
    supervisions = [
        supervision_of(row, f"{row.id}-{index}", start / RATE_HZ, length / RATE_HZ, f"Part {index}.")
        for index, (start, length) in enumerate(bounds)
    ]
    whole = MonoCut(id=row.id, start=0, duration=recording.duration, channel=0, recording=recording,
                    supervisions=supervisions)
    cuts = list(CutSet.from_cuts([whole]).trim_to_supervisions(keep_overlapping=False))
    # trim_to_supervisions makes up ids, which differ from run to run.
    cuts = [cut.with_id(cut.supervisions[0].id) for cut in cuts]
    texts = [cut.supervisions[0].text for cut in cuts]
    return cuts, [(row, start, length, text) for (start, length), text in zip(bounds, texts, strict=True)]


def write_shar(cuts, out, encoding):
    """Shards of ROWS_PER_SHARD cuts. The paths of the cuts are read from the folder that has the recordings."""
    out.mkdir()
    absolute = cuts.with_recording_path_prefix(out.parent)
    absolute.to_shar(out, fields={"recording": encoding}, shard_size=ROWS_PER_SHARD)


def write_part_manifest(parts, path):
    """The parts as a NeMo manifest, which has offsets too: what the cuts are to be compared with."""
    with open(path, "w", encoding="utf-8") as file:
        for row, start, length, text in parts:
            entry = {"audio_filepath": f"wavs/{row.path.name}", "offset": start / RATE_HZ, "duration": length / RATE_HZ,
                     "text": text, **row.labels}
            file.write(json.dumps(entry, ensure_ascii=False) + "\n")


def compare(name, cuts, expected):
    """What Lhotse reads are the samples, texts and speakers of `expected`: rows, first samples, lengths and texts."""
    cuts = list(cuts)
    if len(cuts) != len(expected):
        raise ValueError(f"{name}: expected {len(expected)} cuts, found {len(cuts)}")
    for cut, (row, start, length, text) in zip(cuts, expected):
        samples, _ = soundfile.read(row.path, dtype="int16", start=start, frames=length)
        found = cut.load_audio()[0] * 32768
        if not np.array_equal(found, samples):
            raise ValueError(f"{name}: {cut.id}: the samples differ")
        (supervision,) = cut.supervisions
        if (supervision.text, supervision.speaker, supervision.language) != (text, row.speaker, row.lang):
            raise ValueError(f"{name}: {cut.id}: expected {text!r} by {row.speaker}, found {supervision}")
    print(f"{name}: {len(cuts)} cuts")


def read_back(out, rows, parts):
    wholes = [(row, 0, row.num_samples, row.text) for row in rows]
    for name, expected in (("cuts", wholes), ("part_cuts", parts)):
        compare(name, CutSet.from_file(out / f"{name}.jsonl.gz").with_recording_path_prefix(out), expected)
    for name, expected in (("shar", wholes), ("part_shar", parts)):
        compare(name, CutSet.from_shar(in_dir=out / name), expected)


def main():
    parser = argparse.ArgumentParser(description="Writes the fixtures with Lhotse's formats.")
    parser.add_argument("out", type=pathlib.Path, metavar="OUT", help="the folder to write to; it must not exist yet")
    out = parser.parse_args().out.resolve()

    write_source(out)
    rows = read_rows(out)
    cuts = CutSet.from_cuts(cut_of(row) for row in rows)
    cuts.to_file(out / "cuts.jsonl.gz")
    write_shar(cuts, out / "shar", "wav")

    part_cuts, parts = [], []
    for row in rows[4:]:
        for group, new in zip((part_cuts, parts), parts_of(row)):
            group.extend(new)
    part_cuts = CutSet.from_cuts(part_cuts)
    part_cuts.to_file(out / "part_cuts.jsonl.gz")
    write_part_manifest(parts, out / "parts.jsonl")
    write_shar(part_cuts, out / "part_shar", "flac")
    read_back(out, rows, parts)


if __name__ == "__main__":
    main()
