//! Pointwise fusion. A chain is several element-wise functions as one kernel: one pass over memory.
//!
//! The host kernel processes blocks that stay in the L1 cache: each function runs over a block before the next one starts,
//! so that every loop runs over plain slices. The kernel is generated from the instructions of the chain and lives as long
//! as the process; equal chains share one.

mod cuda;

use std::collections::HashMap;
use std::sync::{Mutex, OnceLock, PoisonError};

use half::bf16;
use tandem_device::{ArgValue, DType, Element, Grid, HostArgs, Kernel, KernelArgs, Param, ParamKind, Source};

use super::arithmetic::is_add;
use super::{Function, Indexing, broadcast};
use crate::error::EngineError;
use crate::graph::{Graph, Value};
use crate::lower::{Lower, Tensor};
use crate::op::Op;
use crate::real::{Float, Real};
use crate::tensor::TensorType;

/// Most inputs and instructions of one chain.
const MAX_INPUTS: usize = 10;
const MAX_INSTRUCTIONS: usize = 24;
/// Elements of a block: the registers of a long chain fit in the L1 cache.
const BLOCK: usize = 256;
/// Elements of a chunk that one worker thread processes.
const CHUNK: usize = 16 * 1024;

/// An argument of an instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum ArgSource {
    Input(usize),
    Register(usize),
}

/// One function of a chain. Instruction `i` writes register `i`.
#[derive(Clone, Debug)]
struct Instruction {
    function: &'static Function,
    args: Vec<ArgSource>,
}

/// The element type of an input, and how it is indexed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Operand {
    dtype: DType,
    indexing: Indexing,
}

/// A fused chain as an op.
#[derive(Debug)]
pub struct Chain {
    instructions: Vec<Instruction>,
    operands: Vec<Operand>,
    output: TensorType,
}

/// A chain under construction.
#[derive(Clone, Debug)]
pub(crate) struct ChainBuilder {
    instructions: Vec<Instruction>,
    inputs: Vec<Value>,
    output: TensorType,
}

impl ChainBuilder {
    pub(crate) fn new(output: TensorType) -> ChainBuilder {
        ChainBuilder { instructions: Vec::new(), inputs: Vec::new(), output }
    }

    /// Appends `function`. Inputs for which `fused` has a chain are merged into this one.
    pub(crate) fn push(
        &mut self,
        graph: &Graph,
        function: &'static Function,
        inputs: &[Value],
        mut fused: impl FnMut(Value) -> Option<ChainBuilder>,
    ) {
        let mut args = Vec::with_capacity(inputs.len());
        let mut seen: HashMap<Value, ArgSource> = HashMap::new();
        for &value in inputs {
            let source = match seen.get(&value) {
                Some(known) => *known,
                None => match fused(value) {
                    Some(part) => self.merge(part),
                    None => self.input(value),
                },
            };
            seen.insert(value, source);
            args.push(source);
        }
        debug_assert!(inputs.iter().all(|input| broadcast(graph.shape(*input), self.output.shape).is_some()));
        self.instructions.push(Instruction { function, args });
    }

    /// Whether another function can be appended, and the chain be merged into another one.
    pub(crate) fn has_room(&self) -> bool {
        self.instructions.len() <= MAX_INSTRUCTIONS / 3 && self.inputs.len() <= MAX_INPUTS / 3
    }

    /// The inputs so far.
    pub(crate) fn inputs(&self) -> &[Value] {
        &self.inputs
    }

    pub(crate) fn finish(self, graph: &Graph) -> (Chain, Vec<Value>) {
        let operand = |value: &Value| {
            let ty = graph.ty(*value);
            match broadcast(ty.shape, self.output.shape) {
                Some(indexing) => Operand { dtype: ty.dtype, indexing },
                None => unreachable!("checked when the node was written"),
            }
        };
        let operands = self.inputs.iter().map(operand).collect();
        (Chain { instructions: self.instructions, operands, output: self.output }, self.inputs)
    }

    fn input(&mut self, value: Value) -> ArgSource {
        let at = self.inputs.iter().position(|known| *known == value).unwrap_or_else(|| {
            self.inputs.push(value);
            self.inputs.len() - 1
        });
        ArgSource::Input(at)
    }

    /// Merges the instructions of another chain. Returns its last register.
    fn merge(&mut self, part: ChainBuilder) -> ArgSource {
        let inputs: Vec<ArgSource> = part.inputs.iter().map(|value| self.input(*value)).collect();
        let shift = self.instructions.len();
        for mut instruction in part.instructions {
            for arg in &mut instruction.args {
                *arg = match *arg {
                    ArgSource::Input(i) => inputs[i],
                    ArgSource::Register(i) => ArgSource::Register(i + shift),
                };
            }
            self.instructions.push(instruction);
        }
        ArgSource::Register(self.instructions.len() - 1)
    }
}

impl Op for Chain {
    fn name(&self) -> &'static str {
        match self.instructions.last() {
            Some(last) => last.function.name,
            None => "chain",
        }
    }

    fn outputs(&self, _: &[TensorType]) -> Result<Vec<TensorType>, EngineError> {
        Ok(vec![self.output])
    }

    fn may_overwrite(&self) -> Vec<usize> {
        let fits = |operand: &Operand| operand.indexing == Indexing::Full && operand.dtype == self.output.dtype;
        (0..self.operands.len()).filter(|&i| fits(&self.operands[i])).collect()
    }

    fn is_addition(&self) -> bool {
        let plain = |operand: &Operand| operand.indexing == Indexing::Full && operand.dtype == self.output.dtype;
        let [only] = &self.instructions[..] else { return false };
        is_add(only.function) && self.operands.len() == 2 && self.operands.iter().all(plain)
    }

    fn lower(&self, at: &mut Lower<'_>) -> Result<(), EngineError> {
        let elements = self.output.shape.elements();
        if elements == 0 {
            return Ok(());
        }
        let in_place = at.in_place_input();
        let kernel = self.kernel(in_place);
        let separate = at.inputs.iter().enumerate().filter(|(i, _)| Some(*i) != in_place);
        let inputs = separate.map(|(i, &input)| (INPUT_NAMES[i], input)).collect();
        let vectors = elements.div_ceil(u64::from(self.vector_length()));
        at.launch(kernel, Grid::cover(vectors, 256), ChainArgs { out: at.outputs[0], inputs, count: elements });
        Ok(())
    }
}

/// The arguments of a chain. A chain has as many inputs as its operands, so that its parameters are not declared: they are
/// generated with the CUDA text, by the names below.
struct ChainArgs {
    out: Tensor,
    inputs: Vec<(&'static str, Tensor)>,
    count: u64,
}

const INPUT_NAMES: [&str; MAX_INPUTS] = ["in0", "in1", "in2", "in3", "in4", "in5", "in6", "in7", "in8", "in9"];

impl KernelArgs<Tensor> for ChainArgs {
    fn values(self) -> impl IntoIterator<Item = (&'static str, ArgValue<Tensor>)> {
        let inputs = self.inputs.into_iter().map(|(name, input)| (name, ArgValue::Memory(input)));
        [("out", ArgValue::Memory(self.out))].into_iter().chain(inputs).chain([("count", ArgValue::U64(self.count))])
    }
}

impl Chain {
    /// The kernel of this chain. Input `in_place`, if any, is in the memory of the output.
    fn kernel(&self, in_place: Option<usize>) -> &'static Kernel {
        static KNOWN: OnceLock<Mutex<HashMap<String, &'static Kernel>>> = OnceLock::new();
        let text = self.cuda_text(in_place);
        let mut known = KNOWN.get_or_init(Mutex::default).lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(kernel) = known.get(&text) {
            return kernel;
        }
        let kernel = self.make_kernel(text.clone(), in_place);
        known.insert(text, kernel);
        kernel
    }

    fn make_kernel(&self, text: String, in_place: Option<usize>) -> &'static Kernel {
        let mut params = vec![Param { name: "out", kind: ParamKind::Out(self.output.dtype) }];
        let separate = self.operands.iter().enumerate().filter(|(i, _)| Some(*i) != in_place);
        params.extend(separate.map(|(i, input)| Param { name: INPUT_NAMES[i], kind: ParamKind::In(input.dtype) }));
        params.push(Param { name: "count", kind: ParamKind::U64 });
        let source = Source { file: "engine/chain.cu", text: String::leak(text) };
        let instructions = self.instructions.clone();
        let plan = HostPlan { instructions, operands: self.operands.clone(), in_place };
        let output = self.output.dtype;
        let host = move |args: &mut HostArgs<'_>| match output {
            DType::F64 => plan.run::<f64>(args),
            DType::BF16 => plan.run::<bf16>(args),
            _ => plan.run::<f32>(args),
        };
        Box::leak(Box::new(Kernel {
            name: "chain",
            source: Box::leak(Box::new(source)),
            params: Vec::leak(params),
            host: Box::leak(Box::new(host)),
        }))
    }
}

/// The host kernel of a chain: an interpreter of its instructions.
struct HostPlan {
    instructions: Vec<Instruction>,
    operands: Vec<Operand>,
    in_place: Option<usize>,
}

/// The type that functions compute in: f32 or f64.
trait Lane: Float {
    fn call(function: &Function, args: &[&[Self]], out: &mut [Self]);
}

impl Lane for f32 {
    fn call(function: &Function, args: &[&[f32]], out: &mut [f32]) {
        (function.f32)(args, out);
    }
}

impl Lane for f64 {
    fn call(function: &Function, args: &[&[f64]], out: &mut [f64]) {
        (function.f64)(args, out);
    }
}

/// The elements of an input, in their element type.
#[derive(Clone, Copy)]
enum Elements<'a> {
    F32(&'a [f32]),
    F64(&'a [f64]),
    BF16(&'a [bf16]),
}

impl HostPlan {
    fn run<T: Real<Acc: Lane>>(&self, args: &mut HostArgs<'_>) {
        let out = args.take_out::<T>("out");
        let input = |(i, operand): (usize, &Operand)| {
            let name = INPUT_NAMES[i];
            (Some(i) != self.in_place).then(|| match operand.dtype {
                DType::F64 => Elements::F64(args.take_in(name)),
                DType::BF16 => Elements::BF16(args.take_in(name)),
                _ => Elements::F32(args.take_in(name)),
            })
        };
        let inputs: Vec<_> = self.operands.iter().enumerate().map(input).collect();
        let out = &mut out[..args.take_u64("count") as usize];
        args.workers().each_chunk(out, CHUNK, |chunk, out| self.run_chunk(chunk * CHUNK, out, &inputs));
    }

    fn run_chunk<T: Real<Acc: Lane>>(&self, first: usize, out: &mut [T], inputs: &[Option<Elements<'_>>]) {
        let zero = T::Acc::zero();
        let mut loaded = vec![[zero; BLOCK]; inputs.len()];
        let mut registers = vec![[zero; BLOCK]; self.instructions.len()];
        for (block, out) in out.chunks_mut(BLOCK).enumerate() {
            let at = first + block * BLOCK;
            for (i, lane) in loaded.iter_mut().enumerate() {
                let lane = &mut lane[..out.len()];
                match inputs[i] {
                    None => lane.iter_mut().zip(&*out).for_each(|(lane, &x)| *lane = x.load()),
                    Some(elements) => elements.fill(at, self.operands[i].indexing, lane),
                }
            }
            self.compute(out.len(), &loaded, &mut registers);
            let result = &registers[registers.len() - 1];
            out.iter_mut().zip(result).for_each(|(out, &x)| *out = T::store(x));
        }
    }

    fn compute<A: Lane>(&self, len: usize, loaded: &[[A; BLOCK]], registers: &mut [[A; BLOCK]]) {
        for (at, instruction) in self.instructions.iter().enumerate() {
            let (before, rest) = registers.split_at_mut(at);
            let pick = |arg: &ArgSource| match *arg {
                ArgSource::Input(i) => &loaded[i][..len],
                ArgSource::Register(i) => &before[i][..len],
            };
            let out = &mut rest[0][..len];
            match instruction.args.as_slice() {
                [a] => A::call(instruction.function, &[pick(a)], out),
                [a, b] => A::call(instruction.function, &[pick(a), pick(b)], out),
                [a, b, c] => A::call(instruction.function, &[pick(a), pick(b), pick(c)], out),
                _ => unreachable!("a function takes one to three numbers"),
            }
        }
    }
}

impl Elements<'_> {
    /// Loads the elements for outputs `at` and on.
    fn fill<A: Float>(self, at: usize, indexing: Indexing, lane: &mut [A]) {
        match self {
            Elements::F32(x) => fill(x, |x| A::of(f64::from(x)), at, indexing, lane),
            Elements::F64(x) => fill(x, A::of, at, indexing, lane),
            Elements::BF16(x) => fill(x, |x| A::of(f64::from(x.to_f32())), at, indexing, lane),
        }
    }
}

#[inline(always)]
fn fill<E: Element, A: Copy>(x: &[E], load: impl Fn(E) -> A, at: usize, indexing: Indexing, lane: &mut [A]) {
    match indexing {
        Indexing::Full => lane.iter_mut().zip(&x[at..]).for_each(|(lane, &x)| *lane = load(x)),
        Indexing::Periodic(1) => lane.fill(load(x[0])),
        Indexing::Periodic(period) => {
            let (period, mut done) = (period as usize, 0);
            while done < lane.len() {
                let from = (at + done) % period;
                let count = (period - from).min(lane.len() - done);
                lane[done..done + count].iter_mut().zip(&x[from..]).for_each(|(lane, &x)| *lane = load(x));
                done += count;
            }
        }
        Indexing::Repeated(run) => {
            let (run, mut done) = (run as usize, 0);
            while done < lane.len() {
                let row = (at + done) / run;
                let count = ((row + 1) * run - at - done).min(lane.len() - done);
                lane[done..done + count].fill(load(x[row]));
                done += count;
            }
        }
    }
}
