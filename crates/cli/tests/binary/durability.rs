//! What is written survives a power cut: files before folders, folders before the folders above them.

use std::fs;
use std::path::Path;
use std::process::Command;

use crate::command::{SMALL, TandemCommand};
use crate::machine::{TempFolder, rustc};
use crate::speech::demo;

/// Appends the path behind the descriptor of every `fsync` and `fdatasync` to the file named by `SYNCED`, then makes the
/// call.
const SHIM: &str = r#"
use std::io::Write;
extern "C" { fn syscall(number: i64, fd: i64) -> i64; }
fn note(fd: i32) {
    let path = std::fs::read_link(format!("/proc/self/fd/{fd}")).unwrap_or_default();
    if let Some(list) = std::env::var_os("SYNCED") {
        if let Ok(mut list) = std::fs::OpenOptions::new().append(true).create(true).open(list) {
            let _ = writeln!(list, "{}", path.display());
        }
    }
}
#[no_mangle] pub unsafe extern "C" fn fsync(fd: i32) -> i32 { note(fd); syscall(74, fd as i64) as i32 }
#[no_mangle] pub unsafe extern "C" fn fdatasync(fd: i32) -> i32 { note(fd); syscall(75, fd as i64) as i32 }
"#;

fn shim(folder: &TempFolder) -> std::path::PathBuf {
    let source = folder.file("shim.rs", SHIM);
    let library = folder.path("libshim.so");
    let built = Command::new(rustc())
        .args(["--edition", "2021", "--crate-type", "cdylib", "--crate-name", "shim", "-o"])
        .args([&library, &source])
        .output()
        .unwrap();
    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
    library
}

/// Positions at which `path` was synced.
fn at(synced: &[String], path: &Path) -> Vec<usize> {
    let path = path.display().to_string();
    (0..synced.len()).filter(|i| synced[*i] == path).collect()
}

#[test]
fn every_file_and_folder_of_a_checkpoint_is_synced_in_order() {
    let folder = TempFolder::new();
    let (library, list) = (shim(&folder), folder.path("synced"));
    let run = folder.path("new/run");
    let line = format!("train --mode cpu {SMALL} --max-steps 1");
    let command = TandemCommand::new(&line).without_gpu().env("LD_PRELOAD", library).env("SYNCED", &list);
    let ran = command.arg("--train-data").arg(demo()).arg("--checkpoint-dir").arg(&run).run();
    assert_eq!(ran.code, 0, "{ran:?}");
    let synced: Vec<String> = fs::read_to_string(&list).unwrap().lines().map(str::to_owned).collect();
    let first = |path: &Path| *at(&synced, path).first().unwrap_or_else(|| panic!("{} in {synced:?}", path.display()));
    let last = |path: &Path| *at(&synced, path).last().unwrap_or_else(|| panic!("{} in {synced:?}", path.display()));
    // The run folder and its parent are new: the folders above them are synced before anything is in them.
    let begun = first(&run.join(".tmp-run.json"));
    let parents = [folder.path("new"), folder.path("new").parent().unwrap().to_owned()];
    assert!(parents.iter().all(|parent| first(parent) < begun), "{synced:?}");
    // All files, then their folder, then, once it has its name, the run folder.
    let temporary = run.join(".tmp-checkpoint-00000001");
    let files = ["weights.safetensors", "optimizer.safetensors", "model.json", "state.json"];
    let folder_synced = first(&temporary);
    for name in files {
        assert!(first(&temporary.join(name)) < folder_synced, "{name}: {synced:?}");
    }
    assert!(folder_synced < last(&run), "{synced:?}");
}
