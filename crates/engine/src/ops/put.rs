//! Putting something in the place of what lasts: gradients of the first batch of a step, and zeros.

use crate::error::EngineError;
use crate::graph::{Graph, Value};
use crate::lower::Lower;
use crate::op::{Op, WriteMode, refuse};
use crate::tensor::TensorType;

/// `(place, value)`: the value takes the place of what is there.
#[derive(Debug)]
struct Put;

/// Zeros take the place of what is there.
#[derive(Debug)]
struct Clear;

impl Op for Put {
    fn name(&self) -> &'static str {
        "put"
    }

    fn outputs(&self, inputs: &[TensorType]) -> Result<Vec<TensorType>, EngineError> {
        match inputs {
            [place, value] if place == value => Ok(Vec::new()),
            _ => refuse("put", "a place and what is put there are of one type", inputs),
        }
    }

    fn mutates(&self) -> &'static [usize] {
        &[0]
    }

    fn brings(&self) -> Option<WriteMode> {
        Some(WriteMode::Overwrite)
    }

    fn lower(&self, at: &mut Lower<'_>) -> Result<(), EngineError> {
        let [place, value] = [at.inputs[0], at.inputs[1]];
        at.copy(value, place);
        Ok(())
    }
}

impl Op for Clear {
    fn name(&self) -> &'static str {
        "clear"
    }

    fn outputs(&self, _: &[TensorType]) -> Result<Vec<TensorType>, EngineError> {
        Ok(Vec::new())
    }

    fn mutates(&self) -> &'static [usize] {
        &[0]
    }

    fn lower(&self, at: &mut Lower<'_>) -> Result<(), EngineError> {
        at.clear(at.inputs[0]);
        Ok(())
    }
}

impl Graph {
    /// Puts `value` in the place of what lasts: a gradient, a span or a state.
    pub fn put(&mut self, place: Value, value: Value) -> Result<(), EngineError> {
        self.push_many(Put, &[place, value]).map(drop)
    }

    /// Puts zeros in the place of what lasts.
    pub fn clear(&mut self, place: Value) -> Result<(), EngineError> {
        self.push_many(Clear, &[place]).map(drop)
    }
}

#[cfg(test)]
mod tests {
    use tandem_device::{DType, Machine};

    use crate::testing::session;
    use crate::{Graph, NamedLayout, ProgramSet, TensorType};

    #[test]
    fn what_was_there_is_gone() {
        let mut g = Graph::new(Default::default(), DType::F32);
        let ty = TensorType::new(DType::F32, &[1, 3]);
        let mut layout = NamedLayout::default();
        layout.place("x", ty).unwrap();
        let x = g.input("x", ty).unwrap();
        let [made, copied, cleared] = ["made", "copied", "cleared"].map(|name| g.state(name, ty).unwrap());
        let twice = g.scale(x, 2.0).unwrap();
        g.put(made, twice).unwrap();
        g.put(copied, x).unwrap();
        g.clear(cleared).unwrap();
        let mut set = ProgramSet::new(Default::default(), DType::F32, &[]);
        let id = set.add("put", &g, &layout).unwrap();
        assert_eq!(set.program(id).steps().len(), 3, "what is made is made in its place");
        let mut session = session(&Machine::cpu(), set);
        for name in ["made", "copied", "cleared"] {
            session.write_state(name, &[7.0_f32; 3]).unwrap();
        }
        session.write_input(id, "x", &[1.0_f32, -2.0, 0.5]).unwrap();
        session.run(id, None, &[]).unwrap();
        assert_eq!(session.read_state::<f32>("made").unwrap(), [2.0, -4.0, 1.0]);
        assert_eq!(session.read_state::<f32>("copied").unwrap(), [1.0, -2.0, 0.5]);
        assert_eq!(session.read_state::<f32>("cleared").unwrap(), [0.0; 3]);
    }
}
