//! Limits on the memory and the cores of the process are what a plan calls free.

use std::process::Command;

use crate::command::{TandemCommand, contains};

/// The output of `tandem LINE` under the limits that `shell` sets.
fn under(shell: &str, line: &str) -> (i32, String) {
    let command = TandemCommand::new(line).without_gpu().into_std();
    let mut limited = Command::new("sh");
    limited.args(["-c", &format!("{shell} \"$@\""), "sh"]).arg(command.get_program()).args(command.get_args());
    limited.env_clear();
    for (name, value) in command.get_envs() {
        value.map(|value| limited.env(name, value));
    }
    let output = limited.env("PATH", "/usr/bin:/bin").output().unwrap();
    let text = [output.stdout, output.stderr].concat();
    (output.status.code().unwrap_or(-1), String::from_utf8_lossy(&text).into_owned())
}

#[test]
fn a_memory_limit_is_the_free_memory_and_is_named_in_a_refusal() {
    let (code, text) = under("ulimit -v 1500000; exec", "plan --mode cpu --model-size normal");
    assert_eq!(code, 2, "{text}");
    contains(&text, &["The plan does not fit", "ulimit -v: 1465 MB", "What would work:"]);
    let (code, text) = under("ulimit -v 1500000; exec", "plan --mode cpu --model-size nano");
    assert_eq!(code, 0, "{text}");
}

#[test]
fn threads_follow_the_cores_of_the_process() {
    // `taskset` runs the rest of the line on one core.
    let threads = |shell: &str| {
        let (code, text) = under(shell, "plan --mode cpu --model-size nano --json");
        assert_eq!(code, 0, "{text}");
        serde_json::from_str::<serde_json::Value>(&text).unwrap()["threads"].as_u64().unwrap()
    };
    assert_eq!(threads("exec taskset -c 0"), 1);
}
