//! The columns of a schema, and how many buffers each of its fields has in a record batch.
//!
//! A batch lists field nodes and buffers in depth-first order of the schema and does not say whose they are. Every field
//! has one node, so the number of a field among all is the number of its node; its buffers come after those of all fields
//! before it.

use arrow_ipc::{Endianness, Field, MetadataVersion, Schema, Type, UnionMode};

use super::number::NumberFormat;
use crate::fault::ShardFault;
use crate::table::{ColumnKind, TableColumn};

/// What a schema says.
pub(super) struct ArrowSchema {
    /// What can be asked for.
    pub(super) columns: Vec<TableColumn>,
    /// Where each of `columns` is.
    pub(super) leaves: Vec<ArrowLeaf>,
    /// All fields, depth first.
    pub(super) fields: Vec<FieldBuffers>,
}

/// The buffers of a field, without those of its children.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FieldBuffers {
    pub(super) count: usize,
    /// Whether each batch says how many more there are.
    pub(super) is_view: bool,
}

/// A column that has values of its own.
pub(super) struct ArrowLeaf {
    /// Its number among all fields.
    pub(super) field: usize,
    /// The structs around it. Where one of them is null, so is the column.
    pub(super) structs: Vec<usize>,
    pub(super) encoding: ArrowEncoding,
}

/// How the values of a column are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ArrowEncoding {
    /// Strings, with offsets of 64 bits if `is_large`.
    Text { is_large: bool },
    /// Lists of strings. The items are the next field.
    TextList { is_large: bool, has_large_items: bool },
    /// Byte strings.
    Bytes { is_large: bool },
    /// Numbers.
    Number(NumberFormat),
    /// Numbers of strings in a dictionary.
    Coded { dictionary: i64, keys: NumberFormat, is_large: bool },
    /// Not read.
    Opaque,
}

/// Limits on what a schema may claim: its metadata can refer to one field many times.
const MAX_FIELDS: usize = 16_384;
const MAX_NAME_BYTES: usize = 1024;

impl ArrowSchema {
    /// Reads the schema in the message at `offset`.
    pub(super) fn read(schema: &Schema<'_>, version: MetadataVersion, offset: u64) -> Result<ArrowSchema, ShardFault> {
        let refuse = |reason: String| Err(ShardFault::Unsupported { reason });
        if schema.endianness() != Endianness::Little {
            return refuse(
                "expected little-endian values, found big-endian: write the file on a little-endian machine".into(),
            );
        }
        if version != MetadataVersion::V4 && version != MetadataVersion::V5 {
            return refuse(format!("expected Arrow metadata of version 4 or 5, found {}", i32::from(version.0) + 1));
        }
        let mut walk = Walk {
            schema: ArrowSchema { columns: Vec::new(), leaves: Vec::new(), fields: Vec::new() },
            structs: Vec::new(),
            has_old_validity: version == MetadataVersion::V4,
            offset,
        };
        for field in schema.fields().into_iter().flatten() {
            walk.field(&field, "", true)?;
        }
        Ok(walk.schema)
    }
}

/// A walk through the fields, depth first.
struct Walk {
    schema: ArrowSchema,
    structs: Vec<usize>,
    /// Before version 5 every type but null had a validity buffer, unions and run ends too.
    has_old_validity: bool,
    /// Of the message.
    offset: u64,
}

impl Walk {
    /// Takes in `field` and its children. `is_column`: not inside a list.
    fn field(&mut self, field: &Field<'_>, parent: &str, is_column: bool) -> Result<(), ShardFault> {
        let name = match (parent, field.name().unwrap_or("")) {
            ("", name) => name.to_owned(),
            (parent, name) => format!("{parent}.{name}"),
        };
        let number = self.schema.fields.len();
        if number == MAX_FIELDS || name.len() > MAX_NAME_BYTES {
            let reason =
                format!("expected at most {MAX_FIELDS} fields with names of {MAX_NAME_BYTES} bytes, found more");
            return Err(ShardFault::Damaged { offset: self.offset, reason });
        }
        let buffers = self.buffers(field)?;
        self.schema.fields.push(buffers);
        let is_struct = field.type_type() == Type::Struct_ && field.dictionary().is_none();
        if is_column && !is_struct {
            let encoding = encoding_of(field);
            let type_name = field.type_type().variant_name().unwrap_or("an unknown type");
            self.schema.columns.push(TableColumn { name: name.clone(), kind: encoding.kind(), type_name });
            self.schema.leaves.push(ArrowLeaf { field: number, structs: self.structs.clone(), encoding });
        }
        // The children of an encoded field are those of its dictionary.
        if field.dictionary().is_some() {
            return Ok(());
        }
        if is_struct {
            self.structs.push(number);
        }
        for child in field.children().into_iter().flatten() {
            self.field(&child, &name, is_column && is_struct)?;
        }
        if is_struct {
            self.structs.pop();
        }
        Ok(())
    }

    fn buffers(&self, field: &Field<'_>) -> Result<FieldBuffers, ShardFault> {
        let is_encoded = field.dictionary().is_some();
        let kind = field.type_type();
        let count = match kind {
            _ if is_encoded => 2,
            Type::Null => 0,
            Type::RunEndEncoded => usize::from(self.has_old_validity),
            Type::Struct_ | Type::FixedSizeList => 1,
            Type::Int | Type::FloatingPoint | Type::Bool | Type::Decimal | Type::FixedSizeBinary => 2,
            Type::Date | Type::Time | Type::Timestamp | Type::Interval | Type::Duration => 2,
            Type::List | Type::LargeList | Type::Map | Type::Utf8View | Type::BinaryView => 2,
            Type::Binary | Type::Utf8 | Type::LargeBinary | Type::LargeUtf8 => 3,
            Type::ListView | Type::LargeListView => 3,
            Type::Union => {
                let is_dense = field.type_as_union().is_some_and(|union| union.mode() == UnionMode::Dense);
                1 + usize::from(is_dense) + usize::from(self.has_old_validity)
            }
            _ => {
                let reason = format!("expected a type of Arrow, found number {} in the schema", kind.0);
                return Err(ShardFault::Unsupported { reason });
            }
        };
        Ok(FieldBuffers { count, is_view: !is_encoded && matches!(kind, Type::Utf8View | Type::BinaryView) })
    }
}

impl ArrowEncoding {
    fn kind(self) -> ColumnKind {
        match self {
            ArrowEncoding::Text { .. } | ArrowEncoding::Coded { .. } => ColumnKind::Text,
            ArrowEncoding::TextList { .. } => ColumnKind::TextList,
            ArrowEncoding::Bytes { .. } => ColumnKind::Bytes,
            ArrowEncoding::Number(_) => ColumnKind::Number,
            ArrowEncoding::Opaque => ColumnKind::Other,
        }
    }
}

fn encoding_of(field: &Field<'_>) -> ArrowEncoding {
    let kind = field.type_type();
    if let Some(dictionary) = field.dictionary() {
        // A dictionary without a type of keys has 32-bit ones.
        let keys = match dictionary.indexType() {
            Some(int) => NumberFormat::of_int(&int),
            None => Some(NumberFormat::Int { num_bytes: 4, is_signed: true }),
        };
        return match (kind, keys) {
            (Type::Utf8 | Type::LargeUtf8, Some(keys)) => {
                ArrowEncoding::Coded { dictionary: dictionary.id(), keys, is_large: kind == Type::LargeUtf8 }
            }
            _ => ArrowEncoding::Opaque,
        };
    }
    match kind {
        Type::Utf8 => ArrowEncoding::Text { is_large: false },
        Type::LargeUtf8 => ArrowEncoding::Text { is_large: true },
        Type::List | Type::LargeList => match item_encoding(field) {
            Some(ArrowEncoding::Text { is_large: has_large_items }) => {
                ArrowEncoding::TextList { is_large: kind == Type::LargeList, has_large_items }
            }
            _ => ArrowEncoding::Opaque,
        },
        Type::Binary => ArrowEncoding::Bytes { is_large: false },
        Type::LargeBinary => ArrowEncoding::Bytes { is_large: true },
        _ => NumberFormat::of(field).map_or(ArrowEncoding::Opaque, ArrowEncoding::Number),
    }
}

/// How the items of a list are stored, if they are no lists themselves: a schema may nest them deeply.
fn item_encoding(list: &Field<'_>) -> Option<ArrowEncoding> {
    let children = list.children().filter(|children| children.len() == 1)?;
    let item = children.get(0);
    (!matches!(item.type_type(), Type::List | Type::LargeList)).then(|| encoding_of(&item))
}
