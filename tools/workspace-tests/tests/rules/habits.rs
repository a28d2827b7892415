//! How the repository is built and packaged.

use std::fs;

use saphyr::{LoadableYamlNode, YamlOwned};

use crate::files::{all, root};

#[test]
fn the_workflow_is_yaml_and_runs_the_check() {
    let text = fs::read_to_string(root().join(".github/workflows/check.yml")).unwrap();
    let parsed = YamlOwned::load_from_str(&text).unwrap_or_else(|error| panic!("check.yml is no YAML: {error}"));
    let jobs = parsed[0].as_mapping_get("jobs").and_then(|jobs| jobs.as_mapping()).expect("jobs");
    let runs_check = jobs.iter().any(|(_, job)| {
        let steps = job.as_mapping_get("steps").and_then(|steps| steps.as_vec()).expect("steps");
        steps.iter().any(|step| {
            step.as_mapping_get("run").and_then(|run| run.as_str()).is_some_and(|run| run.contains("./check"))
        })
    });
    assert!(runs_check, "no job runs ./check");
}

/// Linking is most of the time of the tests: one integration binary per crate. Pipeline has a second one for loom, which
/// builds under a flag of its own.
#[test]
fn a_crate_has_one_integration_binary() {
    let mut many = Vec::new();
    for entry in fs::read_dir(root().join("crates")).unwrap() {
        let folder = entry.unwrap().path();
        let name = folder.file_name().unwrap().to_string_lossy().into_owned();
        let Ok(tests) = fs::read_dir(folder.join("tests")) else { continue };
        let binaries = tests.map(|entry| entry.unwrap().path()).filter(|path| {
            let is_file = path.extension().is_some_and(|extension| extension == "rs");
            is_file || path.join("main.rs").exists()
        });
        let allowed = if name == "pipeline" { 2 } else { 1 };
        let binaries: Vec<_> = binaries.collect();
        if binaries.len() > allowed {
            many.push((name, binaries.len()));
        }
    }
    assert!(many.is_empty(), "put these into tests/integration/main.rs as modules: {many:?}");
}

/// A CUDA file says at its head which algorithm it is; a long macro hides its body from every tool.
#[test]
fn cuda_files_begin_with_a_comment_and_their_macros_only_wrap() {
    let mut found = Vec::new();
    for file in all(&[".cu", ".cuh"]) {
        if !file.text.starts_with("//") {
            found.push(format!("{}: begins without a comment", file.path));
        }
        let mut lines = file.lines().peekable();
        while let Some((number, line)) = lines.next() {
            if !line.trim_start().starts_with("#define") || !line.trim_end().ends_with('\\') {
                continue;
            }
            let mut body = line.to_owned();
            for (_, next) in lines.by_ref() {
                body.push_str(next);
                if !next.trim_end().ends_with('\\') {
                    break;
                }
            }
            let wrappers = body.matches("__global__").count();
            let statements = body.matches(';').count();
            if statements > wrappers.max(1) {
                found.push(format!("{}:{number}: {statements} statements for {wrappers} wrappers", file.path));
            }
        }
    }
    assert!(found.is_empty(), "move the bodies into templates: {found:#?}");
}
