//! Reading and writing a session's memory outside runs: parameter spans, states, single inputs. All of it waits for the
//! device.

use tandem_device::Element;

use super::Session;
use super::values::check_type;
use crate::error::EngineError;
use crate::graph::ParameterSpan;
use crate::lower::Region;
use crate::program_set::{MemoryKind, ProgramId};

/// Bytes that are written or read at once.
pub(super) const STAGING_BYTES: u64 = 4 << 20;

impl Session {
    /// Writes a whole span. Waits for the device: for set-up and for loading a checkpoint.
    pub fn write_span<T: Element>(&self, span: ParameterSpan, values: &[T]) -> Result<(), EngineError> {
        self.write(MemoryKind::ParameterSpan(span), 0, bytemuck::cast_slice(values))
    }

    /// Reads a whole span. Waits for the device.
    pub fn read_span<T: Element>(&self, span: ParameterSpan) -> Result<Vec<T>, EngineError> {
        let length = self.set.parameters.elements() * T::DTYPE.bytes();
        Ok(bytemuck::pod_collect_to_vec(&self.read(MemoryKind::ParameterSpan(span), 0, length)?))
    }

    /// Writes one field of a program's inputs. The value holds until another program runs: programs share one working memory.
    /// Waits for the device: for tests and synthesis.
    pub fn write_input<T: Element>(&self, id: ProgramId, name: &str, values: &[T]) -> Result<(), EngineError> {
        let field = self.program(id).inputs.find("input", name)?;
        check_type::<T>("input", name, field.ty, values.len())?;
        let base = self.program(id).base(Region::Inputs);
        self.write(MemoryKind::Working, base + field.offset, bytemuck::cast_slice(values))
    }

    /// Reads a state. Waits for the device.
    pub fn read_state<T: Element>(&self, name: &str) -> Result<Vec<T>, EngineError> {
        let field = self.set.states.find("state", name)?;
        let bytes = self.read(MemoryKind::States, field.offset, field.ty.bytes())?;
        Ok(bytemuck::pod_collect_to_vec(&bytes))
    }

    /// Writes a state. Waits for the device.
    pub fn write_state<T: Element>(&self, name: &str, values: &[T]) -> Result<(), EngineError> {
        let field = self.set.states.find("state", name)?;
        check_type::<T>("state", name, field.ty, values.len())?;
        self.write(MemoryKind::States, field.offset, bytemuck::cast_slice(values))
    }

    /// Fills the working memory with a pattern that no program writes, to expose reads of uninitialised memory.
    #[cfg(test)]
    pub(crate) fn poison(&self) -> Result<(), EngineError> {
        match self.blocks.get(&MemoryKind::Working) {
            Some(working) => Ok(self.stream.fill(working.view(), 0x7F)?),
            None => Ok(()),
        }
    }

    pub(super) fn write(&self, to: MemoryKind, mut offset: u64, bytes: &[u8]) -> Result<(), EngineError> {
        let mut staging = self.staging.borrow_mut();
        let most = staging.bytes()?.len();
        for chunk in bytes.chunks(most) {
            let length = chunk.len() as u64;
            staging.bytes_mut()?[..chunk.len()].copy_from_slice(chunk);
            self.stream.upload(&staging, 0..length, self.block(to).part(offset, length))?;
            self.stream.drain()?;
            offset += length;
        }
        Ok(())
    }

    pub(super) fn read(&self, from: MemoryKind, offset: u64, length: u64) -> Result<Vec<u8>, EngineError> {
        let mut staging = self.staging.borrow_mut();
        let mut bytes = Vec::with_capacity(length as usize);
        while (bytes.len() as u64) < length {
            let done = bytes.len() as u64;
            let chunk = (length - done).min(staging.bytes()?.len() as u64);
            self.stream.download(self.block(from).part(offset + done, chunk), &mut staging, 0..chunk)?;
            self.stream.drain()?;
            bytes.extend_from_slice(&staging.bytes()?[..chunk as usize]);
        }
        Ok(bytes)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use tandem_device::{DType, Machine, SimSpec};

    use super::*;
    use crate::{Init, ParameterList, ProgramSet, testing};

    #[test]
    fn a_span_longer_than_the_staging_memory_reads_back_as_written() {
        // Two full chunks and a short one; all elements differ, so that a misplaced one is noticed.
        let elements = 2 * STAGING_BYTES as u32 / 4 + 1000;
        let sim = "1x1GiB".parse::<SimSpec>().unwrap();
        for machine in [Machine::cpu(), Machine::simulated(sim)] {
            let mut list = ParameterList::new();
            list.weight("weight", &[elements], Init::Constant(0.0)).unwrap();
            let parameters = Arc::new(list.finish());
            let values: Vec<f32> = (0..parameters.elements()).map(|i| i as f32).collect();
            let session = testing::session(&machine, ProgramSet::new(parameters, DType::F32, &[]));
            assert_eq!(session.staging.borrow().len(), STAGING_BYTES);
            let before = machine.counters(0).pinned_allocations;
            session.write_span(ParameterSpan::Parameters, &values).unwrap();
            assert!(session.read_span::<f32>(ParameterSpan::Parameters).unwrap() == values, "on {:?}", machine.kind());
            assert_eq!(machine.counters(0).pinned_allocations, before, "no pinned memory is allocated");
        }
    }
}
