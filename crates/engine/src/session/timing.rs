//! Launch times in isolation, for breakdowns.

use std::time::Instant;

use tandem_device::{DType, DeviceKind};

use super::Session;
use crate::error::EngineError;
use crate::lower::{Launch, LaunchArg, Region};
use crate::program_set::ProgramId;

/// The launches of one kind in a program: those that differ only in the locations of their operands.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LaunchTime {
    /// The first launch of the kind: its index in [`crate::Program::launches`].
    pub first: usize,
    /// Number of launches.
    pub count: usize,
    /// Duration of one launch, in microseconds.
    pub us: f64,
}

/// How often a measurement is repeated.
#[derive(Clone, Copy)]
struct Rounds {
    warm_up: usize,
    timed: usize,
}

const CARD_ROUNDS: Rounds = Rounds { warm_up: 3, timed: 5 };
const HOST_ROUNDS: Rounds = Rounds { warm_up: 1, timed: 3 };

impl Session {
    /// Times every kind of launch of a program, in order of first appearance. Inputs and host values must be staged: run the
    /// program first.
    ///
    /// On NVIDIA cards the launches of a kind are captured back to back, cycling through them until there are `repeats` (a
    /// single kernel would find its operands in the cache, unlike in a run), and CUDA events time the replays; elsewhere the
    /// host clock times the same launches. The result is the median. The program runs up to the first launch of each kind
    /// before that is timed. Takes some hundred times as long as a run.
    ///
    /// Destroys the session's contents: spans, states and results are undefined, because launches run out of order.
    pub fn time_launches(&self, id: ProgramId, repeats: usize) -> Result<Vec<LaunchTime>, EngineError> {
        let launches = &self.program(id).launches;
        let mut times = Vec::new();
        for kind in kinds(launches) {
            let first = kind[0];
            launches[..=first].iter().try_for_each(|launch| self.queue(id, launch))?;
            // Computed indices are valid for the first launch now, and may be out of bounds for the later ones.
            let timed = if reads_computed_indices(&launches[first]) { &kind[..1] } else { &kind[..] };
            let cycles = repeats.div_ceil(timed.len()).max(1);
            let queue = || {
                let in_turn = (0..cycles).flat_map(|_| timed);
                in_turn.into_iter().try_for_each(|at| self.queue(id, &launches[*at]))
            };
            let us = match self.stream.device().machine().kind() {
                DeviceKind::Cuda => self.card_us(queue)?,
                DeviceKind::Cpu | DeviceKind::Simulated => self.host_us(queue)?,
            };
            times.push(LaunchTime { first, count: kind.len(), us: us / (cycles * timed.len()) as f64 });
        }
        Ok(times)
    }

    /// Duration of a program's GEMMs alone, back to back, in microseconds: a lower bound for every program with these GEMMs.
    /// Measured like [`Session::time_launches`], and as destructive.
    pub fn time_gemms(&self, id: ProgramId) -> Result<f64, EngineError> {
        let gemms = || self.program(id).launches.iter().filter(|launch| matches!(launch, Launch::Gemm { .. }));
        let queue = || gemms().try_for_each(|launch| self.queue(id, launch));
        match self.stream.device().machine().kind() {
            DeviceKind::Cuda => self.card_us(queue),
            DeviceKind::Cpu | DeviceKind::Simulated => self.host_us(queue),
        }
    }

    fn card_us(&self, queue: impl Fn() -> Result<(), EngineError>) -> Result<f64, EngineError> {
        let device = self.stream.device();
        let (start, end) = (device.timer()?, device.timer()?);
        let capture = self.stream.begin_capture()?;
        queue()?;
        let captured = capture.end()?;
        median_us(CARD_ROUNDS, || {
            self.stream.record(&start)?;
            self.stream.replay(&captured)?;
            self.stream.record(&end)?;
            self.stream.drain()?;
            Ok(end.ns_since(&start)? as f64 / 1e3)
        })
    }

    fn host_us(&self, queue: impl Fn() -> Result<(), EngineError>) -> Result<f64, EngineError> {
        self.stream.drain()?;
        median_us(HOST_ROUNDS, || {
            let start = Instant::now();
            queue()?;
            self.stream.drain()?;
            Ok(start.elapsed().as_secs_f64() * 1e6)
        })
    }
}

fn median_us(rounds: Rounds, time: impl Fn() -> Result<f64, EngineError>) -> Result<f64, EngineError> {
    for _ in 0..rounds.warm_up {
        time()?;
    }
    let mut times = (0..rounds.timed).map(|_| time()).collect::<Result<Vec<_>, _>>()?;
    times.sort_by(f64::total_cmp);
    Ok(times[times.len() / 2])
}

/// The indices of launches, grouped by kind.
fn kinds(launches: &[Launch]) -> Vec<Vec<usize>> {
    let mut kinds: Vec<(String, Vec<usize>)> = Vec::new();
    for (at, launch) in launches.iter().enumerate() {
        let key = kind_of(launch);
        match kinds.iter_mut().find(|(known, _)| *known == key) {
            Some((_, indices)) => indices.push(at),
            None => kinds.push((key, vec![at])),
        }
    }
    kinds.into_iter().map(|(_, indices)| indices).collect()
}

/// A launch without the locations of its operands, as text: it is only compared.
fn kind_of(launch: &Launch) -> String {
    match launch {
        Launch::Kernel { kernel, grid, args } => {
            let plain = |arg: &LaunchArg| match arg {
                LaunchArg::Read(location, dtype) => format!("read {} {dtype:?}", location.bytes),
                LaunchArg::Write(location, dtype) => format!("write {} {dtype:?}", location.bytes),
                number => format!("{number:?}"),
            };
            let args: Vec<String> = args.iter().map(plain).collect();
            // The kernel's address: generated kernels share a name.
            format!("{:p} {grid:?} {args:?}", *kernel)
        }
        Launch::Gemm { gemm, bias, .. } => format!("{gemm:?} {}", bias.is_some()),
        Launch::Copy { from, .. } => format!("copy {}", from.bytes),
        Launch::Clear { to } => format!("clear {}", to.bytes),
    }
}

/// Whether a launch reads integers that another computed: they may be indices.
fn reads_computed_indices(launch: &Launch) -> bool {
    let Launch::Kernel { args, .. } = launch else { return false };
    args.iter().any(|arg| match arg {
        LaunchArg::Read(location, dtype) | LaunchArg::Write(location, dtype) => {
            location.region == Region::Activations && matches!(dtype, DType::I32 | DType::U32 | DType::U64)
        }
        _ => false,
    })
}

#[cfg(test)]
mod tests {
    use tandem_device::{Machine, SimSpec};

    use crate::{Graph, Init, NamedLayout, ParameterList, ParameterSpan, ProgramSet, Recomputed, testing};

    #[test]
    fn every_launch_is_counted_once_and_grouped_by_kind() {
        let mut list = ParameterList::new();
        let id = list.weight("weight", &[6, 6], Init::Constant(0.5)).unwrap();
        let parameters = std::sync::Arc::new(list.finish());
        let mut graph = Graph::new(parameters.clone(), tandem_device::DType::F32);
        let weight = graph.parameter(id);
        let mut x = weight;
        for _ in 0..4 {
            x = graph.gemm(x, weight, false, false, false).unwrap();
        }
        let loss = graph.sum_all(x).unwrap();
        graph.result("loss", loss).unwrap();
        graph.accumulate(loss, &Recomputed::new()).unwrap();
        let mut set = ProgramSet::new(parameters, tandem_device::DType::F32, &[ParameterSpan::Gradients]);
        let id = set.add("accumulate", &graph, &NamedLayout::default()).unwrap();
        let sim = "1x1GiB".parse::<SimSpec>().unwrap();
        for machine in [Machine::cpu(), Machine::simulated(sim)] {
            let session = testing::session(&machine, set.clone());
            let times = session.time_launches(id, 3).unwrap();
            let launches = session.program(id).launches();
            assert_eq!(times.iter().map(|time| time.count).sum::<usize>(), launches.len());
            assert!(times.windows(2).all(|pair| pair[0].first < pair[1].first), "{times:?}");
            assert!(times.iter().all(|time| time.us > 0.0), "{times:?}");
            let forward = times.iter().find(|time| launches[time.first].name() == "gemm").unwrap();
            assert_eq!(forward.count, 4, "{times:?}");
        }
    }
}
