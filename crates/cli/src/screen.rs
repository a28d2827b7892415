//! Terminal output. All of it passes through here, so that ASCII terminals, pipes and simulated runs are each handled in
//! one place.

use std::borrow::Cow;
use std::cell::Cell;
use std::io::{self, IsTerminal, Write};
use std::os::fd::AsFd;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::retry_on_intr;
use rustix::termios::tcgetwinsize;
use serde_json::Value;

use crate::args::{Invocation, PlanArgs};
use crate::exit::Exit;

/// The output of one command.
pub(crate) struct Screen {
    /// The terminal shows ASCII only.
    plain: bool,
    flags: OutputFlags,
    /// The warning about a blocked standard output has been printed.
    has_warned_blocked: Cell<bool>,
}

/// The flags that change what is printed, and where.
#[derive(Clone, Copy, Default)]
struct OutputFlags {
    /// Every line starts with `[simulated] `.
    simulated: bool,
    quiet: bool,
    /// Lines go to standard error; standard output has the JSON document, or speech, alone.
    json: bool,
}

impl OutputFlags {
    fn of(invocation: &Invocation) -> OutputFlags {
        let of_plan =
            |args: &PlanArgs| OutputFlags { simulated: args.sim.is_some(), quiet: args.quiet, json: args.json };
        match invocation {
            Invocation::Train(args) | Invocation::Plan(args) | Invocation::Validate(args) => of_plan(args),
            Invocation::Doctor(args) => of_plan(&args.plan),
            Invocation::Profile(args) => of_plan(&args.plan),
            Invocation::Bench(args) => of_plan(&args.plan),
            Invocation::Monitor(_) => OutputFlags::default(),
            Invocation::Synthesize(args) => OutputFlags {
                simulated: args.sim.is_some(),
                quiet: args.quiet,
                json: args.json || args.writes_speech_to_stdout(),
            },
            Invocation::Corpus(args) => OutputFlags { simulated: false, quiet: args.quiet(), json: args.json() },
        }
    }
}

impl Screen {
    pub(crate) fn new(invocation: &Invocation) -> Screen {
        Screen { plain: is_plain(), flags: OutputFlags::of(invocation), has_warned_blocked: Cell::new(false) }
    }

    /// Whether the terminal shows ASCII only.
    pub(crate) fn is_plain(&self) -> bool {
        self.plain
    }

    /// Whether lines start with `[simulated] `.
    pub(crate) fn is_simulated(&self) -> bool {
        self.flags.simulated
    }

    /// Prints lines, `-q` or not.
    pub(crate) fn print(&self, text: &str) -> Result<(), Exit> {
        let text = decorate(text, self.plain, self.flags.simulated);
        match self.flags.json {
            true => io::stderr().write_all(text.as_bytes()).or(Ok(())),
            false => write_out(&text),
        }
    }

    /// Prints lines that `-q` leaves out.
    pub(crate) fn progress(&self, text: &str) -> Result<(), Exit> {
        if self.flags.quiet { Ok(()) } else { self.print(text) }
    }

    /// Prints progress lines of a run without ever blocking it. When the output has no room (a stalled pipe or
    /// terminal), the lines are dropped, with one warning.
    pub(crate) fn progress_nonblocking(&self, text: &str) {
        if self.flags.quiet {
            return;
        }
        let is_open = if self.flags.json { has_room(io::stderr()) } else { has_room(io::stdout()) };
        if is_open {
            // A closed output does not end a run.
            let _ = self.print(text);
        } else if !self.has_warned_blocked.replace(true) && has_room(io::stderr()) {
            self.warn("standard output is blocked: progress lines are dropped. Training continues");
        }
    }

    /// A progress counter for `what`.
    pub(crate) fn ticker(&self, what: &'static str) -> Ticker {
        Ticker { what, live: !self.flags.quiet && io::stderr().is_terminal(), percent: None }
    }

    /// Prints an error that does not end the command at once.
    pub(crate) fn error(&self, text: &str) {
        print_error(text, self.flags.simulated);
    }

    /// Prints a warning to standard error.
    pub(crate) fn warn(&self, text: &str) {
        print_error(&format!("⚠️ {text}"), self.flags.simulated);
    }
}

/// A counter on standard error that overwrites itself and is erased when dropped. Prints nothing unless standard error
/// is a terminal.
pub(crate) struct Ticker {
    what: &'static str,
    live: bool,
    percent: Option<usize>,
}

impl Ticker {
    /// Shows `done` of `total` when the percentage has changed.
    pub(crate) fn show(&mut self, done: usize, total: usize) {
        let percent = done * 100 / total.max(1);
        if self.live && self.percent != Some(percent) {
            self.percent = Some(percent);
            let line = format!("\r{}: {done} of {total} ({percent} %)", self.what);
            // A closed standard error is not a failure.
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

/// Prints the JSON document of a command.
pub(crate) fn write_json(document: &Value) -> Result<(), Exit> {
    // JSON allows DEL and U+0080 to U+009F in a string, and one of them starts escape sequences.
    let text = format!("{document:#}\n");
    write_out(&without_controls(&text, '\n', |c| format!("\\u{:04x}", u32::from(c))))
}

/// Prints text verbatim (`--help`, a config file): no prefixes, no emoji replaced.
pub(crate) fn write(text: &str) -> Result<(), Exit> {
    write_out(text)
}

/// Prints an error or a warning to standard error.
pub(crate) fn print_error(text: &str, simulated: bool) {
    // With standard error closed there is nowhere left to report to.
    let _ = io::stderr().write_all(decorate(text, is_plain(), simulated).as_bytes());
}

/// Whether a write would not block: a pipe has room for at least 4 KiB. A closed or broken output counts as writable;
/// the write itself reports the error.
fn has_room(out: impl AsFd) -> bool {
    let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
    let ready = retry_on_intr(|| poll(&mut [PollFd::new(&out, PollFlags::OUT)], Some(&at_once)));
    ready.is_ok_and(|ready| ready > 0)
}

fn write_out(text: &str) -> Result<(), Exit> {
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Ok(()) => Ok(()),
        // `tandem plan | head` is not a failure.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Err(Exit::Closed),
        Err(error) => Err(Exit::Failed(anyhow::Error::new(error).context("cannot write to standard output"))),
    }
}

/// The width of the terminal on standard output. None for a pipe or a file.
pub(crate) fn columns() -> Option<usize> {
    let size = tcgetwinsize(io::stdout()).ok()?;
    (size.ws_col > 0).then_some(size.ws_col.into())
}

/// Whether the locale is not UTF-8. The first of these variables that is set decides, as in the C library.
fn is_plain() -> bool {
    let set = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
    let locale = set("LC_ALL").or_else(|| set("LC_CTYPE")).or_else(|| set("LANG")).unwrap_or_default().to_lowercase();
    !(locale.contains("utf-8") || locale.contains("utf8"))
}

/// Prefixes each line of a simulated run; replaces emoji by ASCII on a plain terminal.
fn decorate(text: &str, plain: bool, simulated: bool) -> String {
    let prefix = if simulated { "[simulated] " } else { "" };
    let shown = |line| without_controls(line, '\t', |c| c.escape_unicode().to_string());
    let mut decorated: String = text.lines().map(|line| format!("{prefix}{}\n", shown(line))).collect();
    if plain {
        for (sign, ascii) in ASCII_SIGNS {
            decorated = decorated.replace(sign, ascii);
        }
    }
    decorated
}

/// Shows control characters instead of sending them: ids, speakers and paths come from files that anybody may have
/// written, and an escape sequence in one of them would be obeyed by the terminal.
fn without_controls(text: &str, kept: char, shown: impl Fn(char) -> String) -> Cow<'_, str> {
    let is_obeyed = |c: char| c.is_control() && c != kept;
    if !text.contains(is_obeyed) {
        return text.into();
    }
    text.chars().map(|c| if is_obeyed(c) { shown(c) } else { c.to_string() }).collect()
}

const ASCII_SIGNS: [(&str, &str); 16] = [
    ("✅", "[ok]"),
    ("🎉", "[ok]"),
    ("❌", "[!!]"),
    ("⚠️", "[!]"),
    ("🎯", "[*]"),
    ("🚀", "[>]"),
    ("🕐", "[..]"),
    ("×", "x"),
    ("÷", "/"),
    ("≤", "<="),
    ("≥", ">="),
    ("µ", "u"),
    ("→", "->"),
    ("–", "-"),
    ("—", "-"),
    ("…", "..."),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plain_terminals_get_ascii_and_simulated_runs_a_prefix() {
        assert_eq!(decorate("✅ a\n❌ b", true, false), "[ok] a\n[!!] b\n");
        assert_eq!(decorate("✅ a\nb\n", false, true), "[simulated] ✅ a\n[simulated] b\n");
        assert_eq!(decorate("\u{1b}[2Jid\u{9b}5m\tb", false, false), "\\u{1b}[2Jid\\u{9b}5m\tb\n");
    }
}
