//! Trainable parameters: named tensors in one contiguous span, so that clipping, the optimizer and the EMA are single passes
//! over it, and a gradient has the offset of its parameter.

use std::collections::HashMap;
use std::sync::PoisonError;

use tandem_device::DType;

use crate::error::EngineError;
use crate::random;
use crate::tensor::{Shape, TensorType};

/// Alignment of a parameter's offset, in elements: 256 bytes of bf16, the alignment GEMMs are fastest with.
const ALIGN_ELEMENTS: u64 = 128;

/// Elements that one thread initialises at a time.
const CHUNK: usize = 1 << 20;

/// A parameter, by its index in [`Parameters::iter`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ParameterId(pub(crate) u32);

/// How a parameter is initialised.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Init {
    /// Every element has this value.
    Constant(f64),
    /// Normal with mean 0 and this standard deviation.
    Normal(f64),
    /// Uniform between minus this bound and this bound.
    Uniform(f64),
}

/// One parameter.
#[derive(Clone, Debug, PartialEq)]
pub struct Parameter {
    /// Its name in checkpoints.
    pub name: String,
    /// Its shape.
    pub shape: Shape,
    /// Its initialisation.
    pub init: Init,
    /// Whether weight decay applies: to matrices, not to biases and gains.
    pub decays: bool,
    /// Its first element in the span.
    pub offset: u64,
}

impl Parameter {
    /// Writes the initial values of its elements from `first` on, for `seed`.
    fn initialise(&self, seed: u64, first: u64, values: &mut [f64]) {
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

/// All parameters of a model, with their offsets in the span.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Parameters {
    list: Vec<Parameter>,
    elements: u64,
    decaying_elements: u64,
}

/// Collects the parameters of a model as its layers declare them.
#[derive(Debug, Default)]
pub struct ParameterList {
    list: Vec<Parameter>,
    by_name: HashMap<String, usize>,
    scope: Vec<String>,
}

impl ParameterList {
    /// An empty list.
    pub fn new() -> ParameterList {
        ParameterList::default()
    }

    /// Parameters declared inside `declare` have names that begin with `name` and a dot.
    pub fn scope<T>(
        &mut self,
        name: impl Into<String>,
        declare: impl FnOnce(&mut ParameterList) -> Result<T, EngineError>,
    ) -> Result<T, EngineError> {
        self.scope.push(name.into());
        let declared = declare(self);
        self.scope.pop();
        declared
    }

    /// Declares a matrix (or embedding table, or convolution kernel): weight decay applies.
    pub fn weight(&mut self, name: &str, dims: &[u32], init: Init) -> Result<ParameterId, EngineError> {
        self.declare(name, Shape::new(dims), init, true)
    }

    /// Declares a bias or gain: no weight decay.
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

    /// Assigns offsets: parameters with weight decay first, so that each half is one range.
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

    /// The parameter of an id.
    pub fn get(&self, id: ParameterId) -> &Parameter {
        &self.list[id.0 as usize]
    }

    /// The parameter of this name.
    pub fn named(&self, name: &str) -> Option<(ParameterId, &Parameter)> {
        self.iter().find(|(_, parameter)| parameter.name == name)
    }

    /// Number of trainable values.
    pub fn count(&self) -> u64 {
        self.list.iter().map(|parameter| parameter.shape.elements()).sum()
    }

    /// Elements of the span, alignment gaps included. Gaps are zero and stay zero.
    pub fn elements(&self) -> u64 {
        self.elements
    }

    /// Elements at the front of the span to which weight decay applies.
    pub fn decaying_elements(&self) -> u64 {
        self.decaying_elements
    }

    /// The initial values of the whole span for `seed`. A parameter's values depend on its name and the seed only, not on the
    /// other parameters. All cores take part: a large model has hundreds of millions of values, at about 20 ns each.
    pub fn initial(&self, seed: u64) -> Vec<f64> {
        let mut span = vec![0.0; self.elements as usize];
        let chunks = std::sync::Mutex::new(self.chunks(&mut span).into_iter());
        let work = || {
            while let Some((parameter, first, values)) = chunks.lock().unwrap_or_else(PoisonError::into_inner).next() {
                parameter.initialise(seed, first, values);
            }
        };
        let threads =
            if self.elements <= CHUNK as u64 { 1 } else { std::thread::available_parallelism().map_or(1, usize::from) };
        std::thread::scope(|scope| {
            // Where the system starts no more threads, those that run do the work.
            (1..threads).for_each(|_| drop(std::thread::Builder::new().spawn_scoped(scope, work)));
            work();
        });
        span
    }

    /// The span without its gaps, in chunks of at most [`CHUNK`] elements: the parameter, the index of the chunk's first
    /// element in it, and the values.
    fn chunks<'s>(&self, mut span: &'s mut [f64]) -> Vec<(&Parameter, u64, &'s mut [f64])> {
        let mut in_order: Vec<&Parameter> = self.list.iter().collect();
        in_order.sort_by_key(|parameter| parameter.offset);
        let (mut chunks, mut at) = (Vec::new(), 0);
        for parameter in in_order {
            let (_, from_here) = span.split_at_mut((parameter.offset - at) as usize);
            let (own, rest) = from_here.split_at_mut(parameter.shape.elements() as usize);
            (span, at) = (rest, parameter.offset + parameter.shape.elements());
            let parts = own.chunks_mut(CHUNK).enumerate();
            chunks.extend(parts.map(|(i, values)| (parameter, (i * CHUNK) as u64, values)));
        }
        chunks
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
    fn parameters_with_weight_decay_come_first_and_none_overlap() {
        let parameters = two();
        let offsets: Vec<(&str, u64)> = parameters.iter().map(|(_, p)| (p.name.as_str(), p.offset)).collect();
        assert_eq!(offsets, [("bias", 256), ("layer.weight", 0)]);
        assert_eq!((parameters.elements(), parameters.decaying_elements(), parameters.count()), (384, 256, 203));
    }

    #[test]
    fn a_parameter_of_several_chunks_is_initialised_as_if_it_were_one() {
        let mut list = ParameterList::new();
        list.weight("large", &[2, CHUNK as u32 + 3], Init::Normal(1.0)).unwrap();
        let parameters = list.finish();
        let mut whole = vec![0.0; parameters.count() as usize];
        parameters.list[0].initialise(9, 0, &mut whole);
        assert_eq!(parameters.initial(9)[..whole.len()], whole);
    }

    #[test]
    fn initial_values_depend_on_the_name_and_the_seed() {
        let (one, other) = (two().initial(1), two().initial(2));
        assert_eq!(one, two().initial(1));
        assert_ne!(one[..200], other[..200]);
        assert!(one[200..256].iter().chain(&one[259..]).all(|gap| *gap == 0.0));
        assert_eq!(one[256..259], [0.5; 3]);
        let deviation = (one[..200].iter().map(|x| x * x).sum::<f64>() / 200.0).sqrt();
        assert!((deviation - 0.1).abs() < 0.02, "{deviation}");
    }

    #[test]
    fn a_name_cannot_be_declared_twice() {
        let mut list = ParameterList::new();
        list.vector("gain", &[3], Init::Constant(1.0)).unwrap();
        let error = list.weight("gain", &[2, 2], Init::Constant(1.0)).unwrap_err();
        assert_eq!(error.to_string(), "parameter gain was declared twice, as F32[3] and as F32[2, 2]");
    }
}
