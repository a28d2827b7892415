//! What a model learns: named tensors in one contiguous span, so that clipping, the optimizer and averaging are single
//! passes over it, and a gradient lies where its parameter lies.

use std::collections::HashMap;
use std::sync::PoisonError;

use tandem_device::DType;

use crate::error::EngineError;
use crate::random;
use crate::tensor::{Shape, TensorType};

/// Elements a parameter's place is a multiple of: 256 bytes of bf16, which is what GEMMs want.
const ALIGN_ELEMENTS: u64 = 128;

/// Elements that are drawn as one piece of work.
const PIECE: usize = 1 << 20;

/// A parameter, by its place in [`Parameters::iter`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ParameterId(pub(crate) u32);

/// How a parameter starts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Init {
    /// Every element is this.
    Constant(f64),
    /// Normal with this deviation.
    Normal(f64),
    /// Uniform between minus this and this.
    Uniform(f64),
}

/// One parameter.
#[derive(Clone, Debug, PartialEq)]
pub struct Parameter {
    /// Its name in checkpoints.
    pub name: String,
    /// Its shape.
    pub shape: Shape,
    /// How it starts.
    pub init: Init,
    /// Whether weight decay pulls at it: matrices, not biases and gains.
    pub decays: bool,
    /// Its first element in the span.
    pub offset: u64,
}

impl Parameter {
    /// Writes its elements from `first` on as they start under `seed`.
    fn draw(&self, seed: u64, first: u64, values: &mut [f64]) {
        let key = seed ^ random::name_key(&self.name);
        for (i, value) in (first..).zip(values) {
            *value = match self.init {
                Init::Constant(value) => value,
                Init::Normal(deviation) => deviation * random::normal_at(key, i),
                Init::Uniform(bound) => bound * (2.0 * random::uniform_at(key, i) - 1.0),
            };
        }
    }
}

/// All parameters of a model, laid out.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Parameters {
    list: Vec<Parameter>,
    elements: u64,
    decaying_elements: u64,
}

/// Collects parameters while a model is put together.
#[derive(Debug, Default)]
pub struct ParameterList {
    list: Vec<Parameter>,
    by_name: HashMap<String, usize>,
    scope: Vec<String>,
}

impl ParameterList {
    /// Nothing yet.
    pub fn new() -> ParameterList {
        ParameterList::default()
    }

    /// Names declared inside `declare` begin with `name` and a dot.
    pub fn scope<T>(
        &mut self,
        name: impl Into<String>,
        declare: impl FnOnce(&mut ParameterList) -> Result<T, EngineError>,
    ) -> Result<T, EngineError> {
        self.scope.push(name.into());
        let made = declare(self);
        self.scope.pop();
        made
    }

    /// A matrix (or table, or kernel): weight decay applies.
    pub fn weight(&mut self, name: &str, dims: &[u32], init: Init) -> Result<ParameterId, EngineError> {
        self.declare(name, Shape::new(dims), init, true)
    }

    /// A bias or gain: no weight decay.
    pub fn vector(&mut self, name: &str, dims: &[u32], init: Init) -> Result<ParameterId, EngineError> {
        self.declare(name, Shape::new(dims), init, false)
    }

    fn declare(&mut self, name: &str, shape: Shape, init: Init, decays: bool) -> Result<ParameterId, EngineError> {
        let name = self.scope.iter().map(String::as_str).chain([name]).collect::<Vec<_>>().join(".");
        let ty = |shape| TensorType { dtype: DType::F32, shape };
        if let Some(&first) = self.by_name.get(&name) {
            let first = ty(self.list[first].shape);
            return Err(EngineError::DeclaredTwice { what: "parameter", name, first, second: ty(shape) });
        }
        self.by_name.insert(name.clone(), self.list.len());
        self.list.push(Parameter { name, shape, init, decays, offset: 0 });
        Ok(ParameterId(self.list.len() as u32 - 1))
    }

    /// Lays them out: those that decay first, so that each half is one range.
    pub fn finish(mut self) -> Parameters {
        let mut end = 0;
        let mut place = |parameter: &mut Parameter| {
            parameter.offset = end;
            end += parameter.shape.elements().next_multiple_of(ALIGN_ELEMENTS);
            end
        };
        let decaying_elements = self.list.iter_mut().filter(|p| p.decays).map(&mut place).last().unwrap_or(0);
        let elements = self.list.iter_mut().filter(|p| !p.decays).map(&mut place).last().unwrap_or(decaying_elements);
        Parameters { list: self.list, elements, decaying_elements }
    }
}

impl Parameters {
    /// Every parameter, in the order of declaration.
    pub fn iter(&self) -> impl Iterator<Item = (ParameterId, &Parameter)> {
        self.list.iter().enumerate().map(|(i, parameter)| (ParameterId(i as u32), parameter))
    }

    /// One of them.
    pub fn get(&self, id: ParameterId) -> &Parameter {
        &self.list[id.0 as usize]
    }

    /// The one of this name.
    pub fn named(&self, name: &str) -> Option<(ParameterId, &Parameter)> {
        self.iter().find(|(_, parameter)| parameter.name == name)
    }

    /// Numbers that are learnt.
    pub fn count(&self) -> u64 {
        self.list.iter().map(|parameter| parameter.shape.elements()).sum()
    }

    /// Elements of the span, gaps included. What lies in a gap is zero and stays zero.
    pub fn elements(&self) -> u64 {
        self.elements
    }

    /// Elements at the front of the span that weight decay applies to.
    pub fn decaying_elements(&self) -> u64 {
        self.decaying_elements
    }

    /// The whole span as it starts under `seed`. A parameter's numbers depend on its name and the seed, not on what else
    /// the model has. All cores draw: a large model is hundreds of millions of numbers, each some 20 ns.
    pub fn initial(&self, seed: u64) -> Vec<f64> {
        let mut span = vec![0.0; self.elements as usize];
        let pieces = std::sync::Mutex::new(self.pieces(&mut span).into_iter());
        let draw = || {
            while let Some((parameter, first, values)) = pieces.lock().unwrap_or_else(PoisonError::into_inner).next() {
                parameter.draw(seed, first, values);
            }
        };
        let more =
            if self.elements <= PIECE as u64 { 1 } else { std::thread::available_parallelism().map_or(1, usize::from) };
        std::thread::scope(|scope| {
            (1..more).for_each(|_| drop(scope.spawn(draw)));
            draw();
        });
        span
    }

    /// The parts of a span that belong to parameters, none longer than a piece, each with the index of its first element
    /// in its parameter.
    fn pieces<'s>(&self, mut span: &'s mut [f64]) -> Vec<(&Parameter, u64, &'s mut [f64])> {
        let mut in_order: Vec<&Parameter> = self.list.iter().collect();
        in_order.sort_by_key(|parameter| parameter.offset);
        let (mut pieces, mut at) = (Vec::new(), 0);
        for parameter in in_order {
            let (_, from_here) = span.split_at_mut((parameter.offset - at) as usize);
            let (own, rest) = from_here.split_at_mut(parameter.shape.elements() as usize);
            (span, at) = (rest, parameter.offset + parameter.shape.elements());
            let parts = own.chunks_mut(PIECE).enumerate();
            pieces.extend(parts.map(|(i, values)| (parameter, (i * PIECE) as u64, values)));
        }
        pieces
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn two() -> Parameters {
        let mut list = ParameterList::new();
        list.vector("bias", &[3], Init::Constant(0.5)).unwrap();
        list.scope("layer", |list| list.weight("weight", &[5, 40], Init::Normal(0.1))).unwrap();
        list.finish()
    }

    #[test]
    fn what_decays_comes_first_and_nothing_overlaps() {
        let parameters = two();
        let offsets: Vec<(&str, u64)> = parameters.iter().map(|(_, p)| (p.name.as_str(), p.offset)).collect();
        assert_eq!(offsets, [("bias", 256), ("layer.weight", 0)]);
        assert_eq!((parameters.elements(), parameters.decaying_elements(), parameters.count()), (384, 256, 203));
    }

    #[test]
    fn a_parameter_of_several_pieces_is_drawn_as_if_it_were_one() {
        let mut list = ParameterList::new();
        list.weight("wide", &[2, PIECE as u32 + 3], Init::Normal(1.0)).unwrap();
        let parameters = list.finish();
        let mut whole = vec![0.0; parameters.count() as usize];
        parameters.list[0].draw(9, 0, &mut whole);
        assert_eq!(parameters.initial(9)[..whole.len()], whole);
    }

    #[test]
    fn numbers_depend_on_the_name_and_the_seed() {
        let (one, other) = (two().initial(1), two().initial(2));
        assert_eq!(one, two().initial(1));
        assert_ne!(one[..200], other[..200]);
        assert!(one[200..256].iter().chain(&one[259..]).all(|gap| *gap == 0.0));
        assert_eq!(one[256..259], [0.5; 3]);
        let deviation = (one[..200].iter().map(|x| x * x).sum::<f64>() / 200.0).sqrt();
        assert!((deviation - 0.1).abs() < 0.02, "{deviation}");
    }

    #[test]
    fn one_name_is_declared_once() {
        let mut list = ParameterList::new();
        list.vector("gain", &[3], Init::Constant(1.0)).unwrap();
        let error = list.weight("gain", &[2, 2], Init::Constant(1.0)).unwrap_err();
        assert_eq!(error.to_string(), "parameter gain was declared twice, as F32[3] and as F32[2, 2]");
    }
}
