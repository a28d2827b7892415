//! Every kernel compiles for every supported architecture, without register spills, under the name its Rust side declares.
//!
//! Needs NVRTC but no GPU. Without NVRTC the tests print that they are skipped and pass, unless `TANDEM_REQUIRE_NVRTC=1`.
//! Kernels are collected from programs: an op is covered if a graph below uses it. Fused chains are generated per graph, so
//! those here are a sample: every function and its gradient, every broadcast pattern, in f32, in bf16 and mixed.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use tandem_device::compile::{compiler_or_skip, kernel_problems, kernel_problems_on, signature_problems};
use tandem_device::{DType, Kernel, Source};
use tandem_engine::{
    EngineError, Graph, Init, Launch, NamedLayout, ParameterList, ProgramSet, Recomputed, Rows, TensorType,
    UPDATE_KERNELS, UPDATE_SOURCE, UpdateSpec, Value, ops, update_program,
};

#[test]
fn every_source_compiles_for_every_architecture_without_spills() {
    let Some(compiler) = compiler_or_skip() else { return };
    let sources: Vec<&Source> = ops::SOURCES.iter().copied().chain([&UPDATE_SOURCE]).collect();
    assert_eq!(kernel_problems(&compiler, &sources), Vec::<String>::new());
}

#[test]
fn declarations_match_the_cuda_text() {
    let kernels = [ops::KERNELS.concat(), UPDATE_KERNELS.concat()].concat();
    let sources: Vec<&Source> = ops::SOURCES.iter().copied().chain([&UPDATE_SOURCE]).collect();
    assert_eq!(signature_problems(&sources, &kernels), Vec::<String>::new());
    let chains = [kernels_of_chains(DType::F32), kernels_of_chains(DType::BF16)].concat();
    assert!(chains.len() > 40, "{} chains", chains.len());
    assert_eq!(signature_problems(&[], &chains), Vec::<String>::new());
}

#[test]
fn fused_chains_in_f32_compile_without_spills() {
    check_chains(DType::F32);
}

#[test]
fn fused_chains_in_bf16_compile_without_spills() {
    check_chains(DType::BF16);
}

fn check_chains(precision: DType) {
    let Some(compiler) = compiler_or_skip() else { return };
    let chains = kernels_of_chains(precision);
    let chains: BTreeMap<&str, &Source> = chains.iter().map(|kernel| (kernel.source.text, kernel.source)).collect();
    assert!(chains.len() > 20, "{} chains", chains.len());
    let sources: Vec<&Source> = chains.into_values().collect();
    // Generated code without anything of one architecture: the oldest, the newest and the one most measured stand for all.
    let architectures = ["sm_80", "sm_90", "sm_120"];
    assert_eq!(kernel_problems_on(&compiler, &sources, &architectures), Vec::<String>::new());
}

fn kernels_of_chains(precision: DType) -> Vec<&'static Kernel> {
    kernels(precision).into_iter().filter(|kernel| kernel.name == "chain").collect()
}

#[test]
fn every_source_contains_the_kernels_that_its_rust_side_declares() {
    let Some(compiler) = compiler_or_skip() else { return };
    let mut declared: BTreeMap<(&str, &str), BTreeSet<&str>> = BTreeMap::new();
    let found = [kernels(DType::F32), kernels(DType::BF16)].concat();
    for kernel in found.iter().filter(|kernel| kernel.name != "chain" && !kernel.source.text.is_empty()) {
        declared.entry((kernel.source.file, kernel.source.text)).or_default().insert(kernel.name);
    }
    for ((file, text), names) in declared {
        let compiled = compiler.compile(&Source { file, text }, "sm_90").unwrap();
        let found: BTreeSet<String> = compiled.resources().into_iter().map(|kernel| kernel.kernel).collect();
        let missing: Vec<&&str> = names.iter().filter(|name| !found.contains(**name)).collect();
        assert!(missing.is_empty(), "{file} lacks {missing:?}; it has {found:?}");
    }
}

/// Every kernel of the programs below.
fn kernels(precision: DType) -> Vec<&'static Kernel> {
    let programs: [Build; 4] = [functions, operands, losses, norms];
    let ops = programs.into_iter().flat_map(|build| kernels_of(precision, build));
    ops.chain([false, true].into_iter().flat_map(|average| update_kernels(precision, average))).collect()
}

/// Builds a loss; returns it with the values to differentiate it by.
type Build = fn(&mut Inputs) -> Result<(Value, Vec<Value>), EngineError>;

/// A graph under construction, and the layout of its inputs.
struct Inputs {
    graph: Graph,
    layout: NamedLayout,
}

impl Inputs {
    fn input(&mut self, dtype: DType, dims: &[u32]) -> Value {
        let name = format!("input {}", self.layout.fields.len());
        let ty = TensorType::new(dtype, dims);
        self.layout.place(&name, ty).unwrap();
        self.graph.input(&name, ty).unwrap()
    }
}

fn kernels_of(precision: DType, build: Build) -> Vec<&'static Kernel> {
    let graph = Graph::new(Default::default(), precision);
    let mut inputs = Inputs { graph, layout: NamedLayout::default() };
    let (loss, wrt) = build(&mut inputs).unwrap();
    let Inputs { mut graph, layout } = inputs;
    graph.result("loss", loss).unwrap();
    let gradients = graph.gradients(loss, &wrt, &Recomputed::new()).unwrap();
    for (i, gradient) in gradients.into_iter().enumerate() {
        graph.result(&format!("gradient {i}"), gradient.unwrap()).unwrap();
    }
    let mut set = ProgramSet::new(Default::default(), precision, &[]);
    let id = set.add("kernels", &graph, &layout).unwrap();
    kernels_in(set.program(id).launches())
}

fn kernels_in(launches: &[Launch]) -> Vec<&'static Kernel> {
    let kernel = |launch: &Launch| match launch {
        Launch::Kernel { kernel, .. } => Some(*kernel),
        _ => None,
    };
    launches.iter().filter_map(kernel).collect()
}

fn update_kernels(precision: DType, average: bool) -> Vec<&'static Kernel> {
    let mut list = ParameterList::new();
    let id = list.weight("weight", &[5, 3], Init::Constant(1.0)).unwrap();
    let parameters = Arc::new(list.finish());
    let spec = UpdateSpec { average, ..UpdateSpec::default() };
    let update = update_program(&parameters, precision, &spec).unwrap();
    let mut accumulate = Graph::new(parameters.clone(), precision);
    let weight = accumulate.parameter(id);
    let loss = accumulate.sum_all(weight).unwrap();
    accumulate.accumulate(loss, &Recomputed::new()).unwrap();
    let mut set = ProgramSet::new(parameters, precision, &spec.spans());
    let ids = [&update, &accumulate].map(|graph| set.add("update", graph, &NamedLayout::default()).unwrap());
    ids.into_iter().flat_map(|id| kernels_in(set.program(id).launches())).collect()
}

/// Every unary function, each applied to the result of the previous one, and their gradients.
fn functions(inputs: &mut Inputs) -> Result<(Value, Vec<Value>), EngineError> {
    let x = inputs.input(inputs.graph.precision(), &[64, 24]);
    let g = &mut inputs.graph;
    let mut y = x;
    for function in [Graph::gelu, Graph::gelu_tanh, Graph::relu, Graph::silu, Graph::sigmoid, Graph::tanh] {
        y = function(g, y)?;
    }
    for function in [Graph::softplus, Graph::exp, Graph::ln, Graph::ln_1p, Graph::sqrt, Graph::square, Graph::abs] {
        y = function(g, y)?;
    }
    Ok((g.sum_all(y)?, vec![x]))
}

/// Operands that are dense, broadcast along rows or columns, or scalar; with and without vectorised loads; of both element
/// types.
fn operands(inputs: &mut Inputs) -> Result<(Value, Vec<Value>), EngineError> {
    let precision = inputs.graph.precision();
    let mut losses = Vec::new();
    let mut wrt = Vec::new();
    for columns in [24, 7] {
        let dims: [&[u32]; 4] = [&[64, columns], &[columns], &[64, 1], &[1]];
        let [x, vector, column, number] = dims.map(|dims| inputs.input(precision, dims));
        let in_f32 = inputs.input(DType::F32, &[64, columns]);
        let g = &mut inputs.graph;
        let sum = g.add(x, vector)?;
        let scaled = g.mul(sum, column)?;
        let quotient = g.div(scaled, number)?;
        let difference = g.sub(quotient, in_f32)?;
        let cast = g.cast(difference, DType::F32)?;
        losses.push(g.sum_all(cast)?);
        wrt.extend([x, vector, column, number]);
    }
    Ok((inputs.graph.add(losses[0], losses[1])?, wrt))
}

/// Losses over valid frames, with targets of both element types.
fn losses(inputs: &mut Inputs) -> Result<(Value, Vec<Value>), EngineError> {
    let rows = Rows::new(&[3, 5]);
    let precision = inputs.graph.precision();
    let found = inputs.input(precision, &[8, 12]);
    let targets = [precision, DType::F32].map(|dtype| inputs.input(dtype, &[8, 12]));
    let lengths = inputs.input(DType::I32, &[2]);
    let classes = inputs.input(DType::I32, &[8]);
    let g = &mut inputs.graph;
    let weight = g.number(1.0);
    let mut loss = g.cross_entropy(found, classes, &rows, lengths, weight)?;
    for target in targets {
        for term in [Graph::l1_loss, Graph::l2_loss, Graph::bce_loss] {
            let next = term(g, found, target, &rows, lengths, weight)?;
            loss = g.add(loss, next)?;
        }
    }
    let sums = g.sum_columns(found)?;
    let sum = g.sum_all(sums)?;
    Ok((g.add(loss, sum)?, vec![found]))
}

/// Frames of every width for which norms have a kernel.
fn norms(inputs: &mut Inputs) -> Result<(Value, Vec<Value>), EngineError> {
    let rows = Rows::new(&[3, 5]);
    let precision = inputs.graph.precision();
    let mut loss = inputs.graph.number(0.0);
    let mut wrt = Vec::new();
    for columns in [7, 24, 264, 768, 1024, 1032] {
        let dims: [&[u32]; 4] = [&[8, columns], &[columns], &[columns], &[2, 2 * columns]];
        let [x, gain, bias, scale_shift] = dims.map(|dims| inputs.input(precision, dims));
        let g = &mut inputs.graph;
        let normed = g.layer_norm(x, gain, bias)?;
        let normed = g.adaptive_norm(normed, scale_shift, &rows)?;
        let sum = g.sum_all(normed)?;
        loss = g.add(loss, sum)?;
        wrt.extend([x, gain, bias, scale_shift]);
    }
    Ok((loss, wrt))
}
