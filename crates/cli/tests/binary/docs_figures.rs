//! The figures that the docs quote are those of this program, to the digit.
//!
//! A `console` block with `<!-- figures -->` on the line before it is checked: each line that starts with `$ ` is run, and the
//! lines below it are lines of its output, in this order. `...` stands for any lines. A line that ends in `…` is the start of a
//! line, for figures that depend on the machine. `<!-- figures, after: COMMAND -->` runs COMMAND first, in the same folder.
//! The table after `<!-- flags -->` lists all settings.
//!
//! To update the pages after a change:
//!
//!     TANDEM_UPDATE_DOCS=1 cargo test -p tandem-cli --test binary docs_figures

use std::env;
use std::fs;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use tandem_plan::setting::{SETTINGS, Setting, SettingKind};

/// The pages with figures. The Persian page has the same blocks as the English one.
const PAGES: [&str; 3] = ["plan.md", "quick-start.md", "fa/quick-start.md"];

#[test]
fn figures_and_flags_in_the_docs_are_those_of_the_program() {
    for name in PAGES {
        let mut page = Page::read(name);
        let blocks = page.blocks();
        assert!(blocks.len() >= 2, "docs/{name} has figures");
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("figures-{}", name.replace('/', "-")));
        blocks.iter().for_each(|block| page.check(block, &folder));
        page.check_flags();
        page.finish();
    }
}

fn table_row(setting: &Setting) -> String {
    let several = if setting.takes_several() { "..." } else { "" };
    let value = setting.value_name().map(|name| format!(" <{name}>{several}")).unwrap_or_default();
    let off = setting.off_flag().map(|off| format!(", `--{off}`")).unwrap_or_default();
    let choices = match setting.kind {
        SettingKind::Choice(words) => format!(". Values: {}", words.join(", ")),
        _ => String::new(),
    };
    format!("| `--{}{value}`{off} | {} | {}{choices} |", setting.flag, setting.default_text(), setting.help_text())
}

struct Page {
    path: PathBuf,
    lines: Vec<String>,
    /// Lines whose figures differ; an update corrects them.
    outdated: Vec<String>,
    /// Lines that the program does not print; someone has to rewrite them.
    missing: Vec<String>,
}

/// A marked block of a page.
struct Block {
    /// Run before the commands of the block.
    setup: Option<String>,
    lines: Range<usize>,
    /// Width of the indentation of its fence.
    indent: usize,
}

impl Page {
    fn read(name: &str) -> Page {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs").join(name);
        let text = fs::read_to_string(&path).unwrap_or_else(|error| panic!("docs/{name}: {error}"));
        let lines = text.lines().map(str::to_owned).collect();
        Page { path, lines, outdated: Vec::new(), missing: Vec::new() }
    }

    fn blocks(&self) -> Vec<Block> {
        let marked = self.lines.iter().enumerate().filter(|(_, line)| line.trim().starts_with("<!-- figures"));
        let block = |(at, marker): (usize, &String)| {
            let setup = marker.trim().strip_prefix("<!-- figures, after: ").and_then(|rest| rest.strip_suffix(" -->"));
            let (first, fence) = (at + 2, &self.lines[at + 1]);
            assert_eq!(fence.trim(), "```console", "a block follows {marker}");
            let length = self.lines[first..].iter().position(|line| line.trim() == "```").expect("the block ends");
            let indent = fence.len() - fence.trim_start().len();
            Block { setup: setup.map(str::to_owned), lines: first..first + length, indent }
        };
        marked.map(block).collect()
    }

    /// Runs the commands of a block and compares their output with its lines.
    fn check(&mut self, block: &Block, folder: &Path) {
        fs::create_dir_all(folder).unwrap();
        block.setup.iter().for_each(|setup| drop(run(setup, folder)));
        let (mut command, mut output) = (String::new(), Vec::new());
        for at in block.lines.clone() {
            let (indent, line) = self.lines[at].split_at(block.indent);
            let (indent, line) = (indent.to_owned(), line.to_owned());
            match line.strip_prefix("$ ") {
                Some(typed) => command = typed.to_owned(),
                None if command.ends_with('\\') => command = command.replace('\\', "") + &line,
                None if line == "..." => continue,
                None => {
                    self.lines[at] = indent + &self.compare(&line, &mut output);
                    continue;
                }
            }
            if !command.ends_with('\\') {
                output = run(&command, folder);
            }
        }
        fs::remove_dir_all(folder).unwrap();
    }

    /// Compares the table of flags, if the page has one, with the settings.
    fn check_flags(&mut self) {
        let Some(marker) = self.lines.iter().position(|line| line == "<!-- flags -->") else { return };
        // The marker, the head of the table and the rule below it come before the rows.
        let first = marker + 3;
        let count = self.lines[first..].iter().take_while(|line| line.starts_with('|')).count();
        let rows: Vec<String> = SETTINGS.iter().map(table_row).collect();
        if self.lines[first..first + count] != rows[..] {
            self.outdated.push("the table of flags".to_owned());
            self.lines.splice(first..first + count, rows);
        }
    }

    /// Finds `line` in `output` and removes the output up to it. Returns the line with the figures of the program.
    fn compare(&mut self, line: &str, output: &mut Vec<String>) -> String {
        let start = line.strip_suffix('…');
        let is_exact = |found: &String| start.map_or(found == line, |start| found.starts_with(start));
        let is_alike = |found: &String| match start {
            Some(start) => masked(found).starts_with(&masked(start)),
            None => masked(found) == masked(line),
        };
        let position = output.iter().position(is_exact).or_else(|| output.iter().position(is_alike));
        let Some(found) = position.and_then(|at| output.drain(..=at).next_back()) else {
            self.missing.push(format!("{line:?} is not in\n{}", output.join("\n")));
            return line.to_owned();
        };
        let expected = match start {
            _ if is_exact(&found) => return line.to_owned(),
            Some(start) => format!("{}…", same_start(&found, start)),
            None => found,
        };
        self.outdated.push(format!("{line}\n  should be\n{expected}"));
        expected
    }

    /// Fails if the page is not up to date. With `TANDEM_UPDATE_DOCS` it corrects the figures first.
    fn finish(self) {
        let path = self.path.display();
        if env::var_os("TANDEM_UPDATE_DOCS").is_some() && !self.outdated.is_empty() {
            fs::write(&self.path, self.lines.join("\n") + "\n").unwrap();
        } else {
            let outdated = self.outdated.join("\n");
            assert!(outdated.is_empty(), "{path} is out of date (TANDEM_UPDATE_DOCS=1 updates it):\n{outdated}");
        }
        assert!(self.missing.is_empty(), "{path} quotes output that there is not:\n{}", self.missing.join("\n"));
    }
}

/// The lines that `command` prints, on standard output and then on standard error.
fn run(command: &str, folder: &Path) -> Vec<String> {
    let arguments = command.strip_prefix("tandem ").unwrap_or_else(|| panic!("a command of this program: {command}"));
    let output = Command::new(env!("CARGO_BIN_EXE_tandem"))
        .args(arguments.split_whitespace())
        .current_dir(folder)
        .env_clear()
        .env("LANG", "C.UTF-8")
        .env("XDG_CACHE_HOME", folder)
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    let both = text(output.stdout) + &text(output.stderr);
    both.lines().map(str::to_owned).collect()
}

/// The line with `#` for every number and one space for several, so that columns of other widths are alike.
fn masked(line: &str) -> String {
    let mut masked = String::new();
    let mut in_number = false;
    for character in line.chars() {
        in_number = character.is_ascii_digit() || (in_number && character == '.');
        match in_number {
            true if masked.ends_with('#') => {}
            true => masked.push('#'),
            false if character == ' ' && masked.ends_with(' ') => {}
            false => masked.push(character),
        }
    }
    masked
}

/// The start of `found` that is like `start` but for its numbers.
fn same_start<'a>(found: &'a str, start: &str) -> &'a str {
    let mut ends = found.char_indices().map(|(at, character)| at + character.len_utf8());
    let end = ends.rfind(|end| masked(&found[..*end]) == masked(start));
    &found[..end.unwrap_or(found.len())]
}
