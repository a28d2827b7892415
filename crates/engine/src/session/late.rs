//! Programs that are written while a session runs, for shapes nobody knew before.
//!
//! Their memory was left free when the session was made: constants in places of their own, everything else in the working
//! memory that programs take turns in. They are not recorded: a recording would take memory of the driver's each time.

use tandem_device::View;

use super::{HostValue, Session};
use crate::error::EngineError;
use crate::lower::Region;
use crate::program::Program;
use crate::program_set::ProgramId;

impl Session {
    /// Takes a program in ([`ProgramSet::compile_late`]). When every place is taken, the one that came first makes room,
    /// and its id is the new one's. Waits for the device.
    ///
    /// Fails with [`EngineError::TooLarge`] when it does not fit into what the session has; nothing has changed then.
    ///
    /// [`ProgramSet::compile_late`]: crate::ProgramSet::compile_late
    pub fn admit(&mut self, program: Program) -> Result<ProgramId, EngineError> {
        let places = self.set.late_places;
        assert!(places > 0, "a session without room for more programs");
        self.check_room(&program)?;
        self.load_kernels(std::slice::from_ref(&program))?;
        let place = self.next_late;
        let id = ProgramId(self.set.programs.len() + place);
        // Whoever ran in this place has ended: writing waits for the device, and nothing may be half read.
        self.stream.drain()?;
        self.write_constants(&program, self.constants[id.0])?;
        match self.late.get_mut(place) {
            Some(earlier) => *earlier = program,
            None => self.late.push(program),
        }
        self.next_late = (place + 1) % places;
        Ok(id)
    }

    fn check_room(&self, program: &Program) -> Result<(), EngineError> {
        let largest = |bytes: fn(&Program) -> u64| self.set.programs.iter().map(bytes).max().unwrap_or(0);
        let (_, constants) = self.set.late_constants();
        let rooms = [
            ("working memory", program.working_bytes(), largest(Program::working_bytes)),
            ("tables", program.constant_bytes, constants),
            ("host values", program.host.bytes, largest(|program| program.host.bytes)),
            ("results", program.results.bytes, largest(|program| program.results.bytes)),
        ];
        match rooms.into_iter().find(|(_, needed, room)| needed > room) {
            None => Ok(()),
            Some((holder, needed, limit)) => {
                let (program, holders) = ("a program of a new shape".to_owned(), holder.to_owned());
                Err(EngineError::TooLarge { program, needed, limit, holders })
            }
        }
    }

    /// [`Session::bring`] for a batch that lies in pieces: each is copied to its place (in bytes) among the inputs.
    pub fn gather<'b>(
        &mut self,
        id: ProgramId,
        pieces: impl IntoIterator<Item = (View<'b>, u64)>,
        host: &[(&str, HostValue<'_>)],
    ) -> Result<(), EngineError> {
        self.upload_host(id, host)?;
        for (piece, offset) in pieces {
            let to = self.part(id, Region::Inputs, offset, piece.bytes());
            self.stream.copy(piece, to)?;
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

    /// Sums the frames of each row: the table of rows is a constant, the batch an input.
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

    fn session(machine: &Machine, rows: &[u32], places: usize) -> Session {
        let parameters = Arc::new(crate::ParameterList::new().finish());
        let mut set = ProgramSet::new(parameters.clone(), DType::F32, &[]);
        set.leave_room(places);
        let (graph, layout) = graph(&parameters, rows);
        set.add("first", &graph, &layout).unwrap();
        testing::session(machine, set)
    }

    fn write(session: &Session, rows: &[u32]) -> Program {
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
    fn programs_that_come_later_run_beside_the_first_and_make_room_in_turn() {
        let sim = "1x1GiB".parse::<SimSpec>().unwrap();
        for machine in [Machine::cpu(), Machine::simulated(sim)] {
            let first = [4, 4, 4];
            let mut session = session(&machine, &first, 2);
            let before = machine.counters(0);
            let shapes = [[1, 2, 3], [3, 2, 1], [4, 1, 4]];
            let ids = shapes.map(|rows| {
                let program = write(&session, &rows);
                session.admit(program).unwrap()
            });
            assert_eq!(ids[0], ids[2], "two places, and the first comer made room");
            for (id, rows) in [(ids[1], &shapes[1]), (ids[2], &shapes[2]), (ProgramId(0), &first)] {
                assert_eq!(sum_of(&mut session, id, rows), 18.0, "{rows:?}");
            }
            assert_eq!(machine.counters(0), before, "nothing is taken for them");
        }
    }

    #[test]
    fn what_does_not_fit_is_refused_and_changes_nothing() {
        let mut session = session(&Machine::cpu(), &[300, 300], 1);
        let fits = write(&session, &[2, 4]);
        let id = session.admit(fits).unwrap();
        // More frames than the working memory was planned for, and more rows than the tables.
        for (rows, holder) in [(&[400, 400][..], "working memory"), (&[1; 200][..], "tables")] {
            let program = write(&session, rows);
            let refused = session.admit(program).map(drop).unwrap_err().to_string();
            assert!(refused.contains(holder), "{refused}");
        }
        assert_eq!(sum_of(&mut session, id, &[2, 4]), 9.0);
    }
}
