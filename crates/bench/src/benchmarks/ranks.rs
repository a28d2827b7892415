//! How long ranks take to sum gradients, and what that means for runs with more cards.
//!
//! The sum over TCP is measured between threads of this process that are ranks of one group: what CPU and simulated runs use.
//! Steps with more cards are predicted by [`GradientSum`], from the time of a step on this device and the bandwidth of a link.

use std::net::TcpListener;
use std::time::{Duration, Instant};

use tandem_pipeline::{Crew, WorkerError};
use tandem_ranks::{Group, JoinOptions, RankEnvironment, RankError};

use super::spread::Spread;
use crate::all_reduce::GradientSum;

/// Numbers of cards that are predicted.
pub const PREDICTED: [usize; 3] = [2, 8, 64];

/// A link between cards or machines.
#[derive(Clone, Debug, PartialEq)]
pub struct RankLinkSpeed {
    /// Its name.
    pub name: String,
    /// Bandwidth in one direction.
    pub gb_per_s: f64,
    /// Whether it was measured on this machine.
    pub measured: bool,
}

impl RankLinkSpeed {
    /// Usual links, for machines that are not at hand. Bandwidth that programs reach, not that of the data sheet.
    pub fn usual() -> Vec<RankLinkSpeed> {
        let link = |name: &str, gb_per_s| RankLinkSpeed { name: name.to_owned(), gb_per_s, measured: false };
        vec![link("100 Gbit/s network", 11.0), link("PCIe 4.0 x16", 24.0), link("NVLink", 200.0)]
    }
}

/// A predicted run.
#[derive(Clone, Debug, PartialEq)]
pub struct PredictedScaling {
    /// Cards, one rank on each.
    pub ranks: usize,
    /// The link that gradients cross.
    pub link: RankLinkSpeed,
    /// Time to sum the gradients of a step.
    pub sum_ms: f64,
    /// Throughput ÷ that of as many cards without communication. Every card keeps its batch: the whole batch grows.
    pub efficiency: f64,
}

/// Predicts every number of cards over every link, for a model whose step takes `step_ms` on one card.
pub fn predict(num_parameters: u64, step_ms: f64, links: &[RankLinkSpeed]) -> Vec<PredictedScaling> {
    let one = |ranks: usize, link: &RankLinkSpeed| {
        let sum_ms = GradientSum { num_parameters, ranks, gb_per_s: link.gb_per_s }.predicted_ns() / 1e6;
        PredictedScaling { ranks, link: link.clone(), sum_ms, efficiency: step_ms / (step_ms + sum_ms) }
    };
    PREDICTED.iter().flat_map(|ranks| links.iter().map(move |link| one(*ranks, link))).collect()
}

/// A sum over TCP could not be measured.
#[derive(Debug, thiserror::Error)]
pub enum RankBenchError {
    /// The ranks did not meet, or lost each other.
    #[error(transparent)]
    Ranks(#[from] RankError),
    /// No socket.
    #[error("cannot listen on the loopback address: {0}")]
    Socket(#[from] std::io::Error),
    /// No thread, or one that panicked.
    #[error(transparent)]
    Thread(#[from] WorkerError),
}

/// Milliseconds that `ranks` ranks on this host take to sum `num_values` f32 values over TCP.
pub fn measure_tcp(num_values: usize, ranks: u32, rounds: usize) -> Result<Spread, RankBenchError> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let port = listener.local_addr()?.port();
    let mut listener = Some(listener);
    let mut crew: Crew<Result<Vec<f64>, RankError>> = Crew::new("ranks");
    for rank in 0..ranks {
        let options = JoinOptions { listener: listener.take(), ..JoinOptions::default() };
        crew.spawn(format!("rank-{rank}"), move |_| sum_repeatedly(rank, ranks, port, options, num_values, rounds))?;
    }
    let times: Vec<Vec<f64>> = crew.join()?.into_iter().collect::<Result<_, _>>()?;
    Ok(Spread::of(times.concat()))
}

fn sum_repeatedly(
    rank: u32,
    ranks: u32,
    port: u16,
    options: JoinOptions,
    num_values: usize,
    rounds: usize,
) -> Result<Vec<f64>, RankError> {
    let environment = RankEnvironment::local(rank, ranks, port, 0, None);
    let group = Group::join(&environment, env!("CARGO_PKG_VERSION"), options)?;
    let mut values = vec![1.0_f32; num_values];
    let mut times = Vec::with_capacity(rounds);
    // The first sum grows the buffers of the sockets.
    for round in 0..=rounds {
        group.barrier("start")?;
        let began = Instant::now();
        group.all_reduce("gradients", &mut values)?;
        let took: Duration = began.elapsed();
        if round > 0 {
            times.push(took.as_secs_f64() * 1e3);
        }
        // Sums of sums overflow; the time does not depend on the values.
        values.fill(1.0);
    }
    group.leave();
    Ok(times)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_cards_and_slower_links_are_less_efficient() {
        let predicted = predict(10_000_000, 10.0, &RankLinkSpeed::usual());
        assert_eq!(predicted.len(), PREDICTED.len() * RankLinkSpeed::usual().len());
        let of = |ranks: usize, name: &str| {
            predicted.iter().find(|row| row.ranks == ranks && row.link.name == name).unwrap().efficiency
        };
        assert!(of(2, "NVLink") > of(8, "NVLink") && of(8, "NVLink") > of(8, "PCIe 4.0 x16"));
        assert!(predicted.iter().all(|row| row.efficiency > 0.0 && row.efficiency < 1.0));
        // 40 MB at 24 GB/s take 1.67 ms, and two steps of the ring 20 µs.
        let pcie = predicted.iter().find(|row| row.ranks == 2 && row.link.name == "PCIe 4.0 x16").unwrap();
        assert!((pcie.sum_ms - (40.0 / 24.0 + 0.02)).abs() < 1e-6, "{pcie:?}");
    }

    #[test]
    fn ranks_of_one_process_sum_over_tcp() {
        let spread = measure_tcp(10_000, 3, 4).unwrap();
        assert!(spread.median > 0.0, "{spread:?}");
    }
}
