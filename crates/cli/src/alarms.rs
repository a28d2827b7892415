//! Leaks and jitter, said while a run goes on: on the thread of the exporters, which nobody waits for.

use std::collections::BTreeSet;
use std::io;
use std::sync::{Arc, OnceLock};

use tandem_diagnosis::{Jitter, Leaks, StepPart};
use tandem_events::{Emitter, Record, RunEvent};
use tandem_runlog::Exporter;

/// Looks at every record, and warns. What is said is in the log too, as a note.
pub(crate) struct RunAlarms<F> {
    leaks: Leaks,
    jitter: Jitter,
    /// What has been said to vary.
    varied: BTreeSet<StepPart>,
    say: F,
    log: AlarmLog,
}

/// Where warnings are written down. The log is made after those who read it: it comes in when it is there.
#[derive(Clone, Default)]
pub(crate) struct AlarmLog(Arc<OnceLock<Emitter>>);

impl AlarmLog {
    /// From now on warnings are told to `emitter`.
    pub(crate) fn open(&self, emitter: &Emitter) {
        self.0.get_or_init(|| emitter.clone());
    }
}

impl<F: FnMut(&str)> RunAlarms<F> {
    pub(crate) fn new(say: F, log: AlarmLog) -> RunAlarms<F> {
        RunAlarms { leaks: Leaks::default(), jitter: Jitter::default(), varied: BTreeSet::new(), say, log }
    }

    fn raise(&mut self, text: String) {
        (self.say)(&text);
        if let Some(log) = self.log.0.get() {
            // Nobody here looks at notes: what is told of a warning raises none.
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
        // On a machine that is shared, variation comes and goes all day: what it is was said the first time.
        if let Some(warning) = self.jitter.observe(record)
            && self.varied.insert(warning.0.varies)
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

    /// A run of 600 steps: `host_kib` and `wall_ms` say what each holds and takes. What is said, and what is written down.
    fn check(host_kib: fn(u64) -> u64, wall_ms: fn(u64) -> u64, expected: &[&str]) {
        let (heard, log) = (EventBuffer::new(Emitter::none()), AlarmLog::default());
        log.open(&heard.emitter());
        let (mut said, mut written) = (Vec::new(), Vec::new());
        let mut alarms = RunAlarms::new(|text: &str| said.push(text.to_owned()), log);
        for step in 1..=600 {
            let host = RunEvent::HostMemory {
                bytes: host_kib(step) << 10,
                accounted_bytes: 0,
                pinned_bytes: 0,
                limit_bytes: 8 << 30,
            };
            let wait_ns = wall_ms(step).saturating_sub(20) * 1_000_000;
            let told = [RunEvent::Step { step, wall_ns: wall_ms(step) * 1_000_000, wait_ns }, host];
            for event in told.into_iter().take(if step.is_multiple_of(10) { 2 } else { 1 }) {
                let record = Record { v: VERSION, seq: step, t_ns: step * 20_000_000, dropped: 0, event };
                alarms.take(&record).unwrap();
                // What is written down comes round again.
                written.extend(heard.take().into_iter().map(|record| record.event));
                written.iter().cloned().for_each(|event| alarms.take(&Record { event, ..record.clone() }).unwrap());
            }
        }
        assert_eq!(said.len(), expected.len(), "{said:?}");
        for (said, expected) in said.iter().zip(expected) {
            assert!(said.starts_with(expected), "{said}");
        }
        written.extend(heard.take().into_iter().map(|record| record.event));
        let notes: Vec<RunEvent> = said.into_iter().map(|text| RunEvent::Note { text }).collect();
        assert_eq!(written, notes);
    }

    #[test]
    fn a_leak_and_a_shaking_run_are_said_once_each_and_written_down() {
        check(|_| 1_000_000, |_| 20, &[]);
        check(|step| 1_000_000 + step * 2048 / 100, |_| 20, &["memory of host process grows: 2.0"]);
        check(|_| 1_000_000, |step| if step.is_multiple_of(10) { 200 } else { 20 }, &["step time varies by "]);
        // Gone, and there again.
        let comes_and_goes = |step: u64| if step.is_multiple_of(10) && step / 200 != 1 { 200 } else { 20 };
        check(|_| 1_000_000, comes_and_goes, &["step time varies by "]);
    }
}
