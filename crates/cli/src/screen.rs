//! Terminal output of a command. All of it passes through here, so that quiet, JSON, pipes and simulated runs are each
//! handled in one place.

use std::cell::Cell;
use std::io;
use std::time::Instant;

use serde_json::Value;

use crate::args::{Invocation, PlanArgs};
use crate::console::{self, Console};
use crate::exit::Exit;
use crate::live_line::LiveLine;
use crate::ranks::other_rank;
use crate::style::{Look, OutputStream, UseColor, is_dumb, is_plain, without_controls};
use crate::ticker::Ticker;

/// The output of one command.
pub(crate) struct Screen {
    console: Console,
    flags: OutputFlags,
    /// The warning about a blocked standard output has been printed.
    has_warned_blocked: Cell<bool>,
    /// Warnings are dropped.
    silent: Cell<bool>,
}

/// The flags that change what is printed, and where.
#[derive(Clone, Copy, Default)]
struct OutputFlags {
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
            Invocation::Monitor(args) => OutputFlags { json: args.json, ..OutputFlags::default() },
            Invocation::Launch(_) | Invocation::Completions(_) | Invocation::Man(_) | Invocation::CheckPair(_) => {
                OutputFlags::default()
            }
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
    pub(crate) fn new(invocation: &Invocation, color: UseColor) -> Screen {
        let mut flags = OutputFlags::of(invocation);
        let rank = other_rank().filter(|_| matches!(invocation, Invocation::Train(_)));
        // Rank 0 prints what all ranks would.
        flags.quiet |= rank.is_some();
        let look = Look { plain: is_plain(), simulated: flags.simulated, rank, color };
        Screen { console: Console::new(look), flags, has_warned_blocked: Cell::new(false), silent: Cell::new(false) }
    }

    /// Whether the terminal shows ASCII only.
    pub(crate) fn is_plain(&self) -> bool {
        self.console.look().plain
    }

    /// Whether the cards are simulated.
    pub(crate) fn is_simulated(&self) -> bool {
        self.flags.simulated
    }

    /// The value of `--color`.
    pub(crate) fn color(&self) -> UseColor {
        self.console.look().color
    }

    /// A handle for threads that warn.
    pub(crate) fn console(&self) -> Console {
        self.console.clone()
    }

    /// Prints lines, `-q` or not.
    pub(crate) fn print(&self, text: &str) -> Result<(), Exit> {
        let printed = self.console.print(text, self.stream());
        // A closed standard error is not a failure.
        if self.flags.json { Ok(()) } else { printed.map_err(exit_of) }
    }

    /// Prints lines that `-q` leaves out.
    pub(crate) fn progress(&self, text: &str) -> Result<(), Exit> {
        if self.flags.quiet { Ok(()) } else { self.print(text) }
    }

    /// Prints a line about something that the user may not expect. With `-q` it is a warning.
    pub(crate) fn note(&self, text: &str) -> Result<(), Exit> {
        if self.flags.quiet {
            self.warn(text.trim_start_matches("⚠️ "));
            return Ok(());
        }
        self.print(&format!("   {text}"))
    }

    /// Prints progress lines of a run without ever blocking it. When the output has no room (a stalled pipe or
    /// terminal), the lines are dropped, with one warning.
    pub(crate) fn progress_nonblocking(&self, text: &str) {
        if self.flags.quiet || self.console.print_nonblocking(text, self.stream()) {
            return;
        }
        if !self.has_warned_blocked.replace(true) && console::has_room(OutputStream::Err) {
            self.warn("standard output is blocked: progress lines are dropped. Training continues");
        }
    }

    /// A live line below the printed lines. None for `-q`, and where they do not go to a terminal.
    pub(crate) fn live_line(&self) -> Option<LiveLine> {
        self.live_line_on(self.stream())
    }

    /// A progress counter for `what`.
    pub(crate) fn ticker(&self, what: &'static str) -> Ticker {
        let live = self.live_line_on(OutputStream::Err);
        let lines = (live.is_none() && !self.flags.quiet).then(|| self.console());
        Ticker::new(what, live, lines, Instant::now())
    }

    fn live_line_on(&self, stream: OutputStream) -> Option<LiveLine> {
        let is_live = !self.flags.quiet && stream.is_terminal() && !is_dumb();
        is_live.then(|| LiveLine::new(self.console(), stream))
    }

    /// Whether warnings are dropped, because another rank prints the same.
    pub(crate) fn set_silent(&self, silent: bool) {
        self.silent.set(silent);
    }

    /// Prints a warning to standard error.
    pub(crate) fn warn(&self, text: &str) {
        if self.silent.get() {
            return;
        }
        self.console.warn(text);
    }

    /// The warnings so far, oldest first.
    pub(crate) fn warnings(&self) -> Vec<String> {
        self.console.warnings()
    }

    /// Prints an error to standard error, for a command that continues.
    pub(crate) fn error(&self, text: &str) {
        // With standard error closed there is nowhere left to report to.
        let _ = self.console.print(&format!("❌ {text}"), OutputStream::Err);
    }

    /// Where lines go.
    fn stream(&self) -> OutputStream {
        if self.flags.json { OutputStream::Err } else { OutputStream::Out }
    }
}

/// Prints the JSON document of a command.
pub(crate) fn write_json(document: &Value) -> Result<(), Exit> {
    // JSON allows DEL and U+0080 to U+009F in a string, and one of them starts escape sequences.
    let text = format!("{document:#}\n");
    write(&without_controls(&text, '\n', |c| format!("\\u{:04x}", u32::from(c))))
}

/// Prints text verbatim (`--help`, a config file): no prefixes, no emoji replaced.
pub(crate) fn write(text: &str) -> Result<(), Exit> {
    console::write(text, OutputStream::Out).map_err(exit_of)
}

fn exit_of(error: io::Error) -> Exit {
    match error.kind() {
        // `tandem plan | head` is not a failure.
        io::ErrorKind::BrokenPipe => Exit::Closed,
        _ => Exit::Failed(anyhow::Error::new(error).context("cannot write to standard output")),
    }
}
