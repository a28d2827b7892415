"""Writes the Parquet files of the tests, with a program that is not ours.

    pip install pyarrow==26.0.1
    python make_parquet.py

The tests compute what is in them: `value`, `text` and the nulls are the same there.
"""

import pathlib

import pyarrow as pa
import pyarrow.parquet as pq

HERE = pathlib.Path(__file__).parent
ROWS = 60


def value(i):
    return bytes((i * 31 + j * 7) % 256 for j in range(i * 37 % 200))


def text(i):
    return f"text {i} äö"


def nested():
    """As Hugging Face has it. Row 3 of 5 has no struct, row 4 of 5 has one without bytes."""
    audio = [
        None if i % 5 == 3 else {"bytes": None if i % 5 == 4 else value(i), "path": f"{i}.flac"} for i in range(ROWS)
    ]
    kind = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    texts = [None if i % 7 == 2 else text(i) for i in range(ROWS)]
    return pa.table(
        {
            "audio": pa.array(audio, kind),
            "text": pa.array(texts, pa.string()),
            "duration": pa.array([i * 0.25 for i in range(ROWS)], pa.float64()),
        }
    )


def flat(make=value, kind=pa.binary()):
    """As CosyVoice has it, no value null. The text is not marked as such."""
    kinds = {"utt": pa.string(), "audio_data": kind, "text": pa.binary()}
    fields = [pa.field(name, kind, nullable=False) for name, kind in kinds.items()]
    return pa.Table.from_arrays(
        [
            pa.array([f"utt{i}" for i in range(ROWS)], pa.string()),
            pa.array([make(i) for i in range(ROWS)], kind),
            pa.array([text(i).encode() for i in range(ROWS)], pa.binary()),
        ],
        schema=pa.schema(fields),
    )


def numbers():
    count = range(ROWS)
    return pa.table(
        {
            "i32": pa.array([i - 30 for i in count], pa.int32()),
            "u32": pa.array([2**32 - 1 - i for i in count], pa.uint32()),
            "i64": pa.array([None if i % 4 == 1 else -(2**40) * i for i in count], pa.int64()),
            "u64": pa.array([2**63 + 2**20 * i for i in count], pa.uint64()),
            "f32": pa.array([i * 0.5 for i in count], pa.float32()),
            "f64": pa.array([i * 0.25 for i in count], pa.float64()),
            "day": pa.array([i for i in count], pa.date32()),
            "words": pa.array([[text(i)] for i in count], pa.list_(pa.string())),
        }
    )


def write(name, table, **options):
    settings = dict(
        compression="none",
        use_dictionary=False,
        data_page_version="1.0",
        data_page_size=600,
        write_batch_size=4,
        row_group_size=40,
        store_schema=False,
    )
    pq.write_table(table, HERE / f"{name}.parquet", **(settings | options))


write("nested_none", nested())
write("nested_none_v2", nested(), data_page_version="2.0")
write("nested_snappy", nested(), compression="snappy")
write("nested_zstd_v2", nested(), compression="zstd", data_page_version="2.0")
write("nested_gzip", nested(), compression="gzip")
write("nested_lz4_v2", nested(), compression="lz4", data_page_version="2.0")
write("nested_fallback", nested(), compression="snappy", use_dictionary=True, dictionary_pagesize_limit=500)
write("nested_index", nested(), compression="snappy", write_page_index=True)
encodings = {"audio.bytes": "DELTA_LENGTH_BYTE_ARRAY", "text": "DELTA_BYTE_ARRAY"}
write("nested_delta_length", nested(), column_encoding=encodings)
write("flat_none", flat())
write("flat_index", flat(), compression="zstd", write_page_index=True)
write("flat_index_dictionary", flat(lambda i: value(i % 6)), use_dictionary=True, write_page_index=True)
write("flat_dictionary", flat(lambda i: value(i % 6)), compression="zstd", use_dictionary=True, data_page_version="2.0")
encodings = {"audio_data": "DELTA_BYTE_ARRAY", "text": "DELTA_LENGTH_BYTE_ARRAY"}
write("flat_delta", flat(), column_encoding=encodings, data_page_version="2.0")
write("flat_large", flat(kind=pa.large_binary()), compression="gzip", data_page_version="2.0")
write("flat_brotli", flat(), compression="brotli")
write("numbers", numbers(), compression="snappy")
write(
    "numbers_v2",
    numbers(),
    compression="zstd",
    use_dictionary=["u32", "f64"],
    data_page_version="2.0",
    column_encoding={"i64": "DELTA_BINARY_PACKED", "f32": "BYTE_STREAM_SPLIT"},
)
