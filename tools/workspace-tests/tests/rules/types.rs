//! A type name means one thing in the workspace.

use std::collections::BTreeMap;

use crate::files::{SourceFile, all};

/// The name a line defines as a type that others can see, if it does.
fn visible_type(line: &str) -> Option<&str> {
    let line = line.trim_start();
    let rest = line
        .strip_prefix("pub ")
        .or_else(|| line.strip_prefix("pub(").and_then(|rest| rest.split_once(") ")).map(|(_, rest)| rest))?;
    let rest = rest.strip_prefix("unsafe ").unwrap_or(rest);
    let kinds = ["struct ", "enum ", "trait ", "type ", "union "];
    let name = kinds.iter().find_map(|kind| rest.strip_prefix(kind))?;
    let end = name.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(name.len());
    Some(&name[..end])
}

#[test]
fn visible_types_are_found() {
    let check = |line, name| assert_eq!(visible_type(line), name, "{line}");
    check("pub struct Arena {", Some("Arena"));
    check("    pub(crate) enum Kind<T> {", Some("Kind"));
    check("pub type Work = u32;", Some("Work"));
    check("struct Private;", None);
    check("pub fn struct_of() {", None);
}

#[test]
fn no_two_visible_types_share_a_name() {
    let mut places: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for file in all(&[".rs"]) {
        for (number, line) in file.lines() {
            if let Some(name) = visible_type(line) {
                places.entry(name.to_owned()).or_default().push(format!("{}:{number}", file.path));
            }
        }
    }
    assert!(places.len() > 500, "only {} types were found: the scan is broken", places.len());
    let shared: Vec<_> = places.into_iter().filter(|(_, places)| places.len() > 1).collect();
    assert!(shared.is_empty(), "rename all but one of each: {shared:#?}");
}

/// `use X as Y` for a type of ours hides its name from a search.
#[test]
fn no_type_of_ours_is_imported_under_another_name() {
    let found: Vec<String> = all(&[".rs"]).iter().flat_map(aliases).collect();
    assert!(found.is_empty(), "import these by their own names: {found:#?}");
}

fn aliases(file: &SourceFile) -> Vec<String> {
    let mut found = Vec::new();
    for item in file.text.split(';') {
        let Some(at) = item.rfind("use ") else { continue };
        let import = &item[at..];
        let ours = ["use crate::", "use super::", "use tandem_"].iter().any(|start| import.starts_with(start));
        let renames = import.split(" as ").skip(1).any(|name| name.starts_with(char::is_uppercase));
        if ours && renames {
            found.push(format!("{}: {}", file.path, import.split_whitespace().collect::<Vec<_>>().join(" ")));
        }
    }
    found
}
