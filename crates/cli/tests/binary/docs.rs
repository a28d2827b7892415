//! The user's pages: their commands work and print what the pages show.
//!
//! The fences of code blocks on these pages:
//!
//! | fence | meaning |
//! |---|---|
//! | `console` | each `$ ` line runs in `bash -euo pipefail`, all blocks of a page in order, in one folder. It prints the lines below it in that order, perhaps with other numbers and other lines in between. A line that ends in `…` is the start of a line |
//! | `console exit=2` | the same; the last command ends with that exit code |
//! | `text` | does not run: it needs a GPU, minutes, or the user's files; or it is output only |
//!
//! Each page has a Persian translation in `docs/fa` with the same blocks. Messages that `troubleshooting.md` explains are in
//! bold code; each must occur in the sources.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// A block of code in a page.
#[derive(Debug, PartialEq, Eq)]
struct Block {
    mark: String,
    lines: Vec<String>,
}

/// A command and its expected output.
struct TypedCommand {
    command: String,
    printed: Vec<String>,
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn page(name: &str) -> String {
    fs::read_to_string(root().join("docs").join(name)).unwrap_or_else(|error| panic!("docs/{name}: {error}"))
}

fn blocks(page: &str) -> Vec<Block> {
    let mut blocks: Vec<Block> = Vec::new();
    let mut inside = false;
    for line in page.lines() {
        match line.strip_prefix("```") {
            Some(mark) if !inside => blocks.push(Block { mark: mark.to_owned(), lines: Vec::new() }),
            Some(_) => {}
            None if inside => blocks.last_mut().unwrap().lines.push(line.to_owned()),
            None => continue,
        }
        inside ^= line.starts_with("```");
    }
    assert!(!inside, "an unclosed block: {:?}", blocks.last());
    blocks
}

impl Block {
    /// The exit code of its last command. None for a block that does not run.
    fn exit_code(&self) -> Option<i32> {
        match self.mark.split_once(" exit=") {
            Some(("console", code)) => Some(code.parse().unwrap()),
            None if self.mark == "console" => Some(0),
            None if self.mark == "text" => None,
            _ => panic!("a block is `console`, `console exit=N` or `text`: {self:?}"),
        }
    }

    fn typed(&self) -> Vec<TypedCommand> {
        let mut typed: Vec<TypedCommand> = Vec::new();
        for line in &self.lines {
            match (line.strip_prefix("$ "), typed.last_mut()) {
                (Some(command), _) => typed.push(TypedCommand { command: command.to_owned(), printed: Vec::new() }),
                (None, Some(last)) if last.command.ends_with('\\') => last.command += &format!("\n{line}"),
                (None, Some(last)) => last.printed.push(line.clone()),
                (None, None) => panic!("output before the first command: {self:?}"),
            }
        }
        typed
    }
}

/// Runs all commands of a page in a new folder.
fn run_page(name: &str, min_commands: usize) {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("docs-{}-{name}", std::process::id()));
    fs::create_dir_all(&folder).unwrap();
    let mut count = 0;
    for block in blocks(&page(name)) {
        let Some(code) = block.exit_code() else { continue };
        let typed = block.typed();
        count += typed.len();
        let Some((last, before)) = typed.split_last() else { panic!("a block without a command: {block:?}") };
        before.iter().for_each(|typed| run(typed, &folder, 0));
        run(last, &folder, code);
    }
    fs::remove_dir_all(&folder).unwrap();
    assert!(count >= min_commands, "{name}: only {count} commands were run");
}

fn run(typed: &TypedCommand, folder: &Path, code: i32) {
    let program = Path::new(env!("CARGO_BIN_EXE_tandem")).parent().unwrap();
    let path = env::join_paths([program.to_owned()].into_iter().chain(env::split_paths(&env::var_os("PATH").unwrap())));
    let output = Command::new("bash")
        .args(["-euo", "pipefail", "-c", &format!("exec 2>&1\n{}", typed.command)])
        .current_dir(folder)
        .env("PATH", path.unwrap())
        .env("LC_ALL", "C.UTF-8")
        .env("XDG_CACHE_HOME", folder.join("cache"))
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let printed = String::from_utf8(output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(code), "{}\n{printed}", typed.command);
    let found: Vec<String> = printed.lines().map(masked).collect();
    let mut rest = found.iter();
    for line in &typed.printed {
        let expected = masked(line);
        let matches = |found: &String| match expected.strip_suffix('…') {
            Some(start) => found.starts_with(start.trim_end()),
            None => *found == expected,
        };
        assert!(rest.any(matches), "{}\n{line:?} is missing, or too early, in\n{printed}", typed.command);
    }
}

/// Replaces every number by `#`, and several spaces by one.
fn masked(line: &str) -> String {
    let mut masked = String::new();
    let mut in_number = false;
    for character in line.trim().chars() {
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

#[test]
fn the_commands_of_the_quick_start_work() {
    run_page("quick-start.md", 10);
}

#[test]
fn the_commands_of_troubleshooting_work() {
    run_page("troubleshooting.md", 10);
}

#[test]
fn the_commands_of_two_cards_work() {
    run_page("two-cards.md", 7);
}

#[test]
fn the_commands_of_scaling_work() {
    run_page("scaling.md", 3);
}

/// The depths of headings, and the messages in bold code: what a translation shares besides its blocks.
fn outline(page: &str) -> (Vec<usize>, Vec<String>) {
    let mut inside = false;
    let prose: Vec<&str> = page
        .lines()
        .filter(|line| {
            inside ^= line.starts_with("```");
            !inside
        })
        .collect();
    let depths = prose.iter().filter(|line| line.starts_with('#')).map(|line| line.find(' ').unwrap_or(0)).collect();
    (depths, messages(&prose.join("\n")))
}

fn messages(prose: &str) -> Vec<String> {
    let mut found = Vec::new();
    let mut rest = prose;
    while let Some((_, after)) = rest.split_once("**`") {
        let Some((message, following)) = after.split_once("`**") else { break };
        // A message that contains backticks is in double backticks.
        found.push(message.trim_matches('`').to_owned());
        rest = following;
    }
    found
}

#[test]
fn persian_pages_have_the_commands_and_messages_of_the_english_ones() {
    for name in ["quick-start.md", "troubleshooting.md", "two-cards.md"] {
        let (english, persian) = (page(name), page(&format!("fa/{name}")));
        let head = |page: &str| page.lines().take(6).collect::<Vec<_>>().join("\n");
        assert!(head(&english).contains(&format!("(fa/{name})")), "{name}");
        assert!(head(&persian).contains(&format!("(../{name})")), "fa/{name}");
        for (ours, translated) in blocks(&english).iter().zip(&blocks(&persian)) {
            assert_eq!(ours, translated, "{name}");
        }
        assert_eq!(blocks(&english).len(), blocks(&persian).len(), "{name}");
        assert_eq!(outline(&english), outline(&persian), "{name}");
    }
}

#[test]
fn links_of_the_pages_lead_to_files() {
    let pages = ["quick-start.md", "troubleshooting.md", "two-cards.md"];
    for name in pages.into_iter().flat_map(|name| [name.to_owned(), format!("fa/{name}")]) {
        let text = page(&name);
        let targets = text.split("](").skip(1).filter_map(|rest| rest.split([')', '#']).next());
        for target in targets.filter(|target| !target.is_empty() && !target.starts_with("https://")) {
            let path = root().join("docs").join(&name).with_file_name(target);
            assert!(path.is_file(), "{name}: {target}");
        }
    }
}

/// All sources, with multi-line strings joined.
fn sources() -> String {
    let mut text = String::new();
    let mut folders = vec![root().join("crates")];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()) {
            match entry.extension().and_then(|end| end.to_str()) {
                Some("rs") => text += &fs::read_to_string(&entry).unwrap(),
                None if entry.is_dir() && !entry.ends_with("tests") => folders.push(entry),
                _ => {}
            }
        }
    }
    let mut joined = String::new();
    for line in text.lines() {
        let line = if joined.ends_with('\\') { line.trim_start() } else { line };
        joined.truncate(joined.trim_end_matches('\\').len());
        joined += line;
        if !line.ends_with('\\') {
            joined.push('\n');
        }
    }
    joined
}

#[test]
fn explained_messages_are_those_of_the_program() {
    let sources = sources();
    let (_, messages) = outline(&page("troubleshooting.md"));
    assert!(messages.len() > 50, "{}", messages.len());
    let unknown: Vec<&String> = messages.iter().filter(|message| !is_in_sources(message, &sources)).collect();
    assert!(unknown.is_empty(), "not in any source: {unknown:#?}");
}

/// Whether the sources contain the message. Numbers, card names and quoted text vary from run to run; of the longer parts
/// between them at least half must occur, because others are inserted at run time.
fn is_in_sources(message: &str, sources: &str) -> bool {
    let varies = |c: char| c.is_ascii_digit() || "…`\"'❌⚠\u{FE0F}:;,()={}|".contains(c);
    let parts: Vec<&str> = message.split(varies).flat_map(|part| part.split("GPU")).map(str::trim).collect();
    let longest = parts.iter().map(|part| part.len()).max().unwrap_or(0);
    let long: Vec<&&str> = parts.iter().filter(|part| part.len() >= longest.min(10)).collect();
    let found = long.iter().filter(|part| sources.contains(**part)).count();
    longest >= 8 && 2 * found >= long.len()
}
