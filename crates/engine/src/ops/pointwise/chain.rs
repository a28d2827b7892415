//! A chain: several element-wise functions as one pass over memory.
//!
//! The host kernel works through blocks that stay in the first-level cache: each function runs over a block before the next one
//! starts, so that every loop is over plain slices. The kernel is made when the chain is, from its instructions, and lives
//! as long as the process; equal chains share one.

mod cuda;

use std::collections::HashMap;
use std::sync::{Mutex, OnceLock, PoisonError};

use half::bf16;
use tandem_device::{DType, Element, Grid, HostArgs, Kernel, Param, Source};

use super::arithmetic::is_add;
use super::{Function, Indexing, broadcast};
use crate::error::EngineError;
use crate::graph::{Graph, Value};
use crate::lower::{LaunchArg, Lower};
use crate::op::Op;
use crate::real::{Float, Real};
use crate::tensor::TensorType;

/// Most inputs and instructions of one chain.
const MAX_INPUTS: usize = 10;
const MAX_INSTRUCTIONS: usize = 24;
/// Elements of a block: the registers of a long chain still fit the first-level cache.
const BLOCK: usize = 256;
/// Elements of a piece that one thread works on.
const PIECE: usize = 16 * 1024;

/// What an instruction reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Source1 {
    Input(usize),
    Register(usize),
}

/// One function of a chain; its result is the register of its number.
#[derive(Clone, Debug)]
struct Instruction {
    function: &'static Function,
    args: Vec<Source1>,
}

/// An input as the chain reads it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Operand {
    dtype: DType,
    indexing: Indexing,
}

/// The op that a fused chain is.
#[derive(Debug)]
pub struct Chain {
    instructions: Vec<Instruction>,
    operands: Vec<Operand>,
    output: TensorType,
}

/// A chain that still grows.
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

    /// Appends `function`. What `fused` knows of its inputs becomes part of this chain.
    pub(crate) fn push(
        &mut self,
        graph: &Graph,
        function: &'static Function,
        inputs: &[Value],
        mut fused: impl FnMut(Value) -> Option<ChainBuilder>,
    ) {
        let mut args = Vec::with_capacity(inputs.len());
        let mut seen: HashMap<Value, Source1> = HashMap::new();
        for &value in inputs {
            let source = match seen.get(&value) {
                Some(known) => *known,
                None => match fused(value) {
                    Some(part) => self.absorb(part),
                    None => self.input(value),
                },
            };
            seen.insert(value, source);
            args.push(source);
        }
        debug_assert!(inputs.iter().all(|input| broadcast(graph.shape(*input), self.output.shape).is_some()));
        self.instructions.push(Instruction { function, args });
    }

    /// Whether one more function may be appended to it, and it to another chain.
    pub(crate) fn has_room(&self) -> bool {
        self.instructions.len() <= MAX_INSTRUCTIONS / 3 && self.inputs.len() <= MAX_INPUTS / 3
    }

    /// What it reads so far.
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

    fn input(&mut self, value: Value) -> Source1 {
        let at = self.inputs.iter().position(|known| *known == value).unwrap_or_else(|| {
            self.inputs.push(value);
            self.inputs.len() - 1
        });
        Source1::Input(at)
    }

    /// Takes another chain's instructions in; its last register is the answer.
    fn absorb(&mut self, part: ChainBuilder) -> Source1 {
        let inputs: Vec<Source1> = part.inputs.iter().map(|value| self.input(*value)).collect();
        let shift = self.instructions.len();
        for mut instruction in part.instructions {
            for arg in &mut instruction.args {
                *arg = match *arg {
                    Source1::Input(i) => inputs[i],
                    Source1::Register(i) => Source1::Register(i + shift),
                };
            }
            self.instructions.push(instruction);
        }
        Source1::Register(self.instructions.len() - 1)
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

    fn is_sum_of_two(&self) -> bool {
        let plain = |operand: &Operand| operand.indexing == Indexing::Full && operand.dtype == self.output.dtype;
        let [only] = &self.instructions[..] else { return false };
        is_add(only.function) && self.operands.len() == 2 && self.operands.iter().all(plain)
    }

    fn lower(&self, at: &mut Lower<'_>) -> Result<(), EngineError> {
        let elements = self.output.shape.elements();
        if elements == 0 {
            return Ok(());
        }
        let kernel = self.kernel(at.taken_over());
        let mut args = vec![at.outputs[0].write()];
        let apart = |i: &usize| Some(*i) != at.taken_over();
        args.extend((0..at.inputs.len()).filter(apart).map(|i| at.inputs[i].read()));
        args.push(LaunchArg::U64(elements));
        let groups = elements.div_ceil(u64::from(self.elements_at_a_time()));
        at.launch(kernel, Grid::cover(groups, 256), args);
        Ok(())
    }
}

impl Chain {
    /// The kernel of this chain, where input `taken_over` lies in the output's memory.
    fn kernel(&self, taken_over: Option<usize>) -> &'static Kernel {
        static KNOWN: OnceLock<Mutex<HashMap<String, &'static Kernel>>> = OnceLock::new();
        let text = self.cuda_text(taken_over);
        let mut known = KNOWN.get_or_init(Mutex::default).lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(kernel) = known.get(&text) {
            return kernel;
        }
        let kernel = self.make_kernel(text.clone(), taken_over);
        known.insert(text, kernel);
        kernel
    }

    fn make_kernel(&self, text: String, taken_over: Option<usize>) -> &'static Kernel {
        let mut params = vec![Param::Out(self.output.dtype)];
        let apart = self.operands.iter().enumerate().filter(|(i, _)| Some(*i) != taken_over);
        params.extend(apart.map(|(_, operand)| Param::In(operand.dtype)));
        params.push(Param::U64);
        let source = Source { file: "engine/chain.cu", text: String::leak(text) };
        let instructions = self.instructions.clone();
        let plan = TwinPlan { instructions, operands: self.operands.clone(), taken_over };
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

/// What a chain's host kernel does.
struct TwinPlan {
    instructions: Vec<Instruction>,
    operands: Vec<Operand>,
    taken_over: Option<usize>,
}

/// Whether functions run in f32 or f64.
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

/// An input's elements, whatever they are stored as.
#[derive(Clone, Copy)]
enum Elements<'a> {
    F32(&'a [f32]),
    F64(&'a [f64]),
    BF16(&'a [bf16]),
}

impl TwinPlan {
    fn run<T: Real<Acc: Lane>>(&self, args: &mut HostArgs<'_>) {
        let mut argument = 1;
        let mut inputs = Vec::with_capacity(self.operands.len());
        for (i, operand) in self.operands.iter().enumerate() {
            if Some(i) == self.taken_over {
                inputs.push(None);
                continue;
            }
            inputs.push(Some(match operand.dtype {
                DType::F64 => Elements::F64(args.read(argument)),
                DType::BF16 => Elements::BF16(args.read(argument)),
                _ => Elements::F32(args.read(argument)),
            }));
            argument += 1;
        }
        let elements = args.u64(argument) as usize;
        let workers = args.workers();
        let out = &mut args.write::<T>(0)[..elements];
        workers.each_chunk(out, PIECE, |piece, out| self.piece(piece * PIECE, out, &inputs));
    }

    fn piece<T: Real<Acc: Lane>>(&self, first: usize, out: &mut [T], inputs: &[Option<Elements<'_>>]) {
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
            let answer = &registers[registers.len() - 1];
            out.iter_mut().zip(answer).for_each(|(out, &x)| *out = T::store(x));
        }
    }

    fn compute<W: Lane>(&self, len: usize, loaded: &[[W; BLOCK]], registers: &mut [[W; BLOCK]]) {
        for (at, instruction) in self.instructions.iter().enumerate() {
            let (before, rest) = registers.split_at_mut(at);
            let pick = |arg: &Source1| match *arg {
                Source1::Input(i) => &loaded[i][..len],
                Source1::Register(i) => &before[i][..len],
            };
            let out = &mut rest[0][..len];
            match instruction.args.as_slice() {
                [a] => W::call(instruction.function, &[pick(a)], out),
                [a, b] => W::call(instruction.function, &[pick(a), pick(b)], out),
                [a, b, c] => W::call(instruction.function, &[pick(a), pick(b), pick(c)], out),
                _ => unreachable!("a function takes one to three numbers"),
            }
        }
    }
}

impl Elements<'_> {
    /// The elements that meet outputs `at` and on.
    fn fill<W: Float>(self, at: usize, indexing: Indexing, lane: &mut [W]) {
        match self {
            Elements::F32(x) => fill(x, |x| W::of(f64::from(x)), at, indexing, lane),
            Elements::F64(x) => fill(x, W::of, at, indexing, lane),
            Elements::BF16(x) => fill(x, |x| W::of(f64::from(x.to_f32())), at, indexing, lane),
        }
    }
}

#[inline(always)]
fn fill<E: Element, W: Copy>(x: &[E], wide: impl Fn(E) -> W, at: usize, indexing: Indexing, lane: &mut [W]) {
    match indexing {
        Indexing::Full => lane.iter_mut().zip(&x[at..]).for_each(|(lane, &x)| *lane = wide(x)),
        Indexing::Periodic(1) => lane.fill(wide(x[0])),
        Indexing::Periodic(period) => {
            let (period, mut done) = (period as usize, 0);
            while done < lane.len() {
                let from = (at + done) % period;
                let count = (period - from).min(lane.len() - done);
                lane[done..done + count].iter_mut().zip(&x[from..]).for_each(|(lane, &x)| *lane = wide(x));
                done += count;
            }
        }
        Indexing::Repeated(run) => {
            let (run, mut done) = (run as usize, 0);
            while done < lane.len() {
                let row = (at + done) / run;
                let count = ((row + 1) * run - at - done).min(lane.len() - done);
                lane[done..done + count].fill(wide(x[row]));
                done += count;
            }
        }
    }
}
