//! Markdown names only what exists.

use std::collections::BTreeSet;
use std::path::Path;

use crate::files::{SourceFile, all, root};

/// Endings of files of ours that a page may name in backticks. Other files belong to users.
const SOURCES: [&str; 6] = [".rs", ".cu", ".cuh", ".md", ".py", ".toml"];

#[test]
fn links_lead_to_files() {
    let mut broken = Vec::new();
    for page in all(&[".md"]) {
        for target in page.text.split("](").skip(1).filter_map(|rest| rest.split([')', ' ']).next()) {
            let path = target.split('#').next().unwrap();
            let outside = target.contains("://") || target.starts_with("mailto:");
            if !outside && !path.is_empty() && !folder_of(&page).join(path).exists() {
                broken.push(format!("{}: {target}", page.path));
            }
        }
    }
    assert!(broken.is_empty(), "{broken:#?}");
}

#[test]
fn source_files_that_pages_name_exist() {
    let mut missing = Vec::new();
    for page in all(&[".md"]) {
        for token in backticked(&page.text) {
            let is_path =
                token.contains('/') && !token.contains(char::is_whitespace) && !token.contains(['*', '{', '<', 'X']);
            let is_ours = SOURCES.iter().any(|ending| token.ends_with(ending)) || token.starts_with("crates/");
            if is_path && is_ours && !token.contains("://") && !exists(&page, token.trim_start_matches("./")) {
                missing.push(format!("{}: {token}", page.path));
            }
        }
    }
    assert!(missing.is_empty(), "{missing:#?}");
}

/// From the root, from `crates/`, from the folder of the page, or from its `src`.
fn exists(page: &SourceFile, token: &str) -> bool {
    let token = token.split(':').next().unwrap();
    let root = root();
    let here = folder_of(page);
    [root.join(token), root.join("crates").join(token), here.join(token), here.join("src").join(token)]
        .iter()
        .any(|path| path.exists())
}

/// Functions of others that a page may name.
const FOREIGN: [&str; 1] = ["set_per_process_memory_fraction"];

/// Tests have names of five words and more, which nothing else has but these.
#[test]
fn tests_that_pages_name_exist() {
    let functions: BTreeSet<String> = all(&[".rs", ".py"]).iter().flat_map(|file| functions(&file.text)).collect();
    assert!(functions.len() > 3000, "only {} functions were found: the scan is broken", functions.len());
    let mut missing = Vec::new();
    // The change log names JSON keys of as many words.
    for page in all(&[".md"]).iter().filter(|page| page.path != "CHANGELOG.md") {
        for token in backticked(&page.text) {
            let snake = token.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_');
            if snake && token.matches('_').count() >= 4 && !functions.contains(token) && !FOREIGN.contains(&token) {
                missing.push(format!("{}: {token}", page.path));
            }
        }
    }
    assert!(missing.is_empty(), "no function has these names: {missing:#?}");
}

fn functions(text: &str) -> Vec<String> {
    let name = |rest: &str| rest.split(['(', '<']).next().unwrap_or("").trim().to_owned();
    let (rust, python) = (text.split("fn ").skip(1), text.split("def ").skip(1));
    rust.chain(python).map(name).collect()
}

/// The repository stands alone: no page and no comment cites a document that is not in it.
#[test]
fn nothing_cites_a_document_outside_the_repository() {
    let outside =
        ["SPEC §", "SPEC's", "SPEC.md", "DESIGN.md", "STYLE.md", "LANGUAGE.md", "../shared", "the SPEC", "SPEC:"];
    let this = file!().rsplit('/').next().unwrap();
    let mut found = Vec::new();
    for file in all(&[".md", ".rs", ".cu", ".cuh", ".py", ".toml", ".yml"]) {
        // A test may look beside the checkout for a voice, and says so when there is none.
        if file.path.ends_with(this) {
            continue;
        }
        for (number, line) in file.lines() {
            let looks_for_a_voice = line.contains("../shared/data") && file.path.contains("/tests/");
            if outside.iter().any(|name| line.contains(name)) && !looks_for_a_voice {
                found.push(format!("{}:{number}: {}", file.path, line.trim()));
            }
        }
    }
    assert!(found.is_empty(), "{found:#?}");
}

/// Code spans outside fenced blocks.
fn backticked(text: &str) -> Vec<&str> {
    let outside_fences = text.split("```").step_by(2);
    outside_fences.flat_map(|part| part.split('`').skip(1).step_by(2)).collect()
}

#[test]
fn code_spans_are_found_outside_fences_only() {
    assert_eq!(backticked("a `b` c\n```\n`x`\n```\n`d/e.rs`"), ["b", "d/e.rs"]);
}

fn folder_of(page: &SourceFile) -> std::path::PathBuf {
    root().join(Path::new(&page.path).parent().unwrap())
}
