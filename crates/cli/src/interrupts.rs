//! Ctrl-C, SIGTERM and SIGHUP: the first signal requests a clean stop; the same signal again ends the process at once.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGXFSZ};
use signal_hook::flag;

/// A request to stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Interrupt {
    /// Ctrl-C.
    CtrlC,
    /// SIGTERM: `kill`, or the machine shuts down.
    Terminated,
    /// SIGHUP: the terminal was closed, or the connection to it was lost.
    HungUp,
}

impl Interrupt {
    const ALL: [Interrupt; 3] = [Interrupt::CtrlC, Interrupt::Terminated, Interrupt::HungUp];

    fn signal(self) -> i32 {
        match self {
            Interrupt::CtrlC => SIGINT,
            Interrupt::Terminated => SIGTERM,
            Interrupt::HungUp => SIGHUP,
        }
    }

    /// The exit code, by the shell's convention: 128 + the signal.
    pub(crate) fn code(self) -> u8 {
        128 + self.signal() as u8
    }
}

/// Catches the signals. While one of these exists, the first signal does not end the process.
pub(crate) struct Interrupts {
    received: [Arc<AtomicBool>; 3],
}

impl Interrupts {
    pub(crate) fn listen() -> io::Result<Interrupts> {
        let received: [Arc<AtomicBool>; 3] = Default::default();
        for (interrupt, received) in Interrupt::ALL.into_iter().zip(&received) {
            // Who starts a run with `nohup` wants it to outlive the terminal.
            if interrupt == Interrupt::HungUp && is_ignored(interrupt.signal()) {
                continue;
            }
            let code = i32::from(interrupt.code());
            // In this order: the first signal raises the flag; a signal that finds it raised ends the process.
            flag::register_conditional_shutdown(interrupt.signal(), code, Arc::clone(received))?;
            flag::register(interrupt.signal(), Arc::clone(received))?;
        }
        Ok(Interrupts { received })
    }

    /// The signal received, if any.
    pub(crate) fn seen(&self) -> Option<Interrupt> {
        let mut pairs = Interrupt::ALL.into_iter().zip(&self.received);
        pairs.find(|(_, received)| received.load(Ordering::Relaxed)).map(|(interrupt, _)| interrupt)
    }
}

/// Catches every signal, for a process that passes them on. None of them ends it.
pub(crate) struct ForwardedSignals {
    received: [Arc<AtomicBool>; 3],
}

impl ForwardedSignals {
    pub(crate) fn listen() -> io::Result<ForwardedSignals> {
        let received: [Arc<AtomicBool>; 3] = Default::default();
        for (interrupt, received) in Interrupt::ALL.into_iter().zip(&received) {
            if interrupt != Interrupt::HungUp || !is_ignored(interrupt.signal()) {
                flag::register(interrupt.signal(), Arc::clone(received))?;
            }
        }
        Ok(ForwardedSignals { received })
    }

    /// A signal that was received since the last call.
    pub(crate) fn take(&self) -> Option<Interrupt> {
        let mut pairs = Interrupt::ALL.into_iter().zip(&self.received);
        pairs.find(|(_, received)| received.swap(false, Ordering::Relaxed)).map(|(interrupt, _)| interrupt)
    }
}

/// Whether this process was started with the signal ignored. Linux lists these in `/proc`.
fn is_ignored(signal: i32) -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0);
    mask >> (signal - 1) & 1 == 1
}

/// Makes a write past `ulimit -f` fail with an error, as on a full disk. By default SIGXFSZ would kill the process without
/// a message.
pub(crate) fn ignore_file_size_signal() {
    // If the handler cannot be installed, the default stays.
    let _ = flag::register(SIGXFSZ, Arc::default());
}
