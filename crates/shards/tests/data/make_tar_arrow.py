"""Writes the tar and Arrow files beside this script, with programs that are not ours.

    pip install pyarrow==26.0.1 webdataset==1.0.2 numpy==2.4.6 flatbuffers
    python make_tar_arrow.py

GNU tar (1.34) writes the sparse files. Contents are functions of a name or a row number; the tests compute them too.
"""

import io
import subprocess
import tarfile
import tempfile
from pathlib import Path

import flatbuffers
import numpy as np
import pyarrow as pa
import webdataset

HERE = Path(__file__).parent
# The padding after an archive would be most of it.
tarfile.RECORDSIZE = tarfile.BLOCKSIZE
LONG = "folder/" + "long-" * 30 + "é.wav"
SPLIT = "p" * 90 + "/" + "n" * 60 + ".wav"


def pattern(seed, size):
    """Bytes that depend on the seed and the place."""
    return bytes((seed * 31 + i * 7) % 251 for i in range(size))


def of_name(name):
    """The content of a tar member."""
    size = len(name.encode()) * 3
    return pattern(size, size)


def add(archive, name):
    """Adds a regular file."""
    info = tarfile.TarInfo(name)
    info.size = len(of_name(name))
    archive.addfile(info, io.BytesIO(of_name(name)))


def add_special(archive, name, kind, target=""):
    """Adds what is no regular file."""
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, target
    archive.addfile(info)


def write_tar(path, form, names, **options):
    """Writes an archive with a folder, the names, and members that are refused."""
    with tarfile.open(path, "w", format=form, **options) as archive:
        add_special(archive, "folder", tarfile.DIRTYPE)
        for name in names:
            add(archive, name)
        add_special(archive, "symbolic", tarfile.SYMTYPE, names[0])
        add_special(archive, "hard", tarfile.LNKTYPE, names[0])
        add_special(archive, "pipe", tarfile.FIFOTYPE)
        add_special(archive, "device", tarfile.CHRTYPE)
        add(archive, "../outside.wav")
        add(archive, "/absolute.wav")
        add(archive, "last.wav")


def write_tars():
    """One archive per format of Python's tarfile, one by webdataset, two with sparse files."""
    write_tar(HERE / "python_ustar.tar", tarfile.USTAR_FORMAT, ["a.wav", "a.txt", SPLIT])
    write_tar(HERE / "python_gnu.tar", tarfile.GNU_FORMAT, ["a.wav", "a.txt", LONG])
    comment = {"comment": "of all members"}
    write_tar(HERE / "python_pax.tar", tarfile.PAX_FORMAT, ["a.wav", "a.txt", LONG], pax_headers=comment)
    with webdataset.TarWriter(str(HERE / "webdataset.tar"), mtime=0, user="", group="") as writer:
        for i in range(3):
            writer.write({"__key__": f"utt{i}", "flac": of_name(f"utt{i}.flac"), "json": {"text": f"text {i}"}})
    for form in ["gnu", "posix"]:
        write_sparse(HERE / f"sparse_{form}.tar", form)


def write_sparse(path, form):
    """A sparse file between two regular ones, by GNU tar."""
    with tempfile.TemporaryDirectory() as folder:
        for name in ["a.wav", "z.wav"]:
            (Path(folder) / name).write_bytes(of_name(name))
        with open(Path(folder) / "sparse.wav", "wb") as file:
            file.truncate(1 << 20)
            file.seek(1 << 19)
            file.write(b"x")
        names = ["a.wav", "sparse.wav", "z.wav"]
        owner = ["--owner=0", "--group=0", "--mtime=@0"]
        pax = ["--pax-option=exthdr.name=%d/PaxHeaders/%f,delete=atime,delete=ctime"] if form == "posix" else []
        subprocess.run(["tar", "-C", folder, f"--format={form}", "-S", *owner, *pax, "-cf", path, *names], check=True)


def audio_of(i):
    """The audio struct of row `i`: null, or with null bytes, or whole."""
    if i % 7 == 5:
        return None
    return {"bytes": None if i % 7 == 6 else pattern(i, i * 37 % 200), "path": f"{i}.wav"}


def speech_table(start, end):
    """Rows as Hugging Face stores them."""
    rows = range(start, end)
    audio = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    columns = {
        "id": pa.array([f"utt{i}" for i in rows], pa.string()),
        "tags": pa.array([None if i % 4 == 1 else list(range(i % 3)) for i in rows], pa.list_(pa.int32())),
        "audio": pa.array([audio_of(i) for i in rows], audio),
        "text": pa.array([None if i % 5 == 3 else f"text number {i} é" for i in rows], pa.string()),
        "duration": pa.array([i / 4 for i in rows], pa.float64()),
        "speaker": pa.array([i % 3 for i in rows], pa.int64()),
    }
    return pa.record_batch(columns)


def write_batches(path, open_writer, batches, **options):
    """Writes batches in the stream or the file format."""
    with open_writer(str(path), batches[0].schema, options=pa.ipc.IpcWriteOptions(**options)) as writer:
        for batch in batches:
            writer.write_batch(batch)


def types_batch():
    """A column of every type, so that a wrong count of buffers shifts the last one."""
    n = 5
    signed = [-i * 3 for i in range(n)]
    positive = [i * 3 for i in range(n)]
    words = [f"word {i}" for i in range(n)]
    types = pa.array([0, 1, 0, 1, 0], pa.int8())
    columns = {"null": pa.nulls(n), "bool": pa.array([i % 2 == 0 for i in range(n)])}
    for bits in [8, 16, 32, 64]:
        columns[f"int{bits}"] = pa.array(signed, f"int{bits}")
        columns[f"uint{bits}"] = pa.array(positive, f"uint{bits}")
    columns |= {
        "float16": pa.array(np.array(signed, np.float16) / 2),
        "float32": pa.array([x / 2 for x in signed], pa.float32()),
        "decimal": pa.array(signed, pa.decimal128(10, 2)),
        "date": pa.array(positive, pa.date32()),
        "time": pa.array(positive, pa.time64("us")),
        "timestamp": pa.array(positive, pa.timestamp("ns", "UTC")),
        "interval": pa.array([(1, 2, 3)] * n, pa.month_day_nano_interval()),
        "fixed_binary": pa.array([b"abc"] * n, pa.binary(3)),
        "large_text": pa.array(words, pa.large_string()),
        "large_bytes": pa.array([word.encode() for word in words], pa.large_binary()),
        "text_view": pa.array([word * 5 for word in words], pa.string_view()),
        "bytes_view": pa.array([b"short"] * n, pa.binary_view()),
        "list_view": pa.array([[i] for i in range(n)], pa.list_view(pa.int16())),
        "large_list": pa.array([[word] for word in words], pa.large_list(pa.string())),
        "fixed_list": pa.array([[i, i] for i in range(n)], pa.list_(pa.int8(), 2)),
        "map": pa.array([[(word, 1)] for word in words], pa.map_(pa.string(), pa.int64())),
        "dense": pa.UnionArray.from_dense(types, pa.array([0, 0, 1, 1, 2], pa.int32()), [pa.array(words), pa.array(signed)]),
        "sparse": pa.UnionArray.from_sparse(types, [pa.array(words), pa.array(signed)]),
        "runs": pa.RunEndEncodedArray.from_arrays(pa.array([2, 5], pa.int16()), pa.array(["x", "y"])),
        "coded": pa.array(["b", "a", None, "b", "c"]).dictionary_encode(),
        "coded_numbers": pa.array([7, 7, 8, 8, 7]).dictionary_encode(),
        "outer": pa.array(
            [None if i == 1 else {"inner": None if i == 2 else {"leaf": i}} for i in range(n)],
            pa.struct([("inner", pa.struct([("leaf", pa.uint8())]))]),
        ),
        "no_fields": pa.array([{}] * n, pa.struct([])),
        "last": pa.array([f"last {i}" for i in range(n)]),
    }
    return pa.record_batch(columns)


def coded_batches():
    """A dictionary that grows and is then replaced."""
    def batch(keys, words):
        array = pa.DictionaryArray.from_arrays(pa.array(keys, pa.int16()), pa.array(words))
        return pa.record_batch({"speaker": array})

    return [
        batch([0, 1, None], ["anna", "bert"]),
        batch([3, 0, 2], ["anna", "bert", "carl", "dora"]),
        batch([0, 1], ["emil", "fritz"]),
    ]


def characters_of(i):
    """The text of row `i` of the lists as characters: null, none, or with items that are null or empty."""
    if i % 6 in (4, 5):
        return None if i % 6 == 4 else []
    return list(f"tëxt {i} 你好😀") + ([None, "", "end"] if i % 6 == 3 else [])


def lists_with_hidden_bytes(rows):
    """Lists of [x, null, z], where the null has a byte too: `y`."""
    n = len(rows)
    offsets = np.arange(3 * n + 1, dtype=np.int32)
    validity = np.packbits([1, 0, 1] * n, bitorder="little")
    items = pa.StringArray.from_buffers(3 * n, pa.py_buffer(offsets), pa.py_buffer(b"xyz" * n), pa.py_buffer(validity))
    return pa.ListArray.from_arrays(pa.array(offsets[::3]), items)


def lists_batch(start, end):
    """Texts as F5-TTS stores them, in lists of both widths, and lists that are no text."""
    rows = range(start, end)
    texts = [characters_of(i) for i in rows]
    words = [["one", f"{i}"] for i in rows]
    coded = pa.DictionaryArray.from_arrays(pa.array([0] * len(rows), pa.int8()), pa.array(["a"]))
    columns = {
        "audio_path": pa.array([f"wavs/{i}.wav" for i in rows]),
        "text": pa.array(texts, pa.list_(pa.string())),
        "large": pa.array(texts, pa.large_list(pa.large_string())),
        "large_items": pa.array(texts, pa.list_(pa.large_string())),
        "hidden": lists_with_hidden_bytes(rows),
        "struct": pa.array([None if i % 4 == 1 else {"text": text} for i, text in zip(rows, texts)],
                           pa.struct([("text", pa.list_(pa.string()))])),
        "nested": pa.array([[w] for w in words], pa.list_(pa.list_(pa.string()))),
        "structs": pa.array([[{"word": w[0]}] for w in words], pa.list_(pa.struct([("word", pa.string())]))),
        "fixed": pa.array(words, pa.list_(pa.string(), 2)),
        "coded": pa.ListArray.from_arrays(pa.array(range(len(rows) + 1), pa.int32()), coded),
        "bytes": pa.array(words, pa.list_(pa.binary())),
        "numbers": pa.array([[i] for i in rows], pa.list_(pa.int64())),
        "last": pa.array([f"last {i}" for i in rows]),
    }
    return pa.record_batch(columns)


def write_big_endian(path):
    """A schema without fields that says big-endian: pyarrow writes none."""
    builder = flatbuffers.Builder(64)
    builder.StartVector(4, 0, 4)
    fields = builder.EndVector()
    builder.StartObject(4)
    builder.PrependInt16Slot(0, 1, 0)
    builder.PrependUOffsetTRelativeSlot(1, fields, 0)
    schema = builder.EndObject()
    builder.StartObject(5)
    builder.PrependInt16Slot(0, 4, 0)
    builder.PrependUint8Slot(1, 1, 0)
    builder.PrependUOffsetTRelativeSlot(2, schema, 0)
    builder.Finish(builder.EndObject())
    metadata = bytes(builder.Output())
    metadata += bytes(-len(metadata) % 8)
    path.write_bytes(b"\xff" * 4 + len(metadata).to_bytes(4, "little") + metadata)


def write_arrows():
    """The Arrow files."""
    batches = [speech_table(0, 20), speech_table(0, 0), speech_table(10, 40).slice(10, 17), speech_table(37, 40)]
    write_batches(HERE / "speech_stream.arrow", pa.ipc.new_stream, batches)
    write_batches(HERE / "speech_file.arrow", pa.ipc.new_file, batches)
    write_batches(HERE / "speech_legacy.arrow", pa.ipc.new_stream, batches, use_legacy_format=True)
    write_batches(HERE / "compressed.arrow", pa.ipc.new_stream, batches, compression="zstd")
    write_batches(HERE / "types.arrow", pa.ipc.new_stream, [types_batch()])
    write_batches(HERE / "types_v4.arrow", pa.ipc.new_stream, [types_batch().drop_columns(["dense", "sparse"])],
                  metadata_version=pa.ipc.MetadataVersion.V4)
    write_batches(HERE / "coded.arrow", pa.ipc.new_stream, coded_batches(), emit_dictionary_deltas=True)
    # One batch is a part of a larger one, and one has lists without items only.
    batches = [lists_batch(0, 8), lists_batch(5, 17).slice(3, 8), lists_batch(16, 18)]
    write_batches(HERE / "lists.arrow", pa.ipc.new_stream, batches)
    write_big_endian(HERE / "big_endian.arrow")


if __name__ == "__main__":
    write_tars()
    write_arrows()
