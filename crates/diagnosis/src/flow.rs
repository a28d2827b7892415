//! How fast the line runs, and would run if something were changed: stages in series with places between them.
//!
//! The slowest stage sets the pace. Where a second one is nearly as slow and both vary, they hold each other up now and
//! then, the less the more places there are between them: for two exponential servers that is an exact formula, and for
//! ones that vary less the places count for more, by the square of their variation. And whatever is done at once on the
//! computer's cores, they do no more than they can.

use crate::facts::Facts;
use crate::stage::Stage;
use crate::stalls::Stalls;
use crate::statistics::{mean_std, ratio};

/// Places between decoding and upload, and between upload and features: blocks that take turns.
pub(crate) const HOST_PLACES: f64 = 2.0;
pub(crate) const UPLOAD_PLACES: f64 = 1.0;
/// Variation below this makes no difference: a hundredth of a step.
const LEAST_VARIATION: f64 = 0.01;

/// What something takes.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Time {
    /// In the mean.
    pub mean_ns: f64,
    /// How far single times are from it.
    pub std_ns: f64,
}

/// The line from recordings to steps, in the times a step's batches take.
#[derive(Clone, Debug, PartialEq)]
pub struct Flow {
    /// Work of decoding, over all threads.
    pub load_work: Time,
    /// Threads that share it.
    pub threads: f64,
    /// To the data device.
    pub upload: Time,
    /// On the data device.
    pub features: Time,
    /// To the model device; nothing where batches are handed over.
    pub transfer: Time,
    /// The step, without waits.
    pub train: Time,
    /// Batches made ahead on the data device.
    pub ahead: usize,
    /// Slots towards the model device; none where batches are handed over.
    pub slots: usize,
    /// Features and the step take turns on one card.
    pub is_one_card: bool,
    /// What cores work for a step beside decoding: queueing, and on the CPU the step itself.
    pub host_work_ns: f64,
    /// Cores that share this and decoding; without end where nobody counted them.
    pub cores: f64,
}

impl Time {
    /// No time at all.
    pub const NONE: Time = Time { mean_ns: 0.0, std_ns: 0.0 };

    /// This, cut into `parts` that run side by side.
    pub fn shared_by(self, parts: f64) -> Time {
        Time { mean_ns: self.mean_ns / parts, std_ns: self.std_ns / parts }
    }

    fn squared_variation(self) -> f64 {
        ratio(self.std_ns, self.mean_ns).powi(2)
    }
}

impl Flow {
    pub(crate) fn of(facts: &Facts, stalls: &Stalls) -> Flow {
        let trains: Vec<f64> = facts.steps.iter().map(|step| step.train_ns()).collect();
        let (mean_ns, std_ns) = mean_std(&trains);
        let time = |stage: Stage| {
            let ns = stalls.stages[stage as usize].time_ns;
            Time { mean_ns: ns.mean, std_ns: ns.std }
        };
        let setting = &facts.setting;
        let is_handover = setting.route.as_deref() == Some("handover");
        let (work_ns, work_std_ns) = facts.load_work_ns;
        Flow {
            load_work: Time { mean_ns: work_ns, std_ns: work_std_ns },
            threads: setting.threads,
            upload: time(Stage::Upload),
            features: time(Stage::Features),
            transfer: if is_handover { Time::NONE } else { time(Stage::Transfer) },
            train: Time { mean_ns, std_ns },
            ahead: setting.ahead,
            slots: if is_handover { 0 } else { setting.slots },
            is_one_card: setting.places.is_one_card(),
            host_work_ns: facts.cpu_ns.map_or(0.0, |cpu_ns| (cpu_ns - work_ns).max(0.0)),
            cores: setting.cores.filter(|_| facts.cpu_ns.is_some()).map_or(f64::INFINITY, f64::from),
        }
    }

    /// Steps in a second.
    pub fn steps_per_s(&self) -> f64 {
        let line = self.line();
        let slowest = line.iter().enumerate().max_by(|a, b| a.1.0.mean_ns.total_cmp(&b.1.0.mean_ns));
        let Some((at, (slowest, _))) = slowest else { return 0.0 };
        let held_up: f64 = line
            .iter()
            .enumerate()
            .filter(|(i, _)| *i != at)
            .map(|(i, (other, _))| {
                let places = line[i.min(at)..i.max(at)].iter().map(|(_, places)| places).sum();
                undisturbed(*slowest, *other, places)
            })
            .product();
        let in_line = ratio(1e9, slowest.mean_ns) * held_up;
        // However many threads there are, the cores have to do all of it.
        let work_ns = self.load_work.mean_ns + self.host_work_ns;
        if work_ns > 0.0 { in_line.min(1e9 * self.cores / work_ns) } else { in_line }
    }

    /// Time of each stage in order, and the places behind it.
    fn line(&self) -> Vec<(Time, f64)> {
        let (ahead, slots) = (self.ahead as f64, self.slots as f64);
        let load = (self.load_work.shared_by(self.threads), HOST_PLACES);
        match self.is_one_card {
            false => vec![
                load,
                (self.upload, UPLOAD_PLACES),
                (self.features, ahead),
                (self.transfer, slots),
                (self.train, 0.0),
            ],
            // Whichever of the two is at work, the other waits: one server that does both.
            true => vec![load, (self.upload, UPLOAD_PLACES + ahead), (self.transfer, slots), (self.both(), 0.0)],
        }
    }

    fn both(&self) -> Time {
        let (a, b) = (self.features, self.train);
        Time { mean_ns: a.mean_ns + b.mean_ns, std_ns: a.std_ns.hypot(b.std_ns) }
    }
}

/// The part of its own pace that the slower of two stages keeps with `places` between them.
fn undisturbed(slower: Time, faster: Time, places: f64) -> f64 {
    let squared = 0.5 * (slower.squared_variation() + faster.squared_variation());
    if squared < LEAST_VARIATION * LEAST_VARIATION || faster.mean_ns <= 0.0 {
        return 1.0;
    }
    let (r, k) = (ratio(faster.mean_ns, slower.mean_ns), (places + 2.0) / squared);
    match 1.0 - r < 1e-9 {
        true => k / (k + 1.0),
        false => (1.0 - r.powf(k)) / (1.0 - r.powf(k + 1.0)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const QUICK: Time = Time { mean_ns: 1e5, std_ns: 0.0 };

    fn flow(load_ms: f64, features_ms: f64, train_ms: f64) -> Flow {
        let time = |ms: f64| Time { mean_ns: ms * 1e6, std_ns: 0.0 };
        Flow {
            load_work: time(load_ms),
            threads: 4.0,
            upload: QUICK,
            features: time(features_ms),
            transfer: QUICK,
            train: time(train_ms),
            ahead: 12,
            slots: 3,
            is_one_card: false,
            host_work_ns: 0.0,
            cores: f64::INFINITY,
        }
    }

    #[test]
    fn threads_cannot_do_more_than_the_cores() {
        // 30 ms of decoding, and 10 ms of everything else, on 2 cores: 50 steps in a second at most.
        let on_two = Flow { host_work_ns: 10e6, cores: 2.0, ..flow(30.0, 1.0, 10.0) };
        let rate = |threads: f64| Flow { threads, ..on_two.clone() }.steps_per_s();
        for (threads, expected) in [(1.0, 1e3 / 30.0), (2.0, 50.0), (8.0, 50.0)] {
            assert!((rate(threads) - expected).abs() < 1e-6, "{threads}: {}", rate(threads));
        }
    }

    #[test]
    fn the_slowest_sets_the_pace() {
        for (load, features, train, rate) in
            [(4.0, 2.0, 10.0, 100.0), (80.0, 2.0, 10.0, 50.0), (4.0, 40.0, 10.0, 25.0), (4.0, 10.0, 10.0, 100.0)]
        {
            assert!((flow(load, features, train).steps_per_s() - rate).abs() < 1e-6, "{load} {features} {train}");
        }
        let one_card = Flow { is_one_card: true, ..flow(4.0, 10.0, 10.0) };
        assert!((one_card.steps_per_s() - 50.0).abs() < 1e-6);
    }

    #[test]
    fn equal_exponential_servers_keep_what_the_formula_says() {
        let both = Time { mean_ns: 1.0, std_ns: 1.0 };
        for places in [0.0, 1.0, 6.0, 50.0] {
            assert!((undisturbed(both, both, places) - (places + 2.0) / (places + 3.0)).abs() < 1e-12);
        }
        assert!(undisturbed(both, Time { mean_ns: 0.5, std_ns: 0.5 }, 6.0) > 0.99);
    }
}
