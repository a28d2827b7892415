//! Samples the process's memory on each card during a run, and stores the peaks.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tandem_device::{CardUse, DeviceError, Isolation, IsolationError, Machine};
use tandem_events::{Emitter, RunEvent};
use tandem_pipeline::{Worker, WorkerError};

/// How often the driver is asked. A reading takes about 16 µs on an H200.
const EVERY: Duration = Duration::from_millis(10);

/// A running sampler. Dropping it stops it.
pub struct Sampler {
    worker: Worker<Result<Vec<Peak>, DeviceError>>,
    breach: Arc<Mutex<Option<Peak>>>,
}

/// The peak memory of the process on one card.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peak {
    /// The card.
    pub card: usize,
    /// The largest figure of the driver for this process; `None` if it gives none.
    pub bytes: Option<u64>,
    /// The sum of the limits on that card.
    pub limit_bytes: u64,
    /// Number of readings.
    pub samples: u64,
}

impl Sampler {
    /// Starts reading every 10 ms.
    pub fn start(machine: &Machine, roles: &Isolation, emitter: &Emitter) -> Result<Sampler, SamplerError> {
        let (machine, emitter, cards) = (machine.clone(), emitter.clone(), roles.card_use()?);
        let breach = Arc::new(Mutex::new(None));
        let seen = breach.clone();
        let worker = Worker::spawn("sampler", move |stop| {
            let mut peaks: Vec<Peak> = cards.iter().map(Peak::nothing).collect();
            loop {
                for peak in &mut peaks {
                    peak.sample(&machine, &emitter)?;
                }
                if let Some(over) = peaks.iter().find(|peak| !peak.kept()) {
                    *seen.lock().unwrap_or_else(PoisonError::into_inner) = Some(*over);
                }
                // The last reading is taken after the stop request, so it includes the end of the run.
                if stop.is_raised() {
                    return Ok(peaks);
                }
                stop.wait_timeout(EVERY);
            }
        })?;
        Ok(Sampler { worker, breach })
    }

    /// Fails once any reading was over its limit. The step loop calls this and stops the run.
    pub fn check(&self) -> Result<(), IsolationError> {
        match *self.breach.lock().unwrap_or_else(PoisonError::into_inner) {
            Some(Peak { card, bytes, limit_bytes: limit, .. }) => {
                Err(IsolationError::LimitExceeded { card, used: bytes.unwrap_or_default(), limit })
            }
            None => Ok(()),
        }
    }

    /// Stops and returns the peaks.
    pub fn finish(self) -> Result<Vec<Peak>, SamplerError> {
        self.worker.stop();
        Ok(self.worker.join()??)
    }
}

/// The sampler failed.
#[derive(Debug, thiserror::Error)]
pub enum SamplerError {
    /// The driver gave no reading.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// The thread failed.
    #[error(transparent)]
    Worker(#[from] WorkerError),
}

impl Peak {
    fn nothing(card: &CardUse) -> Peak {
        Peak { card: card.card, bytes: None, limit_bytes: card.limit_bytes, samples: 0 }
    }

    fn sample(&mut self, machine: &Machine, emitter: &Emitter) -> Result<(), DeviceError> {
        self.samples += 1;
        let Some(bytes) = machine.process_bytes(self.card)? else { return Ok(()) };
        let (card, limit_bytes) = (self.card, self.limit_bytes);
        if self.bytes.is_none_or(|before| bytes > before) {
            // Only a new peak is logged: hundreds of equal readings say nothing more.
            self.bytes = Some(bytes);
            emitter.emit(match bytes > limit_bytes {
                true => RunEvent::LimitExceeded { card, bytes, limit_bytes },
                false => RunEvent::ProcessMemory { card, bytes, limit_bytes },
            });
        }
        Ok(())
    }

    /// Whether no reading was above the limit.
    pub fn kept(&self) -> bool {
        self.bytes.is_none_or(|bytes| bytes <= self.limit_bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_is_kept_to_the_byte() {
        let peak = |bytes| Peak { card: 0, bytes, limit_bytes: 1000, samples: 1 };
        assert!(peak(None).kept() && peak(Some(1000)).kept() && !peak(Some(1001)).kept());
    }
}
