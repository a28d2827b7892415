//! Limits on the memory and the cores of the process are what a plan calls free.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use crate::command::{Ran, TandemCommand, contains};
use crate::machine::TempFolder;
use crate::speech::demo;

#[test]
fn a_memory_limit_is_the_free_memory_and_is_named_in_a_refusal() {
    // On one core, because every thread reserves address space.
    let line = "plan --mode cpu --num-workers 1 --model-size";
    let plan = |size: &str| TandemCommand::new(&format!("{line} {size}")).without_gpu();
    let ran = plan("normal").run_behind("ulimit -v 1500000; exec taskset -c 0");
    assert_eq!(ran.code, 2, "{ran:?}");
    contains(&ran.err, &["The plan does not fit", "ulimit -v: 1465 MB", "What would work:"]);
    let ran = plan("nano").run_behind("ulimit -v 1500000; exec taskset -c 0");
    assert_eq!(ran.code, 0, "{ran:?}");
}

#[test]
fn threads_follow_the_cores_of_the_process() {
    // `taskset` runs the rest of the line on one core.
    let plan = TandemCommand::new("plan --mode cpu --model-size nano --json").without_gpu();
    let ran = plan.run_behind("exec taskset -c 0");
    assert_eq!((ran.code, &ran.json()["threads"]), (0, &1.into()), "{ran:?}");
}

/// Runs four steps of the smallest model with two checkpoints and their audio samples: first with 150 MB, which must be
/// refused, then with as much as the refusal says.
fn check_that_the_named_limit_is_enough(name: &str, run: impl Fn(u64, TandemCommand) -> Ran) {
    let folder = TempFolder::new();
    let train = || {
        let line = "train --mode cpu --model-size nano --batch-size 2 --max-steps 4 --checkpoint-every 2 --train-data";
        TandemCommand::new(line).arg(demo()).arg("--checkpoint-dir").arg(folder.path("run")).without_gpu()
    };
    let small = run(150, train());
    assert_eq!(small.code, 2, "{small:?}");
    contains(&small.err, &["The plan does not fit", &format!("{name}: 150 MB"), "the process itself needs"]);
    assert!(!folder.path("run").exists());
    let text = small.err.split("It fits from a limit of ").nth(1).unwrap();
    let enough = run(text.split(' ').next().unwrap().parse().unwrap(), train());
    assert_eq!(enough.code, 0, "{enough:?}");
}

#[test]
fn a_shell_limit_too_small_for_a_run_is_refused_with_the_size_that_fits() {
    check_that_the_named_limit_is_enough("ulimit -v", |limit_mb, command| {
        command.run_behind(&format!("ulimit -v {}; exec", limit_mb << 10))
    });
}

/// A cgroup with a memory limit, removed when dropped.
struct MemoryCgroup {
    folder: PathBuf,
    limit_file: &'static str,
}

impl MemoryCgroup {
    /// Fails where cgroups may not be created.
    fn new() -> io::Result<MemoryCgroup> {
        let [v1, v2] = ["/sys/fs/cgroup/memory", "/sys/fs/cgroup"].map(Path::new);
        let (mount, limit_file) = match v1.is_dir() {
            true => (v1, "memory.limit_in_bytes"),
            false => (v2, "memory.max"),
        };
        let folder = mount.join(format!("tandem-test-{}", std::process::id()));
        fs::create_dir(&folder)?;
        let cgroup = MemoryCgroup { folder, limit_file };
        // The controller may be missing from a cgroup of version 2.
        fs::metadata(cgroup.folder.join(limit_file))?;
        Ok(cgroup)
    }

    fn run(&self, limit_mb: u64, command: TandemCommand) -> Ran {
        fs::write(self.folder.join(self.limit_file), (limit_mb << 20).to_string()).unwrap();
        command.run_behind(&format!("echo $$ >'{}'; exec", self.folder.join("cgroup.procs").display()))
    }
}

impl Drop for MemoryCgroup {
    fn drop(&mut self) {
        let _ = fs::remove_dir(&self.folder);
    }
}

#[test]
fn a_container_too_small_for_a_run_is_refused_with_the_size_that_fits() {
    let cgroup = match MemoryCgroup::new() {
        Ok(cgroup) => cgroup,
        Err(error) => {
            let why = format!("cannot create a cgroup: {error}");
            return tandem_test_support::skip("TANDEM_REQUIRE_CGROUP", "the memory limit of a real container", &why);
        }
    };
    check_that_the_named_limit_is_enough("memory limit of the container", |limit_mb, command| {
        cgroup.run(limit_mb, command)
    });
}

#[test]
fn a_run_on_one_core_gives_the_bits_of_a_run_on_all() {
    let folder = TempFolder::new();
    let files = |name: &str, shell: &str| {
        let line = "train --mode cpu --model-size nano --batch-size 4 --buffer-size 4 --max-steps 3 --train-data";
        let command = TandemCommand::new(line).arg(demo()).arg("--checkpoint-dir").arg(folder.path(name)).without_gpu();
        let ran = command.run_behind(shell);
        assert_eq!(ran.code, 0, "{ran:?}");
        let newest = folder.path(name).join("checkpoint-00000003");
        ["weights.safetensors", "optimizer.safetensors"].map(|file| fs::read(newest.join(file)).unwrap())
    };
    assert!(
        files("one", "exec taskset -c 0") == files("all", "exec"),
        "the number of compute threads changed the bits"
    );
}
