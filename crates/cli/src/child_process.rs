//! This program as a child process that may crash or hang: its lines, with a deadline for each.

use std::ffi::OsStr;
use std::io::{self, Read as _};
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::process::{Child, ChildStdout, Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::retry_on_intr;

/// The running program, even if its file was replaced meanwhile: both ends are of one version.
pub(crate) const THIS_PROGRAM: &str = "/proc/self/exe";
/// How long a process may take to end, by itself or when it is killed. One that hangs inside the kernel cannot be killed: it
/// is left behind.
const LONGEST_END: Duration = Duration::from_secs(2);

/// A child process. Dropping it ends it.
pub(crate) struct ChildProcess {
    child: Child,
    out: ChildStdout,
    /// Read, and not yet returned.
    pending: Vec<u8>,
}

/// What a child did within a deadline.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum ChildOutput {
    /// It wrote this line.
    Line(String),
    /// It ended, and how.
    Ended(String),
    /// Nothing.
    Nothing,
}

impl ChildProcess {
    /// Starts this program with `args`. Its messages are not shown.
    pub(crate) fn start(args: impl IntoIterator<Item = impl AsRef<OsStr>>) -> io::Result<ChildProcess> {
        let mut command = Command::new(THIS_PROGRAM);
        command.arg0("tandem").args(args).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = command.spawn()?;
        let Some(out) = child.stdout.take() else { return Err(io::Error::other("the child has no standard output")) };
        Ok(ChildProcess { child, out, pending: Vec::new() })
    }

    /// Its next line, or its end. Waits for `longest` at most.
    pub(crate) fn next(&mut self, longest: Duration) -> io::Result<ChildOutput> {
        let until = Instant::now() + longest;
        loop {
            if let Some(end) = self.pending.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.pending.drain(..=end).collect();
                return Ok(ChildOutput::Line(String::from_utf8_lossy(&line).trim_end().to_owned()));
            }
            if !is_readable(&self.out, until.saturating_duration_since(Instant::now()))? {
                return Ok(ChildOutput::Nothing);
            }
            let mut buffer = [0; 4096];
            match self.out.read(&mut buffer)? {
                0 => return self.end(),
                count => self.pending.extend_from_slice(&buffer[..count]),
            }
        }
    }

    /// Its output is closed: it is about to end.
    fn end(&mut self) -> io::Result<ChildOutput> {
        Ok(match self.wait(LONGEST_END)? {
            Some(status) => ChildOutput::Ended(how(status)),
            None => ChildOutput::Nothing,
        })
    }

    /// Lets it end by itself, so that it closes its cards; ends it if that takes too long.
    pub(crate) fn finish(mut self) {
        // Dropping it does the rest.
        let _ = self.wait(LONGEST_END);
    }

    fn wait(&mut self, longest: Duration) -> io::Result<Option<ExitStatus>> {
        let until = Instant::now() + longest;
        loop {
            let status = self.child.try_wait()?;
            if status.is_some() || Instant::now() >= until {
                return Ok(status);
            }
            thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Drop for ChildProcess {
    fn drop(&mut self) {
        // Neither can fail for a child of ours that was not waited for.
        let _ = self.child.kill();
        let _ = self.wait(LONGEST_END);
    }
}

fn is_readable(out: &ChildStdout, longest: Duration) -> io::Result<bool> {
    let timeout = Timespec { tv_sec: longest.as_secs() as i64, tv_nsec: i64::from(longest.subsec_nanos()) };
    let ready = retry_on_intr(|| poll(&mut [PollFd::new(out, PollFlags::IN)], Some(&timeout)))?;
    Ok(ready > 0)
}

/// `exit code 1`, `signal 6`
fn how(status: ExitStatus) -> String {
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("exit code {code}"),
        (None, Some(signal)) => format!("signal {signal}"),
        (None, None) => "no exit code".to_owned(),
    }
}
