//! The list of a batch: `id|text[|speaker[|lang]]` on each line, as in a corpus.

use crate::exit::Exit;

/// Lines that a message lists.
const MAX_LISTED: usize = 8;
/// Bytes of an id: with `.wav`, the longest file name that common file systems allow has 255.
const MAX_ID_BYTES: usize = 200;
/// What a header calls the columns, in order.
const HEADER: [&str; 4] = ["id", "text", "speaker", "lang"];

/// The rows of a list. Holding one means that every id is a file name of its own.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct BatchList {
    pub(super) rows: Vec<BatchRow>,
    /// Lines that are no rows.
    pub(super) faults: Vec<RowFault>,
}

/// A text to speak.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct BatchRow {
    pub(super) line: usize,
    pub(super) id: String,
    pub(super) text: String,
    pub(super) speaker: Option<String>,
    pub(super) lang: Option<String>,
}

/// A row that was not spoken.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct RowFault {
    pub(super) line: usize,
    pub(super) id: String,
    pub(super) reason: String,
}

impl BatchList {
    /// Reads a list. Empty lines and a header are skipped.
    ///
    /// Fails if an id is no file name, or is there twice, with all of them.
    pub(super) fn parse(text: &str) -> Result<BatchList, Exit> {
        let mut list = BatchList { rows: Vec::new(), faults: Vec::new() };
        let lines = text.lines().enumerate().map(|(index, line)| (index + 1, line));
        for (place, (line, text)) in lines.filter(|(_, text)| !text.trim().is_empty()).enumerate() {
            let columns: Vec<&str> = text.split('|').map(str::trim).collect();
            if place == 0 && is_header(&columns) {
                continue;
            }
            match row(line, &columns) {
                Ok(row) => list.rows.push(row),
                Err(fault) => list.faults.push(fault),
            }
        }
        if list.rows.is_empty() && list.faults.is_empty() {
            return Err(Exit::Usage("❌ --batch: the list has no rows: expected id|text on each line".to_owned()));
        }
        let bad = bad_ids(&list);
        if !bad.is_empty() {
            return Err(refused(&bad));
        }
        Ok(list)
    }
}

fn is_header(columns: &[&str]) -> bool {
    columns.len() >= 2 && columns.iter().zip(HEADER).all(|(column, name)| column.eq_ignore_ascii_case(name))
}

fn row(line: usize, columns: &[&str]) -> Result<BatchRow, RowFault> {
    let id = columns.first().copied().unwrap_or_default().to_owned();
    let fault = |reason: String| RowFault { line, id: id.clone(), reason };
    if !(2..=HEADER.len()).contains(&columns.len()) {
        return Err(fault(format!("expected id|text[|speaker[|lang]], found {} columns", columns.len())));
    }
    let optional = |place: usize| columns.get(place).filter(|column| !column.is_empty()).map(ToString::to_string);
    Ok(BatchRow { line, id, text: columns[1].to_owned(), speaker: optional(2), lang: optional(3) })
}

/// Ids that cannot name a file, or would name the same one, with their lines.
fn bad_ids(list: &BatchList) -> Vec<String> {
    let mut lines: Vec<(&str, usize)> = list.rows.iter().map(|row| (row.id.as_str(), row.line)).collect();
    lines.sort_unstable();
    let twice = lines.windows(2).filter(|pair| pair[0].0 == pair[1].0);
    let twice = twice.map(|pair| (pair[1].1, format!("id {:?} is also in line {}", pair[1].0, pair[0].1)));
    let unsafe_names = list.rows.iter().filter_map(|row| Some((row.line, not_a_name(&row.id)?)));
    let mut bad: Vec<(usize, String)> = unsafe_names.chain(twice).collect();
    bad.sort_unstable();
    bad.into_iter().map(|(line, why)| format!("line {line}: {why}")).collect()
}

/// Why an id is no file name.
fn not_a_name(id: &str) -> Option<String> {
    let why = if id.is_empty() {
        return Some("no id before the first |".to_owned());
    } else if id.len() > MAX_ID_BYTES {
        format!("has {} bytes, more than {MAX_ID_BYTES}", id.len())
    } else if id.contains(['/', '\\']) {
        "is a path".to_owned()
    } else if id.starts_with('.') {
        "begins with a dot".to_owned()
    } else if id.contains(char::is_control) {
        "has a control character".to_owned()
    } else {
        return None;
    };
    let shown: String = id.chars().take(40).collect();
    Some(format!("id {shown:?} is no file name: it {why}"))
}

fn refused(bad: &[String]) -> Exit {
    let mut text = format!("❌ --batch: the id of each row names its file, and {} cannot:", bad.len());
    for line in bad.iter().take(MAX_LISTED) {
        text += &format!("\n   {line}");
    }
    if bad.len() > MAX_LISTED {
        text += &format!("\n   and {} more", bad.len() - MAX_LISTED);
    }
    Exit::Usage(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_have_two_to_four_columns() {
        let list =
            BatchList::parse("id|text|speaker\r\n\r\na1| Good morning. |ada|en\r\nb2|Hi||\r\nno text\r\na|b|c|d|e\n");
        let list = list.unwrap();
        let row = |line, id: &str, text: &str, speaker: Option<&str>| BatchRow {
            line,
            id: id.into(),
            text: text.into(),
            speaker: speaker.map(Into::into),
            lang: speaker.map(|_| "en".into()),
        };
        assert_eq!(list.rows, [row(3, "a1", "Good morning.", Some("ada")), row(4, "b2", "Hi", None)]);
        let reasons: Vec<String> =
            list.faults.iter().map(|fault| format!("{}: {}", fault.line, fault.reason)).collect();
        assert_eq!(
            reasons,
            ["5", "6"].map(|line| {
                let columns = if line == "5" { 1 } else { 5 };
                format!("{line}: expected id|text[|speaker[|lang]], found {columns} columns")
            })
        );
    }

    #[test]
    fn ids_that_name_no_file_of_their_own_are_all_named() {
        let long = "x".repeat(201);
        let text = format!("../a|x\nb/c|x\n.hidden|x\n|x\n{long}|x\na\tb|x\ngood|x\ngood|x\nC:\\x|x");
        let Err(Exit::Usage(message)) = BatchList::parse(&text) else { panic!("not refused") };
        for part in [
            "8 cannot",
            "line 1: id \"../a\" is no file name: it is a path",
            "line 2: ",
            "line 3: id \".hidden\" is no file name: it begins with a dot",
            "line 4: no id before the first |",
            "has 201 bytes, more than 200",
            "line 6: id \"a\\tb\" is no file name: it has a control character",
            "line 8: id \"good\" is also in line 7",
            "line 9: ",
        ] {
            assert!(message.contains(part), "{part} in {message}");
        }
        assert!(BatchList::parse(" \n").is_err());
        assert!(BatchList::parse("id|text\n").is_err());
    }
}
