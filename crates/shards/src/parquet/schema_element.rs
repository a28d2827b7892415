//! One element of a schema: a group or a column.

use super::compact::{BOOL_FALSE, BOOL_TRUE, CompactFault, CompactReader, STRUCT, expect};

/// A group or a column.
pub(super) struct SchemaElement<'a> {
    pub(super) name: &'a str,
    /// The type of a column by its number in the format; groups have none.
    pub(super) physical_type: Option<u32>,
    pub(super) num_children: u32,
    pub(super) is_optional: bool,
    pub(super) is_repeated: bool,
    pub(super) annotation: Annotation,
}

/// What the values or the group mean.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Annotation {
    /// Nothing else than the physical type says.
    None,
    /// Strings, by the name of the annotation.
    Text(&'static str),
    Bson,
    Integer {
        is_signed: bool,
    },
    List,
    Map,
    /// Dates, decimals and others, which are not read.
    Other(&'static str),
}

impl Annotation {
    /// Its name in the format.
    pub(super) fn name(self) -> Option<&'static str> {
        match self {
            Annotation::None => None,
            Annotation::Text(name) | Annotation::Other(name) => Some(name),
            Annotation::Bson => Some("BSON"),
            Annotation::Integer { is_signed: true } => Some("INTEGER"),
            Annotation::Integer { is_signed: false } => Some("UINTEGER"),
            Annotation::List => Some("LIST"),
            Annotation::Map => Some("MAP"),
        }
    }

    /// The older annotation with this number in the format.
    fn of_converted(number: u32) -> Annotation {
        match number {
            0 => Annotation::Text("UTF8"),
            1 | 2 => Annotation::Map,
            3 => Annotation::List,
            4 => Annotation::Text("ENUM"),
            5 => Annotation::Other("DECIMAL"),
            6 => Annotation::Other("DATE"),
            7 | 8 => Annotation::Other("TIME"),
            9 | 10 => Annotation::Other("TIMESTAMP"),
            11..=14 => Annotation::Integer { is_signed: false },
            15..=18 => Annotation::Integer { is_signed: true },
            19 => Annotation::Text("JSON"),
            20 => Annotation::Bson,
            21 => Annotation::Other("INTERVAL"),
            _ => Annotation::Other("an unknown type"),
        }
    }

    /// The current annotation: a struct of which one field is set.
    fn read_logical(reader: &mut CompactReader<'_>, kind: u8) -> Result<Annotation, CompactFault> {
        expect(kind, STRUCT)?;
        let mut found = Annotation::Other("an unknown type");
        let mut last = 0;
        while let Some((field, kind)) = reader.field(&mut last)? {
            found = match field {
                1 => Annotation::Text("STRING"),
                2 => Annotation::Map,
                3 => Annotation::List,
                4 => Annotation::Text("ENUM"),
                5 => Annotation::Other("DECIMAL"),
                6 => Annotation::Other("DATE"),
                7 => Annotation::Other("TIME"),
                8 => Annotation::Other("TIMESTAMP"),
                10 => {
                    found = Annotation::Integer { is_signed: read_is_signed(reader, kind)? };
                    continue;
                }
                12 => Annotation::Text("JSON"),
                13 => Annotation::Bson,
                14 => Annotation::Other("UUID"),
                15 => Annotation::Other("FLOAT16"),
                _ => Annotation::Other("an unknown type"),
            };
            reader.skip(kind)?;
        }
        Ok(found)
    }
}

fn read_is_signed(reader: &mut CompactReader<'_>, kind: u8) -> Result<bool, CompactFault> {
    expect(kind, STRUCT)?;
    let mut is_signed = true;
    let mut last = 0;
    while let Some((field, kind)) = reader.field(&mut last)? {
        match (field, kind) {
            (2, BOOL_TRUE | BOOL_FALSE) => is_signed = kind == BOOL_TRUE,
            _ => reader.skip(kind)?,
        }
    }
    Ok(is_signed)
}

impl<'a> SchemaElement<'a> {
    pub(super) fn read(reader: &mut CompactReader<'a>) -> Result<SchemaElement<'a>, CompactFault> {
        let mut element = SchemaElement {
            name: "",
            physical_type: None,
            num_children: 0,
            is_optional: false,
            is_repeated: false,
            annotation: Annotation::None,
        };
        let (mut converted, mut logical) = (None, None);
        let mut last = 0;
        while let Some((field, kind)) = reader.field(&mut last)? {
            match field {
                1 => element.physical_type = Some(reader.count(kind)?),
                3 => {
                    let repetition = reader.count(kind)?;
                    (element.is_optional, element.is_repeated) = (repetition == 1, repetition == 2);
                }
                4 => {
                    element.name = str::from_utf8(reader.binary(kind)?)
                        .map_err(|_| CompactFault::Wrong("a column has a name that is not UTF-8"))?;
                }
                5 => element.num_children = reader.count(kind)?,
                6 => converted = Some(Annotation::of_converted(reader.count(kind)?)),
                10 => logical = Some(Annotation::read_logical(reader, kind)?),
                _ => reader.skip(kind)?,
            }
        }
        element.annotation = logical.or(converted).unwrap_or(Annotation::None);
        Ok(element)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_current_annotation_counts_more_than_the_older_one() {
        let check = |bytes: &[u8], expected| {
            let element = SchemaElement::read(&mut CompactReader::new(bytes)).unwrap();
            assert_eq!((element.name, element.annotation), ("a", expected));
        };
        check(&[0x48, 1, b'a', 0], Annotation::None);
        check(&[0x48, 1, b'a', 0x25, 24, 0], Annotation::Integer { is_signed: false });
        // An integer of eight bits with a sign, beside the older annotation for strings.
        check(&[0x48, 1, b'a', 0x25, 0, 0x4c, 0xac, 0x13, 8, 0x11, 0, 0, 0], Annotation::Integer { is_signed: true });
        check(&[0x48, 1, b'a', 0x6c, 0x1c, 0, 0, 0], Annotation::Text("STRING"));
        check(&[0x48, 1, b'a', 0x6c, 0x0c, 60, 0, 0, 0], Annotation::Other("an unknown type"));
    }

    #[test]
    fn a_name_is_text() {
        assert!(SchemaElement::read(&mut CompactReader::new(&[0x48, 1, 0xff, 0])).is_err());
    }
}
