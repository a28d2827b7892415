//! A chain as CUDA text: several elements a thread, moved 16 bytes at a time where every address allows it.
//!
//! The text also says everything that the host kernel depends on, so that it names the chain: equal texts share a kernel.

use std::fmt::Write as _;

use tandem_device::DType;

use super::{Chain, Operand, Source1};
use crate::ops::pointwise::Indexing;

/// What functions are made of.
const FUNCTIONS: &str = include_str!("../functions.cuh");

/// Operands of one element each up to which a thread takes eight elements: more need more registers than they gain.
const OPERANDS_FOR_EIGHT: usize = 4;
/// Tensors below this have their places counted in 32 bits. Division by a constant is then two instructions, not eight.
const SHORT: u64 = 1 << 31;

impl Chain {
    /// Elements that a thread takes at a time: 16 bytes of the narrowest tensor.
    pub(super) fn elements_at_a_time(&self) -> u32 {
        let full = || self.operands.iter().filter(|operand| operand.indexing == Indexing::Full);
        let narrow = self.output.dtype == DType::BF16 || full().any(|operand| operand.dtype == DType::BF16);
        if narrow && full().count() <= OPERANDS_FOR_EIGHT { 8 } else { 4 }
    }

    /// The text, where input `taken_over` lies in the output's memory.
    pub(super) fn cuda_text(&self, taken_over: Option<usize>) -> String {
        let mut text = format!("constexpr bool ROUGH = {};\n\n{FUNCTIONS}\n", self.output.dtype == DType::BF16);
        let place = if self.output.shape.elements() < SHORT { "u32" } else { "u64" };
        let _ = writeln!(text, "typedef {place} place;\nconstexpr u32 WIDE = {};\n", self.elements_at_a_time());
        self.write_element(&mut text);
        self.write_signature(&mut text, taken_over);
        self.write_wide_loop(&mut text, taken_over);
        self.write_single_loop(&mut text, taken_over);
        text
    }

    /// The function of one element: inputs to result.
    fn write_element(&self, text: &mut String) {
        let inputs: Vec<String> = (0..self.operands.len()).map(|i| format!("f32 x{i}")).collect();
        let _ = writeln!(text, "__device__ inline f32 element({}) {{", inputs.join(", "));
        for (at, instruction) in self.instructions.iter().enumerate() {
            let _ = write!(text, "    f32 r{at}; {{ /* {} */", instruction.function.name);
            for (name, arg) in ["a", "b", "c"].iter().zip(&instruction.args) {
                let _ = match arg {
                    Source1::Input(i) => write!(text, " const f32 {name} = x{i};"),
                    Source1::Register(i) => write!(text, " const f32 {name} = r{i};"),
                };
            }
            let _ = writeln!(text, " r{at} = {}; }}", instruction.function.cuda);
        }
        let _ = writeln!(text, "    return r{};\n}}\n", self.instructions.len() - 1);
    }

    fn write_signature(&self, text: &mut String, taken_over: Option<usize>) {
        let output = name_of(self.output.dtype);
        let _ = write!(text, "extern \"C\" __global__ void __launch_bounds__(256) chain({output}* __restrict__ out");
        for (i, operand) in self.operands.iter().enumerate().filter(|(i, _)| Some(*i) != taken_over) {
            let _ = write!(text, ", const {}* __restrict__ in{i}", name_of(operand.dtype));
        }
        text.push_str(", u64 count) {\n");
        text.push_str("    const place n = (place)count;\n");
        text.push_str("    const place first = (place)thread_index(), stride = (place)thread_count();\n");
    }

    /// Whole groups of elements.
    fn write_wide_loop(&self, text: &mut String, taken_over: Option<usize>) {
        let wide = self.elements_at_a_time();
        let mut aligned = vec!["is_aligned(out)".to_owned()];
        let moved = |(i, operand): &(usize, &Operand)| Some(*i) != taken_over && operand.is_moved_wide(wide);
        aligned.extend(self.operands.iter().enumerate().filter(moved).map(|(i, _)| format!("is_aligned(in{i})")));
        let _ = writeln!(text, "    place done = 0;\n    if ({}) {{", aligned.join(" && "));
        text.push_str("        done = n / WIDE * WIDE;\n");
        text.push_str("        for (place i = first * WIDE; i < done; i += stride * WIDE) {\n");
        for (i, operand) in self.operands.iter().enumerate() {
            let from = memory_of(i, taken_over);
            let _ = writeln!(text, "            f32 x{i}[WIDE];\n            {}", operand.wide_load(i, &from, wide));
        }
        let inputs: Vec<String> = (0..self.operands.len()).map(|i| format!("x{i}[j]")).collect();
        text.push_str("            f32 y[WIDE];\n#pragma unroll\n");
        let _ = writeln!(text, "            for (u32 j = 0; j < WIDE; j++) y[j] = element({});", inputs.join(", "));
        text.push_str("            store_vec(out + i, y);\n        }\n    }\n");
    }

    /// What is left over: a few elements, or all of them.
    fn write_single_loop(&self, text: &mut String, taken_over: Option<usize>) {
        let input = |(i, operand): (usize, &Operand)| {
            format!("(f32){}[{}]", memory_of(i, taken_over), index_of(operand.indexing, "i"))
        };
        let inputs: Vec<String> = self.operands.iter().enumerate().map(input).collect();
        text.push_str("    for (place i = done + first; i < n; i += stride) {\n");
        let _ = writeln!(text, "        out[i] = {}(element({}));", name_of(self.output.dtype), inputs.join(", "));
        text.push_str("    }\n}\n");
    }
}

impl Operand {
    /// Whether its elements of a group lie side by side, and are moved so.
    fn is_moved_wide(&self, wide: u32) -> bool {
        match self.indexing {
            Indexing::Full => true,
            Indexing::Periodic(period) => period.is_multiple_of(wide),
            Indexing::Repeated(_) => false,
        }
    }

    /// Fills `x{i}` with what meets elements `i` and on. In a loop over `j` where they have to be looked up one by one.
    fn wide_load(&self, i: usize, from: &str, wide: u32) -> String {
        let index = index_of(self.indexing, "i");
        let is_one = match self.indexing {
            Indexing::Full => false,
            Indexing::Periodic(period) => period == 1,
            Indexing::Repeated(run) => run.is_multiple_of(wide),
        };
        if self.is_moved_wide(wide) {
            return format!("load_vec({from} + {index}, x{i});");
        }
        let index = if is_one { index } else { index_of(self.indexing, "(i + j)") };
        format!("for (u32 j = 0; j < WIDE; j++) x{i}[j] = (f32){from}[{index}];")
    }
}

/// Where an operand is read.
fn memory_of(i: usize, taken_over: Option<usize>) -> String {
    if Some(i) == taken_over { "out".to_owned() } else { format!("in{i}") }
}

/// The element of an operand that meets element `at` of the result.
fn index_of(indexing: Indexing, at: &str) -> String {
    match indexing {
        Indexing::Full => at.to_owned(),
        Indexing::Periodic(1) => "0".to_owned(),
        Indexing::Periodic(period) => format!("{at} % {period}u"),
        Indexing::Repeated(run) => format!("{at} / {run}u"),
    }
}

/// Chains in f64 run on the host only: their text is a name.
fn name_of(dtype: DType) -> &'static str {
    match dtype {
        DType::BF16 => "bf16",
        DType::F64 => "double",
        _ => "f32",
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::super::Instruction;
    use super::*;
    use crate::ops::pointwise::same_function;
    use crate::tensor::TensorType;

    #[test]
    fn operands_are_moved_as_their_places_allow() {
        let check = |indexing, wide, expected: &str| {
            assert_eq!(Operand { dtype: DType::F32, indexing }.wide_load(2, "in2", wide), expected);
        };
        let each = |index: &str| format!("for (u32 j = 0; j < WIDE; j++) x2[j] = (f32)in2[{index}];");
        check(Indexing::Full, 4, "load_vec(in2 + i, x2);");
        check(Indexing::Periodic(1), 4, &each("0"));
        check(Indexing::Periodic(12), 4, "load_vec(in2 + i % 12u, x2);");
        check(Indexing::Periodic(12), 8, &each("(i + j) % 12u"));
        check(Indexing::Repeated(16), 8, &each("i / 16u"));
        check(Indexing::Repeated(6), 4, &each("(i + j) / 6u"));
    }

    /// A cast of `[rows, 24]` to `to`, from this operand.
    fn cast(dtype: DType, indexing: Indexing, to: DType, rows: u32) -> Chain {
        let instructions = vec![Instruction { function: same_function(), args: vec![Source1::Input(0)] }];
        Chain { instructions, operands: vec![Operand { dtype, indexing }], output: TensorType::new(to, &[rows, 24]) }
    }

    #[test]
    fn whatever_the_host_depends_on_is_in_the_text() {
        use DType::{BF16, F32};
        let full = Indexing::Full;
        let chains = [
            (cast(F32, full, F32, 9), None),
            (cast(F32, full, F32, 9), Some(0)),
            (cast(BF16, full, F32, 9), None),
            (cast(F32, full, BF16, 9), None),
            (cast(F32, Indexing::Periodic(24), F32, 9), None),
            (cast(F32, Indexing::Repeated(24), F32, 9), None),
            (cast(F32, full, F32, 1 << 27), None),
        ];
        let texts: HashSet<String> = chains.iter().map(|(chain, taken_over)| chain.cuda_text(*taken_over)).collect();
        assert_eq!(texts.len(), chains.len());
        let longer = cast(F32, full, F32, 10).cuda_text(None);
        assert!(texts.contains(&longer), "a batch of another length needs no kernel of its own");
    }

    #[test]
    fn a_thread_moves_sixteen_bytes_of_the_narrowest() {
        let check = |from, to, expected| assert_eq!(cast(from, Indexing::Full, to, 9).elements_at_a_time(), expected);
        check(DType::F32, DType::F32, 4);
        check(DType::BF16, DType::F32, 8);
        check(DType::F32, DType::BF16, 8);
    }
}
