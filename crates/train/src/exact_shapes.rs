//! Steps on batches as long as they are: a program for every shape, written when the shape is first seen.

use tandem_engine::{EngineError, HostValue, Program, ProgramId, ProgramSet, Session};
use tandem_feed::{Bucket, DeviceBatch};

/// Writes the program of a step on batches of one shape.
pub type WriteProgram = Box<dyn Fn(&ProgramSet, &Bucket) -> Result<Program, EngineError> + Send>;

/// The programs of exact shapes that a session holds.
pub(crate) struct ExactShapes {
    write: WriteProgram,
    known: Vec<(Bucket, ProgramId)>,
    /// Whether a shape did not fit, and that was said.
    told: bool,
    note: Option<String>,
}

impl ExactShapes {
    pub(crate) fn new(write: WriteProgram) -> ExactShapes {
        ExactShapes { write, known: Vec::new(), told: false, note: None }
    }

    /// Brings `batch` without its padding to where a step's forward and backward of its shape read it. None where the
    /// session has no room for such a program: nothing has been queued then, and the batch is taken with its padding.
    pub(crate) fn bring(
        &mut self,
        session: &mut Session,
        batch: &DeviceBatch<'_>,
        host: &[(&str, HostValue<'_>)],
    ) -> Result<Option<ProgramId>, EngineError> {
        let exact = batch.info().exact_bucket();
        let Some(id) = self.program(session, &exact)? else { return Ok(None) };
        let pieces = batch.info().pieces(&exact);
        session.gather(id, pieces.iter().map(|piece| (batch.part(piece.from, piece.bytes), piece.to)), host)?;
        Ok(Some(id))
    }

    fn program(&mut self, session: &mut Session, exact: &Bucket) -> Result<Option<ProgramId>, EngineError> {
        if let Some((_, id)) = self.known.iter().find(|(shape, _)| shape == exact) {
            return Ok(Some(*id));
        }
        let program = (self.write)(session.set(), exact)?;
        match session.admit(program) {
            Ok(id) => {
                // Its place was that of an earlier one.
                self.known.retain(|(_, taken)| *taken != id);
                self.known.push((exact.clone(), id));
                Ok(Some(id))
            }
            Err(error @ EngineError::TooLarge { .. }) => {
                self.tell(&error);
                Ok(None)
            }
            Err(other) => Err(other),
        }
    }

    /// Once is enough: what does not fit does not fit again and again.
    fn tell(&mut self, error: &EngineError) {
        if !std::mem::replace(&mut self.told, true) {
            self.note = Some(format!("a batch is taken with its padding: {error}"));
        }
    }

    /// What there is to say.
    pub(crate) fn take_note(&mut self) -> Option<String> {
        self.note.take()
    }
}
