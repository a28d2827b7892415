//! Delays on purpose: the data device's streams held up by turns, so that on a real card a missing wait shows.
//!
//! Two delays at once would hide each other, since nobody overtakes while both sides stand still: each stream is at
//! times the only one that does.

use tandem_device::kernels::Checks;
use tandem_device::{Device, DeviceError, Stream};

/// Holds streams up, or does nothing.
pub(crate) struct InjectedDelays {
    checks: Option<Checks>,
    ns: u64,
}

impl InjectedDelays {
    /// Delays of `ns`; none for 0.
    pub(crate) fn create(device: &Device, ns: u64) -> Result<InjectedDelays, DeviceError> {
        let checks = if ns > 0 { Some(Checks::load(device)?) } else { None };
        Ok(InjectedDelays { checks, ns })
    }

    /// Before the copy of a batch.
    pub(crate) fn delay_upload(&self, stream: &Stream, batch: u64) -> Result<(), DeviceError> {
        self.hold_up(stream, batch % 7 == 3)
    }

    /// Before the features of a batch. Batch 1 holds up the start.
    pub(crate) fn delay_features(&self, stream: &Stream, batch: u64) -> Result<(), DeviceError> {
        self.hold_up(stream, batch == 1 || batch % 8 == 6)
    }

    fn hold_up(&self, stream: &Stream, now: bool) -> Result<(), DeviceError> {
        match &self.checks {
            Some(checks) if now => checks.delay(stream, self.ns),
            _ => Ok(()),
        }
    }
}
