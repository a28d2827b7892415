//! Completions work in the shells they are for, manual pages are clean roff, and colours go where they are wanted.

use std::fs;
use std::path::Path;
use std::process::Command;

use tandem_test_support::skip;

use crate::command::{TandemCommand, contains, tandem};
use crate::machine::TempFolder;
use crate::terminal::TestTerminal;

/// What bash offers after these words, the last of which is incomplete.
fn completed(script: &Path, words: &[&str]) -> Vec<String> {
    let typed: Vec<String> = words.iter().map(|word| format!("'{word}'")).collect();
    let last = words.len() - 1;
    let line = format!(
        "source '{}'; COMP_WORDS=({}); COMP_CWORD={last}; _tandem tandem '{}' '{}'; printf '%s\\n' \"${{COMPREPLY[@]}}\"",
        script.display(),
        typed.join(" "),
        words[last],
        words[last - 1],
    );
    let output = Command::new("bash").args(["--norc", "-c", &line]).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap().lines().map(str::to_owned).collect()
}

#[test]
fn bash_completes_commands_flags_and_values() {
    let folder = TempFolder::new();
    let script = folder.file("tandem.bash", tandem("completions bash").out);
    let checked = Command::new("bash").arg("-n").arg(&script).output().unwrap();
    assert!(checked.status.success(), "{}", String::from_utf8_lossy(&checked.stderr));
    assert_eq!(completed(&script, &["tandem", "pl"]), ["plan"]);
    assert_eq!(completed(&script, &["tandem", "train", "--max-m"]), ["--max-mel-frames"]);
    assert_eq!(completed(&script, &["tandem", "train", "--no-share"]), ["--no-share-gpu"]);
    assert_eq!(completed(&script, &["tandem", "train", "--cache", ""]), ["auto", "none", "memory", "disk"]);
    assert_eq!(completed(&script, &["tandem", "plan", "--color", "a"]), ["auto", "always"]);
    assert_eq!(completed(&script, &["tandem", "completions", "z"]), ["zsh"]);
    // Only the flags of that command.
    assert_eq!(completed(&script, &["tandem", "doctor", "--lr"]), [""]);
}

#[test]
fn other_shells_read_their_scripts() {
    let folder = TempFolder::new();
    for (shell, check) in [("zsh", "-n"), ("fish", "--no-execute"), ("elvish", "-compileonly")] {
        let ran = tandem(&format!("completions {shell}"));
        assert_eq!(ran.code, 0, "{ran:?}");
        contains(&ran.out, &["tandem", "train-data", "synthesize", "memory-isolation"]);
        let script = folder.file(shell, &ran.out);
        match Command::new(shell).arg(check).arg(&script).output() {
            Ok(output) => assert!(output.status.success(), "{shell}: {}", String::from_utf8_lossy(&output.stderr)),
            Err(_) => {
                skip("TANDEM_REQUIRE_SHELLS", &format!("completions in {shell}"), &format!("{shell} is not installed"))
            }
        }
    }
    let unknown = tandem("completions tcsh");
    assert_eq!(unknown.code, 2, "{unknown:?}");
    contains(&unknown.err, &["tcsh", "bash, zsh, fish, elvish"]);
}

#[test]
fn every_command_has_a_clean_manual_page() {
    let folder = TempFolder::new();
    let ran = TandemCommand::new("man -o").arg(folder.path("man1")).run();
    assert_eq!(ran.code, 0, "{ran:?}");
    let pages: Vec<_> = fs::read_dir(folder.path("man1")).unwrap().map(|entry| entry.unwrap().path()).collect();
    let first = fs::read_to_string(folder.path("man1/tandem.1")).unwrap();
    assert_eq!(tandem("man").out, first, "without -o the first page is printed");
    for name in ["train", "corpus-check", "man"] {
        assert!(pages.iter().any(|page| page.ends_with(format!("tandem-{name}.1"))), "{pages:?}");
    }
    for page in &pages {
        contains(&fs::read_to_string(page).unwrap(), &[".SH NAME\n", ".SH SYNOPSIS\n", ".SH EXAMPLES\n"]);
    }
    if !Command::new("groff").arg("--version").output().is_ok_and(|output| output.status.success()) {
        return skip("TANDEM_REQUIRE_GROFF", "manual pages without roff errors", "groff is not installed");
    }
    for page in &pages {
        let output = Command::new("groff").args(["-k", "-man", "-Tutf8", "-ww", "-z"]).arg(page).output().unwrap();
        let complaints = String::from_utf8_lossy(&output.stderr);
        // A long flag that cannot be broken is no error of the page.
        let errors: Vec<&str> = complaints.lines().filter(|line| !line.contains("cannot adjust line")).collect();
        assert!(output.status.success() && errors.is_empty(), "{}: {errors:?}", page.display());
    }
    let taken = TandemCommand::new("man -o").arg(folder.file("taken", "")).run();
    assert_eq!(taken.code, 2, "{taken:?}");
    contains(&taken.err, &["❌ -o: cannot write the pages"]);
}

const RED: &str = "\u{1b}[31m";
const BOLD: &str = "\u{1b}[1m";

#[test]
fn colours_are_on_where_they_are_asked_for() {
    let refused = "plan --sim 1x24GiB --data-gpu 0";
    contains(&tandem(&format!("{refused} --color always")).err, &[RED]);
    contains(&tandem(&format!("--color=always {refused}")).err, &[RED]);
    contains(&tandem("plan --help --color always").out, &[BOLD]);
    for quiet in [refused.to_owned(), format!("{refused} --color never"), "plan --help".to_owned()] {
        assert!(!tandem(&quiet).both().contains('\u{1b}'), "{quiet}");
    }
    let document = tandem(&format!("{refused} --json --color always"));
    assert!(document.json().is_object() && !document.out.contains('\u{1b}'), "{document:?}");
    let wrong = tandem("plan --color mauve");
    assert_eq!(wrong.code, 2, "{wrong:?}");
    contains(&wrong.err, &["mauve", "auto, always, never"]);
}

#[test]
fn a_terminal_has_colours_unless_they_are_switched_off() {
    let line = |before: &str, after: &str| {
        let program = env!("CARGO_BIN_EXE_tandem");
        format!("env -u NO_COLOR LANG=C.UTF-8 {before} '{program}' plan --sim 1x24GiB --data-gpu 0 {after}")
    };
    for (before, after, is_colored) in [
        ("", "", true),
        ("NO_COLOR=1", "", false),
        ("", "--color never", false),
        ("NO_COLOR=1", "--color always", true),
    ] {
        let Some(terminal) = TestTerminal::run(&line(before, after), (100, 24)) else { return };
        terminal.until(&["go together", "ended with 2"]);
        assert_eq!(terminal.colored_screen().contains(RED), is_colored, "{before} {after}");
    }
}
