//! Reverse-mode differentiation: the backward pass is appended to the forward pass, as nodes of the same graph.
//!
//! Gradient checkpointing (Chen et al., "Training deep nets with sublinear memory cost", 2016): a recomputed block gets a
//! second copy of its nodes, added where the backward pass first needs one of them. Random numbers are counter-based, so the
//! copy generates the same ones. Scheduling removes the dead nodes.

use std::collections::{BTreeSet, HashMap};

use crate::error::EngineError;
use crate::graph::{BlockId, Graph, Leaf, NodeKind, Value};
use crate::op::{Backward, WriteMode};
use crate::parameters::ParameterId;
use crate::tensor::Shape;

/// The blocks that the backward pass recomputes (gradient checkpointing).
pub type Recomputed = BTreeSet<BlockId>;

impl Graph {
    /// Adds the gradients of `loss` with respect to each of `wrt`; `None` where the loss does not depend on it.
    pub fn gradients(
        &mut self,
        loss: Value,
        wrt: &[Value],
        recomputed: &Recomputed,
    ) -> Result<Vec<Option<Value>>, EngineError> {
        if self.shape(loss) != Shape::scalar() {
            return Err(EngineError::NotALoss { found: self.shape(loss) });
        }
        BackwardPass::new(self, wrt, recomputed).run(loss)
    }

    /// Adds the backward pass of `loss`; gradients are accumulated into those of every parameter it depends on.
    pub fn accumulate(&mut self, loss: Value, recomputed: &Recomputed) -> Result<(), EngineError> {
        self.write_gradients(loss, WriteMode::Accumulate, recomputed)
    }

    /// Adds the backward pass of `loss`. `mode` says whether gradients are accumulated or overwritten; when overwritten, the
    /// gradients of parameters that `loss` does not depend on become zero.
    pub fn write_gradients(
        &mut self,
        loss: Value,
        mode: WriteMode,
        recomputed: &Recomputed,
    ) -> Result<(), EngineError> {
        let used: Vec<(Value, _)> = (0..self.nodes.len() as u32)
            .map(|node| Value { node, output: 0 })
            .filter_map(|value| match self.as_leaf(value) {
                Some(Leaf::Parameter(id)) => Some((value, *id)),
                _ => None,
            })
            .collect();
        let values: Vec<Value> = used.iter().map(|(value, _)| *value).collect();
        let gradients = self.gradients(loss, &values, recomputed)?;
        let mut unused: BTreeSet<ParameterId> = self.parameters().iter().map(|(id, _)| id).collect();
        for ((_, id), gradient) in used.iter().zip(gradients) {
            let Some(gradient) = gradient else { continue };
            unused.remove(id);
            let accumulated = self.gradient(*id);
            match mode {
                WriteMode::Accumulate => self.add_into(accumulated, gradient)?,
                WriteMode::Overwrite => self.overwrite(accumulated, gradient)?,
            }
        }
        if mode == WriteMode::Overwrite {
            for id in unused {
                let accumulated = self.gradient(id);
                self.clear(accumulated)?;
            }
        }
        Ok(())
    }
}

struct BackwardPass<'g> {
    graph: &'g mut Graph,
    wrt: &'g [Value],
    recomputed: &'g Recomputed,
    /// Whether each forward node depends on something of `wrt`.
    depends: Vec<bool>,
    /// Contributions to the gradient of each value, in the order they were added; one entry once summed.
    contributions: HashMap<Value, Vec<Value>>,
    /// The recomputed copy of each value of a recomputed block.
    copies: HashMap<Value, Value>,
    copied_blocks: BTreeSet<BlockId>,
}

impl<'g> BackwardPass<'g> {
    fn new(graph: &'g mut Graph, wrt: &'g [Value], recomputed: &'g Recomputed) -> BackwardPass<'g> {
        let mut depends = vec![false; graph.nodes.len()];
        for value in wrt {
            depends[value.node as usize] = true;
        }
        for at in 0..graph.nodes.len() {
            depends[at] |= graph.nodes[at].inputs.iter().any(|input| depends[input.node as usize]);
        }
        let (contributions, copies, copied_blocks) = (HashMap::new(), HashMap::new(), BTreeSet::new());
        BackwardPass { graph, wrt, recomputed, depends, contributions, copies, copied_blocks }
    }

    fn run(mut self, loss: Value) -> Result<Vec<Option<Value>>, EngineError> {
        let one = self.graph.number(1.0);
        self.contributions.insert(loss, vec![one]);
        for at in (0..=loss.node as usize).rev() {
            if self.depends[at] {
                self.backpropagate(at)?;
            }
        }
        let wrt = self.wrt;
        wrt.iter().map(|value| self.total(*value, true)).collect()
    }

    /// Propagates gradients through one node.
    fn backpropagate(&mut self, at: usize) -> Result<(), EngineError> {
        let node = self.graph.nodes[at].clone();
        let NodeKind::Op(op) = &node.kind else { return Ok(()) };
        let outputs: Vec<Value> =
            (0..node.outputs.len() as u32).map(|output| Value { node: at as u32, output }).collect();
        let mut gradients = Vec::with_capacity(outputs.len());
        for &output in &outputs {
            gradients.push(self.total(output, false)?);
        }
        if gradients.iter().all(Option::is_none) {
            return Ok(());
        }
        if let Some(block) = node.block.filter(|block| self.recomputed.contains(block)) {
            self.recompute(block)?;
        }
        let wanted: Vec<bool> = node.inputs.iter().map(|input| self.depends[input.node as usize]).collect();
        let copy_of = |value: &Value| *self.copies.get(value).unwrap_or(value);
        let inputs: Vec<Value> = node.inputs.iter().map(copy_of).collect();
        let outputs: Vec<Value> = outputs.iter().map(copy_of).collect();
        let label = self.graph.relabel(&node.label);
        let mut rule = Backward {
            graph: &mut *self.graph,
            inputs: &inputs,
            outputs: &outputs,
            gradients: &gradients,
            wanted: &wanted,
        };
        let of_inputs = op.gradient(&mut rule)?;
        self.graph.relabel(&label);
        assert_eq!(of_inputs.len(), node.inputs.len(), "{} must return one gradient per input", op.name());
        for ((input, gradient), wanted) in node.inputs.iter().zip(of_inputs).zip(&wanted) {
            if let Some(gradient) = gradient.filter(|_| *wanted) {
                let (have, want) = (self.graph.shape(gradient), self.graph.shape(*input));
                assert_eq!(have, want, "{}: a gradient of shape {have} for an input of shape {want}", op.name());
                self.contributions.entry(*input).or_default().push(gradient);
            }
        }
        Ok(())
    }

    /// The summed gradient of a value: in the value's element type, or in the accumulator type.
    fn total(&mut self, value: Value, in_acc: bool) -> Result<Option<Value>, EngineError> {
        let Some(contributions) = self.contributions.remove(&value) else { return Ok(None) };
        let mut parts = contributions.into_iter();
        let Some(mut sum) = parts.next() else { return Ok(None) };
        for part in parts {
            sum = self.graph.add(sum, part)?;
        }
        // A value of `wrt` may be intermediate, and may appear twice.
        if self.wrt.contains(&value) {
            self.contributions.insert(value, vec![sum]);
        }
        let dtype = if in_acc { self.graph.acc_dtype() } else { self.graph.ty(value).dtype };
        self.graph.cast(sum, dtype).map(Some)
    }

    /// Adds a copy of a block's nodes, except those that mutate persistent memory: the forward pass did that.
    fn recompute(&mut self, block: BlockId) -> Result<(), EngineError> {
        if !self.copied_blocks.insert(block) {
            return Ok(());
        }
        let members: Vec<usize> =
            (0..self.depends.len()).filter(|&at| self.graph.nodes[at].block == Some(block)).collect();
        for at in members {
            let node = self.graph.nodes[at].clone();
            let NodeKind::Op(op) = node.kind else { continue };
            if !op.mutates().is_empty() {
                continue;
            }
            let inputs: Vec<Value> = node.inputs.iter().map(|input| *self.copies.get(input).unwrap_or(input)).collect();
            let label = self.graph.relabel(&node.label);
            let copies = self.graph.push_shared(op, &inputs)?;
            self.graph.relabel(&label);
            for (output, copy) in (0..).zip(copies) {
                self.copies.insert(Value { node: at as u32, output }, copy);
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use tandem_device::{DType, Machine};

    use super::*;
    use crate::testing::session;
    use crate::{NamedLayout, ProgramSet, TensorType};

    /// The loss is the sum of (2x)², with the intermediate h = 2x, in a block.
    fn gradients_of(recomputed: &Recomputed) -> Vec<Vec<f32>> {
        let mut g = Graph::new(Default::default(), DType::F32);
        let mut layout = NamedLayout::default();
        let ty = TensorType::new(DType::F32, &[1, 3]);
        layout.place("x", ty).unwrap();
        let x = g.input("x", ty).unwrap();
        let (h, loss) = g
            .block(|g| {
                let h = g.scale(x, 2.0)?;
                let square = g.mul(h, h)?;
                Ok((h, g.sum_all(square)?))
            })
            .unwrap();
        let of = g.gradients(loss, &[x, h, x, loss], recomputed).unwrap();
        for (i, gradient) in of.into_iter().enumerate() {
            g.result(&i.to_string(), gradient.unwrap()).unwrap();
        }
        let mut set = ProgramSet::new(Default::default(), DType::F32, &[]);
        let id = set.add("gradients", &g, &layout).unwrap();
        let mut session = session(&Machine::cpu(), set);
        session.write_input(id, "x", &[1.0_f32, -2.0, 0.5]).unwrap();
        session.run(id, None, &[]).unwrap();
        let fetch = session.fetch(id).unwrap();
        let results = session.finish(fetch).unwrap();
        (0..4).map(|i| results.get(&i.to_string()).unwrap()).collect()
    }

    #[test]
    fn intermediate_values_have_gradients_and_may_be_requested_twice() {
        let expected = [vec![8.0, -16.0, 4.0], vec![4.0, -8.0, 2.0], vec![8.0, -16.0, 4.0], vec![1.0]];
        assert_eq!(gradients_of(&Recomputed::new()), expected);
        assert_eq!(gradients_of(&Recomputed::from([BlockId(0)])), expected);
    }

    #[test]
    fn a_recomputed_block_mutates_a_state_once() {
        let mut g = Graph::new(Default::default(), DType::F32);
        let mut layout = NamedLayout::default();
        let ty = TensorType::new(DType::F32, &[1, 2]);
        layout.place("x", ty).unwrap();
        let (x, seen) = (g.input("x", ty).unwrap(), g.state("seen", ty).unwrap());
        let loss = g
            .block(|g| {
                let square = g.mul(x, x)?;
                g.add_into(seen, square)?;
                let more = g.mul(square, square)?;
                g.sum_all(more)
            })
            .unwrap();
        let of = g.gradients(loss, &[x], &Recomputed::from([BlockId(0)])).unwrap();
        g.result("x", of[0].unwrap()).unwrap();
        let mut set = ProgramSet::new(Default::default(), DType::F32, &[]);
        let id = set.add("gradients", &g, &layout).unwrap();
        let mut session = session(&Machine::cpu(), set);
        session.write_input(id, "x", &[1.0_f32, 2.0]).unwrap();
        session.run(id, None, &[]).unwrap();
        assert_eq!(session.read_state::<f32>("seen").unwrap(), [1.0, 4.0]);
    }
}
