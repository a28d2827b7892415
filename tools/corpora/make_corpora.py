"""Writes one small corpus in every format that Tandem reads, with the libraries that users write them with.

    python3 tools/corpora/make_corpora.py SRC OUT

SRC is an LJSpeech folder: `metadata.csv` with `id|text[|normalized[|speaker[|lang]]]`, and `wavs/` with WAV or FLAC
files. Each format gets a folder under OUT that must not exist yet. Every corpus has all rows, in the order of
`metadata.csv`, and the recordings byte for byte.

Where the original tool is a script of a training repository (CosyVoice, F5-TTS, NeMo), its layout is reproduced with
the library it writes with. README.md lists the folders; make_lhotse_fixtures.py writes the formats of Lhotse.
"""

import argparse
import json
import pathlib
import tarfile

import datasets
import pandas
import webdataset
from datasets.arrow_writer import ArrowWriter
from datasets.table import embed_table_storage

from source import read_rows

# Small, so that a corpus of 40 rows has several shards, and a shard several row groups or record batches.
NUM_SHARDS = 4
ROWS_PER_BATCH = 4


def in_shards(rows):
    """The rows in at most NUM_SHARDS runs of equal length; the last may be shorter."""
    length = -(-len(rows) // NUM_SHARDS)
    return [rows[start:start + length] for start in range(0, len(rows), length)]


def write_json_lines(path, entries):
    with open(path, "w", encoding="utf-8") as file:
        for entry in entries:
            json.dump(entry, file, ensure_ascii=False)
            file.write("\n")


def write_webdataset(rows, out, fields_of):
    """Tar shards: `KEY.wav` or `KEY.flac`, and what `fields_of` returns for the row."""
    longest = len(in_shards(rows)[0])
    with webdataset.ShardWriter(str(out / "shard-%06d.tar"), maxcount=longest, verbose=0) as shards:
        for row in rows:
            shards.write({"__key__": row.id, row.ending: row.path.read_bytes(), **fields_of(row)})


def json_field(row):
    return {"json": {"text": row.text, **row.labels, "duration": row.duration, "sample_rate": row.rate_hz}}


def text_field(row):
    return {"txt": row.text}


def hugging_face_dataset(rows):
    """A dataset with audio, text, and speaker and lang where known. Its audio refers to files until it is written."""
    columns = {"audio": [str(row.path) for row in rows], "text": [row.text for row in rows]}
    for name in ("speaker", "lang"):
        values = [row.labels.get(name) for row in rows]
        if any(value is not None for value in values):
            columns[name] = values
    # A cast, because encoding paths as Audio at once imports torchcodec, which needs PyTorch.
    return datasets.Dataset.from_dict(columns).cast_column("audio", datasets.Audio())


def write_parquet(rows, out):
    """Parquet as `push_to_hub` writes and names it: the bytes of the recordings are in the audio column."""
    dataset = hugging_face_dataset(rows)
    num_shards = len(in_shards(rows))
    (out / "data").mkdir()
    for index in range(num_shards):
        shard = dataset.shard(num_shards, index, contiguous=True).with_format("arrow")
        shard = shard.map(embed_table_storage, batched=True, batch_size=ROWS_PER_BATCH, keep_in_memory=True)
        path = out / "data" / f"train-{index:05d}-of-{num_shards:05d}.parquet"
        shard.with_format(None).to_parquet(str(path), batch_size=ROWS_PER_BATCH)


def write_arrow(rows, out):
    """Arrow as `save_to_disk` writes it."""
    hugging_face_dataset(rows).save_to_disk(str(out), num_shards=len(in_shards(rows)))


def write_cosyvoice(rows, out):
    """Parquet files that are named `.tar`, and the lists of them, as CosyVoice's `make_parquet_list.py` writes them.

    Embeddings and speech tokens come from models; here they are short lists of the same types.
    """
    out = out.resolve()
    shards = in_shards(rows)
    for index, shard in enumerate(shards):
        path = out / f"parquet_{index:09d}.tar"
        speakers = [row.speaker or "single" for row in shard]
        table = pandas.DataFrame()
        table["utt"] = [row.id for row in shard]
        table["wav"] = [str(row.path) for row in shard]
        table["audio_data"] = [row.path.read_bytes() for row in shard]
        table["text"] = [row.text for row in shard]
        table["spk"] = speakers
        table["utt_embedding"] = [[0.25, -0.5, 1.0]] * len(shard)
        table["spk_embedding"] = [[0.5, 0.125, -1.0]] * len(shard)
        table["speech_token"] = [list(range(5 + place)) for place in range(len(shard))]
        table.to_parquet(path)
        for kind, names in (("utt", table["utt"]), ("spk", sorted(set(speakers)))):
            places = json.dumps({name: str(path) for name in names}, ensure_ascii=False, indent=2)
            (out / f"{kind}2parquet_{index:09d}.json").write_text(places, encoding="utf-8")
    lists = {"data": "parquet_{:09d}.tar", "utt2data": "utt2parquet_{:09d}.json", "spk2data": "spk2parquet_{:09d}.json"}
    for name, pattern in lists.items():
        lines = "".join(f"{out / pattern.format(index)}\n" for index in range(len(shards)))
        (out / f"{name}.list").write_text(lines, encoding="utf-8")


def write_f5tts(rows, out, text_of):
    """`raw.arrow`, `duration.json` and `vocab.txt` of F5-TTS. The recordings stay where they are."""
    with ArrowWriter(path=str(out / "raw.arrow"), writer_batch_size=ROWS_PER_BATCH) as writer:
        for row in rows:
            writer.write({"audio_path": str(row.path), "text": text_of(row), "duration": row.duration})
        writer.finalize()
    durations = {"duration": [row.duration for row in rows]}
    (out / "duration.json").write_text(json.dumps(durations, ensure_ascii=False), encoding="utf-8")
    characters = sorted({character for row in rows for character in row.text})
    (out / "vocab.txt").write_text("".join(f"{character}\n" for character in characters), encoding="utf-8")


def write_nemo(rows, out, is_sharded):
    """Tar files and manifests of NeMo's `convert_to_tarred_audio_dataset.py`, neither shuffled nor sorted.

    With a manifest for each tar file, or with one manifest for all. NeMo gives every shard the same number of rows and
    drops the rest. Here no row may be lost, so the number of shards is one that divides the number of rows.
    """
    num_shards = max(number for number in range(1, NUM_SHARDS + 1) if len(rows) % number == 0)
    length = len(rows) // num_shards
    shards = [write_nemo_shard(rows[index * length:(index + 1) * length], out, index) for index in range(num_shards)]
    if not is_sharded:
        write_json_lines(out / "tarred_audio_manifest.json", [entry for entries in shards for entry in entries])
        return
    manifests = new_folder(out / "sharded_manifests")
    for index, entries in enumerate(shards):
        write_json_lines(manifests / f"manifest_{index}.json", entries)


def write_nemo_shard(rows, out, shard):
    """Writes `audio_SHARD.tar`. Returns the entries of its manifest."""
    entries = []
    with tarfile.open(out / f"audio_{shard}.tar", mode="w", dereference=True) as tar:
        for row in rows:
            name = nemo_member(row.path)
            tar.add(row.path, arcname=name)
            entries.append({"audio_filepath": name, "duration": row.duration, "text": row.text, **row.labels,
                            "shard_id": shard})
    return entries


def nemo_member(path):
    """The whole path as one file name: NeMo replaces `/` and every dot but the last by `_`."""
    return str(path.with_suffix("")).replace("/", "_").replace(".", "_") + path.suffix


def new_folder(path):
    path.mkdir(parents=True)
    return path


def main():
    parser = argparse.ArgumentParser(description="Writes one small corpus in every format that Tandem reads.")
    parser.add_argument("source", type=pathlib.Path, metavar="SRC", help="an LJSpeech folder")
    parser.add_argument("out", type=pathlib.Path, metavar="OUT", help="the folder in which each format gets a folder")
    args = parser.parse_args()
    datasets.disable_progress_bars()

    rows = read_rows(args.source)
    out = args.out
    write_webdataset(rows, new_folder(out / "webdataset_json"), json_field)
    write_webdataset(rows, new_folder(out / "webdataset_txt"), text_field)
    write_parquet(rows, new_folder(out / "hugging_face"))
    write_arrow(rows, new_folder(out / "arrow"))
    write_cosyvoice(rows, new_folder(out / "cosyvoice"))
    # prepare_ljspeech.py writes a string, prepare_csv_wavs.py a list of characters.
    write_f5tts(rows, new_folder(out / "f5tts"), lambda row: row.text)
    write_f5tts(rows, new_folder(out / "f5tts_characters"), lambda row: list(row.text))
    write_nemo(rows, new_folder(out / "nemo_tarred"), is_sharded=False)
    write_nemo(rows, new_folder(out / "nemo_sharded"), is_sharded=True)


if __name__ == "__main__":
    main()
