//! What counts as a failure of a command, whatever it was given.

use crate::command::{CommandOutcome, HowEnded, StdoutTarget};

/// Exit codes of every command: success, failure, wrong usage or an impossible plan.
pub(crate) const DOCUMENTED: [i32; 3] = [0, 1, 2];
/// The most resident memory of a command of the campaign. The inputs are small.
const MAX_RSS_BYTES: u64 = 2 << 30;

/// What may happen in a command.
#[derive(Clone, Debug)]
pub(crate) struct Expectation {
    /// Exit codes that are right.
    pub(crate) codes: Vec<i32>,
    /// Signals that the campaign sent.
    pub(crate) signals: Vec<i32>,
    /// Whether the output can be read: an error must then be said.
    pub(crate) says_why: bool,
}

impl Default for Expectation {
    fn default() -> Expectation {
        Expectation { codes: DOCUMENTED.to_vec(), signals: Vec::new(), says_why: true }
    }
}

impl Expectation {
    /// Only this exit code is right.
    pub(crate) fn code(code: i32) -> Expectation {
        Expectation { codes: vec![code], ..Expectation::default() }
    }

    /// The campaign sends this signal: the process may end by it, or with its exit code.
    pub(crate) fn or_signal(mut self, signal: i32) -> Expectation {
        self.signals.push(signal);
        self.codes.push(128 + signal);
        self
    }

    /// Standard output goes to `target`.
    pub(crate) fn with_stdout(mut self, target: StdoutTarget) -> Expectation {
        self.says_why &= target == StdoutTarget::Captured;
        self
    }
}

/// Everything that is wrong with the outcome of a command.
pub(crate) fn judge(outcome: &CommandOutcome, expected: &Expectation) -> Vec<String> {
    let mut wrong = Vec::new();
    let (out, err) = (outcome.out_text(), outcome.err_text());
    match outcome.ended {
        HowEnded::Exited(101) => wrong.push("panic: exit code 101".to_owned()),
        HowEnded::Exited(code) if !expected.codes.contains(&code) => {
            wrong.push(format!("exit code {code}, expected one of {:?}: {}", expected.codes, last_line(&err)));
        }
        HowEnded::Exited(code) => {
            if code != 0 && expected.says_why && out.trim().is_empty() && err.trim().is_empty() {
                wrong.push(format!("exit code {code} without a message"));
            }
        }
        HowEnded::Signalled(signal) if !expected.signals.contains(&signal) => {
            wrong.push(format!("died of signal {signal}: {}", last_line(&err)));
        }
        HowEnded::Signalled(_) => {}
        HowEnded::Hung => wrong.push(format!("hung: killed after {} s", outcome.wall.as_secs())),
    }
    if out.contains("panicked at") || err.contains("panicked at") {
        let line = err.lines().chain(out.lines()).find(|line| line.contains("panicked at")).unwrap_or_default();
        wrong.push(format!("panic: {}", shown(line)));
    }
    for (name, bytes) in [("standard output", &outcome.out), ("standard error", &outcome.err)] {
        match str::from_utf8(bytes) {
            Err(_) => wrong.push(format!("{name} is not UTF-8")),
            Ok(text) => wrong.extend(raw_control(text).map(|what| format!("{name} has a raw {what}"))),
        }
    }
    if outcome.peak_rss_bytes > MAX_RSS_BYTES {
        wrong.push(format!("{} MB resident, at most {}", outcome.peak_rss_bytes >> 20, MAX_RSS_BYTES >> 20));
    }
    wrong
}

/// A control character that a terminal would act on, if there is one.
fn raw_control(text: &str) -> Option<String> {
    let harmful = |c: &char| c.is_control() && !matches!(c, '\n' | '\t');
    let at = text.chars().position(|c| harmful(&c))?;
    let code = text.chars().nth(at)? as u32;
    let around: String = text.chars().skip(at.saturating_sub(20)).take(60).collect();
    Some(format!("control character U+{code:04X} in {around:?}"))
}

/// The last line that says something, for one-line reports.
pub(crate) fn last_line(text: &str) -> String {
    let says_something = |line: &&str| !line.trim().is_empty() && !line.starts_with("note: run with `RUST_BACKTRACE");
    shown(text.lines().rev().find(says_something).unwrap_or("(no message)"))
}

/// At most 300 characters, without control characters.
fn shown(line: &str) -> String {
    line.chars().take(300).map(|c| if c.is_control() { '?' } else { c }).collect()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::command::CommandSpec;
    use crate::fake::FakeProgram;

    fn judged(script: &str) -> String {
        // Only what hangs gets little time: a loaded machine is slow.
        let limit = if script.starts_with("sleep") { Duration::from_millis(300) } else { Duration::from_secs(25) };
        let ran = FakeProgram::new(script).run(&CommandSpec::new("x").within(limit));
        judge(&ran, &Expectation::default()).join("; ")
    }

    #[test]
    fn failures_of_a_fake_program_are_found() {
        let check = |script: &str, part: &str| {
            let found = judged(script);
            assert!(found.contains(part), "{script}: {found:?}");
        };
        check("echo \"thread 'main' panicked at src/x.rs:1:2:\" >&2; exit 101", "panic: exit code 101");
        check("echo \"thread 'w' panicked at src/x.rs:1:2:\" >&2; exit 0", "panic: thread 'w'");
        check("kill -ABRT $$", "died of signal 6");
        check("sleep 60", "hung");
        check("echo no >&2; exit 7", "exit code 7");
        check("exit 1", "without a message");
        check("printf 'red \\033[31m'", "raw control character U+001B");
        check("printf 'bell \\007' >&2; exit 1", "standard error has a raw control character U+0007");
        check("printf '\\377'", "standard output is not UTF-8");
    }

    #[test]
    fn good_commands_pass() {
        for script in ["echo fine", "echo 'cannot read: a.wav' >&2; exit 1", "echo usage >&2; exit 2"] {
            assert_eq!(judged(script), "", "{script}");
        }
    }

    #[test]
    fn a_signal_that_was_sent_is_expected() {
        let ran = FakeProgram::new("kill -TERM $$").run(&CommandSpec::new(""));
        assert_eq!(judge(&ran, &Expectation::default().or_signal(15)), Vec::<String>::new());
        assert_eq!(judge(&ran, &Expectation::default().or_signal(9)).len(), 1);
        let ran = FakeProgram::new("exit 143").run(&CommandSpec::new(""));
        assert_eq!(judge(&ran, &Expectation::default()).len(), 1);
    }
}
