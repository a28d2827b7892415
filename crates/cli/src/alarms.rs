//! Warns about leaks and jitter during a run. Runs on the exporters' thread, so training never waits for it.

use std::collections::BTreeSet;
use std::io;
use std::sync::{Arc, OnceLock};

use tandem_diagnosis::{Jitter, Leaks, StepPart};
use tandem_events::{Emitter, Record, RunEvent};
use tandem_runlog::Exporter;

/// Watches every record and warns. Each warning is also written to the log, as a note.
pub(crate) struct RunAlarms<F> {
    leaks: Leaks,
    jitter: Jitter,
    /// The parts of a step that a jitter warning has named.
    warned: BTreeSet<StepPart>,
    warn: F,
    log: AlarmLog,
}

/// The log that warnings are written to. It is opened after its readers are created, so it is set later.
#[derive(Clone, Default)]
pub(crate) struct AlarmLog(Arc<OnceLock<Emitter>>);

impl AlarmLog {
    /// Writes warnings to `emitter` from now on.
    pub(crate) fn open(&self, emitter: &Emitter) {
        self.0.get_or_init(|| emitter.clone());
    }
}

impl<F: FnMut(&str)> RunAlarms<F> {
    pub(crate) fn new(warn: F, log: AlarmLog) -> RunAlarms<F> {
        RunAlarms { leaks: Leaks::default(), jitter: Jitter::default(), warned: BTreeSet::new(), warn, log }
    }

    fn raise(&mut self, text: String) {
        (self.warn)(&text);
        if let Some(log) = self.log.0.get() {
            // Alarms ignore notes, so a warning never raises another one.
            log.emit(RunEvent::Note { text });
        }
    }
}

impl<F: FnMut(&str) + Send> Exporter for RunAlarms<F> {
    fn name(&self) -> &'static str {
        "alarms"
    }

    fn take(&mut self, record: &Record) -> io::Result<()> {
        let leaks = self.leaks.observe(record);
        leaks.into_iter().for_each(|leak| self.raise(leak.to_string()));
        // On a shared machine jitter comes and goes all day: one warning for each part of the step is enough.
        if let Some(warning) = self.jitter.observe(record)
            && self.warned.insert(warning.0.varies)
        {
            self.raise(warning.to_string());
        }
        Ok(())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }

    fn finish(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use tandem_events::VERSION;
    use tandem_launch::EventBuffer;

    use super::*;

    /// A run of 600 steps with these sizes and times: `expected` are the starts of its warnings, on screen and in the log.
    fn check(host_kib: fn(u64) -> u64, wall_ms: fn(u64) -> u64, expected: &[&str]) {
        let (events, log) = (EventBuffer::new(Emitter::none()), AlarmLog::default());
        log.open(&events.emitter());
        let (mut printed, mut logged) = (Vec::new(), Vec::new());
        let mut alarms = RunAlarms::new(|text: &str| printed.push(text.to_owned()), log);
        for step in 1..=600 {
            let host = RunEvent::HostMemory {
                bytes: host_kib(step) << 10,
                accounted_bytes: 0,
                pinned_bytes: 0,
                limit_bytes: 8 << 30,
            };
            let wait_ns = wall_ms(step).saturating_sub(20) * 1_000_000;
            let emitted = [RunEvent::Step { step, wall_ns: wall_ms(step) * 1_000_000, wait_ns }, host];
            for event in emitted.into_iter().take(if step.is_multiple_of(10) { 2 } else { 1 }) {
                let record = Record { v: VERSION, seq: step, t_ns: step * 20_000_000, dropped: 0, event };
                alarms.take(&record).unwrap();
                // Logged warnings pass through the alarms again.
                logged.extend(events.take().into_iter().map(|record| record.event));
                logged.iter().cloned().for_each(|event| alarms.take(&Record { event, ..record.clone() }).unwrap());
            }
        }
        assert_eq!(printed.len(), expected.len(), "{printed:?}");
        for (printed, expected) in printed.iter().zip(expected) {
            assert!(printed.starts_with(expected), "{printed}");
        }
        logged.extend(events.take().into_iter().map(|record| record.event));
        let notes: Vec<RunEvent> = printed.into_iter().map(|text| RunEvent::Note { text }).collect();
        assert_eq!(logged, notes);
    }

    #[test]
    fn a_leak_and_jitter_are_warned_about_once_each_and_logged() {
        check(|_| 1_000_000, |_| 20, &[]);
        check(|step| 1_000_000 + step * 2048 / 100, |_| 20, &["memory leak in host process: 2.0"]);
        check(|_| 1_000_000, |step| if step.is_multiple_of(10) { 200 } else { 20 }, &["step time varies by "]);
        // It stops, and starts again.
        let comes_and_goes = |step: u64| if step.is_multiple_of(10) && step / 200 != 1 { 200 } else { 20 };
        check(|_| 1_000_000, comes_and_goes, &["step time varies by "]);
    }
}
