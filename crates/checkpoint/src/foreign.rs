//! Checkpoints of other programs, recognised by their file names: they are refused, because their owners expect them to
//! be resumed.

use std::ffi::OsStr;
use std::fs;
use std::io;
use std::path::Path;

use crate::error::CheckpointError;

/// A checkpoint of another program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Foreign {
    program: &'static str,
    /// The file that shows it.
    name: String,
}

impl Foreign {
    /// The refusal of the file or folder at `path`.
    pub(crate) fn refused_at(self, path: &Path) -> CheckpointError {
        let Foreign { program, name } = self;
        CheckpointError::ForeignCheckpoint { program, name, path: path.to_owned() }
    }
}

const TENSORFLOW: &str = "TensorFlow";
const PYTORCH: &str = "PyTorch";

/// The first checkpoint of another program in a folder, by name. A missing folder has none.
pub(crate) fn foreign_in(folder: &Path) -> io::Result<Option<Foreign>> {
    let mut names = Vec::new();
    match fs::read_dir(folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        entries => {
            for entry in entries? {
                let entry = entry?;
                if entry.file_type()?.is_file() {
                    names.push(entry.file_name().to_string_lossy().into_owned());
                }
            }
        }
    }
    names.sort_unstable();
    let known = |name: &String| program_in(name, &names).map(|program| Foreign { program, name: name.clone() });
    Ok(names.iter().find_map(known))
}

/// A path that is not a folder: a file, or the common prefix of several TensorFlow files.
pub(crate) fn foreign_at(path: &Path) -> Option<Foreign> {
    let name = path.file_name()?.to_string_lossy().into_owned();
    let with = |ending: &str| {
        let mut name = path.as_os_str().to_owned();
        name.push(OsStr::new(ending));
        Path::new(&name).is_file()
    };
    if !path.exists() {
        return with(".index").then(|| Foreign { program: TENSORFLOW, name: format!("{name}.index") });
    }
    let program = if name.ends_with(".index") { Some(TENSORFLOW) } else { program_of(&name) };
    program.map(|program| Foreign { program, name })
}

/// The program of a file among others: an `.index` file is TensorFlow's only beside its data.
fn program_in(name: &str, names: &[String]) -> Option<&'static str> {
    let Some(prefix) = name.strip_suffix(".index") else { return program_of(name) };
    names.iter().any(|other| other.starts_with(&format!("{prefix}.data-"))).then_some(TENSORFLOW)
}

fn program_of(name: &str) -> Option<&'static str> {
    match name {
        "checkpoint" | "saved_model.pb" => return Some(TENSORFLOW),
        "pytorch_model.bin" => return Some(PYTORCH),
        _ => {}
    }
    if name.contains(".data-") && name.contains("-of-") {
        return Some(TENSORFLOW);
    }
    match Path::new(name).extension()?.to_str()? {
        "h5" | "keras" => Some(TENSORFLOW),
        "pt" | "pth" | "ckpt" => Some(PYTORCH),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folders_of_other_programs_are_recognised() {
        let check = |files: &[&str], expected: Option<(&str, &str)>| {
            let dir = tempfile::tempdir().unwrap();
            files.iter().for_each(|name| fs::write(dir.path().join(name), b"x").unwrap());
            let found = foreign_in(dir.path()).unwrap();
            assert_eq!(found.as_ref().map(|found| (found.program, &*found.name)), expected, "{files:?}");
        };
        check(&[], None);
        check(&["notes.txt", "events.index", "train.log"], None);
        check(&["checkpoint", "ckpt-7.index", "ckpt-7.data-00000-of-00001"], Some((TENSORFLOW, "checkpoint")));
        check(&["a.index", "a.data-00000-of-00002"], Some((TENSORFLOW, "a.data-00000-of-00002")));
        check(&["saved_model.pb"], Some((TENSORFLOW, "saved_model.pb")));
        check(&["weights.h5"], Some((TENSORFLOW, "weights.h5")));
        check(&["model_1000.pth"], Some((PYTORCH, "model_1000.pth")));
        check(&["best.pt", "last.ckpt"], Some((PYTORCH, "best.pt")));
        check(&["pytorch_model.bin"], Some((PYTORCH, "pytorch_model.bin")));
        assert_eq!(foreign_in(Path::new("/there/is/none")).unwrap(), None);
    }

    #[test]
    fn paths_of_other_programs_are_recognised() {
        let dir = tempfile::tempdir().unwrap();
        for name in ["ckpt-7.index", "model.pth", "model.safetensors"] {
            fs::write(dir.path().join(name), b"x").unwrap();
        }
        let check = |name: &str, expected: Option<(&str, &str)>| {
            let found = foreign_at(&dir.path().join(name));
            assert_eq!(found.as_ref().map(|found| (found.program, &*found.name)), expected, "{name}");
        };
        check("ckpt-7", Some((TENSORFLOW, "ckpt-7.index")));
        check("ckpt-7.index", Some((TENSORFLOW, "ckpt-7.index")));
        check("model.pth", Some((PYTORCH, "model.pth")));
        check("model.safetensors", None);
        check("none", None);
    }
}
