//! One command line of the binary under test: its words, environment and limits, and a running process of it.
//!
//! Every command runs inside the folder of its case, with relative paths, so that a saved folder and the printed line
//! repeat it.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::pipe;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::Context;
use rustix::process::{Pid, Signal, kill_process};

/// How long a command may take before it counts as hanging.
pub(crate) const TIME_LIMIT: Duration = Duration::from_secs(120);
/// Address space of commands that read mutated files, in KiB.
pub(crate) const ADDRESS_SPACE_KIB: u64 = 4_000_000;
/// How often a running command is looked at.
const POLL: Duration = Duration::from_millis(1);
/// How often its memory is read.
const SAMPLE: Duration = Duration::from_millis(15);

/// Where standard output goes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum StdoutTarget {
    /// A file that is read afterwards.
    #[default]
    Captured,
    /// `/dev/full`: every write fails.
    Full,
    /// A pipe without a reader.
    BrokenPipe,
}

/// A command line, before it runs.
#[derive(Clone, Debug)]
pub(crate) struct CommandSpec {
    words: Vec<String>,
    env: BTreeMap<String, Option<String>>,
    /// Shell commands before `exec tandem`, such as `ulimit -n 16`.
    prelude: Vec<String>,
    /// Words before `tandem`, such as `taskset -c 0`.
    wrapper: Vec<String>,
    pub(crate) stdout: StdoutTarget,
    time_limit: Duration,
}

/// How a process ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HowEnded {
    /// With this exit code.
    Exited(i32),
    /// By this signal.
    Signalled(i32),
    /// The campaign killed it at the time limit.
    Hung,
}

/// The result of a command.
#[derive(Clone, Debug)]
pub(crate) struct CommandOutcome {
    /// The words of the command, to read.
    pub(crate) words: String,
    /// The shell line that repeats it.
    pub(crate) line: String,
    pub(crate) ended: HowEnded,
    pub(crate) out: Vec<u8>,
    pub(crate) err: Vec<u8>,
    pub(crate) peak_rss_bytes: u64,
    pub(crate) wall: Duration,
}

/// The time of the campaign is over, or it was asked to stop.
#[derive(Debug)]
pub(crate) struct OutOfTime;

impl std::fmt::Display for OutOfTime {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("the time of the campaign is over")
    }
}

impl std::error::Error for OutOfTime {}

/// When the campaign ends: at a time, or when it is asked to.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Deadline<'a> {
    pub(crate) at: Instant,
    pub(crate) stop: &'a AtomicBool,
}

impl Deadline<'_> {
    pub(crate) fn has_passed(&self) -> bool {
        self.stop.load(Ordering::Relaxed) || Instant::now() >= self.at
    }

    pub(crate) fn left(&self) -> Duration {
        if self.stop.load(Ordering::Relaxed) {
            return Duration::ZERO;
        }
        self.at.saturating_duration_since(Instant::now())
    }
}

impl CommandSpec {
    /// `tandem` with the words of `line`.
    pub(crate) fn new(line: &str) -> CommandSpec {
        CommandSpec {
            words: line.split_whitespace().map(str::to_owned).collect(),
            env: BTreeMap::new(),
            prelude: Vec::new(),
            wrapper: Vec::new(),
            stdout: StdoutTarget::Captured,
            time_limit: TIME_LIMIT,
        }
    }

    pub(crate) fn arg(mut self, word: impl Into<String>) -> CommandSpec {
        self.words.push(word.into());
        self
    }

    pub(crate) fn env(mut self, name: &str, value: &str) -> CommandSpec {
        self.env.insert(name.to_owned(), Some(value.to_owned()));
        self
    }

    pub(crate) fn without_env(mut self, name: &str) -> CommandSpec {
        self.env.insert(name.to_owned(), None);
        self
    }

    /// Whether `word` is one of its words.
    pub(crate) fn has_word(&self, word: &str) -> bool {
        self.words.iter().any(|own| own == word)
    }

    /// Runs this shell command before the program, in the same process.
    pub(crate) fn after(mut self, prelude: impl Into<String>) -> CommandSpec {
        self.prelude.push(prelude.into());
        self
    }

    /// Runs the program through these words.
    pub(crate) fn through(mut self, words: &str) -> CommandSpec {
        self.wrapper.extend(words.split_whitespace().map(str::to_owned));
        self
    }

    pub(crate) fn stdout_to(mut self, target: StdoutTarget) -> CommandSpec {
        self.stdout = target;
        self
    }

    /// Counts as hanging after this time instead of the usual one.
    pub(crate) fn within(self, time_limit: Duration) -> CommandSpec {
        CommandSpec { time_limit, ..self }
    }

    /// With the address space of commands that read mutated files.
    pub(crate) fn bounded(self) -> CommandSpec {
        self.after(format!("ulimit -v {ADDRESS_SPACE_KIB}"))
    }

    /// The environment in `folder`. Only these variables are set.
    fn environment(&self, folder: &Path) -> BTreeMap<String, String> {
        let inside = |name: &str| folder.join(name).display().to_string();
        let mut all: BTreeMap<String, String> = [
            ("LANG", "C.UTF-8".to_owned()),
            ("HOME", inside("home")),
            ("TMPDIR", inside("tmp")),
            ("PATH", "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin".to_owned()),
            ("TANDEM_HARDWARE_ROOT", "/nonexistent".to_owned()),
        ]
        .map(|(name, value)| (name.to_owned(), value))
        .into();
        for (name, value) in &self.env {
            match value {
                Some(value) => all.insert(name.clone(), value.clone()),
                None => all.remove(name),
            };
        }
        all
    }

    /// The shell line that repeats the command inside `folder`, wherever that has been moved to.
    pub(crate) fn line(&self, tandem: &Path, folder: &Path) -> String {
        let here = folder.display().to_string();
        let relative = |text: &str| match text.is_empty() {
            true => "''".to_owned(),
            false => text.split(&here).map(quoted).collect::<Vec<_>>().join("\"$PWD\""),
        };
        let mut line = "env -i".to_owned();
        for (name, value) in self.environment(folder) {
            line += &format!(" {name}={}", relative(&value));
        }
        if !self.prelude.is_empty() {
            line += &format!(" sh -c {} sh", relative(&self.script()));
        }
        for word in self.wrapper.iter().chain([&tandem.display().to_string()]).chain(&self.words) {
            line += &format!(" {}", relative(word));
        }
        match self.stdout {
            StdoutTarget::Captured => {}
            StdoutTarget::Full => line += " > /dev/full",
            StdoutTarget::BrokenPipe => line += " | true",
        }
        line
    }

    /// The command for a reader: what changes its surroundings, then its words.
    fn shown(&self) -> String {
        let mut parts: Vec<String> = self.prelude.iter().map(|prelude| format!("{prelude};")).collect();
        let env = self.env.iter().filter(|(name, _)| !name.starts_with("VARIABLE_"));
        parts.extend(env.map(|(name, value)| format!("{name}={}", value.as_deref().unwrap_or("(unset)"))));
        parts.extend(self.wrapper.iter().cloned());
        parts.push("tandem".to_owned());
        parts.extend(self.words.iter().cloned());
        match self.stdout {
            StdoutTarget::Captured => {}
            StdoutTarget::Full => parts.push("> /dev/full".to_owned()),
            StdoutTarget::BrokenPipe => parts.push("| true".to_owned()),
        }
        parts.join(" ")
    }

    /// Without its surroundings the program must not run: it would pass for tested. No command ends with 125.
    fn script(&self) -> String {
        format!("{{ {}; }} || exit 125; exec \"$@\"", self.prelude.join(" && "))
    }

    /// Starts it inside `folder`.
    pub(crate) fn spawn<'a>(
        &self,
        tandem: &Path,
        folder: &Path,
        deadline: Deadline<'a>,
    ) -> anyhow::Result<RunningCommand<'a>> {
        let mut words: Vec<String> = Vec::new();
        if !self.prelude.is_empty() {
            words.extend(["sh".to_owned(), "-c".to_owned(), self.script(), "sh".to_owned()]);
        }
        words.extend(self.wrapper.iter().cloned());
        words.push(tandem.display().to_string());
        words.extend(self.words.iter().cloned());
        for name in ["home", "tmp"] {
            fs::create_dir_all(folder.join(name))?;
        }
        let capture = |name: &str| {
            let path = folder.join(name);
            Ok::<_, std::io::Error>((File::create(&path)?, path))
        };
        let (out_file, out) = capture(".out")?;
        let (err_file, err) = capture(".err")?;
        let stdout = match self.stdout {
            StdoutTarget::Captured => Stdio::from(out_file),
            StdoutTarget::Full => Stdio::from(OpenOptions::new().write(true).open("/dev/full")?),
            StdoutTarget::BrokenPipe => Stdio::from(pipe()?.1),
        };
        let child = Command::new(&words[0])
            .args(&words[1..])
            .env_clear()
            .envs(self.environment(folder))
            .current_dir(folder)
            .stdin(Stdio::null())
            .stdout(stdout)
            .stderr(err_file)
            .spawn()
            .with_context(|| format!("cannot start {}", words[0]))?;
        let now = Instant::now();
        Ok(RunningCommand {
            child,
            words: self.shown(),
            line: self.line(tandem, folder),
            out,
            err,
            started: now,
            sampled: now,
            peak_rss_bytes: 0,
            time_limit: self.time_limit,
            deadline,
        })
    }
}

/// A part of a word for a shell.
fn quoted(text: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./:=,@%+".contains(c);
    match text.chars().all(plain) {
        true => text.to_owned(),
        false => format!("'{}'", text.replace('\'', "'\\''")),
    }
}

/// A running command. It is killed when dropped.
#[derive(Debug)]
pub(crate) struct RunningCommand<'a> {
    child: Child,
    words: String,
    line: String,
    out: PathBuf,
    err: PathBuf,
    started: Instant,
    sampled: Instant,
    peak_rss_bytes: u64,
    time_limit: Duration,
    deadline: Deadline<'a>,
}

impl RunningCommand<'_> {
    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn elapsed(&self) -> Duration {
        self.started.elapsed()
    }

    /// Sends a signal. A process that has ended gets none.
    pub(crate) fn signal(&mut self, signal: Signal) -> anyhow::Result<()> {
        if self.child.try_wait()?.is_none() {
            let pid = Pid::from_raw(self.child.id() as i32).context("a process without an id")?;
            kill_process(pid, signal)?;
        }
        Ok(())
    }

    /// Waits until `is_due`, or until the process has ended. False if it has ended.
    pub(crate) fn wait_until(&mut self, mut is_due: impl FnMut(Duration) -> bool) -> anyhow::Result<bool> {
        loop {
            if self.child.try_wait()?.is_some() {
                return Ok(false);
            }
            if is_due(self.started.elapsed()) {
                return Ok(true);
            }
            if self.deadline.has_passed() {
                return Err(OutOfTime.into());
            }
            if self.started.elapsed() > self.time_limit {
                return Ok(true);
            }
            std::thread::sleep(POLL);
        }
    }

    /// Waits for the end, or kills the process at its time limit.
    pub(crate) fn wait(mut self) -> anyhow::Result<CommandOutcome> {
        let ended = loop {
            if let Some(status) = self.child.try_wait()? {
                break match (status.code(), status.signal()) {
                    (Some(code), _) => HowEnded::Exited(code),
                    (None, signal) => HowEnded::Signalled(signal.unwrap_or(0)),
                };
            }
            if self.deadline.has_passed() {
                return Err(OutOfTime.into());
            }
            if self.started.elapsed() > self.time_limit {
                self.child.kill()?;
                self.child.wait()?;
                break HowEnded::Hung;
            }
            if self.sampled.elapsed() > SAMPLE {
                self.sampled = Instant::now();
                self.peak_rss_bytes = self.peak_rss_bytes.max(peak_rss_bytes(self.child.id()));
            }
            std::thread::sleep(POLL);
        };
        Ok(CommandOutcome {
            words: self.words.clone(),
            line: self.line.clone(),
            ended,
            out: fs::read(&self.out).unwrap_or_default(),
            err: fs::read(&self.err).unwrap_or_default(),
            peak_rss_bytes: self.peak_rss_bytes,
            wall: self.started.elapsed(),
        })
    }
}

impl Drop for RunningCommand<'_> {
    fn drop(&mut self) {
        // Both fail after the process has ended, which is as good.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl CommandOutcome {
    pub(crate) fn out_text(&self) -> String {
        String::from_utf8_lossy(&self.out).into_owned()
    }

    pub(crate) fn err_text(&self) -> String {
        String::from_utf8_lossy(&self.err).into_owned()
    }

    pub(crate) fn succeeded(&self) -> bool {
        self.ended == HowEnded::Exited(0)
    }
}

/// The largest resident memory of a process so far.
fn peak_rss_bytes(id: u32) -> u64 {
    status_kib(id, "VmHWM:") << 10
}

/// A figure in KiB from `/proc/ID/status`; 0 if there is none.
pub(crate) fn status_kib(id: u32, name: &str) -> u64 {
    let status = fs::read_to_string(format!("/proc/{id}/status")).unwrap_or_default();
    let figure = status.lines().find_map(|line| line.strip_prefix(name));
    figure.and_then(|figure| figure.split_whitespace().next()).and_then(|kib| kib.parse().ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake::FakeProgram;

    #[test]
    fn the_printed_line_repeats_the_command_in_a_moved_folder() {
        let fake = FakeProgram::new("pwd; echo \"$HOME|$1|$(ulimit -n)\"");
        let spec = CommandSpec::new("").arg("it's a word").after("ulimit -n 33");
        let ran = fake.run(&spec);
        let moved = tempfile::tempdir().unwrap();
        let line = spec.line(&fake.path, fake.folder.path());
        let again = Command::new("sh").arg("-c").arg(&line).current_dir(moved.path()).output().unwrap();
        let expected = |folder: &Path| format!("{0}\n{0}/home|it's a word|33\n", folder.display());
        assert_eq!(ran.out_text(), expected(fake.folder.path()));
        assert_eq!(String::from_utf8(again.stdout).unwrap(), expected(moved.path()), "{line}");
    }

    #[test]
    fn a_prelude_that_fails_does_not_run_the_program() {
        let ran = FakeProgram::new("exit 0").run(&CommandSpec::new("").after("true").after("false"));
        assert_eq!(ran.ended, HowEnded::Exited(125));
    }

    #[test]
    fn a_hang_is_killed_at_the_limit() {
        let fake = FakeProgram::new("sleep 60");
        let spec = CommandSpec::new("").within(Duration::from_millis(200));
        assert_eq!(fake.run(&spec).ended, HowEnded::Hung);
    }

    #[test]
    fn memory_and_endings_are_reported() {
        let fake = FakeProgram::new("sleep 0.1; exit 3");
        let ran = fake.run(&CommandSpec::new(""));
        assert!(ran.ended == HowEnded::Exited(3) && ran.peak_rss_bytes > 0, "{ran:?}");
        assert_eq!(FakeProgram::new("kill -SEGV $$").run(&CommandSpec::new("")).ended, HowEnded::Signalled(11));
    }

    #[test]
    fn a_command_ends_with_the_campaign() {
        let fake = FakeProgram::new("sleep 60");
        let (stop, at) = (AtomicBool::new(false), Instant::now() + Duration::from_millis(100));
        let running = CommandSpec::new("").spawn(&fake.path, fake.folder.path(), Deadline { at, stop: &stop }).unwrap();
        assert!(running.wait().unwrap_err().is::<OutOfTime>());
    }
}
