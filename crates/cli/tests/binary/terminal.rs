//! A terminal of its own for a test: a window of tmux that is typed into, resized and looked at.

use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// What is not seen by then will not be. Nothing is decided by how long it took before.
const PATIENCE: Duration = Duration::from_secs(300);

/// Asks again and again until it is so; what is wrong until then is said when it stays so.
#[track_caller]
pub(crate) fn eventually(mut is_so: impl FnMut() -> Result<(), String>) {
    let begun = Instant::now();
    while let Err(wrong) = is_so() {
        assert!(begun.elapsed() < PATIENCE, "{wrong}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// A window with a shell command in it. It ends with the test.
pub(crate) struct TestTerminal {
    socket: String,
}

impl TestTerminal {
    /// Runs `line` in a window of that size; none where there is no tmux, which is said.
    #[expect(clippy::print_stderr, reason = "a test that tests nothing says so")]
    pub(crate) fn run(line: &str, (width, height): (u16, u16)) -> Option<TestTerminal> {
        if !Command::new("tmux").arg("-V").output().is_ok_and(|said| said.status.success()) {
            assert!(std::env::var_os("TANDEM_REQUIRE_TMUX").is_none(), "tmux is not installed, and it is required");
            eprintln!("SKIPPED: tmux is not installed, and nothing else here is a terminal");
            return None;
        }
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let terminal = TestTerminal { socket: format!("tandem-{}-{number}", std::process::id()) };
        // `cat` keeps the window until it has been looked at.
        let line = format!("{line}; echo \"ended with $?\"; stty -a | grep -o ' [-]*icanon'; cat");
        let (width, height) = (width.to_string(), height.to_string());
        terminal.tmux(&["new-session", "-d", "-x", &width, "-y", &height, &line]);
        Some(terminal)
    }

    pub(crate) fn screen(&self) -> String {
        self.tmux(&["capture-pane", "-p"])
    }

    /// What is on it once it shows all of `parts`.
    #[track_caller]
    pub(crate) fn until(&self, parts: &[&str]) -> String {
        let mut screen = self.screen();
        eventually(|| {
            screen = self.screen();
            parts
                .iter()
                .all(|part| screen.contains(part))
                .then_some(())
                .ok_or(format!("{parts:?} never came to\n{screen}"))
        });
        screen
    }

    pub(crate) fn resize(&self, width: u16, height: u16) {
        self.tmux(&["resize-window", "-x", &width.to_string(), "-y", &height.to_string()]);
    }

    pub(crate) fn press(&self, key: &str) {
        self.tmux(&["send-keys", key]);
    }

    /// The process of the program in the window.
    pub(crate) fn child(&self) -> String {
        let shell = self.tmux(&["display-message", "-p", "#{pane_pid}"]);
        let children = std::fs::read_to_string(format!("/proc/{0}/task/{0}/children", shell.trim())).unwrap();
        children.trim().to_owned()
    }

    /// Fails unless the terminal is as it was before a program took it over.
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
