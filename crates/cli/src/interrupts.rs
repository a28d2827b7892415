//! Ctrl-C and SIGTERM: the first asks for an orderly end; the same signal again ends the process at once.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use signal_hook::consts::{SIGINT, SIGTERM, SIGXFSZ};
use signal_hook::flag;

/// How one is asked to stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Interrupt {
    /// Ctrl-C.
    CtrlC,
    /// `kill`, or a machine that shuts down.
    Terminated,
}

impl Interrupt {
    const ALL: [Interrupt; 2] = [Interrupt::CtrlC, Interrupt::Terminated];

    fn signal(self) -> i32 {
        match self {
            Interrupt::CtrlC => SIGINT,
            Interrupt::Terminated => SIGTERM,
        }
    }

    /// What the shell is told afterwards: 128 and the signal, as it is used to.
    pub(crate) fn code(self) -> u8 {
        128 + self.signal() as u8
    }
}

/// Signals that came. While one of these lives, they no longer end the process by themselves.
pub(crate) struct Interrupts {
    came: [Arc<AtomicBool>; 2],
}

impl Interrupts {
    pub(crate) fn listen() -> io::Result<Interrupts> {
        let came = [Arc::default(), Arc::default()];
        for (interrupt, came) in Interrupt::ALL.into_iter().zip(&came) {
            let code = i32::from(interrupt.code());
            // In this order: a signal that finds the flag raised ends the process, the first one raises it.
            flag::register_conditional_shutdown(interrupt.signal(), code, Arc::clone(came))?;
            flag::register(interrupt.signal(), Arc::clone(came))?;
        }
        Ok(Interrupts { came })
    }

    /// The one that came, if any did.
    pub(crate) fn seen(&self) -> Option<Interrupt> {
        let mut pairs = Interrupt::ALL.into_iter().zip(&self.came);
        pairs.find(|(_, came)| came.load(Ordering::Relaxed)).map(|(interrupt, _)| interrupt)
    }
}

/// Past a limit on the size of files (`ulimit -f`) a write fails, as on a full disk, and is told; without this the
/// process would be ended by a signal, without a word.
pub(crate) fn let_large_writes_fail() {
    // Where it cannot be, things are as they were.
    let _ = flag::register(SIGXFSZ, Arc::default());
}
