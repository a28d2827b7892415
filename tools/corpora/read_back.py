"""Reads what make_corpora.py has written, with the libraries that users read it with, and compares it with the source.

    python3 tools/corpora/read_back.py SRC OUT

The ids, texts, speakers, languages and durations that a format has are those of SRC, in the same order, and so are the
bytes of the recordings. Prints a line for each corpus, and fails at the first difference.
"""

import argparse
import json
import pathlib
import tarfile
import tempfile

import datasets
import pyarrow.parquet
import webdataset

from source import read_rows


def webdataset_rows(folder):
    """What `webdataset.WebDataset` yields."""
    paths = [str(path) for path in sorted(folder.glob("shard-*.tar"))]
    for sample in webdataset.WebDataset(paths, shardshuffle=False):
        row = {"id": sample["__key__"], "bytes": sample.get("wav") or sample.get("flac")}
        if "json" in sample:
            fields = json.loads(sample["json"])
            yield row | {name: fields.get(name) for name in ("text", "speaker", "lang", "duration")}
        else:
            yield row | {"text": sample["txt"].decode()}


def dataset_rows(dataset):
    """The rows of a Hugging Face dataset with an Audio column. Not decoded, which needs PyTorch."""
    for entry in dataset.cast_column("audio", datasets.Audio(decode=False)):
        audio = entry["audio"]
        row = {"id": pathlib.Path(audio["path"]).stem, "bytes": audio["bytes"]}
        yield row | {name: entry.get(name) for name in ("text", "speaker", "lang")}


def hugging_face_rows(folder):
    """What `load_dataset` reads. Its cache is thrown away."""
    with tempfile.TemporaryDirectory() as cache:
        yield from dataset_rows(datasets.load_dataset(str(folder), split="train", cache_dir=cache))


def arrow_rows(folder):
    return dataset_rows(datasets.load_from_disk(str(folder)))


def cosyvoice_rows(folder):
    """As CosyVoice reads `data.list`: batch by batch, through pandas."""
    for path in (folder / "data.list").read_text(encoding="utf-8").split("\n")[:-1]:
        for batch in pyarrow.parquet.ParquetFile(path).iter_batches(batch_size=3):
            for _, entry in batch.to_pandas().iterrows():
                yield {"id": entry["utt"], "text": entry["text"], "speaker": entry["spk"], "bytes": entry["audio_data"]}


def f5tts_rows(folder):
    """As F5-TTS reads `raw.arrow`, and beside it `duration.json`."""
    durations = json.loads((folder / "duration.json").read_text(encoding="utf-8"))["duration"]
    dataset = datasets.Dataset.from_file(str(folder / "raw.arrow"))
    for entry, duration in zip(dataset, durations, strict=True):
        path = pathlib.Path(entry["audio_path"])
        if entry["duration"] != duration:
            raise ValueError(f"expected {duration} s of duration.json, found {entry['duration']} s: {path}")
        yield {"id": path.stem, "text": "".join(entry["text"]), "duration": duration, "bytes": path.read_bytes()}


def nemo_rows(folder):
    """Entries of the manifests in the order of the shards. The member is found by its name in the tar of `shard_id`."""
    manifests = sorted(folder.glob("tarred_audio_manifest.json")) + sorted(folder.glob("sharded_manifests/*.json"))
    for manifest in manifests:
        for line in manifest.read_text(encoding="utf-8").split("\n")[:-1]:
            entry = json.loads(line)
            with tarfile.open(folder / f"audio_{entry['shard_id']}.tar") as tar:
                content = tar.extractfile(entry["audio_filepath"]).read()
            yield {"bytes": content} | {name: entry.get(name) for name in ("text", "speaker", "lang", "duration")}


READERS = {
    "webdataset_json": webdataset_rows,
    "webdataset_txt": webdataset_rows,
    "hugging_face": hugging_face_rows,
    "arrow": arrow_rows,
    "cosyvoice": cosyvoice_rows,
    "f5tts": f5tts_rows,
    "f5tts_characters": f5tts_rows,
    "nemo_tarred": nemo_rows,
    "nemo_sharded": nemo_rows,
}


def compare(name, rows, found):
    """Whatever a format has of a row is that of the source."""
    found = list(found)
    if len(found) != len(rows):
        raise ValueError(f"{name}: expected {len(rows)} rows, found {len(found)}")
    for row, entry in zip(rows, found):
        source = {"id": row.id, "text": row.text, "speaker": row.speaker, "lang": row.lang, "duration": row.duration}
        # CosyVoice has no rows without a speaker.
        if name == "cosyvoice":
            source["speaker"] = row.speaker or "single"
        source["bytes"] = row.path.read_bytes()
        differing = [key for key in entry if entry[key] != source[key]]
        if differing:
            raise ValueError(f"{name}: {', '.join(differing)} of {row.id} differ from the source")
    print(f"{name}: {len(found)} rows, {', '.join(found[0])}")


def main():
    parser = argparse.ArgumentParser(description="Compares corpora that make_corpora.py has written with their source.")
    parser.add_argument("source", type=pathlib.Path, metavar="SRC", help="the LJSpeech folder")
    parser.add_argument("out", type=pathlib.Path, metavar="OUT", help="the folder with the corpora")
    args = parser.parse_args()
    datasets.disable_progress_bars()

    rows = read_rows(args.source)
    for name, read in READERS.items():
        compare(name, rows, read(args.out / name))


if __name__ == "__main__":
    main()
