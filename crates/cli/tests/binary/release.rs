//! `tools/release`: the archive has everything, is the same twice, and works in an empty environment.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use tandem_test_support::skip;

use crate::command::contains;
use crate::machine::TempFolder;

fn release() -> Command {
    let mut command = Command::new("python3");
    command.arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tools/release"));
    command
}

/// Makes the archive of the binary under test in `folder`.
fn archive(folder: &Path) -> PathBuf {
    let made =
        release().arg("--binary").arg(env!("CARGO_BIN_EXE_tandem")).arg("--output").arg(folder).output().unwrap();
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    folder.join(format!("tandem-{}-x86_64-linux.tar.gz", env!("CARGO_PKG_VERSION")))
}

fn verify(archive: &Path) -> Output {
    release().arg("--verify").arg(archive).output().unwrap()
}

#[test]
fn an_archive_is_the_same_twice_and_works_in_an_empty_environment() {
    if !Command::new("python3").arg("--version").output().is_ok_and(|output| output.status.success()) {
        return skip("TANDEM_REQUIRE_PYTHON", "the archive of a release", "python3 is not installed");
    }
    let folder = TempFolder::new();
    let [first, second] = ["first", "second"].map(|name| archive(&folder.path(name)));
    assert!(fs::read(&first).unwrap() == fs::read(&second).unwrap(), "two archives of one binary differ");
    let digest = first.with_extension("gz.sha256");
    let checked = Command::new("sha256sum")
        .args(["--check", "--quiet"])
        .arg(digest)
        .current_dir(folder.path("first"))
        .output()
        .unwrap();
    assert!(checked.status.success(), "{}", String::from_utf8_lossy(&checked.stderr));
    let verified = verify(&first);
    assert!(verified.status.success(), "{}", String::from_utf8_lossy(&verified.stderr));
    contains(
        &String::from_utf8_lossy(&verified.stdout),
        &["tandem train --mode cpu --max-steps 3", "works in an empty environment"],
    );

    let unpacked = Command::new("tar").arg("-xzf").arg(&first).arg("-C").arg(folder.path("")).status().unwrap();
    assert!(unpacked.success());
    let root = folder.path(first.file_name().unwrap().to_str().unwrap().trim_end_matches(".tar.gz"));
    let notices = fs::read_to_string(root.join("THIRD-PARTY-NOTICES.txt")).unwrap();
    let parts =
        ["  symphonia ", ": MPL-2.0; ", "Mozilla Public License Version 2.0", "Carnegie Mellon University", "  clap "];
    contains(&notices, &parts);
    // Only what is in the binary: neither macros nor crates of tests.
    for absent in ["  proptest ", "  serde_derive ", "  tandem-"] {
        assert!(!notices.contains(absent), "{absent}");
    }
    let licences = fs::read_to_string(root.join("rust-standard-library-licences.html")).unwrap();
    contains(&licences, &["Apache"]);

    // An archive that is damaged or incomplete does not pass.
    let damaged = folder.file("damaged/tandem-0.0.0-x86_64-linux.tar.gz", &fs::read(&first).unwrap()[..100_000]);
    let refused = verify(&damaged);
    assert_eq!(refused.status.code(), Some(1), "{refused:?}");
    fs::remove_file(root.join("LICENSE-MIT")).unwrap();
    let incomplete = folder.path("incomplete").join(first.file_name().unwrap());
    fs::create_dir(folder.path("incomplete")).unwrap();
    let packed = Command::new("tar")
        .arg("-czf")
        .arg(&incomplete)
        .arg("-C")
        .arg(folder.path(""))
        .arg(root.file_name().unwrap())
        .status()
        .unwrap();
    assert!(packed.success());
    let refused = verify(&incomplete);
    assert_eq!(refused.status.code(), Some(1), "{refused:?}");
    contains(&String::from_utf8_lossy(&refused.stderr), &["release: ", "missing ['LICENSE-MIT']"]);
}
