//! The graph: what a program computes, as a list of nodes in the order they will run.
//!
//! A model writes it with the methods that the files in [`crate::ops`] add to [`Graph`]. Every method checks shapes and
//! element types at once, so that a mistake is reported where it is made, with the op and both shapes.

use std::sync::Arc;

use tandem_device::{DType, Element};

use crate::error::EngineError;
use crate::op::Op;
use crate::parameters::{ParameterId, Parameters};
use crate::rows::Rows;
use crate::tensor::{Shape, TensorType, accumulator};

/// A tensor of a graph. It means something only together with the graph it came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Value {
    pub(crate) node: u32,
    pub(crate) output: u32,
}

/// A stretch of nodes that may be computed a second time rather than remembered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BlockId(pub u32);

/// A run of all parameters, or of what is kept for each of them, as one flat tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ParameterSpan {
    /// The parameters as they are learnt: f32, or f64 in checks.
    Parameters,
    /// The parameters as GEMMs read them: bf16, where that is what a model computes in.
    Compute,
    /// Sums of gradients.
    Gradients,
    /// AdamW's mean of gradients.
    FirstMoment,
    /// AdamW's mean of squared gradients.
    SecondMoment,
    /// The moving average of the parameters.
    Average,
}

impl ParameterSpan {
    /// All of them, in the order they lie in memory.
    pub const ALL: [ParameterSpan; 6] = [
        ParameterSpan::Parameters,
        ParameterSpan::Compute,
        ParameterSpan::Gradients,
        ParameterSpan::FirstMoment,
        ParameterSpan::SecondMoment,
        ParameterSpan::Average,
    ];
}

/// Something a graph does not compute but is given.
#[derive(Clone, Debug, PartialEq)]
pub enum Leaf {
    /// A parameter, in the element type the graph computes in.
    Parameter(ParameterId),
    /// The moving average of a parameter, in the wide element type.
    Average(ParameterId),
    /// The sum of a parameter's gradients so far.
    Gradient(ParameterId),
    /// A whole span.
    ParameterSpan(ParameterSpan),
    /// A field of the batch.
    Input(String),
    /// A few numbers that the host sets before every run: the learning rate, the step, keys.
    Host(String),
    /// Numbers that never change.
    Constant(Arc<[u8]>),
    /// Memory that lasts from run to run and is shared by all programs of a session; zero at first.
    State(String),
}

/// What a node is.
#[derive(Clone, Debug)]
pub(crate) enum NodeKind {
    Leaf(Leaf),
    Op(Arc<dyn Op>),
}

/// One line of a program.
#[derive(Clone, Debug)]
pub(crate) struct Node {
    pub(crate) kind: NodeKind,
    pub(crate) inputs: Vec<Value>,
    pub(crate) outputs: Vec<TensorType>,
    pub(crate) block: Option<BlockId>,
    /// Where in the model it is, for reports.
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
    num_draws: u32,
    averages: bool,
}

impl Graph {
    /// An empty program over `parameters` that computes in `precision`: f32, bf16, or f64 for checks.
    pub fn new(parameters: Arc<Parameters>, precision: DType) -> Graph {
        assert!(matches!(precision, DType::F32 | DType::BF16 | DType::F64), "nothing computes in {precision:?}");
        Graph {
            nodes: Vec::new(),
            parameters,
            results: Vec::new(),
            precision,
            scope: Vec::new(),
            label: "".into(),
            block: None,
            num_blocks: 0,
            num_draws: 0,
            averages: false,
        }
    }

    /// What the program computes in.
    pub fn precision(&self) -> DType {
        self.precision
    }

    /// What losses, sums and learnt parameters are kept in.
    pub fn acc_dtype(&self) -> DType {
        accumulator(self.precision)
    }

    /// The parameters it is written over.
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

    /// Nodes written inside `build` are labelled with `name`, for reports.
    pub fn scope<T>(
        &mut self,
        name: impl Into<String>,
        build: impl FnOnce(&mut Graph) -> Result<T, EngineError>,
    ) -> Result<T, EngineError> {
        self.scope.push(name.into());
        self.label = self.scope.join(".").into();
        let made = build(self);
        self.scope.pop();
        self.label = self.scope.join(".").into();
        made
    }

    /// Nodes written inside `build` may be computed again in the backward pass in place of being kept. Blocks do not
    /// nest: an inner one belongs to the outer.
    pub fn block<T>(&mut self, build: impl FnOnce(&mut Graph) -> Result<T, EngineError>) -> Result<T, EngineError> {
        if self.block.is_some() {
            return build(self);
        }
        self.block = Some(BlockId(self.num_blocks));
        self.num_blocks += 1;
        let made = build(self);
        self.block = None;
        made
    }

    /// Blocks written so far.
    pub fn num_blocks(&self) -> u32 {
        self.num_blocks
    }

    /// From here on parameters are their moving averages: for programs that do not train.
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
            Err(error) => unreachable!("parameters are floating numbers: {error}"),
        }
    }

    /// The sum of a parameter's gradients.
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

    /// Numbers that the host sets before every run.
    pub fn host(&mut self, name: &str, ty: TensorType) -> Result<Value, EngineError> {
        self.named_leaf("host value", Leaf::Host(name.to_owned()), name, ty)
    }

    /// Memory that lasts from run to run.
    pub fn state(&mut self, name: &str, ty: TensorType) -> Result<Value, EngineError> {
        self.named_leaf("state", Leaf::State(name.to_owned()), name, ty)
    }

    /// Numbers that never change.
    pub fn constant<T: Element>(&mut self, dims: &[u32], values: &[T]) -> Value {
        let ty = TensorType::new(T::DTYPE, dims);
        assert_eq!(ty.shape.elements(), values.len() as u64, "a constant {ty} of {} numbers", values.len());
        self.leaf(Leaf::Constant(bytemuck::cast_slice(values).into()), ty)
    }

    /// One number in the wide element type, for element-wise work.
    pub fn number(&mut self, value: f64) -> Value {
        self.numbers(&[1], &[value])
    }

    /// Numbers in the wide element type.
    pub fn numbers(&mut self, dims: &[u32], values: &[f64]) -> Value {
        match self.acc_dtype() {
            DType::F64 => self.constant(dims, values),
            _ => self.constant(dims, &values.iter().map(|&value| value as f32).collect::<Vec<_>>()),
        }
    }

    /// Where rows begin, as kernels read it.
    pub fn row_starts(&mut self, rows: &Rows) -> Value {
        self.constant(&[rows.count() + 1], rows.starts())
    }

    /// Keeps `value` as a result of the program under `name`.
    pub fn result(&mut self, name: &str, value: Value) -> Result<(), EngineError> {
        if let Some((_, first)) = self.results.iter().find(|(known, _)| known == name) {
            let (first, second) = (self.ty(*first), self.ty(value));
            return Err(EngineError::DeclaredTwice { what: "result", name: name.to_owned(), first, second });
        }
        self.results.push((name.to_owned(), value));
        Ok(())
    }

    /// A number of its own for an op that draws random numbers. A recomputed copy keeps that of the first.
    pub fn next_draw(&mut self) -> u32 {
        self.num_draws += 1;
        self.num_draws
    }

    /// Writes a node with one output. What op files build on.
    pub fn push(&mut self, op: impl Op + 'static, inputs: &[Value]) -> Result<Value, EngineError> {
        let outputs = self.push_many(op, inputs)?;
        debug_assert_eq!(outputs.len(), 1, "an op with several outputs needs push_many");
        Ok(outputs[0])
    }

    /// Writes a node with several outputs.
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

    /// Labels what is written next, and says what the label was.
    pub(crate) fn relabel(&mut self, label: &Arc<str>) -> Arc<str> {
        std::mem::replace(&mut self.label, label.clone())
    }

    /// The leaf a value is, if it is one.
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

    /// One node per leaf, however often it is asked for.
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

    /// A program whose result is the parameter, or its average.
    fn reading(precision: DType, averages: bool) -> (Session, ProgramId) {
        let mut list = ParameterList::new();
        let id = list.weight("weight", &[1, 3], Init::Constant(0.0)).unwrap();
        let parameters = Arc::new(list.finish());
        let mut graph = Graph::new(parameters.clone(), precision);
        if averages {
            graph.use_averages();
        }
        let read = graph.parameter(id);
        let wide = graph.cast(read, DType::F32).unwrap();
        graph.result("read", wide).unwrap();
        let mut set = ProgramSet::new(parameters, precision, &[ParameterSpan::Average]);
        let id = set.add("reading", &graph, &NamedLayout::default()).unwrap();
        (session(&Machine::cpu(), set), id)
    }

    #[test]
    fn programs_that_do_not_train_read_the_averages() {
        let check = |precision, averages, expected: [f32; 3]| {
            let (mut session, id) = reading(precision, averages);
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
