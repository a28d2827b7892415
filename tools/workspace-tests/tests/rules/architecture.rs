//! `ARCHITECTURE.md` is short, and its dependency table is what the manifests say.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use crate::files::root;

/// The block with the dependencies: a line per crate, `name -> name, name`.
const BLOCK: &str = "```text dependencies";

#[test]
fn the_map_fits_in_14_kb() {
    let bytes = fs::metadata(root().join("ARCHITECTURE.md")).unwrap().len();
    assert!(bytes <= 14_000, "ARCHITECTURE.md has {bytes} bytes; move details to the crates' READMEs");
}

#[test]
fn the_dependency_table_is_what_the_manifests_say() {
    let text = fs::read_to_string(root().join("ARCHITECTURE.md")).unwrap();
    let block = text.split(BLOCK).nth(1).unwrap_or_else(|| panic!("no block that begins with {BLOCK}"));
    let block = block.split("```").next().unwrap();
    let written: BTreeMap<String, BTreeSet<String>> =
        block.lines().filter_map(|line| line.split_once("->")).map(row).collect();
    assert_eq!(written, from_manifests());
}

fn row((name, others): (&str, &str)) -> (String, BTreeSet<String>) {
    let others =
        others.split(',').map(|other| other.trim().to_owned()).filter(|other| !other.is_empty() && other != "-");
    (name.trim().to_owned(), others.collect())
}

/// Crates of `crates/` and those of ours that their `[dependencies]` name.
fn from_manifests() -> BTreeMap<String, BTreeSet<String>> {
    let mut found = BTreeMap::new();
    for entry in fs::read_dir(root().join("crates")).unwrap() {
        let folder = entry.unwrap().path();
        let name = folder.file_name().unwrap().to_string_lossy().into_owned();
        let manifest = fs::read_to_string(folder.join("Cargo.toml")).unwrap();
        let section = manifest.split("\n[dependencies]\n").nth(1).unwrap_or("").split("\n[").next().unwrap();
        let ours = section.lines().filter_map(|line| line.strip_prefix("tandem-"));
        let ours = ours.filter_map(|line| line.split(['.', ' ', '=']).next()).map(str::to_owned);
        found.insert(name, ours.collect());
    }
    found
}
