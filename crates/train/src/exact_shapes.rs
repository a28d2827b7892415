//! Steps on batches without padding: one program per exact shape, compiled when the shape first occurs.

use tandem_engine::{EngineError, HostValue, Program, ProgramId, ProgramSet, Session};
use tandem_feed::{Bucket, DeviceBatch};

/// Compiles the program of a step on batches of one shape.
pub type CompileProgram = Box<dyn Fn(&ProgramSet, &Bucket) -> Result<Program, EngineError> + Send>;

/// The programs of exact shapes in a session.
pub(crate) struct ExactShapes {
    compile: CompileProgram,
    programs: Vec<ExactProgram>,
    /// Whether the warning about a shape that did not fit was given.
    warned: bool,
    warning: Option<String>,
}

struct ExactProgram {
    shape: Bucket,
    id: ProgramId,
}

impl ExactShapes {
    pub(crate) fn new(compile: CompileProgram) -> ExactShapes {
        ExactShapes { compile, programs: Vec::new(), warned: false, warning: None }
    }

    /// Stages `batch` without its padding as the inputs of the program of its shape. `None` if the session has no room
    /// for such a program: nothing is queued then, and the caller uses the padded batch.
    pub(crate) fn stage_inputs(
        &mut self,
        session: &mut Session,
        batch: &DeviceBatch<'_>,
        host: &[(&str, HostValue<'_>)],
    ) -> Result<Option<ProgramId>, EngineError> {
        let exact = batch.info().exact_bucket();
        let Some(id) = self.program(session, &exact)? else { return Ok(None) };
        let pieces = batch.info().pieces(&exact);
        session.stage_input_parts(
            id,
            pieces.iter().map(|piece| (batch.part(piece.from, piece.bytes), piece.to)),
            host,
        )?;
        Ok(Some(id))
    }

    fn program(&mut self, session: &mut Session, exact: &Bucket) -> Result<Option<ProgramId>, EngineError> {
        if let Some(known) = self.programs.iter().find(|program| program.shape == *exact) {
            return Ok(Some(known.id));
        }
        let program = (self.compile)(session.set(), exact)?;
        match session.add_late_program(program) {
            Ok(id) => {
                // The session reuses the slot, and the id, of an earlier program.
                self.programs.retain(|earlier| earlier.id != id);
                self.programs.push(ExactProgram { shape: exact.clone(), id });
                Ok(Some(id))
            }
            Err(error @ EngineError::TooLarge { .. }) => {
                self.warn(&error);
                Ok(None)
            }
            Err(other) => Err(other),
        }
    }

    /// Once per run: a shape that does not fit will not fit later either.
    fn warn(&mut self, error: &EngineError) {
        if !std::mem::replace(&mut self.warned, true) {
            self.warning = Some(format!("using padded batches where the exact shape does not fit: {error}"));
        }
    }

    /// The warning, if there is a new one.
    pub(crate) fn take_warning(&mut self) -> Option<String> {
        self.warning.take()
    }
}
