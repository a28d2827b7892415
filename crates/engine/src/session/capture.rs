//! Warm-up and capture: on NVIDIA cards every program becomes one captured graph that forks a side stream.

use tandem_device::{Block, CapturedGraph, DeviceError, DeviceKind, Event, Gemm, Stream, View};

use super::Session;
use crate::error::EngineError;
use crate::program::{Program, SIDE_STREAM_OPS_IN_FLIGHT};
use crate::program_set::{MemoryKind, ProgramId};

/// The stream a launch goes to.
#[derive(Clone, Copy)]
pub(super) enum LaunchStream<'a> {
    Main(&'a Stream),
    Side(&'a Stream),
}

impl LaunchStream<'_> {
    /// The GEMM workspace of the stream, in the memory of both: each stream may have a GEMM in flight.
    pub(super) fn workspace(self, both: &Block) -> View<'_> {
        let offset = match self {
            LaunchStream::Main(_) => 0,
            LaunchStream::Side(_) => Gemm::WORKSPACE_BYTES,
        };
        both.part(offset, Gemm::WORKSPACE_BYTES)
    }
}

/// The side stream of a capture, and the events that fork and join it.
struct SideStream {
    /// On NVIDIA cards. It has a lower priority: it takes the multiprocessors that the main stream leaves idle.
    stream: Option<Stream>,
    fork: Event,
    /// The end of each side-stream op in flight, and one more.
    ends: Vec<Event>,
}

impl SideStream {
    fn new(main: &Stream) -> Result<SideStream, DeviceError> {
        let device = main.device();
        let is_cuda = device.machine().kind() == DeviceKind::Cuda;
        let stream = is_cuda.then(|| device.stream(false)).transpose()?;
        let ends = (0..=SIDE_STREAM_OPS_IN_FLIGHT).map(|_| device.event()).collect::<Result<_, _>>()?;
        Ok(SideStream { stream, fork: device.event()?, ends })
    }
}

impl Session {
    /// Runs every program once, results included, captures it, and clears the memory.
    ///
    /// Libraries and the driver load code on first use, and must not do so during a capture. Only constants have been
    /// written so far, so a run on zeros does no harm; everything else is cleared afterwards.
    pub(super) fn warm_up_and_capture(&mut self, on_progress: &mut dyn FnMut(usize, usize)) -> Result<(), EngineError> {
        if self.blocks.contains_key(&MemoryKind::Workspace) {
            self.stream.device().prepare_gemms()?;
        }
        let count = self.set.programs.len();
        let programs = (0..count).map(ProgramId);
        for id in programs.clone() {
            self.queue_launches(id)?;
            let fetch = self.fetch(id)?;
            self.finish(fetch)?;
        }
        let side = SideStream::new(&self.stream)?;
        for id in programs {
            let captured = self.capture(id, &side)?;
            self.captured.push(captured);
            on_progress(id.0 + 1, count);
        }
        let written = self.blocks.iter().filter(|(kind, _)| **kind != MemoryKind::Constants);
        written.into_iter().try_for_each(|(_, block)| self.stream.fill(block.view(), 0))?;
        Ok(self.stream.drain()?)
    }

    /// Captures a program. On NVIDIA cards the graph forks a side stream, whose ops fill the gaps of the main stream.
    fn capture(&self, id: ProgramId, side: &SideStream) -> Result<CapturedGraph, EngineError> {
        let capture = self.stream.begin_capture()?;
        let Some(side_stream) = &side.stream else {
            self.queue_launches(id)?;
            return Ok(capture.end()?);
        };
        let Program { launches, side_stream_ops: ops, .. } = self.program(id);
        let end_of = |op: usize| &side.ends[op % side.ends.len()];
        let (mut forked, mut joined) = (0, 0);
        for at in 0..=launches.len() {
            while joined < forked && ops[joined].join_before <= at {
                capture.join(end_of(joined))?;
                joined += 1;
            }
            let Some(launch) = launches.get(at) else { break };
            match ops.get(forked).filter(|op| op.launches.contains(&at)) {
                Some(op) => {
                    if op.launches.start == at {
                        capture.fork(side_stream, &side.fork)?;
                    }
                    self.queue_on(LaunchStream::Side(side_stream), id, launch)?;
                    if op.launches.end == at + 1 {
                        capture.mark(side_stream, end_of(forked))?;
                        forked += 1;
                    }
                }
                None => self.queue(id, launch)?,
            }
        }
        Ok(capture.end()?)
    }
}

#[cfg(test)]
mod tests {
    use tandem_device::{Machine, SimSpec};

    use super::super::tests::gemm_session;
    use super::*;
    use crate::graph::ParameterSpan;

    /// The gradients after three runs, captured or not.
    fn gradients(machine: &Machine, captured: bool) -> Vec<f32> {
        let (mut session, id) = gemm_session(machine);
        if captured {
            session.warm_up_and_capture(&mut |_, _| {}).unwrap();
            assert_eq!(session.captured.len(), 1);
        }
        assert!(
            session.read_span::<f32>(ParameterSpan::Gradients).unwrap().iter().all(|&x| x == 0.0),
            "the warm-up run is cleared"
        );
        let values: Vec<f32> = (0..session.set.parameters.elements()).map(|i| i as f32 - 4.5).collect();
        session.write_span(ParameterSpan::Parameters, &values).unwrap();
        (0..3).for_each(|_| session.replay(id).unwrap());
        session.read_span(ParameterSpan::Gradients).unwrap()
    }

    #[test]
    fn a_captured_graph_computes_what_its_launches_compute() {
        let sim = "1x1GiB".parse::<SimSpec>().unwrap();
        for machine in [Machine::cpu(), Machine::simulated(sim)] {
            let launched = gradients(&machine, false);
            assert!(launched.iter().any(|&x| x != 0.0));
            assert_eq!(gradients(&machine, true), launched);
        }
    }

    #[test]
    fn each_stream_has_its_own_gemm_workspace() {
        let machine = Machine::simulated("1x1GiB".parse::<SimSpec>().unwrap());
        let (session, _) = gemm_session(&machine);
        let (stream, both) = (session.stream(), session.block(MemoryKind::Workspace));
        for (to, byte) in [(LaunchStream::Main(stream), 1), (LaunchStream::Side(stream), 2)] {
            assert_eq!(to.workspace(both).bytes(), Gemm::WORKSPACE_BYTES);
            stream.fill(to.workspace(both), byte).unwrap();
        }
        let bytes = session.read(MemoryKind::Workspace, 0, both.len()).unwrap();
        let (main, side) = bytes.split_at(bytes.len() / 2);
        assert!(main.iter().all(|&byte| byte == 1), "the side stream wrote into the main stream's workspace");
        assert!(side.iter().all(|&byte| byte == 2));
    }
}
