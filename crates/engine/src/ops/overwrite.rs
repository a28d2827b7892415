//! Overwriting persistent memory: with a value (the gradients of the first micro-batch of a step), or with zeros.

use crate::error::EngineError;
use crate::graph::{Graph, Value};
use crate::lower::Lower;
use crate::op::{Op, WriteMode, refuse};
use crate::tensor::TensorType;

/// `(target, value)`: overwrites the target with the value.
#[derive(Debug)]
struct Overwrite;

/// Overwrites its input with zeros.
#[derive(Debug)]
struct Clear;

impl Op for Overwrite {
    fn name(&self) -> &'static str {
        "overwrite"
    }

    fn outputs(&self, inputs: &[TensorType]) -> Result<Vec<TensorType>, EngineError> {
        match inputs {
            [target, value] if target == value => Ok(Vec::new()),
            _ => refuse("overwrite", "the target and the value have the same type", inputs),
        }
    }

    fn mutates(&self) -> &'static [usize] {
        &[0]
    }

    fn write_mode(&self) -> Option<WriteMode> {
        Some(WriteMode::Overwrite)
    }

    fn lower(&self, at: &mut Lower<'_>) -> Result<(), EngineError> {
        let [target, value] = [at.inputs[0], at.inputs[1]];
        at.copy(value, target);
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
    /// Overwrites persistent memory (a gradient, a parameter span or a state) with `value`.
    pub fn overwrite(&mut self, target: Value, value: Value) -> Result<(), EngineError> {
        self.push_many(Overwrite, &[target, value]).map(drop)
    }

    /// Overwrites persistent memory with zeros.
    pub fn clear(&mut self, target: Value) -> Result<(), EngineError> {
        self.push_many(Clear, &[target]).map(drop)
    }
}

#[cfg(test)]
mod tests {
    use tandem_device::{DType, Machine};

    use crate::testing::session;
    use crate::{Graph, NamedLayout, ProgramSet, TensorType};

    #[test]
    fn the_previous_value_is_gone() {
        let mut g = Graph::new(Default::default(), DType::F32);
        let ty = TensorType::new(DType::F32, &[1, 3]);
        let mut layout = NamedLayout::default();
        layout.place("x", ty).unwrap();
        let x = g.input("x", ty).unwrap();
        let [computed, copied, cleared] = ["computed", "copied", "cleared"].map(|name| g.state(name, ty).unwrap());
        let twice = g.scale(x, 2.0).unwrap();
        g.overwrite(computed, twice).unwrap();
        g.overwrite(copied, x).unwrap();
        g.clear(cleared).unwrap();
        let mut set = ProgramSet::new(Default::default(), DType::F32, &[]);
        let id = set.add("overwrite", &g, &layout).unwrap();
        assert_eq!(set.program(id).launches().len(), 3, "a computed value is written to its target directly");
        let mut session = session(&Machine::cpu(), set);
        for name in ["computed", "copied", "cleared"] {
            session.write_state(name, &[7.0_f32; 3]).unwrap();
        }
        session.write_input(id, "x", &[1.0_f32, -2.0, 0.5]).unwrap();
        session.run(id, None, &[]).unwrap();
        assert_eq!(session.read_state::<f32>("computed").unwrap(), [2.0, -4.0, 1.0]);
        assert_eq!(session.read_state::<f32>("copied").unwrap(), [1.0, -2.0, 0.5]);
        assert_eq!(session.read_state::<f32>("cleared").unwrap(), [0.0; 3]);
    }
}
