//! How long each kind of work of a program takes by itself, for breakdowns.

use std::time::Instant;

use tandem_device::{DType, DeviceKind};

use super::Session;
use crate::error::EngineError;
use crate::lower::{Launch, LaunchArg, Region};
use crate::program_set::ProgramId;

/// Work of one kind in a program: pieces that differ in nothing but where their operands lie.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StepTime {
    /// The first piece of its kind, in [`crate::Program::steps`].
    pub first: usize,
    /// How many there are.
    pub count: usize,
    /// What one of them takes, in microseconds.
    pub us: f64,
}

/// Rounds on a card before the clock counts, and those that count.
const CARD_ROUNDS: [usize; 2] = [3, 5];
/// The same where the host computes.
const HOST_ROUNDS: [usize; 2] = [1, 3];

impl Session {
    /// Times every kind of work of a program, in the order it first comes up. Inputs and host values must be there: run the
    /// program first.
    ///
    /// On NVIDIA cards the pieces of a kind are recorded one behind the other, all of them in turn until there are `repeats`
    /// (one kernel alone would find its operands in the cache, which in a run it does not), and the card's clock is read
    /// around replays; elsewhere the host's clock around the same work. The median counts. The program is run up to each kind
    /// before that is timed. Takes some hundred times what a run takes.
    ///
    /// What programs compute is lost: spans, states and results hold whatever came of work that was done out of order.
    pub fn time_steps(&self, id: ProgramId, repeats: usize) -> Result<Vec<StepTime>, EngineError> {
        let steps = &self.program(id).steps;
        let mut times = Vec::new();
        for kind in kinds(steps) {
            let first = kind[0];
            steps[..=first].iter().try_for_each(|step| self.queue(id, step))?;
            // Places that other work computed are right for the piece whose turn it is, and lead anywhere for the others.
            let pieces = if reads_computed_places(&steps[first]) { &kind[..1] } else { &kind[..] };
            let rounds = repeats.div_ceil(pieces.len()).max(1);
            let queue = || {
                let in_turn = (0..rounds).flat_map(|_| pieces);
                in_turn.into_iter().try_for_each(|piece| self.queue(id, &steps[*piece]))
            };
            let us = match self.stream.device().machine().kind() {
                DeviceKind::Cuda => self.card_us(queue)?,
                DeviceKind::Cpu | DeviceKind::Simulated => self.host_us(queue)?,
            };
            times.push(StepTime { first, count: kind.len(), us: us / (rounds * pieces.len()) as f64 });
        }
        Ok(times)
    }

    /// What the GEMMs of a program take by themselves, one behind the other, in microseconds: no step that does
    /// the same GEMMs takes less. Measured like [`Session::time_steps`], and with the same loss.
    pub fn time_gemms(&self, id: ProgramId) -> Result<f64, EngineError> {
        let gemms = || self.program(id).steps.iter().filter(|step| matches!(step, Launch::Gemm { .. }));
        let queue = || gemms().try_for_each(|step| self.queue(id, step));
        match self.stream.device().machine().kind() {
            DeviceKind::Cuda => self.card_us(queue),
            DeviceKind::Cpu | DeviceKind::Simulated => self.host_us(queue),
        }
    }

    fn card_us(&self, queue: impl Fn() -> Result<(), EngineError>) -> Result<f64, EngineError> {
        let device = self.stream.device();
        let (begin, end) = (device.timer()?, device.timer()?);
        let capture = self.stream.begin_capture()?;
        queue()?;
        let recorded = capture.end()?;
        median_us(CARD_ROUNDS, || {
            self.stream.record(&begin)?;
            self.stream.replay(&recorded)?;
            self.stream.record(&end)?;
            self.stream.drain()?;
            Ok(end.ns_since(&begin)? as f64 / 1e3)
        })
    }

    fn host_us(&self, queue: impl Fn() -> Result<(), EngineError>) -> Result<f64, EngineError> {
        self.stream.drain()?;
        median_us(HOST_ROUNDS, || {
            let begun = Instant::now();
            queue()?;
            self.stream.drain()?;
            Ok(begun.elapsed().as_secs_f64() * 1e6)
        })
    }
}

fn median_us([warm_up, counted]: [usize; 2], time: impl Fn() -> Result<f64, EngineError>) -> Result<f64, EngineError> {
    for _ in 0..warm_up {
        time()?;
    }
    let mut times = (0..counted).map(|_| time()).collect::<Result<Vec<_>, _>>()?;
    times.sort_by(f64::total_cmp);
    Ok(times[times.len() / 2])
}

/// The places of steps in their list, those of one kind together.
fn kinds(steps: &[Launch]) -> Vec<Vec<usize>> {
    let mut kinds: Vec<(String, Vec<usize>)> = Vec::new();
    for (place, step) in steps.iter().enumerate() {
        let key = kind_of(step);
        match kinds.iter_mut().find(|(known, _)| *known == key) {
            Some((_, places)) => places.push(place),
            None => kinds.push((key, vec![place])),
        }
    }
    kinds.into_iter().map(|(_, places)| places).collect()
}

/// A step without the places of its operands, as text: it is only compared.
fn kind_of(step: &Launch) -> String {
    match step {
        Launch::Kernel { kernel, grid, args } => {
            let plain = |arg: &LaunchArg| match arg {
                LaunchArg::Read(place, dtype) => format!("read {} {dtype:?}", place.bytes),
                LaunchArg::Write(place, dtype) => format!("write {} {dtype:?}", place.bytes),
                number => format!("{number:?}"),
            };
            let args: Vec<String> = args.iter().map(plain).collect();
            // By its address: generated kernels share a name.
            format!("{:p} {grid:?} {args:?}", *kernel)
        }
        Launch::Gemm { gemm, bias, .. } => format!("{gemm:?} {}", bias.is_some()),
        Launch::Copy { from, .. } => format!("copy {}", from.bytes),
        Launch::Clear { to } => format!("clear {}", to.bytes),
    }
}

/// Whether a step reads whole numbers that another computed: they may say where to read or write.
fn reads_computed_places(step: &Launch) -> bool {
    let Launch::Kernel { args, .. } = step else { return false };
    args.iter().any(|arg| match arg {
        LaunchArg::Read(place, dtype) | LaunchArg::Write(place, dtype) => {
            place.region == Region::Activations && matches!(dtype, DType::I32 | DType::U32 | DType::U64)
        }
        _ => false,
    })
}

#[cfg(test)]
mod tests {
    use tandem_device::{Machine, SimSpec};

    use crate::{Graph, Init, NamedLayout, ParameterList, ParameterSpan, ProgramSet, Recomputed, testing};

    #[test]
    fn every_piece_is_counted_once_and_alike_ones_together() {
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
            let times = session.time_steps(id, 3).unwrap();
            let steps = session.program(id).steps();
            assert_eq!(times.iter().map(|time| time.count).sum::<usize>(), steps.len());
            assert!(times.windows(2).all(|pair| pair[0].first < pair[1].first), "{times:?}");
            assert!(times.iter().all(|time| time.us > 0.0), "{times:?}");
            let forward = times.iter().find(|time| steps[time.first].name() == "gemm").unwrap();
            assert_eq!(forward.count, 4, "{times:?}");
        }
    }
}
