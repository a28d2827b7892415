//! One long run: after warm-up its memory, threads and descriptors stay flat.

use std::fs;
use std::time::Duration;

use rustix::process::Signal;

use crate::case::CaseContext;
use crate::command::{CommandSpec, HowEnded, TIME_LIMIT, status_kib};
use crate::kills::complete_or_absent;
use crate::verdict::Expectation;

/// The part of a run that counts as warm-up.
const WARM_UP: f64 = 0.25;
const EVERY: Duration = Duration::from_millis(200);

/// What `/proc` says about a process at one time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct ProcessSample {
    rss_kib: u64,
    threads: u64,
    descriptors: u64,
}

pub(crate) fn run(case: &mut CaseContext<'_>) -> anyhow::Result<()> {
    case.copy_corpus()?;
    let length = case.campaign.soak;
    let line = "train --mode cpu --model-size nano --batch-size 2 --buffer-size 4 --max-mel-frames 300 --num-workers 2 \
                --max-steps 10000000 --epochs 1000000 --checkpoint-every 50 --train-data corpus --checkpoint-dir run";
    let spec = CommandSpec::new(line).within(length + TIME_LIMIT);
    let mut running = case.spawn(&spec)?;
    let mut samples = Vec::new();
    let mut next = EVERY;
    while next < length {
        if !running.wait_until(|elapsed| elapsed >= next)? {
            break;
        }
        samples.push(sample(running.id()));
        next += EVERY;
    }
    running.signal(Signal::TERM)?;
    let outcome = running.wait()?;
    let expected = Expectation { codes: vec![143], ..Expectation::default() };
    case.judge(&outcome, &expected);
    case.counts.inputs += samples.len() as u64;
    if outcome.ended == HowEnded::Exited(143) {
        complete_or_absent(case)?;
        if let Err(why) = all_flat(&samples) {
            case.fail(why);
        }
    }
    let list: String = samples.iter().map(|s| format!("{} {} {}\n", s.rss_kib, s.threads, s.descriptors)).collect();
    case.write("samples.txt", format!("rss_kib threads descriptors\n{list}"))?;
    Ok(())
}

fn sample(id: u32) -> ProcessSample {
    let descriptors = fs::read_dir(format!("/proc/{id}/fd")).map_or(0, |entries| entries.count() as u64);
    ProcessSample { rss_kib: status_kib(id, "VmRSS:"), threads: status_kib(id, "Threads:"), descriptors }
}

/// Whether every figure is flat; else which one is not.
fn all_flat(samples: &[ProcessSample]) -> Result<(), String> {
    let warm = &samples[(samples.len() as f64 * WARM_UP) as usize..];
    let figure = |read: fn(&ProcessSample) -> u64| warm.iter().map(read).collect::<Vec<u64>>();
    let figures = [
        // Heaps are trimmed late; a batch more or less in flight is a few MB.
        ("resident KiB", figure(|sample| sample.rss_kib), 16 << 10),
        ("threads", figure(|sample| sample.threads), 1),
        ("open descriptors", figure(|sample| sample.descriptors), 2),
    ];
    for (name, values, tolerance) in figures {
        if let Some((first, last)) = growth(&values, tolerance) {
            return Err(format!("{name} grow from {first} to {last} (medians of the first and last third)"));
        }
    }
    Ok(())
}

/// The medians of the first and last third, if the last one is larger by more than `tolerance` and 3 %.
fn growth(values: &[u64], tolerance: u64) -> Option<(u64, u64)> {
    let third = values.len() / 3;
    if third == 0 {
        return None;
    }
    let (first, last) = (median(&values[..third]), median(&values[values.len() - third..]));
    (last > first + tolerance + first * 3 / 100).then_some((first, last))
}

fn median(values: &[u64]) -> u64 {
    let mut sorted = values.to_vec();
    sorted.sort_unstable();
    sorted[sorted.len() / 2]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn growth_is_seen_and_noise_is_not() {
        let noisy: Vec<u64> = (0..300).map(|i| 1000 + i * 37 % 20).collect();
        assert_eq!(growth(&noisy, 10), None);
        let leaking: Vec<u64> = (0..300).map(|i| 1000 + i * 2).collect();
        assert_eq!(growth(&leaking, 10), Some((1100, 1500)));
        let shrinking: Vec<u64> = (0..300).map(|i| 1000 - i).collect();
        assert_eq!(growth(&shrinking, 10), None);
        assert_eq!(growth(&[1, 100], 0), None, "too few to tell");
    }

    #[test]
    fn each_figure_is_named() {
        let grows = |change: fn(u64) -> ProcessSample| all_flat(&(0..100).map(change).collect::<Vec<_>>());
        let flat = ProcessSample { rss_kib: 100_000, threads: 8, descriptors: 12 };
        assert_eq!(all_flat(&[flat; 100]), Ok(()));
        let found = grows(|i| ProcessSample { rss_kib: 100_000, threads: 8 + i / 10, descriptors: 12 });
        assert!(found.unwrap_err().starts_with("threads grow"));
        let found = grows(|i| ProcessSample { rss_kib: 100_000 + i * 1000, threads: 8, descriptors: 12 });
        assert!(found.unwrap_err().starts_with("resident KiB grow"));
        let found = grows(|i| ProcessSample { rss_kib: 100_000, threads: 8, descriptors: 12 + i });
        assert!(found.unwrap_err().starts_with("open descriptors grow"));
    }
}
