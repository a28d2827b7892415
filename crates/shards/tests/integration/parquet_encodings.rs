//! What the `parquet` crate writes, in every encoding and both versions of pages, is what we read.
#![allow(clippy::unwrap_used, reason = "in a test, a failed unwrap is a failed test")]

use std::sync::Arc;

use ::parquet::basic::{Compression, Encoding};
use ::parquet::data_type::{ByteArray, ByteArrayType, DataType, DoubleType, FloatType, Int32Type, Int64Type};
use ::parquet::file::properties::{WriterProperties, WriterVersion};
use ::parquet::file::writer::SerializedFileWriter;
use ::parquet::schema::parser::parse_message_type;
use proptest::prelude::*;
use tandem_shards::WantedForm;

use crate::damage::cases;
use crate::parquet::{rows, wanted};
use crate::support::OwnedCell;

/// How a file is written.
#[derive(Clone, Debug)]
struct Style {
    version: WriterVersion,
    compression: Compression,
    has_dictionary: bool,
    page_bytes: usize,
    group_rows: usize,
}

fn style() -> impl Strategy<Value = Style> {
    let version = prop::sample::select(&[WriterVersion::PARQUET_1_0, WriterVersion::PARQUET_2_0][..]);
    let compression = prop::sample::select(&[Compression::UNCOMPRESSED, Compression::SNAPPY][..]);
    (version, compression, any::<bool>(), 10_usize..2000, 1_usize..200).prop_map(
        |(version, compression, has_dictionary, page_bytes, group_rows)| Style {
            version,
            compression,
            has_dictionary,
            page_bytes,
            group_rows,
        },
    )
}

/// A file of one column `x` that may be null, inside a group that may be null.
fn write<T: DataType>(kind: &str, values: &[Option<T::T>], encoding: Encoding, style: &Style) -> Vec<u8> {
    let schema = parse_message_type(&format!("message m {{ optional group g {{ optional {kind} x; }} }}")).unwrap();
    let properties = WriterProperties::builder()
        .set_writer_version(style.version)
        .set_compression(style.compression)
        .set_dictionary_enabled(style.has_dictionary)
        .set_encoding(encoding)
        .set_data_page_size_limit(style.page_bytes)
        .set_dictionary_page_size_limit(400)
        .set_write_batch_size(7)
        .build();
    let mut file = SerializedFileWriter::new(Vec::new(), Arc::new(schema), Arc::new(properties)).unwrap();
    for group in values.chunks(style.group_rows) {
        let mut out = file.next_row_group().unwrap();
        let mut column = out.next_column().unwrap().unwrap();
        // A group without the value and no group at all are both null.
        let level = |(at, value): (usize, &Option<T::T>)| if value.is_some() { 2 } else { (at % 2) as i16 };
        let levels: Vec<i16> = group.iter().enumerate().map(level).collect();
        let values: Vec<T::T> = group.iter().flatten().cloned().collect();
        column.typed::<T>().write_batch(&values, Some(&levels), None).unwrap();
        column.close().unwrap();
        out.close().unwrap();
    }
    file.into_inner().unwrap()
}

/// Reads the file as numbers.
fn check_numbers<T: DataType>(
    kind: &str,
    values: &[Option<T::T>],
    encoding: Encoding,
    style: &Style,
    number: impl Fn(&T::T) -> f64,
) -> Result<(), TestCaseError> {
    let bytes = write::<T>(kind, values, encoding, style);
    let (found, _) = rows(&bytes, &[wanted("g.x", WantedForm::Number)]).unwrap();
    let bits = |cell: &OwnedCell| match cell {
        OwnedCell::Number(number) => Some(number.to_bits()),
        _ => None,
    };
    let found: Vec<_> = found.iter().map(|row| bits(&row[0])).collect();
    let expected: Vec<_> = values.iter().map(|value| value.as_ref().map(|value| number(value).to_bits())).collect();
    prop_assert_eq!(found, expected, "{} {:?}", kind, encoding);
    Ok(())
}

proptest! {
    #![proptest_config(cases(300))]

    #[test]
    fn byte_strings_are_read_as_text_and_by_address(
        // Few distinct ones, so that dictionaries and common beginnings occur.
        texts in prop::collection::vec(prop::option::of("(common |)[ab]{0,3}[é€]{0,20}"), 1..300),
        style in style(),
    ) {
        let values: Vec<Option<ByteArray>> =
            texts.iter().map(|text| text.as_deref().map(ByteArray::from)).collect();
        for encoding in [Encoding::PLAIN, Encoding::DELTA_LENGTH_BYTE_ARRAY, Encoding::DELTA_BYTE_ARRAY] {
            let bytes = write::<ByteArrayType>("binary", &values, encoding, &style);
            let columns = [wanted("g.x", WantedForm::Text), wanted("g.x", WantedForm::Address)];
            let (found, pages) = rows(&bytes, &columns).unwrap();
            prop_assert_eq!(found.len(), texts.len());
            let mut out = Vec::new();
            for (row, text) in found.iter().zip(&texts) {
                match (text, &row[..]) {
                    (None, [OwnedCell::Null, OwnedCell::Null]) => {}
                    (Some(text), [OwnedCell::Text(found), OwnedCell::Bytes(address)]) => {
                        prop_assert_eq!(found, text);
                        pages.read_value(&bytes, *address, &mut out).unwrap();
                        prop_assert_eq!(&out, text.as_bytes());
                    }
                    other => prop_assert!(false, "{:?}", other),
                }
            }
        }
    }

    #[test]
    fn numbers_are_read_exactly(
        values in prop::collection::vec(prop::option::of(prop_oneof![any::<i64>(), -9_i64..9]), 1..300),
        style in style(),
    ) {
        use Encoding::{BYTE_STREAM_SPLIT, DELTA_BINARY_PACKED, PLAIN};
        let narrow: Vec<Option<i32>> = values.iter().map(|value| value.map(|value| value as i32)).collect();
        for encoding in [PLAIN, DELTA_BINARY_PACKED, BYTE_STREAM_SPLIT] {
            check_numbers::<Int64Type>("int64", &values, encoding, &style, |value| *value as f64)?;
            check_numbers::<Int32Type>("int32", &narrow, encoding, &style, |value| f64::from(*value))?;
        }
        let singles: Vec<Option<f32>> = values.iter().map(|value| value.map(|value| value as f32 / 3.0)).collect();
        let doubles: Vec<Option<f64>> = values.iter().map(|value| value.map(|value| value as f64 / 3.0)).collect();
        for encoding in [PLAIN, BYTE_STREAM_SPLIT] {
            check_numbers::<FloatType>("float", &singles, encoding, &style, |value| f64::from(*value))?;
            check_numbers::<DoubleType>("double", &doubles, encoding, &style, |value| *value)?;
        }
    }
}
