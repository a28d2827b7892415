//! Standard output and standard error as one screen: lines scroll above at most one live line, which is redrawn in place.
//! Every thread that prints shares it, so that a warning never lands in the middle of the live line.

use std::io::{self, Write};
use std::os::fd::AsFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::retry_on_intr;
use rustix::termios::tcgetwinsize;

use crate::style::{Look, OutputStream};

/// Warnings that are remembered for the JSON document.
const MAX_WARNINGS: usize = 1000;
/// Escape sequences of every terminal: from the cursor to the end of its line, and the whole line.
const ERASE_REST: &str = "\u{1b}[K";
const ERASE_LINE: &str = "\r\u{1b}[K";
/// The width of a terminal that does not say how wide it is.
const USUAL_COLUMNS: usize = 80;

/// A handle to the screen, for any thread.
#[derive(Clone)]
pub(crate) struct Console {
    look: Look,
    state: Arc<Mutex<ConsoleState>>,
}

#[derive(Default)]
struct ConsoleState {
    live: Option<LiveText>,
    warnings: Vec<String>,
}

/// A line that is shown below everything else.
struct LiveText {
    stream: OutputStream,
    text: String,
}

impl Console {
    pub(crate) fn new(look: Look) -> Console {
        Console { look, state: Arc::default() }
    }

    pub(crate) fn look(&self) -> Look {
        self.look
    }

    /// Prints lines. Waits until there is room.
    pub(crate) fn print(&self, text: &str, stream: OutputStream) -> io::Result<()> {
        self.lock().print(&self.look.decorate(text, stream), stream)
    }

    /// Prints lines unless that would block: the output has no room, or a blocked thread is printing. Returns whether it
    /// did not block.
    pub(crate) fn print_nonblocking(&self, text: &str, stream: OutputStream) -> bool {
        let Some(mut state) = self.lock_nonblocking(stream) else { return false };
        // A closed output does not end a run.
        let _ = state.print(&self.look.decorate(text, stream), stream);
        true
    }

    /// Prints a warning to standard error and remembers it.
    pub(crate) fn warn(&self, text: &str) {
        let shown = self.look.decorate(&format!("⚠️ {text}"), OutputStream::Err);
        let mut state = self.lock();
        if state.warnings.len() < MAX_WARNINGS {
            state.warnings.push(text.to_owned());
        }
        // With standard error closed there is nowhere left to report to.
        let _ = state.print(&shown, OutputStream::Err);
    }

    /// The warnings so far, oldest first.
    pub(crate) fn warnings(&self) -> Vec<String> {
        self.lock().warnings.clone()
    }

    /// Shows `text` as the live line, cut to the width of the terminal. Never blocks: a frame may be missing.
    pub(crate) fn show_live(&self, text: &str, stream: OutputStream) {
        let Some(mut state) = self.lock_nonblocking(stream) else { return };
        let shown = self.look.decorate(text, OutputStream::Err);
        let text = shown.trim_end().chars().take(live_columns(stream)).collect();
        state.live = Some(LiveText { stream, text });
        state.draw();
    }

    /// Removes the live line.
    pub(crate) fn end_live(&self) {
        let mut state = self.lock();
        state.erase();
        state.live = None;
    }

    fn lock(&self) -> MutexGuard<'_, ConsoleState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lock_nonblocking(&self, stream: OutputStream) -> Option<MutexGuard<'_, ConsoleState>> {
        let state = match self.state.try_lock() {
            Ok(state) => state,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return None,
        };
        has_room(stream).then_some(state)
    }
}

impl ConsoleState {
    /// Lines above the live line. On the live line's own stream in one write, so that no terminal shows the moment
    /// without it.
    fn print(&mut self, text: &str, stream: OutputStream) -> io::Result<()> {
        match &self.live {
            None => write(text, stream),
            Some(live) if live.stream == stream => write(&format!("{ERASE_LINE}{text}{}", live.frame()), stream),
            Some(_) => {
                self.erase();
                let printed = write(text, stream);
                self.draw();
                printed
            }
        }
    }

    fn erase(&self) {
        if let Some(live) = &self.live {
            let _ = write(ERASE_LINE, live.stream);
        }
    }

    fn draw(&self) {
        if let Some(live) = &self.live {
            let _ = write(&live.frame(), live.stream);
        }
    }
}

impl LiveText {
    /// What redraws the line in place.
    fn frame(&self) -> String {
        format!("\r{}{ERASE_REST}", self.text)
    }
}

/// The width of a live line on `stream`. A full line would be wrapped by the `^C` that the terminal shows for Ctrl-C.
pub(crate) fn live_columns(stream: OutputStream) -> usize {
    terminal_columns(stream).unwrap_or(USUAL_COLUMNS).saturating_sub(3)
}

/// The width of the terminal behind `stream`. None for a pipe or a file.
pub(crate) fn terminal_columns(stream: OutputStream) -> Option<usize> {
    let size = match stream {
        OutputStream::Out => tcgetwinsize(io::stdout()),
        OutputStream::Err => tcgetwinsize(io::stderr()),
    };
    size.ok().map(|size| usize::from(size.ws_col)).filter(|columns| *columns > 0)
}

/// Writes text as it is.
pub(crate) fn write(text: &str, stream: OutputStream) -> io::Result<()> {
    match stream {
        OutputStream::Out => {
            let mut out = io::stdout().lock();
            out.write_all(text.as_bytes()).and_then(|()| out.flush())
        }
        OutputStream::Err => io::stderr().write_all(text.as_bytes()),
    }
}

/// Whether a write would not block: a pipe has room for at least 4 KiB. A closed or broken output counts as writable;
/// the write itself reports the error.
pub(crate) fn has_room(stream: OutputStream) -> bool {
    match stream {
        OutputStream::Out => is_writable(io::stdout()),
        OutputStream::Err => is_writable(io::stderr()),
    }
}

fn is_writable(out: impl AsFd) -> bool {
    let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
    let ready = retry_on_intr(|| poll(&mut [PollFd::new(&out, PollFlags::OUT)], Some(&at_once)));
    ready.is_ok_and(|ready| ready > 0)
}
