//! The graph: a list of nodes in the order they run.
//!
//! A model builds it with the methods that the files in [`crate::ops`] add to [`Graph`]. Every method checks shapes and
//! element types immediately, so an error names the op and both shapes at the call that caused it.

use std::sync::Arc;

use tandem_device::{DType, Element};

use crate::error::EngineError;
use crate::op::Op;
use crate::parameters::{ParameterId, Parameters};
use crate::rows::Rows;
use crate::tensor::{Shape, TensorType, accumulator};

/// A tensor of a graph. Valid only in the graph that created it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Value {
    pub(crate) node: u32,
    pub(crate) output: u32,
}

/// A block of nodes for gradient checkpointing: its activations can be recomputed in the backward pass instead of saved.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BlockId(pub u32);

/// All parameters, or one optimizer state of all parameters, as one flat tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ParameterSpan {
    /// The master weights: f32, or f64 in gradient checks.
    Parameters,
    /// The bf16 copy of the weights that GEMMs read, if the model computes in bf16.
    Compute,
    /// Accumulated gradients.
    Gradients,
    /// AdamW's first moment: the running mean of gradients.
    FirstMoment,
    /// AdamW's second moment: the running mean of squared gradients.
    SecondMoment,
    /// The EMA (exponential moving average) of the weights.
    Average,
}

impl ParameterSpan {
    /// All of them, in memory order.
    pub const ALL: [ParameterSpan; 6] = [
        ParameterSpan::Parameters,
        ParameterSpan::Compute,
        ParameterSpan::Gradients,
        ParameterSpan::FirstMoment,
        ParameterSpan::SecondMoment,
        ParameterSpan::Average,
    ];
}

/// A value that the graph reads but does not compute.
#[derive(Clone, Debug, PartialEq)]
pub enum Leaf {
    /// A parameter, in the element type the graph computes in.
    Parameter(ParameterId),
    /// The EMA of a parameter, in the accumulator type.
    Average(ParameterId),
    /// The accumulated gradient of a parameter.
    Gradient(ParameterId),
    /// A whole span.
    ParameterSpan(ParameterSpan),
    /// A field of the batch.
    Input(String),
    /// A few values that the host sets before every run: learning rate, step, RNG keys.
    Host(String),
    /// Values fixed at compile time.
    Constant(Arc<[u8]>),
    /// Memory that persists across runs, shared by all programs of a session; initially zero.
    State(String),
}

/// A leaf or an op.
#[derive(Clone, Debug)]
pub(crate) enum NodeKind {
    Leaf(Leaf),
    Op(Arc<dyn Op>),
}

/// A node of the graph.
#[derive(Clone, Debug)]
pub(crate) struct Node {
    pub(crate) kind: NodeKind,
    pub(crate) inputs: Vec<Value>,
    pub(crate) outputs: Vec<TensorType>,
    pub(crate) block: Option<BlockId>,
    /// The model part it belongs to, for reports.
    pub(crate) label: Arc<str>,
}

/// A program under construction.
#[derive(Clone, Debug)]
pub struct Graph {
    pub(crate) nodes: Vec<Node>,
    pub(crate) parameters: Arc<Parameters>,
    pub(crate) results: Vec<(String, Value)>,
    precision: DType,
    scope: Vec<String>,
    label: Arc<str>,
    block: Option<BlockId>,
    num_blocks: u32,
    num_random_ops: u32,
    averages: bool,
}

impl Graph {
    /// An empty graph over `parameters` that computes in `precision`: f32, bf16, or f64 for gradient checks.
    pub fn new(parameters: Arc<Parameters>, precision: DType) -> Graph {
        assert!(
            matches!(precision, DType::F32 | DType::BF16 | DType::F64),
            "a graph computes in f32, bf16 or f64, not in {precision:?}"
        );
        Graph {
            nodes: Vec::new(),
            parameters,
            results: Vec::new(),
            precision,
            scope: Vec::new(),
            label: "".into(),
            block: None,
            num_blocks: 0,
            num_random_ops: 0,
            averages: false,
        }
    }

    /// The element type the graph computes in.
    pub fn precision(&self) -> DType {
        self.precision
    }

    /// The accumulator type: of losses, sums and master weights.
    pub fn acc_dtype(&self) -> DType {
        accumulator(self.precision)
    }

    /// The parameters the graph reads.
    pub fn parameters(&self) -> &Arc<Parameters> {
        &self.parameters
    }

    /// Shape and element type of a value.
    pub fn ty(&self, value: Value) -> TensorType {
        self.nodes[value.node as usize].outputs[value.output as usize]
    }

    /// Shape of a value.
    pub fn shape(&self, value: Value) -> Shape {
        self.ty(value).shape
    }

    /// Labels the nodes added inside `build` with `name`, for reports.
    pub fn scope<T>(
        &mut self,
        name: impl Into<String>,
        build: impl FnOnce(&mut Graph) -> Result<T, EngineError>,
    ) -> Result<T, EngineError> {
        self.scope.push(name.into());
        self.label = self.scope.join(".").into();
        let built = build(self);
        self.scope.pop();
        self.label = self.scope.join(".").into();
        built
    }

    /// Marks the nodes added inside `build` as one block for gradient checkpointing: the backward pass may recompute them
    /// instead of saving their outputs. Blocks do not nest: an inner one is part of the outer.
    pub fn block<T>(&mut self, build: impl FnOnce(&mut Graph) -> Result<T, EngineError>) -> Result<T, EngineError> {
        if self.block.is_some() {
            return build(self);
        }
        self.block = Some(BlockId(self.num_blocks));
        self.num_blocks += 1;
        let built = build(self);
        self.block = None;
        built
    }

    /// Number of checkpointing blocks so far.
    pub fn num_blocks(&self) -> u32 {
        self.num_blocks
    }

    /// From here on, [`Graph::parameter`] reads the EMA of the weights: for programs that do not train.
    pub fn use_averages(&mut self) {
        self.averages = true;
    }

    /// A parameter, in the element type of the graph.
    pub fn parameter(&mut self, id: ParameterId) -> Value {
        let shape = self.parameters.get(id).shape;
        if !self.averages {
            return self.leaf(Leaf::Parameter(id), TensorType { dtype: self.precision, shape });
        }
        let average = self.leaf(Leaf::Average(id), TensorType { dtype: self.acc_dtype(), shape });
        match self.cast(average, self.precision) {
            Ok(narrow) => narrow,
            Err(error) => unreachable!("parameters have a floating-point type: {error}"),
        }
    }

    /// The accumulated gradient of a parameter.
    pub fn gradient(&mut self, id: ParameterId) -> Value {
        let ty = TensorType { dtype: self.acc_dtype(), shape: self.parameters.get(id).shape };
        self.leaf(Leaf::Gradient(id), ty)
    }

    /// A whole span as one flat tensor.
    pub fn span(&mut self, span: ParameterSpan) -> Value {
        let dtype = if span == ParameterSpan::Compute { self.precision } else { self.acc_dtype() };
        let elements = self.parameters.elements().max(1) as u32;
        self.leaf(Leaf::ParameterSpan(span), TensorType::new(dtype, &[elements]))
    }

    /// A field of the batch.
    pub fn input(&mut self, name: &str, ty: TensorType) -> Result<Value, EngineError> {
        self.named_leaf("input", Leaf::Input(name.to_owned()), name, ty)
    }

    /// Values that the host sets before every run.
    pub fn host(&mut self, name: &str, ty: TensorType) -> Result<Value, EngineError> {
        self.named_leaf("host value", Leaf::Host(name.to_owned()), name, ty)
    }

    /// Memory that persists across runs.
    pub fn state(&mut self, name: &str, ty: TensorType) -> Result<Value, EngineError> {
        self.named_leaf("state", Leaf::State(name.to_owned()), name, ty)
    }

    /// Values fixed at compile time.
    pub fn constant<T: Element>(&mut self, dims: &[u32], values: &[T]) -> Value {
        let ty = TensorType::new(T::DTYPE, dims);
        assert_eq!(ty.shape.elements(), values.len() as u64, "a constant {ty} given {} elements", values.len());
        self.leaf(Leaf::Constant(bytemuck::cast_slice(values).into()), ty)
    }

    /// A scalar constant in the accumulator type, for pointwise ops.
    pub fn number(&mut self, value: f64) -> Value {
        self.numbers(&[1], &[value])
    }

    /// A constant tensor in the accumulator type.
    pub fn numbers(&mut self, dims: &[u32], values: &[f64]) -> Value {
        match self.acc_dtype() {
            DType::F64 => self.constant(dims, values),
            _ => self.constant(dims, &values.iter().map(|&value| value as f32).collect::<Vec<_>>()),
        }
    }

    /// Row offsets as a constant, for kernels.
    pub fn row_starts(&mut self, rows: &Rows) -> Value {
        self.constant(&[rows.count() + 1], rows.starts())
    }

    /// Makes `value` a result of the program, under `name`.
    pub fn result(&mut self, name: &str, value: Value) -> Result<(), EngineError> {
        if let Some((_, first)) = self.results.iter().find(|(known, _)| known == name) {
            let (first, second) = (self.ty(*first), self.ty(value));
            return Err(EngineError::DeclaredTwice { what: "result", name: name.to_owned(), first, second });
        }
        self.results.push((name.to_owned(), value));
        Ok(())
    }

    /// A unique id for an op that generates random numbers. A recomputed copy reuses the id of the original.
    pub fn next_rng_id(&mut self) -> u32 {
        self.num_random_ops += 1;
        self.num_random_ops
    }

    /// Adds a node with one output: for the methods of op files.
    pub fn push(&mut self, op: impl Op + 'static, inputs: &[Value]) -> Result<Value, EngineError> {
        let outputs = self.push_many(op, inputs)?;
        debug_assert_eq!(outputs.len(), 1, "an op with several outputs needs push_many");
        Ok(outputs[0])
    }

    /// Adds a node with several outputs.
    pub fn push_many(&mut self, op: impl Op + 'static, inputs: &[Value]) -> Result<Vec<Value>, EngineError> {
        self.push_shared(Arc::new(op), inputs)
    }

    pub(crate) fn push_shared(&mut self, op: Arc<dyn Op>, inputs: &[Value]) -> Result<Vec<Value>, EngineError> {
        let types: Vec<TensorType> = inputs.iter().map(|&input| self.ty(input)).collect();
        let outputs = op.outputs(&types)?;
        let count = outputs.len() as u32;
        let node = self.nodes.len() as u32;
        let (block, label) = (self.block, self.label.clone());
        self.nodes.push(Node { kind: NodeKind::Op(op), inputs: inputs.to_vec(), outputs, block, label });
        Ok((0..count).map(|output| Value { node, output }).collect())
    }

    /// Sets the label of the nodes added next, and returns the old label.
    pub(crate) fn relabel(&mut self, label: &Arc<str>) -> Arc<str> {
        std::mem::replace(&mut self.label, label.clone())
    }

    /// The leaf behind a value, if it is one.
    pub(crate) fn as_leaf(&self, value: Value) -> Option<&Leaf> {
        match &self.nodes[value.node as usize].kind {
            NodeKind::Leaf(leaf) => Some(leaf),
            NodeKind::Op(_) => None,
        }
    }

    fn named_leaf(&mut self, what: &'static str, leaf: Leaf, name: &str, ty: TensorType) -> Result<Value, EngineError> {
        if let Some(at) = self.find(&leaf) {
            let first = self.ty(at);
            if first == ty {
                return Ok(at);
            }
            return Err(EngineError::DeclaredTwice { what, name: name.to_owned(), first, second: ty });
        }
        Ok(self.leaf(leaf, ty))
    }

    /// The node of a leaf: equal leaves share one node.
    fn leaf(&mut self, leaf: Leaf, ty: TensorType) -> Value {
        if let Some(at) = self.find(&leaf).filter(|at| self.ty(*at) == ty) {
            return at;
        }
        let node = self.nodes.len() as u32;
        let label = self.label.clone();
        self.nodes.push(Node { kind: NodeKind::Leaf(leaf), inputs: Vec::new(), outputs: vec![ty], block: None, label });
        Value { node, output: 0 }
    }

    fn find(&self, leaf: &Leaf) -> Option<Value> {
        let same = |node: &Node| matches!(&node.kind, NodeKind::Leaf(known) if known == leaf);
        self.nodes.iter().position(same).map(|node| Value { node: node as u32, output: 0 })
    }
}

#[cfg(test)]
mod tests {
    use half::bf16;
    use tandem_device::Machine;

    use super::*;
    use crate::testing::session;
    use crate::{Init, NamedLayout, ParameterList, ProgramId, ProgramSet, Session};

    /// A program whose result is the parameter, or its EMA.
    fn reading_program(precision: DType, averages: bool) -> (Session, ProgramId) {
        let mut list = ParameterList::new();
        let id = list.weight("weight", &[1, 3], Init::Constant(0.0)).unwrap();
        let parameters = Arc::new(list.finish());
        let mut graph = Graph::new(parameters.clone(), precision);
        if averages {
            graph.use_averages();
        }
        let read = graph.parameter(id);
        let read = graph.cast(read, DType::F32).unwrap();
        graph.result("read", read).unwrap();
        let mut set = ProgramSet::new(parameters, precision, &[ParameterSpan::Average]);
        let id = set.add("reading", &graph, &NamedLayout::default()).unwrap();
        (session(&Machine::cpu(), set), id)
    }

    #[test]
    fn a_graph_reads_the_ema_once_it_uses_averages() {
        let check = |precision, averages, expected: [f32; 3]| {
            let (mut session, id) = reading_program(precision, averages);
            let span = |x: [f32; 3]| [x.to_vec(), vec![0.0; 125]].concat();
            session.write_span(ParameterSpan::Parameters, &span([1.0, 2.0, 3.0])).unwrap();
            if precision == DType::BF16 {
                let narrow: Vec<bf16> = span([4.0, 5.0, 6.0]).into_iter().map(bf16::from_f32).collect();
                session.write_span(ParameterSpan::Compute, &narrow).unwrap();
            }
            session.write_span(ParameterSpan::Average, &span([7.0, 8.0, 9.0])).unwrap();
            session.run(id, None, &[]).unwrap();
            let fetch = session.fetch(id).unwrap();
            assert_eq!(session.finish(fetch).unwrap().get::<f32>("read").unwrap(), expected, "{precision:?}");
        };
        check(DType::F32, false, [1.0, 2.0, 3.0]);
        check(DType::BF16, false, [4.0, 5.0, 6.0]);
        check(DType::F32, true, [7.0, 8.0, 9.0]);
        check(DType::BF16, true, [7.0, 8.0, 9.0]);
    }
}
