//! A terminal for a test: a tmux window that the test types into, resizes and reads.

use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use tandem_test_support::skip;

/// Ends a test that would hang, with what it waited for. No result depends on it: it is a hundred times the longest wait
/// that was seen, and less than the limit of `tools/watch-tests`, which knows only the name.
const TIMEOUT: Duration = Duration::from_secs(240);

/// Repeats the check until it succeeds. Fails with its last error after the timeout.
#[track_caller]
pub(crate) fn eventually(mut check: impl FnMut() -> Result<(), String>) {
    let started = Instant::now();
    while let Err(error) = check() {
        assert!(started.elapsed() < TIMEOUT, "{error}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// A window that runs a shell command. It is closed when dropped.
pub(crate) struct TestTerminal {
    socket: String,
}

impl TestTerminal {
    /// Runs `line` in a window of that size. Without tmux, the test is skipped.
    pub(crate) fn run(line: &str, (width, height): (u16, u16)) -> Option<TestTerminal> {
        if !Command::new("tmux").arg("-V").output().is_ok_and(|output| output.status.success()) {
            skip("TANDEM_REQUIRE_TMUX", "output in a terminal", "tmux is not installed");
            return None;
        }
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let terminal = TestTerminal { socket: format!("tandem-{}-{number}", std::process::id()) };
        // `cat` keeps the window open until the test has read it.
        let line = format!("{line}; echo \"ended with $?\"; stty -a | grep -o ' [-]*icanon'; cat");
        let (width, height) = (width.to_string(), height.to_string());
        terminal.tmux(&["new-session", "-d", "-x", &width, "-y", &height, &line]);
        Some(terminal)
    }

    pub(crate) fn screen(&self) -> String {
        self.tmux(&["capture-pane", "-p"])
    }

    /// The screen with the escape sequences of its colours.
    pub(crate) fn colored_screen(&self) -> String {
        self.tmux(&["capture-pane", "-p", "-e"])
    }

    /// The screen and everything that has scrolled off it, without empty lines at the end.
    pub(crate) fn history(&self) -> String {
        self.tmux(&["capture-pane", "-p", "-S", "-"]).trim_end().to_owned()
    }

    /// Waits until the screen shows all of `parts`, and returns it.
    #[track_caller]
    pub(crate) fn until(&self, parts: &[&str]) -> String {
        let mut screen = self.screen();
        eventually(|| {
            screen = self.screen();
            parts
                .iter()
                .all(|part| screen.contains(part))
                .then_some(())
                .ok_or(format!("{parts:?} never appeared on\n{screen}"))
        });
        screen
    }

    pub(crate) fn resize(&self, width: u16, height: u16) {
        self.tmux(&["resize-window", "-x", &width.to_string(), "-y", &height.to_string()]);
    }

    pub(crate) fn press(&self, key: &str) {
        self.tmux(&["send-keys", key]);
    }

    /// The process id of the program in the window.
    pub(crate) fn child(&self) -> String {
        let shell = self.tmux(&["display-message", "-p", "#{pane_pid}"]);
        let children = std::fs::read_to_string(format!("/proc/{0}/task/{0}/children", shell.trim())).unwrap();
        children.trim().to_owned()
    }

    /// Fails unless the terminal is back in its normal state.
    #[track_caller]
    pub(crate) fn is_restored(&self) {
        assert!(self.screen().contains("\n icanon"), "{}", self.screen());
        assert_eq!(self.tmux(&["display-message", "-p", "#{alternate_on} #{cursor_flag}"]).trim(), "0 1");
    }

    fn tmux(&self, args: &[&str]) -> String {
        let output = Command::new("tmux").args(["-L", &self.socket, "-f", "/dev/null"]).args(args).output().unwrap();
        assert!(output.status.success(), "tmux {args:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    }
}

impl Drop for TestTerminal {
    fn drop(&mut self) {
        let _ = Command::new("tmux").args(["-L", &self.socket, "kill-server"]).output();
    }
}
