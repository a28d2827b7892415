//! What people see: one writer, so that plain terminals, pipes and simulated runs are each handled in one place.

use std::cell::Cell;
use std::io::{self, IsTerminal, Write};
use std::os::fd::AsFd;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::retry_on_intr;
use serde_json::Value;

use crate::args::Invocation;
use crate::exit::Exit;

/// Standard output of one command.
pub(crate) struct Screen {
    plain: bool,
    simulated: bool,
    quiet: bool,
    /// `--json`: lines go to standard error, the document alone to standard output.
    aside: bool,
    /// Lines were left out, and that was said.
    is_unread_told: Cell<bool>,
}

impl Screen {
    pub(crate) fn new(call: &Invocation) -> Screen {
        let (simulated, quiet, aside) = match call {
            Invocation::Train(call) | Invocation::Plan(call) | Invocation::Validate(call) => {
                (call.sim.is_some(), call.quiet, call.json)
            }
            Invocation::Doctor(call) => (call.plan.sim.is_some(), call.plan.quiet, call.plan.json),
            Invocation::Monitor(_) => (false, false, false),
            Invocation::Profile(call) => (call.plan.sim.is_some(), call.plan.quiet, call.plan.json),
            Invocation::Synthesize(call) => (call.sim.is_some(), call.quiet, false),
            Invocation::Bench(call) => (call.plan.sim.is_some(), call.plan.quiet, call.plan.json),
            Invocation::Corpus(call) => (false, call.quiet(), call.json()),
        };
        Screen { plain: is_plain(), simulated, quiet, aside, is_unread_told: Cell::new(false) }
    }

    /// Whether the terminal shows plain characters only.
    pub(crate) fn is_plain(&self) -> bool {
        self.plain
    }

    /// Whether lines have the prefix of simulated runs.
    pub(crate) fn is_simulated(&self) -> bool {
        self.simulated
    }

    /// Prints lines a person asked for.
    pub(crate) fn say(&self, text: &str) -> Result<(), Exit> {
        let text = dress(text, self.plain, self.simulated);
        match self.aside {
            true => io::stderr().write_all(text.as_bytes()).or(Ok(())),
            false => write_out(&text),
        }
    }

    /// Prints lines that `-q` leaves out.
    pub(crate) fn progress(&self, text: &str) -> Result<(), Exit> {
        if self.quiet { Ok(()) } else { self.say(text) }
    }

    /// The same for a run that goes on: where nobody takes what was printed before, the lines are left out, and that is
    /// said once. A run does not stand still for its reader.
    pub(crate) fn mention(&self, text: &str) {
        if self.quiet {
            return;
        }
        let is_taken_here = if self.aside { is_taken(io::stderr()) } else { is_taken(io::stdout()) };
        if is_taken_here {
            // One that went away does not end a run.
            let _ = self.say(text);
        } else if !self.is_unread_told.replace(true) && is_taken(io::stderr()) {
            self.warn("nobody reads what is printed: lines are left out. Training goes on");
        }
    }

    /// A line that shows how far `what` has come.
    pub(crate) fn ticker(&self, what: &'static str) -> Ticker {
        Ticker { what, live: !self.quiet && io::stderr().is_terminal(), percent: None }
    }

    /// Prints a warning, on standard error.
    pub(crate) fn warn(&self, text: &str) {
        complain(&format!("⚠️ {text}"), self.simulated);
    }
}

/// A line on standard error that is written over, and gone in the end; nothing where that is no terminal.
pub(crate) struct Ticker {
    what: &'static str,
    live: bool,
    percent: Option<usize>,
}

impl Ticker {
    /// Shows `done` of `total`, when that is another percentage than before.
    pub(crate) fn show(&mut self, done: usize, total: usize) {
        let percent = done * 100 / total.max(1);
        if self.live && self.percent != Some(percent) {
            self.percent = Some(percent);
            let line = format!("\r{}: {done} of {total} ({percent} %)", self.what);
            // Nobody to see it is no failure.
            let _ = io::stderr().write_all(line.as_bytes());
        }
    }
}

impl Drop for Ticker {
    fn drop(&mut self) {
        if self.percent.is_some() {
            let _ = io::stderr().write_all(b"\r\x1b[K");
        }
    }
}

/// Prints the one JSON document of a command.
pub(crate) fn write_json(document: &Value) -> Result<(), Exit> {
    write_out(&format!("{document:#}\n"))
}

/// Prints text that is the answer itself (`--help`, a config file): no prefixes, no signs changed.
pub(crate) fn write(text: &str) -> Result<(), Exit> {
    write_out(text)
}

/// Prints an error or a warning.
pub(crate) fn complain(text: &str, simulated: bool) {
    // Where even standard error is closed there is nobody left to tell.
    let _ = io::stderr().write_all(dress(text, is_plain(), simulated).as_bytes());
}

/// Whether there is room for some lines: in a pipe for 4 KiB at least. What is gone or broken takes everything, and says so then.
fn is_taken(out: impl AsFd) -> bool {
    let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
    let ready = retry_on_intr(|| poll(&mut [PollFd::new(&out, PollFlags::OUT)], Some(&at_once)));
    ready.is_ok_and(|ready| ready > 0)
}

fn write_out(text: &str) -> Result<(), Exit> {
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Ok(()) => Ok(()),
        // `tandem plan | head` is no failure.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Err(Exit::Closed),
        Err(error) => Err(Exit::Failed(anyhow::Error::new(error).context("cannot write to standard output"))),
    }
}

/// A terminal shows our signs when its locale is UTF-8: the first of these that is set decides, as in the C library.
fn is_plain() -> bool {
    let set = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
    let locale = set("LC_ALL").or_else(|| set("LC_CTYPE")).or_else(|| set("LANG")).unwrap_or_default().to_lowercase();
    !(locale.contains("utf-8") || locale.contains("utf8"))
}

/// Each line with its prefix, the signs as words where the terminal has no others.
fn dress(text: &str, plain: bool, simulated: bool) -> String {
    let prefix = if simulated { "[simulated] " } else { "" };
    let mut dressed: String = text.lines().map(|line| format!("{prefix}{line}\n")).collect();
    if plain {
        for (sign, word) in SIGNS {
            dressed = dressed.replace(sign, word);
        }
    }
    dressed
}

const SIGNS: [(&str, &str); 9] = [
    ("✅", "[ok]"),
    ("🎉", "[ok]"),
    ("❌", "[!!]"),
    ("⚠️", "[!]"),
    ("🎯", "[*]"),
    ("🚀", "[>]"),
    ("🕐", "[..]"),
    ("×", "x"),
    ("…", "..."),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plain_terminals_get_words_and_simulated_runs_a_prefix() {
        assert_eq!(dress("✅ a\n❌ b", true, false), "[ok] a\n[!!] b\n");
        assert_eq!(dress("✅ a\nb\n", false, true), "[simulated] ✅ a\n[simulated] b\n");
    }
}
