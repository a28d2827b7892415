//! A chain of blocks under decreasing memory limits.

use std::cell::RefCell;
use std::sync::Arc;

use tandem_device::{DType, Machine};

use super::*;
use crate::graph::{Graph, ParameterSpan, Value};
use crate::parameters::{Init, ParameterId, ParameterList, Parameters};
use crate::program::NamedLayout;
use crate::program_set::ProgramSet;
use crate::tensor::TensorType;
use crate::testing::session;

const BLOCKS: u32 = 24;
const ROWS: u32 = 32;
const WIDTH: u32 = 8;

/// Residual layers with large hidden and small residual activations: worth recomputing.
struct Chain {
    parameters: Arc<Parameters>,
    layers: Vec<[ParameterId; 2]>,
    inputs: NamedLayout,
}

impl Chain {
    fn new() -> Chain {
        let mut list = ParameterList::new();
        let layer = |i: u32| {
            list.scope(format!("layer {i}"), |list| {
                let up = list.weight("up", &[4 * WIDTH, WIDTH], Init::Normal(0.3))?;
                Ok([up, list.weight("down", &[WIDTH, 4 * WIDTH], Init::Normal(0.3))?])
            })
        };
        let layers = (0..BLOCKS).map(layer).collect::<Result<_, EngineError>>().unwrap();
        let mut inputs = NamedLayout::default();
        inputs.place("x", TensorType::new(DType::F32, &[ROWS, WIDTH])).unwrap();
        Chain { parameters: Arc::new(list.finish()), layers, inputs }
    }

    fn graph(&self, recomputed: &Recomputed) -> Result<Graph, EngineError> {
        let mut graph = Graph::new(self.parameters.clone(), DType::F32);
        let mut x = graph.input("x", TensorType::new(DType::F32, &[ROWS, WIDTH]))?;
        for &weights in &self.layers {
            x = graph.block(|graph| layer(graph, x, weights))?;
        }
        let loss = graph.mul(x, x)?;
        let loss = graph.sum_all(loss)?;
        graph.result("loss", loss)?;
        graph.accumulate(loss, recomputed)?;
        Ok(graph)
    }

    fn build(&self, recomputed: &Recomputed) -> Result<Program, EngineError> {
        Program::compile(&self.graph(recomputed)?, &self.inputs, &mut NamedLayout::default())
    }

    fn fit(&self, limit: Option<u64>) -> Result<(Program, Recomputed), EngineError> {
        fit("accumulate", limit, BLOCKS, |recomputed| self.build(recomputed))
    }

    fn peaks(&self) -> Vec<u64> {
        (0..=BLOCKS).map(|count| self.build(&first(count)).unwrap().memory().peak_bytes).collect()
    }

    /// The bits of loss and gradients.
    fn run(&self, recomputed: &Recomputed) -> Vec<u32> {
        let mut set = ProgramSet::new(self.parameters.clone(), DType::F32, &[ParameterSpan::Gradients]);
        let id = set.add("accumulate", &self.graph(recomputed).unwrap(), &self.inputs).unwrap();
        let mut session = session(&Machine::cpu(), set);
        let start: Vec<f32> = self.parameters.initial(3).into_iter().map(|x| x as f32).collect();
        session.write_span(ParameterSpan::Parameters, &start).unwrap();
        let x: Vec<f32> = (0..ROWS * WIDTH).map(|i| (i as f32 * 0.37).sin()).collect();
        session.write_input(id, "x", &x).unwrap();
        session.run(id, None, &[]).unwrap();
        let fetch = session.fetch(id).unwrap();
        let mut all = session.finish(fetch).unwrap().get::<f32>("loss").unwrap();
        all.extend(session.read_span::<f32>(ParameterSpan::Gradients).unwrap());
        assert!(all.iter().any(|x| *x != 0.0));
        all.into_iter().map(f32::to_bits).collect()
    }
}

fn layer(graph: &mut Graph, x: Value, [up, down]: [ParameterId; 2]) -> Result<Value, EngineError> {
    let (up, down) = (graph.parameter(up), graph.parameter(down));
    let hidden = graph.linear(x, up, None)?;
    let hidden = graph.gelu(hidden)?;
    let out = graph.linear(hidden, down, None)?;
    graph.add(x, out)
}

#[test]
fn recomputed_blocks_take_less_memory_and_give_the_same_bits() {
    let chain = Chain::new();
    let peaks = chain.peaks();
    assert!(peaks[1] < peaks[0] && 2 * peaks[BLOCKS as usize - 1] < peaks[0], "{peaks:?}");
    let expected = chain.run(&Recomputed::new());
    for count in 1..=BLOCKS {
        assert!(chain.run(&first(count)) == expected, "different bits with {count} blocks recomputed");
    }
}

#[test]
fn nothing_is_recomputed_if_the_program_fits() {
    let chain = Chain::new();
    let plain = chain.peaks()[0];
    for limit in [None, Some(u64::MAX), Some(plain)] {
        let (program, recomputed) = chain.fit(limit).unwrap();
        assert_eq!((program.memory().peak_bytes, recomputed.len()), (plain, 0), "limit {limit:?}");
    }
    assert!(!chain.fit(Some(plain - 1)).unwrap().1.is_empty(), "one byte less does not fit");
}

#[test]
fn every_peak_is_a_limit_that_the_fewest_blocks_meet() {
    let chain = Chain::new();
    let peaks = chain.peaks();
    for &limit in &peaks {
        let (program, recomputed) = chain.fit(Some(limit)).unwrap();
        let fewest = peaks.iter().position(|peak| *peak <= limit).unwrap() as u32;
        assert_eq!(recomputed, first(fewest), "limit {limit} of {peaks:?}");
        assert!(program.memory().peak_bytes <= limit);
    }
}

#[test]
fn a_limit_one_byte_too_small_is_refused_with_the_sizes_and_the_largest_buffers() {
    let chain = Chain::new();
    let smallest = chain.peaks().into_iter().min().unwrap();
    assert!(chain.fit(Some(smallest)).is_ok());
    match chain.fit(Some(smallest - 1)) {
        Err(EngineError::TooLarge { program, needed, limit, largest }) => {
            assert_eq!((program.as_str(), needed, limit), ("accumulate", smallest, smallest - 1));
            assert!(largest.contains("bytes"), "{largest}");
        }
        other => panic!("{:?}", other.map(|(_, recomputed)| recomputed)),
    }
}

#[test]
fn the_search_is_binary_and_builds_nothing_twice() {
    let chain = Chain::new();
    let built = RefCell::new(Vec::new());
    let limit = chain.peaks()[BLOCKS as usize - 2];
    let build = |recomputed: &Recomputed| {
        built.borrow_mut().push(recomputed.len());
        chain.build(recomputed)
    };
    fit("accumulate", Some(limit), BLOCKS, build).unwrap();
    let mut distinct = built.borrow().clone();
    assert!(distinct.len() <= 5, "{distinct:?}");
    distinct.sort_unstable();
    distinct.dedup();
    assert_eq!(distinct.len(), built.borrow().len(), "built twice: {built:?}");
}

#[test]
fn a_program_without_blocks_fits_or_does_not() {
    let chain = Chain::new();
    let plain = chain.peaks()[0];
    let build = |recomputed: &Recomputed| chain.build(recomputed);
    assert!(fit("validate", Some(plain), 0, build).is_ok());
    let refusal = fit("validate", Some(plain - 1), 0, build).err().map(|error| error.to_string()).unwrap();
    assert!(refusal.starts_with(&format!("validate needs {plain} bytes and may take {}; ", plain - 1)), "{refusal}");
}
