//! The files of the workspace, as text.

use std::fs;
use std::path::{Path, PathBuf};

/// One file: its path from the root of the repository, with forward slashes, and its text.
pub(crate) struct SourceFile {
    pub(crate) path: String,
    pub(crate) text: String,
}

impl SourceFile {
    /// Lines with their numbers from 1.
    pub(crate) fn lines(&self) -> impl Iterator<Item = (usize, &str)> {
        self.text.lines().enumerate().map(|(i, line)| (i + 1, line))
    }
}

/// The root of the repository.
pub(crate) fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).unwrap().to_owned()
}

/// Every file with one of these endings, in order of path. Build outputs and hidden folders other than `.github` are
/// left out.
pub(crate) fn all(endings: &[&str]) -> Vec<SourceFile> {
    let root = root();
    let mut files = Vec::new();
    visit(&root, &root, endings, &mut files);
    files.sort_by(|a, b| a.path.cmp(&b.path));
    assert!(!files.is_empty(), "no file ends with {endings:?}");
    files
}

fn visit(root: &Path, folder: &Path, endings: &[&str], files: &mut Vec<SourceFile>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        if path.is_dir() {
            let hidden = name.starts_with('.') && name != ".github";
            if !hidden && name != "target" {
                visit(root, &path, endings, files);
            }
        } else if endings.iter().any(|ending| name.ends_with(ending)) {
            // A file that is no text (none has these endings today) would hide from the rules.
            let text = fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
            let path = path.strip_prefix(root).unwrap().to_string_lossy().replace('\\', "/");
            files.push(SourceFile { path, text });
        }
    }
}
