//! Text tables: each column as wide as its widest cell, numbers right-aligned.

/// A text table.
pub(crate) struct TextTable {
    title: String,
    rows: Vec<Vec<String>>,
    notes: Vec<String>,
}

impl TextTable {
    /// An empty table.
    pub(crate) fn new(title: impl Into<String>, columns: &[&str]) -> TextTable {
        TextTable { title: title.into(), rows: vec![owned(columns)], notes: Vec::new() }
    }

    /// Adds a row, with one cell per column.
    pub(crate) fn row(&mut self, cells: Vec<String>) {
        assert_eq!(cells.len(), self.rows[0].len(), "a cell for every column");
        self.rows.push(cells);
    }

    /// Adds a line below the table.
    pub(crate) fn note(&mut self, line: impl Into<String>) {
        self.notes.push(line.into());
    }

    /// Formats the table.
    pub(crate) fn show(&self) -> String {
        let width = |column: usize| self.rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
        let widths: Vec<usize> = (0..self.rows[0].len()).map(width).collect();
        let mut text = format!("{}\n", self.title);
        for row in self.rows.iter().filter(|row| row.iter().any(|cell| !cell.is_empty())) {
            let mut line = format!("  {:<1$}", row[0], widths[0]);
            for (cell, width) in row.iter().zip(&widths).skip(1) {
                line += &format!("  {cell:>width$}");
            }
            text += line.trim_end();
            text += "\n";
        }
        self.notes.iter().for_each(|line| text += &format!("  {line}\n"));
        text
    }
}

fn owned(cells: &[&str]) -> Vec<String> {
    cells.iter().map(|cell| (*cell).to_owned()).collect()
}

/// Marks a goal as met or missed; empty where there is none.
pub(crate) fn sign(met: Option<bool>) -> String {
    match met {
        Some(true) => "✅".to_owned(),
        Some(false) => "⚠️".to_owned(),
        None => String::new(),
    }
}

/// `12.3 %`
pub(crate) fn percent(share: f64) -> String {
    format!("{:.1} %", share * 100.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_as_wide_as_their_widest_cell() {
        let mut table = TextTable::new("Title", &["name", "µs", "goal"]);
        table.row(vec!["a long name".to_owned(), "1.5".to_owned(), sign(Some(true))]);
        table.row(vec!["b".to_owned(), "12.25".to_owned(), sign(None)]);
        table.note("below");
        assert_eq!(
            table.show(),
            "Title\n  name            µs  goal\n  a long name    1.5     ✅\n  b            12.25\n  below\n"
        );
    }
}
