//! Ranks as processes that are killed or stopped. Each test starts this binary again as the ranks, which report through
//! their output.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use tandem_ranks::{Group, JoinOptions, RankEnvironment, RankError};

use crate::support::{VERSION, listener, lost_rank};

/// What the rank does: `wait` for a line on its input, `block` in a collective, or `work`: one collective after the other.
const TASK: &str = "TANDEM_TEST_RANK_TASK";

/// A rank in a process of its own. Dropping it kills the process.
struct RankProcess {
    child: Child,
    _input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl RankProcess {
    fn start(rank: u32, size: u32, port: u16, task: &str) -> RankProcess {
        let environment = RankEnvironment::local(rank, size, port, 0, None);
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "processes::rank_of_another_test", "--nocapture"]);
        command.envs(environment.variables()).env(TASK, task);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let (input, output) = (child.stdin.take().unwrap(), BufReader::new(child.stdout.take().unwrap()));
        RankProcess { child, _input: input, output }
    }

    /// Reads up to the line with `word:`, and returns what follows it.
    fn wait_for(&mut self, word: &str) -> String {
        let mut line = String::new();
        while self.output.read_line(&mut line).unwrap() > 0 {
            if let Some((_, rest)) = line.split_once(&format!("{word}:")) {
                return rest.trim().to_owned();
            }
            line.clear();
        }
        panic!("the rank ended without {word}");
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }
}

impl Drop for RankProcess {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Not a test by itself: the body of the other processes.
#[test]
fn rank_of_another_test() {
    let Ok(task) = std::env::var(TASK) else { return };
    let mut environment = RankEnvironment::read(|name| std::env::var(name).ok()).unwrap().unwrap();
    let mut options = JoinOptions::default();
    if environment.world.rank == 0 {
        let (listener, port) = listener();
        (options.listener, environment.port) = (Some(listener), port);
        report("port", &port.to_string());
    }
    let group = Group::join(&environment, VERSION, options).unwrap();
    report("joined", "");
    let error = match task.as_str() {
        "wait" => return drop(std::io::stdin().read_line(&mut String::new())),
        "block" => group.barrier("blocked").unwrap_err(),
        _ => work(&group),
    };
    report("failed", &lost_rank(&error).map_or(error.to_string(), |rank| rank.to_string()));
}

fn work(group: &Group) -> RankError {
    for step in 0.. {
        if let Err(error) = group.all_reduce("gradients", &mut vec![1.0; 300_000]) {
            return error;
        }
        if step == 3 {
            report("working", "");
        }
    }
    unreachable!("the loop has no end")
}

fn report(word: &str, text: &str) {
    // Not `println`, whose output a test harness may capture.
    let mut output = std::io::stdout();
    writeln!(output, "{word}:{text}").and_then(|()| output.flush()).unwrap();
}

/// Starts three ranks, of which `victim` does `its_task` and the others `task`, kills the victim when it has reported
/// `ready`, and checks that the others name it.
fn check_killed(victim: u32, its_task: &str, task: &str, ready: &str) {
    let task_of = |rank| if rank == victim { its_task } else { task };
    // Rank 0 chooses its port itself; this one is never used.
    let mut rank_0 = RankProcess::start(0, 3, 1, task_of(0));
    let port = rank_0.wait_for("port").parse().unwrap();
    let others = (1..3).map(|rank| RankProcess::start(rank, 3, port, task_of(rank)));
    let mut ranks: Vec<RankProcess> = [rank_0].into_iter().chain(others).collect();
    let mut dead = ranks.remove(victim as usize);
    ranks.iter_mut().for_each(|rank| drop(rank.wait_for("joined")));
    dead.wait_for(ready);
    dead.signal(Signal::KILL);
    for rank in &mut ranks {
        assert_eq!(rank.wait_for("failed"), victim.to_string());
    }
}

#[test]
fn rank_0_is_killed_while_the_others_wait_for_it() {
    check_killed_while_others_wait(0);
}

#[test]
fn another_rank_is_killed_while_the_others_wait_for_it() {
    check_killed_while_others_wait(2);
}

fn check_killed_while_others_wait(victim: u32) {
    check_killed(victim, "wait", "block", "joined");
}

#[test]
fn rank_0_is_killed_in_the_middle_of_its_work() {
    check_killed(0, "work", "work", "working");
}

#[test]
fn another_rank_is_killed_in_the_middle_of_its_work() {
    check_killed(1, "work", "work", "working");
}

#[test]
fn a_stopped_process_is_lost_when_its_heartbeats_end() {
    let (listener, port) = listener();
    let mut other = RankProcess::start(1, 2, port, "wait");
    let environment = RankEnvironment::local(0, 2, port, 0, None);
    let heartbeat_timeout = Duration::from_secs(3);
    let options = JoinOptions { listener: Some(listener), heartbeat_timeout, ..JoinOptions::default() };
    let group = Group::join(&environment, VERSION, options).unwrap();
    other.wait_for("joined");
    other.signal(Signal::STOP);
    let error = group.barrier("step").unwrap_err();
    assert!(error.to_string().starts_with("rank 1 is lost: no heartbeat for 3.0 s"), "{error}");
}
