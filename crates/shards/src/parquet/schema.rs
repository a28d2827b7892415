//! The columns of a Parquet file.
//!
//! The schema is a tree in depth-first order: each element says how many of the following ones are its children. Its
//! leaves are the column chunks of a row group, in the same order.

use super::compact::{CompactFault, CompactReader};
use super::number_values::NumberKind;
use super::schema_element::{Annotation, SchemaElement};
use crate::table::{ColumnKind, TableColumn};

/// Limits on what a schema may claim. Each leaf carries the names of all groups around it.
const MOST_ELEMENTS: usize = 16_384;
const MOST_DEPTH: usize = 32;
const MOST_NAME_BYTES: usize = 1024;

/// What a schema says.
#[derive(Debug, Default)]
pub(super) struct ParquetSchema {
    /// What can be asked for.
    pub(super) columns: Vec<TableColumn>,
    /// Where each of `columns` is.
    pub(super) leaves: Vec<ParquetLeaf>,
    /// The physical type of each column chunk of a row group, by its number in the format.
    pub(super) chunk_types: Vec<u32>,
}

/// A column and how it can be read.
#[derive(Clone, Debug)]
pub(super) struct ParquetLeaf {
    /// Its number among the column chunks of a row group.
    pub(super) chunk: usize,
    /// The definition level of a row that has a value.
    pub(super) max_level: u8,
    /// None if its values are not read.
    pub(super) values: Option<LeafValues>,
}

/// Values that are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LeafValues {
    /// Byte strings, which may be text.
    Bytes,
    Numbers(NumberKind),
}

/// A group whose children are still to come.
struct OpenGroup {
    children_left: u32,
    /// Where its own name ends in the path.
    path_bytes: usize,
    max_level: u8,
    annotation: Annotation,
    /// It is inside a list: the whole list is one column, which is already there.
    is_repeated: bool,
}

impl ParquetSchema {
    /// Reads the list of elements. Reserves memory as they come, not as many as are claimed.
    pub(super) fn read(reader: &mut CompactReader<'_>, kind: u8) -> Result<ParquetSchema, CompactFault> {
        let count = reader.structs(kind)?;
        if count == 0 || count > MOST_ELEMENTS {
            return Err(CompactFault::Wrong("its schema has no columns and groups, or more than 16384"));
        }
        let root = SchemaElement::read(reader)?;
        let mut walk = Walk { schema: ParquetSchema::default(), path: String::new(), open: Vec::new() };
        walk.open.push(OpenGroup {
            children_left: root.num_children,
            path_bytes: 0,
            max_level: 0,
            annotation: Annotation::None,
            is_repeated: false,
        });
        for _ in 1..count {
            walk.close_full_groups();
            walk.element(&SchemaElement::read(reader)?)?;
        }
        walk.close_full_groups();
        match walk.open.is_empty() {
            true => Ok(walk.schema),
            false => Err(CompactFault::Wrong("a group of its schema claims more columns than there are")),
        }
    }
}

struct Walk {
    schema: ParquetSchema,
    /// The names of all open groups, with dots.
    path: String,
    open: Vec<OpenGroup>,
}

impl Walk {
    fn close_full_groups(&mut self) {
        while self.open.last().is_some_and(|group| group.children_left == 0) {
            self.open.pop();
        }
        self.path.truncate(self.open.last().map_or(0, |group| group.path_bytes));
    }

    fn element(&mut self, element: &SchemaElement<'_>) -> Result<(), CompactFault> {
        let depth = self.open.len();
        let Some(parent) = self.open.last_mut() else {
            return Err(CompactFault::Wrong("its schema has columns that belong to no group"));
        };
        parent.children_left -= 1;
        if self.path.len() + 1 + element.name.len() > MOST_NAME_BYTES || depth > MOST_DEPTH {
            return Err(CompactFault::Wrong("its schema is nested too deeply or has names of more than 1024 bytes"));
        }
        if !self.path.is_empty() {
            self.path.push('.');
        }
        self.path.push_str(element.name);
        let begins_list = element.is_repeated && !parent.is_repeated;
        if begins_list {
            // A list is a group with a repeated one inside: its own name is that of the outer one.
            let (name, type_name) = match parent.annotation {
                Annotation::List => (&self.path[..parent.path_bytes], "LIST"),
                Annotation::Map => (&self.path[..parent.path_bytes], "MAP"),
                _ => (self.path.as_str(), "repeated"),
            };
            self.schema.columns.push(TableColumn { name: name.to_owned(), kind: ColumnKind::Other, type_name });
            let chunk = self.schema.chunk_types.len();
            self.schema.leaves.push(ParquetLeaf { chunk, max_level: 0, values: None });
        }
        let is_repeated = parent.is_repeated || element.is_repeated;
        let max_level = parent.max_level + u8::from(element.is_optional || element.is_repeated);
        match element.physical_type {
            Some(physical_type) if element.num_children == 0 => {
                if !is_repeated {
                    self.leaf(physical_type, element.annotation, max_level);
                }
                self.schema.chunk_types.push(physical_type);
            }
            _ => self.open.push(OpenGroup {
                children_left: element.num_children,
                path_bytes: self.path.len(),
                max_level,
                annotation: element.annotation,
                is_repeated,
            }),
        }
        Ok(())
    }

    /// A column of one value per row.
    fn leaf(&mut self, physical_type: u32, annotation: Annotation, max_level: u8) {
        let (kind, values) = match physical_type {
            BYTE_ARRAY => match bytes_kind(annotation) {
                ColumnKind::Other => (ColumnKind::Other, None),
                kind => (kind, Some(LeafValues::Bytes)),
            },
            other => match number_kind(other, annotation) {
                Some(number) => (ColumnKind::Number, Some(LeafValues::Numbers(number))),
                None => (ColumnKind::Other, None),
            },
        };
        let type_name = annotation.name().unwrap_or_else(|| physical_name(physical_type));
        self.schema.columns.push(TableColumn { name: self.path.clone(), kind, type_name });
        self.schema.leaves.push(ParquetLeaf { chunk: self.schema.chunk_types.len(), max_level, values });
    }
}

/// Number of the type of byte strings in the format.
const BYTE_ARRAY: u32 = 6;

fn physical_name(physical_type: u32) -> &'static str {
    const NAMES: [&str; 8] =
        ["BOOLEAN", "INT32", "INT64", "INT96", "FLOAT", "DOUBLE", "BYTE_ARRAY", "FIXED_LEN_BYTE_ARRAY"];
    NAMES.get(physical_type as usize).copied().unwrap_or("an unknown type")
}

fn bytes_kind(annotation: Annotation) -> ColumnKind {
    match annotation {
        Annotation::Text(_) => ColumnKind::Text,
        Annotation::None | Annotation::Bson => ColumnKind::Bytes,
        _ => ColumnKind::Other,
    }
}

fn number_kind(physical_type: u32, annotation: Annotation) -> Option<NumberKind> {
    let is_signed = match annotation {
        Annotation::None => true,
        Annotation::Integer { is_signed } => is_signed,
        _ => return None,
    };
    match (physical_type, is_signed) {
        (1, true) => Some(NumberKind::I32),
        (1, false) => Some(NumberKind::U32),
        (2, true) => Some(NumberKind::I64),
        (2, false) => Some(NumberKind::U64),
        (4, _) => Some(NumberKind::F32),
        (5, _) => Some(NumberKind::F64),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::super::compact::LIST;
    use super::*;

    /// Name, children, repetition, physical type, annotation by its old number.
    type Element<'a> = (&'a str, u8, u8, Option<u8>, Option<u8>);

    fn schema(elements: &[Element<'_>]) -> Result<ParquetSchema, CompactFault> {
        let mut bytes = vec![0xfc];
        let mut count = elements.len();
        while count >= 0x80 {
            bytes.push(count as u8 | 0x80);
            count >>= 7;
        }
        bytes.push(count as u8);
        for (name, children, repetition, physical, converted) in elements {
            if let Some(physical) = physical {
                bytes.extend([0x05, 2, physical * 2]);
            }
            bytes.extend([0x05, 6, repetition * 2, 0x18, name.len() as u8]);
            bytes.extend(name.as_bytes());
            bytes.extend([0x15, children * 2]);
            if let Some(converted) = converted {
                bytes.extend([0x15, converted * 2]);
            }
            bytes.push(0);
        }
        ParquetSchema::read(&mut CompactReader::new(&bytes), LIST)
    }

    const TEXT: Option<u8> = Some(0);
    const BYTES: Option<u8> = Some(6);

    #[test]
    fn leaves_have_dotted_names_levels_and_chunks() {
        let schema = schema(&[
            ("root", 3, 0, None, None),
            ("audio", 2, 1, None, None),
            ("bytes", 0, 1, BYTES, None),
            ("path", 0, 0, BYTES, TEXT),
            ("samples", 1, 1, None, Some(3)),
            ("list", 1, 2, None, None),
            ("element", 0, 1, Some(4), None),
            ("seconds", 0, 0, Some(5), None),
        ])
        .unwrap();
        let found: Vec<_> = (schema.columns.iter().zip(&schema.leaves))
            .map(|(column, leaf)| (column.name.as_str(), column.kind, column.type_name, leaf.chunk, leaf.max_level))
            .collect();
        assert_eq!(
            found,
            [
                ("audio.bytes", ColumnKind::Bytes, "BYTE_ARRAY", 0, 2),
                ("audio.path", ColumnKind::Text, "UTF8", 1, 1),
                ("samples", ColumnKind::Other, "LIST", 2, 0),
                ("seconds", ColumnKind::Number, "DOUBLE", 3, 0),
            ]
        );
        assert_eq!(schema.chunk_types, [6, 6, 4, 5]);
    }

    #[test]
    fn a_repeated_column_without_a_list_around_it_has_its_own_name() {
        let schema =
            schema(&[("root", 2, 0, None, None), ("samples", 0, 2, Some(4), None), ("x", 0, 0, BYTES, None)]).unwrap();
        let names: Vec<_> = schema.columns.iter().map(|column| (column.name.as_str(), column.type_name)).collect();
        assert_eq!(names, [("samples", "repeated"), ("x", "BYTE_ARRAY")]);
        assert_eq!(schema.leaves[1].chunk, 1);
    }

    #[test]
    fn a_schema_is_one_tree_of_bounded_depth_and_size() {
        let wrong = |elements: &[_]| assert!(matches!(schema(elements), Err(CompactFault::Wrong(_))));
        let group = |children| ("g", children, 1, None, None);
        let leaf = ("x", 0, 1, BYTES, None);
        wrong(&[group(2), leaf]);
        wrong(&[group(1), leaf, leaf]);
        wrong(&[group(0), leaf]);
        wrong(&[]);
        assert!(schema(&[group(0)]).unwrap().columns.is_empty());

        let nested = |depth| [vec![group(1); depth], vec![leaf]].concat();
        assert!(schema(&nested(32)).is_ok());
        wrong(&nested(33));
        wrong(&nested(10_000));
        wrong(&vec![group(1); MOST_ELEMENTS + 1]);

        let long = "n".repeat(120);
        let named = |depth| [vec![(long.as_str(), 1, 1, None, None); depth], vec![leaf]].concat();
        assert!(schema(&named(8)).is_ok());
        wrong(&named(10));
    }
}
