//! Late programs: compiled while a session runs, for batch shapes that were not known at its creation.
//!
//! The session reserved memory for them: a slot each for constants; everything else is in the working memory that all
//! programs share. They are not captured: every capture would allocate driver memory.

use tandem_device::View;

use super::{HostValue, Session};
use crate::error::EngineError;
use crate::lower::Region;
use crate::program::Program;
use crate::program_set::ProgramId;

impl Session {
    /// Adds a late program ([`ProgramSet::compile_late`]). If every slot is taken, it replaces the oldest late program and
    /// takes over its id. Waits for the device.
    ///
    /// Fails with [`EngineError::TooLarge`] if it does not fit into the session's memory; the session is unchanged then.
    ///
    /// [`ProgramSet::compile_late`]: crate::ProgramSet::compile_late
    pub fn add_late_program(&mut self, program: Program) -> Result<ProgramId, EngineError> {
        let slots = self.set.late_slots;
        assert!(slots > 0, "a session without slots for late programs");
        self.check_fits(&program)?;
        self.load_kernels(std::slice::from_ref(&program))?;
        let slot = self.next_late;
        let id = ProgramId(self.set.programs.len() + slot);
        // The previous program of this slot may still run and read its constants.
        self.stream.drain()?;
        self.write_constants(&program, self.constant_bases[id.0])?;
        match self.late.get_mut(slot) {
            Some(oldest) => *oldest = program,
            None => self.late.push(program),
        }
        self.next_late = (slot + 1) % slots;
        Ok(id)
    }

    fn check_fits(&self, program: &Program) -> Result<(), EngineError> {
        let largest = |bytes: fn(&Program) -> u64| self.set.programs.iter().map(bytes).max().unwrap_or(0);
        let (_, constants) = self.set.late_constants();
        let parts = [
            ("working memory", program.working_bytes(), largest(Program::working_bytes)),
            ("tables", program.constant_bytes, constants),
            ("host values", program.host.bytes, largest(|program| program.host.bytes)),
            ("results", program.results.bytes, largest(|program| program.results.bytes)),
        ];
        match parts.into_iter().find(|(_, needed, limit)| needed > limit) {
            None => Ok(()),
            Some((part, needed, limit)) => {
                let (program, largest) = ("a program of a new shape".to_owned(), part.to_owned());
                Err(EngineError::TooLarge { program, needed, limit, largest })
            }
        }
    }

    /// [`Session::stage_inputs`] for a batch in several parts: each is copied to its offset (in bytes) in the inputs.
    pub fn stage_input_parts<'b>(
        &mut self,
        id: ProgramId,
        parts: impl IntoIterator<Item = (View<'b>, u64)>,
        host: &[(&str, HostValue<'_>)],
    ) -> Result<(), EngineError> {
        self.upload_host(id, host)?;
        for (part, offset) in parts {
            let to = self.part(id, Region::Inputs, offset, part.bytes());
            self.stream.copy(part, to)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use tandem_device::{DType, Machine, SimSpec};

    use super::*;
    use crate::{Graph, NamedLayout, ProgramSet, Rows, TensorType, testing};

    /// Sums the frames of each row: the row offsets are a constant, the batch is an input.
    fn graph(parameters: &Arc<crate::Parameters>, rows: &[u32]) -> (Graph, NamedLayout) {
        let mut graph = Graph::new(parameters.clone(), DType::F32);
        let ty = TensorType::new(DType::F32, &[rows.iter().sum(), 3]);
        let mut layout = NamedLayout::default();
        layout.place("x", ty).unwrap();
        let x = graph.input("x", ty).unwrap();
        let lengths = graph.constant(&[rows.len() as u32], &rows.iter().map(|&n| n as i32).collect::<Vec<_>>());
        let sums = graph.row_mean(x, &Rows::new(rows), lengths).unwrap();
        let sum = graph.sum_all(sums).unwrap();
        graph.result("sum", sum).unwrap();
        (graph, layout)
    }

    fn session(machine: &Machine, rows: &[u32], slots: usize) -> Session {
        let parameters = Arc::new(crate::ParameterList::new().finish());
        let mut set = ProgramSet::new(parameters.clone(), DType::F32, &[]);
        set.reserve_late_slots(slots);
        let (graph, layout) = graph(&parameters, rows);
        set.add("first", &graph, &layout).unwrap();
        testing::session(machine, set)
    }

    fn compile(session: &Session, rows: &[u32]) -> Program {
        let (graph, layout) = graph(session.set().parameters(), rows);
        session.set().compile_late(&graph, &layout).unwrap()
    }

    /// The sum over rows of the mean of each, when row i is all i + 1.
    fn sum_of(session: &mut Session, id: ProgramId, rows: &[u32]) -> f32 {
        let values: Vec<f32> =
            rows.iter().zip(1..).flat_map(|(&frames, row)| vec![row as f32; 3 * frames as usize]).collect();
        session.write_input(id, "x", &values).unwrap();
        session.replay(id).unwrap();
        let fetch = session.fetch(id).unwrap();
        session.finish(fetch).unwrap().get::<f32>("sum").unwrap()[0]
    }

    #[test]
    fn late_programs_run_beside_the_first_and_replace_the_oldest() {
        let sim = "1x1GiB".parse::<SimSpec>().unwrap();
        for machine in [Machine::cpu(), Machine::simulated(sim)] {
            let first = [4, 4, 4];
            let mut session = session(&machine, &first, 2);
            let before = machine.counters(0);
            let shapes = [[1, 2, 3], [3, 2, 1], [4, 1, 4]];
            let ids = shapes.map(|rows| {
                let program = compile(&session, &rows);
                session.add_late_program(program).unwrap()
            });
            assert_eq!(ids[0], ids[2], "two slots, and the oldest was replaced");
            for (id, rows) in [(ids[1], &shapes[1]), (ids[2], &shapes[2]), (ProgramId(0), &first)] {
                assert_eq!(sum_of(&mut session, id, rows), 18.0, "{rows:?}");
            }
            assert_eq!(machine.counters(0), before, "late programs allocate nothing");
        }
    }

    #[test]
    fn a_late_program_that_does_not_fit_is_refused_and_changes_nothing() {
        let mut session = session(&Machine::cpu(), &[300, 300], 1);
        let fits = compile(&session, &[2, 4]);
        let id = session.add_late_program(fits).unwrap();
        // More frames than the working memory was planned for, and more rows than the tables.
        for (rows, part) in [(&[400, 400][..], "working memory"), (&[1; 200][..], "tables")] {
            let program = compile(&session, rows);
            let refused = session.add_late_program(program).map(drop).unwrap_err().to_string();
            assert!(refused.contains(part), "{refused}");
        }
        assert_eq!(sum_of(&mut session, id, &[2, 4]), 9.0);
    }
}
