//! Predicts the throughput of the pipeline, as it ran or with other settings: servers in series with buffers between them.
//!
//! The slowest stage limits the throughput. If a second stage is nearly as slow and both vary, they block each other now and
//! then; more buffers between them reduce that. For two exponential servers the formula is exact. For servers that vary less,
//! each buffer counts for more, by the inverse square of the variation. The total CPU work is also limited by the cores.

use crate::facts::Facts;
use crate::stage::Stage;
use crate::stalls::Stalls;
use crate::statistics::{mean_std, ratio};

/// Buffers between decoding and upload, in batches.
pub(crate) const HOST_BUFFERS: f64 = 2.0;
/// Buffers between upload and features, in batches.
pub(crate) const UPLOAD_BUFFERS: f64 = 1.0;
/// Smaller variation (std ÷ mean) does not matter.
const MIN_VARIATION: f64 = 0.01;

/// Service time of a stage.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ServiceTime {
    /// Mean.
    pub mean_ns: f64,
    /// Standard deviation.
    pub std_ns: f64,
}

/// The pipeline from recordings to steps. Times are for the batches of one step.
#[derive(Clone, Debug, PartialEq)]
pub struct Flow {
    /// Decoding work, over all threads.
    pub load_work: ServiceTime,
    /// Decode threads.
    pub threads: f64,
    /// Copy to the data device.
    pub upload: ServiceTime,
    /// Features on the data device.
    pub features: ServiceTime,
    /// Copy to the model device; zero for a hand-over.
    pub transfer: ServiceTime,
    /// The step, without waits.
    pub train: ServiceTime,
    /// Batches prefetched on the data device.
    pub ahead: usize,
    /// Batch slots on the model device; 0 for a hand-over.
    pub slots: usize,
    /// Features and the step take turns on one card.
    pub is_one_card: bool,
    /// CPU time per step besides decoding: launching work, and on the CPU the step itself.
    pub host_work_ns: f64,
    /// Cores that share this and decoding; infinite if unknown.
    pub cores: f64,
}

impl ServiceTime {
    /// Zero.
    pub const NONE: ServiceTime = ServiceTime { mean_ns: 0.0, std_ns: 0.0 };

    /// The time if `parts` run in parallel.
    pub fn shared_by(self, parts: f64) -> ServiceTime {
        ServiceTime { mean_ns: self.mean_ns / parts, std_ns: self.std_ns / parts }
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
            ServiceTime { mean_ns: ns.mean, std_ns: ns.std }
        };
        let feed = &facts.feed;
        let is_handover = feed.route.as_deref() == Some("handover");
        Flow {
            load_work: facts.load_work,
            threads: feed.threads,
            upload: time(Stage::Upload),
            features: time(Stage::Features),
            transfer: if is_handover { ServiceTime::NONE } else { time(Stage::Transfer) },
            train: ServiceTime { mean_ns, std_ns },
            ahead: feed.ahead,
            slots: if is_handover { 0 } else { feed.slots },
            is_one_card: feed.devices.is_one_card(),
            host_work_ns: facts.cpu_ns.map_or(0.0, |cpu_ns| (cpu_ns - facts.load_work.mean_ns).max(0.0)),
            cores: feed.cores.filter(|_| facts.cpu_ns.is_some()).map_or(f64::INFINITY, f64::from),
        }
    }

    /// Predicted steps per second.
    pub fn steps_per_s(&self) -> f64 {
        let servers = self.servers();
        let slowest = servers.iter().enumerate().max_by(|a, b| a.1.time.mean_ns.total_cmp(&b.1.time.mean_ns));
        let Some((at, Server { time: slowest, .. })) = slowest else { return 0.0 };
        let unblocked: f64 = servers
            .iter()
            .enumerate()
            .filter(|(i, _)| *i != at)
            .map(|(i, other)| {
                let buffers = servers[i.min(at)..i.max(at)].iter().map(|server| server.buffers).sum();
                unblocked_share(*slowest, other.time, buffers)
            })
            .product();
        let in_series = ratio(1e9, slowest.mean_ns) * unblocked;
        // However many threads there are, the cores do all of the work.
        let work_ns = self.load_work.mean_ns + self.host_work_ns;
        if work_ns > 0.0 { in_series.min(1e9 * self.cores / work_ns) } else { in_series }
    }

    /// The stages in order.
    fn servers(&self) -> Vec<Server> {
        let (ahead, slots) = (self.ahead as f64, self.slots as f64);
        let server = |time: ServiceTime, buffers: f64| Server { time, buffers };
        let load = server(self.load_work.shared_by(self.threads), HOST_BUFFERS);
        match self.is_one_card {
            false => vec![
                load,
                server(self.upload, UPLOAD_BUFFERS),
                server(self.features, ahead),
                server(self.transfer, slots),
                server(self.train, 0.0),
            ],
            // Features and the step take turns: one server for both.
            true => vec![
                load,
                server(self.upload, UPLOAD_BUFFERS + ahead),
                server(self.transfer, slots),
                server(self.features_and_train(), 0.0),
            ],
        }
    }

    fn features_and_train(&self) -> ServiceTime {
        let (a, b) = (self.features, self.train);
        ServiceTime { mean_ns: a.mean_ns + b.mean_ns, std_ns: a.std_ns.hypot(b.std_ns) }
    }
}

/// A stage, and the buffers between it and the next one.
struct Server {
    time: ServiceTime,
    buffers: f64,
}

/// The share of its own throughput that the slower of two stages reaches with `buffers` between them.
fn unblocked_share(slower: ServiceTime, faster: ServiceTime, buffers: f64) -> f64 {
    let squared = 0.5 * (slower.squared_variation() + faster.squared_variation());
    if squared < MIN_VARIATION * MIN_VARIATION || faster.mean_ns <= 0.0 {
        return 1.0;
    }
    let (r, k) = (ratio(faster.mean_ns, slower.mean_ns), (buffers + 2.0) / squared);
    match 1.0 - r < 1e-9 {
        true => k / (k + 1.0),
        false => (1.0 - r.powf(k)) / (1.0 - r.powf(k + 1.0)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FAST: ServiceTime = ServiceTime { mean_ns: 1e5, std_ns: 0.0 };

    fn flow(load_ms: f64, features_ms: f64, train_ms: f64) -> Flow {
        let time = |ms: f64| ServiceTime { mean_ns: ms * 1e6, std_ns: 0.0 };
        Flow {
            load_work: time(load_ms),
            threads: 4.0,
            upload: FAST,
            features: time(features_ms),
            transfer: FAST,
            train: time(train_ms),
            ahead: 12,
            slots: 3,
            is_one_card: false,
            host_work_ns: 0.0,
            cores: f64::INFINITY,
        }
    }

    #[test]
    fn threads_are_limited_by_the_cores() {
        // 30 ms of decoding and 10 ms of other work on 2 cores: at most 50 steps per second.
        let on_two = Flow { host_work_ns: 10e6, cores: 2.0, ..flow(30.0, 1.0, 10.0) };
        let rate = |threads: f64| Flow { threads, ..on_two.clone() }.steps_per_s();
        for (threads, expected) in [(1.0, 1e3 / 30.0), (2.0, 50.0), (8.0, 50.0)] {
            assert!((rate(threads) - expected).abs() < 1e-6, "{threads}: {}", rate(threads));
        }
    }

    #[test]
    fn the_slowest_stage_limits_the_throughput() {
        for (load, features, train, rate) in
            [(4.0, 2.0, 10.0, 100.0), (80.0, 2.0, 10.0, 50.0), (4.0, 40.0, 10.0, 25.0), (4.0, 10.0, 10.0, 100.0)]
        {
            assert!((flow(load, features, train).steps_per_s() - rate).abs() < 1e-6, "{load} {features} {train}");
        }
        let one_card = Flow { is_one_card: true, ..flow(4.0, 10.0, 10.0) };
        assert!((one_card.steps_per_s() - 50.0).abs() < 1e-6);
    }

    #[test]
    fn equal_exponential_servers_follow_the_exact_formula() {
        let both = ServiceTime { mean_ns: 1.0, std_ns: 1.0 };
        for buffers in [0.0, 1.0, 6.0, 50.0] {
            assert!((unblocked_share(both, both, buffers) - (buffers + 2.0) / (buffers + 3.0)).abs() < 1e-12);
        }
        assert!(unblocked_share(both, ServiceTime { mean_ns: 0.5, std_ns: 0.5 }, 6.0) > 0.99);
    }
}
