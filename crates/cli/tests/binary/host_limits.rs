//! Limits on the memory and the cores of the process are what a plan calls free.

use crate::command::{TandemCommand, contains};

#[test]
fn a_memory_limit_is_the_free_memory_and_is_named_in_a_refusal() {
    let plan = |size: &str| TandemCommand::new(&format!("plan --mode cpu --model-size {size}")).without_gpu();
    let ran = plan("normal").run_behind("ulimit -v 1500000; exec");
    assert_eq!(ran.code, 2, "{ran:?}");
    contains(&ran.err, &["The plan does not fit", "ulimit -v: 1465 MB", "What would work:"]);
    let ran = plan("nano").run_behind("ulimit -v 1500000; exec");
    assert_eq!(ran.code, 0, "{ran:?}");
}

#[test]
fn threads_follow_the_cores_of_the_process() {
    // `taskset` runs the rest of the line on one core.
    let plan = TandemCommand::new("plan --mode cpu --model-size nano --json").without_gpu();
    let ran = plan.run_behind("exec taskset -c 0");
    assert_eq!((ran.code, &ran.json()["threads"]), (0, &1.into()), "{ran:?}");
}
