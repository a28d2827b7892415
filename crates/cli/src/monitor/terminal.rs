//! Takes the terminal over for the live view and restores it on every exit path.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use anyhow::Context as _;
use ratatui::DefaultTerminal;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::flag;

use crate::exit::Exit;

/// Holding one of these means that the terminal is in raw mode on the alternate screen. Dropping it restores the terminal, also
/// on a panic, whose message is then printed to the normal screen.
pub(super) struct Terminal {
    inner: DefaultTerminal,
    /// The signal received, or 0.
    signal: Arc<AtomicUsize>,
}

impl Terminal {
    pub(super) fn take() -> Result<Terminal, Exit> {
        let signal = Arc::new(AtomicUsize::new(0));
        // Registered before the terminal changes: a signal in between would leave it changed. In raw mode Ctrl-C is a key.
        for number in [SIGINT, SIGTERM, SIGHUP] {
            flag::register_usize(number, Arc::clone(&signal), number as usize).context("cannot listen for signals")?;
        }
        let inner = ratatui::try_init().inspect_err(|_| restore());
        Ok(Terminal { inner: inner.context("cannot draw on the terminal")?, signal })
    }

    /// The exit code of the signal received: 128 + its number.
    pub(super) fn signalled(&self) -> Option<u8> {
        match self.signal.load(Ordering::Relaxed) {
            0 => None,
            number => Some(128 + number as u8),
        }
    }

    pub(super) fn draw(&mut self, draw: impl FnOnce(&mut ratatui::Frame<'_>)) -> io::Result<()> {
        self.inner.draw(draw).map(drop)
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        restore();
    }
}

fn restore() {
    // After a hangup there is no terminal to restore, and no one to report to.
    let _ = ratatui::try_restore();
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use tandem_test_support::skip;

    use super::*;

    /// Set by the test that runs the other one in a new terminal.
    const IN_A_TERMINAL: &str = "TANDEM_TEST_IN_A_TERMINAL";

    #[test]
    fn panics_on_purpose() {
        if std::env::var_os(IN_A_TERMINAL).is_none() {
            return;
        }
        let mut terminal = Terminal::take().unwrap();
        terminal.draw(|frame| frame.render_widget("a run", frame.area())).unwrap();
        panic!("on purpose");
    }

    #[test]
    fn a_panic_restores_the_terminal_and_prints_its_message_there() {
        let has_tmux = Command::new("tmux").arg("-V").output().is_ok_and(|output| output.status.success());
        if !has_tmux {
            skip("TANDEM_REQUIRE_TMUX", "a panic of the monitor in a terminal", "tmux is not installed");
            return;
        }
        let socket = format!("tandem-unit-{}", std::process::id());
        let tmux = |args: &[&str]| {
            let output = Command::new("tmux").args(["-L", &socket, "-f", "/dev/null"]).args(args).output().unwrap();
            String::from_utf8(output.stdout).unwrap()
        };
        let program = tandem_plan::quoted(&std::env::current_exe().unwrap().display().to_string());
        let test = "monitor::terminal::tests::panics_on_purpose --exact --nocapture";
        // `cat` keeps the terminal open until the test has read it.
        let line = format!(
            "{IN_A_TERMINAL}=1 RUST_BACKTRACE=0 {program} {test}; stty -a | grep -o ' [-]*icanon'; echo over; cat"
        );
        tmux(&["new-session", "-d", "-x", "100", "-y", "30", &line]);
        let screen = loop {
            let screen = tmux(&["capture-pane", "-p"]);
            if screen.contains("over") || screen.is_empty() {
                break screen;
            }
            std::thread::yield_now();
        };
        let alternate = tmux(&["display-message", "-p", "#{alternate_on}"]);
        tmux(&["kill-server"]);
        assert!(screen.contains("on purpose") && screen.contains(" icanon") && !screen.contains("a run"), "{screen}");
        assert_eq!(alternate.trim(), "0");
    }
}
