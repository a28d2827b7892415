//! A machine without the library, or with half of it. The library is loaded once for each process, so that every case is
//! a process of its own.

use std::process::Command;

use tandem_espeak::Espeak;

use crate::espeak_or_skip;

/// Run by the other tests, with variables that hide the library or its data. Alone it shows this machine's.
#[test]
fn child_loads_the_library() {
    match Espeak::load() {
        Ok(espeak) => println!("loaded {}", espeak.version()),
        Err(error) => println!("refused: {error}"),
    }
}

fn load_with(variable: &str, value: &std::path::Path) -> String {
    let child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "absent::child_loads_the_library", "--nocapture"])
        .env(variable, value)
        .output()
        .unwrap();
    assert!(child.status.success(), "{child:?}");
    String::from_utf8(child.stdout).unwrap()
}

#[test]
fn a_missing_library_is_an_error_with_the_package_to_install() {
    let folder = tempfile::tempdir().unwrap();
    let said = load_with("TANDEM_ESPEAK_LIBRARY", &folder.path().join("none.so"));
    for part in ["refused: ", "none.so", "sudo apt install libespeak-ng1 espeak-ng-data", "--lexicon"] {
        assert!(said.contains(part), "{part} in {said}");
    }
}

#[test]
fn missing_data_is_an_error_and_does_not_end_the_process() {
    if espeak_or_skip("a library without its data").is_none() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let said = load_with("ESPEAK_DATA_PATH", folder.path());
    for part in ["refused: ", "cannot read its data", folder.path().to_str().unwrap(), "espeak-ng-data", "test result"]
    {
        assert!(said.contains(part), "{part} in {said}");
    }
}
