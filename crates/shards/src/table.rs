//! Rows of a table, whatever file it is in.

use crate::fault::ShardFault;

/// A column that can be asked for. A field of a struct has a dotted name: `audio.bytes`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TableColumn {
    /// Its name, with dots.
    pub name: String,
    /// What it holds.
    pub kind: ColumnKind,
    /// What the file calls its type, for messages: `LIST`, `FixedSizeBinary`.
    pub type_name: &'static str,
}

/// What a column holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ColumnKind {
    /// UTF-8 strings.
    Text,
    /// Lists of UTF-8 strings. A cell is the text of the whole list: its items, one after the other.
    TextList,
    /// Integers and floating-point numbers of any width.
    Number,
    /// Byte strings.
    Bytes,
    /// Anything else: other lists (also of samples), dates, nested tables. It cannot be asked for.
    Other,
}

/// A value of a row.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Cell<'a> {
    /// No value.
    Null,
    /// A string.
    Text(&'a str),
    /// A number.
    Number(f64),
    /// Where a byte string is. Its bytes are not handed over: a recording may be large.
    Bytes(ValueAddress),
}

/// Where a byte string is in its file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ValueAddress {
    /// Arrow: its first byte, from the start of the file. Parquet: the number of its page in the page table.
    pub position: u64,
    /// Arrow: its size. Parquet: its number among the values of the page.
    pub extent: u32,
}

/// The place of the column `name`. Fails with [`ShardFault::Unsupported`] if there is none, or two.
pub(crate) fn find_column(columns: &[TableColumn], name: &str) -> Result<usize, ShardFault> {
    let mut found = columns.iter().enumerate().filter(|(_, column)| column.name == name);
    let reason = match (found.next(), found.next()) {
        (Some((at, _)), None) => return Ok(at),
        (Some(_), Some(_)) => format!("expected one column `{name}`, found two"),
        (None, _) => format!("expected a column `{name}`, found {}", names(columns)),
    };
    Err(ShardFault::Unsupported { reason })
}

/// The names of the first columns, for messages.
fn names(columns: &[TableColumn]) -> String {
    const MOST: usize = 20;
    let names: Vec<String> = columns.iter().take(MOST).map(|column| format!("`{}`", column.name)).collect();
    match columns.len() {
        0 => "no columns".to_owned(),
        count if count > MOST => format!("{} and {} more", names.join(", "), count - MOST),
        _ => names.join(", "),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn columns(names: impl Iterator<Item = String>) -> Vec<TableColumn> {
        names.map(|name| TableColumn { name, kind: ColumnKind::Text, type_name: "Utf8" }).collect()
    }

    #[test]
    fn a_column_is_found_by_its_name_alone() {
        let columns = columns(["a", "b", "b", "c"].into_iter().map(str::to_owned));
        assert_eq!(find_column(&columns, "c").unwrap(), 3);
        assert_eq!(find_column(&columns, "b").unwrap_err().to_string(), "expected one column `b`, found two");
        let reason = find_column(&columns, "d").unwrap_err().to_string();
        assert_eq!(reason, "expected a column `d`, found `a`, `b`, `b`, `c`");
        assert_eq!(find_column(&[], "d").unwrap_err().to_string(), "expected a column `d`, found no columns");
    }

    #[test]
    fn a_message_names_the_first_columns_of_many() {
        let columns = columns((0..1000).map(|number| number.to_string()));
        let reason = find_column(&columns, "d").unwrap_err().to_string();
        assert!(reason.ends_with("`18`, `19` and 980 more"), "{reason}");
    }
}
