//! The commands of the README need no `--bin`: `cargo run` knows which binary is meant.

use std::process::Command;

use serde_json::Value;

use crate::files::root;

#[test]
fn cargo_run_finds_one_binary() {
    let cargo = Command::new(env!("CARGO"))
        .args(["metadata", "--no-deps", "--format-version", "1", "--offline"])
        .current_dir(root())
        .output()
        .unwrap();
    assert!(cargo.status.success(), "{}", String::from_utf8_lossy(&cargo.stderr));
    let document: Value = serde_json::from_slice(&cargo.stdout).unwrap();
    let list = |value: &Value| value.as_array().unwrap().clone();
    let is_default = |package: &Value| list(&document["workspace_default_members"]).contains(&package["id"]);
    let packages = list(&document["packages"]).into_iter().filter(is_default);
    let targets = packages.flat_map(|package| list(&package["targets"]));
    let binaries = targets.filter(|target| list(&target["kind"]).contains(&"bin".into()));
    let names: Vec<String> = binaries.map(|target| target["name"].as_str().unwrap().to_owned()).collect();
    assert_eq!(names, ["tandem"]);
}
