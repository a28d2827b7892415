//! What a run tells its log, whoever runs it.

use std::collections::BTreeMap;
use std::time::Duration;

use tandem_events::{Emitter, Event};
use tandem_train::{StepReport, ValidationReport, Written};

/// A step has ended.
pub fn step(report: &StepReport, to: &Emitter) {
    let (step, epoch, lr, skipped) = (report.step, report.epoch, report.lr, report.skipped);
    to.emit(Event::Step { step, wall_ns: report.wall_ns, wait_ns: report.wait_ns });
    let (losses, gradient_norm) = (figures(report.losses.iter()), number(report.gradient_norm.into()));
    to.emit(Event::Learned { step, epoch, losses, gradient_norm, lr, skipped });
}

/// The held-out data was looked at. What is wrong with alignments is told where there are any.
pub fn validation(report: &ValidationReport, to: &Emitter) {
    let alignment = report.alignment.iter().flat_map(|alignment| {
        let (without, wrong) = (alignment.tokens_without_frames as f64, alignment.wrong_sums as f64);
        [("tokens_without_frames", without), ("wrong_sums", wrong)]
    });
    let figures = figures(report.figures.iter().chain(alignment));
    to.emit(Event::Validated { step: report.step, utterances: report.utterances as u64, figures });
}

/// A checkpoint was written.
pub fn checkpoint(step: u64, written: &Written, took: Duration, to: &Emitter) {
    to.emit(Event::Checkpoint { step, bytes: written.bytes, ns: took.as_nanos() as u64 });
}

fn figures<'a>(named: impl Iterator<Item = (&'a str, f64)>) -> BTreeMap<String, Option<f64>> {
    named.map(|(name, value)| (name.to_owned(), number(value))).collect()
}

/// JSON has no word for what is no number.
fn number(value: f64) -> Option<f64> {
    value.is_finite().then_some(value)
}
