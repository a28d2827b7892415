//! The CUDA text of a chain: a vector of elements per thread, with 16-byte loads and stores if every address is aligned.
//!
//! The text contains all that the host kernel depends on, so that it identifies the chain: equal texts share a kernel.

use std::fmt::Write as _;

use tandem_device::DType;

use super::{ArgSource, Chain, Operand};
use crate::ops::pointwise::Indexing;

/// Device functions that chains call.
const FUNCTIONS: &str = include_str!("../functions.cuh");

/// Most full operands for vectors of eight elements: with more, the registers cost more than the vectors gain.
const OPERANDS_FOR_EIGHT: usize = 4;
/// Tensors of fewer elements are indexed in 32 bits. Division by a constant is then two instructions, not eight.
const MAX_U32_ELEMENTS: u64 = 1 << 31;

impl Chain {
    /// Elements of a thread's vector: 16 bytes of the smallest element type.
    pub(super) fn vector_length(&self) -> u32 {
        let full = || self.operands.iter().filter(|operand| operand.indexing == Indexing::Full);
        let has_bf16 = self.output.dtype == DType::BF16 || full().any(|operand| operand.dtype == DType::BF16);
        if has_bf16 && full().count() <= OPERANDS_FOR_EIGHT { 8 } else { 4 }
    }

    /// The text. Input `in_place`, if any, is in the memory of the output.
    pub(super) fn cuda_text(&self, in_place: Option<usize>) -> String {
        let mut text = format!("constexpr bool APPROXIMATE = {};\n\n{FUNCTIONS}\n", self.output.dtype == DType::BF16);
        let index = if self.output.shape.elements() < MAX_U32_ELEMENTS { "u32" } else { "u64" };
        let _ = writeln!(text, "typedef {index} index_t;\nconstexpr u32 N = {};\n", self.vector_length());
        self.write_element(&mut text);
        self.write_signature(&mut text, in_place);
        self.write_vector_loop(&mut text, in_place);
        self.write_scalar_loop(&mut text, in_place);
        text
    }

    /// The device function of one element.
    fn write_element(&self, text: &mut String) {
        let inputs: Vec<String> = (0..self.operands.len()).map(|i| format!("f32 x{i}")).collect();
        let _ = writeln!(text, "__device__ inline f32 element({}) {{", inputs.join(", "));
        for (at, instruction) in self.instructions.iter().enumerate() {
            let _ = write!(text, "    f32 r{at}; {{ /* {} */", instruction.function.name);
            for (name, arg) in ["a", "b", "c"].iter().zip(&instruction.args) {
                let _ = match arg {
                    ArgSource::Input(i) => write!(text, " const f32 {name} = x{i};"),
                    ArgSource::Register(i) => write!(text, " const f32 {name} = r{i};"),
                };
            }
            let _ = writeln!(text, " r{at} = {}; }}", instruction.function.cuda);
        }
        let _ = writeln!(text, "    return r{};\n}}\n", self.instructions.len() - 1);
    }

    fn write_signature(&self, text: &mut String, in_place: Option<usize>) {
        let output = name_of(self.output.dtype);
        let _ = write!(text, "extern \"C\" __global__ void __launch_bounds__(256) chain({output}* __restrict__ out");
        for (i, operand) in self.operands.iter().enumerate().filter(|(i, _)| Some(*i) != in_place) {
            let _ = write!(text, ", const {}* __restrict__ in{i}", name_of(operand.dtype));
        }
        text.push_str(", u64 count) {\n");
        text.push_str("    const index_t n = (index_t)count;\n");
        text.push_str("    const index_t first = (index_t)thread_index(), stride = (index_t)thread_count();\n");
    }

    /// Full vectors of elements.
    fn write_vector_loop(&self, text: &mut String, in_place: Option<usize>) {
        let length = self.vector_length();
        let mut aligned = vec!["is_aligned(out)".to_owned()];
        let vectors = |(i, operand): &(usize, &Operand)| Some(*i) != in_place && operand.has_vectors(length);
        aligned.extend(self.operands.iter().enumerate().filter(vectors).map(|(i, _)| format!("is_aligned(in{i})")));
        let _ = writeln!(text, "    index_t done = 0;\n    if ({}) {{", aligned.join(" && "));
        text.push_str("        done = n / N * N;\n");
        text.push_str("        for (index_t i = first * N; i < done; i += stride * N) {\n");
        for (i, operand) in self.operands.iter().enumerate() {
            let from = memory_of(i, in_place);
            let _ = writeln!(text, "            f32 x{i}[N];\n            {}", operand.vector_load(i, &from, length));
        }
        let inputs: Vec<String> = (0..self.operands.len()).map(|i| format!("x{i}[j]")).collect();
        text.push_str("            f32 y[N];\n#pragma unroll\n");
        let _ = writeln!(text, "            for (u32 j = 0; j < N; j++) y[j] = element({});", inputs.join(", "));
        text.push_str("            store_vec(out + i, y);\n        }\n    }\n");
    }

    /// The remaining elements, or all of them if an address is not aligned.
    fn write_scalar_loop(&self, text: &mut String, in_place: Option<usize>) {
        let input = |(i, operand): (usize, &Operand)| {
            format!("(f32){}[{}]", memory_of(i, in_place), index_of(operand.indexing, "i"))
        };
        let inputs: Vec<String> = self.operands.iter().enumerate().map(input).collect();
        text.push_str("    for (index_t i = done + first; i < n; i += stride) {\n");
        let _ = writeln!(text, "        out[i] = {}(element({}));", name_of(self.output.dtype), inputs.join(", "));
        text.push_str("    }\n}\n");
    }
}

impl Operand {
    /// Whether the elements for a vector of outputs are adjacent, and are loaded as a vector.
    fn has_vectors(&self, length: u32) -> bool {
        match self.indexing {
            Indexing::Full => true,
            Indexing::Periodic(period) => period.is_multiple_of(length),
            Indexing::Repeated(_) => false,
        }
    }

    /// Loads `x{i}`, the elements for outputs `i` and on: as a vector, or one by one in a loop over `j`.
    fn vector_load(&self, i: usize, from: &str, length: u32) -> String {
        let index = index_of(self.indexing, "i");
        let is_one = match self.indexing {
            Indexing::Full => false,
            Indexing::Periodic(period) => period == 1,
            Indexing::Repeated(run) => run.is_multiple_of(length),
        };
        if self.has_vectors(length) {
            return format!("load_vec({from} + {index}, x{i});");
        }
        let index = if is_one { index } else { index_of(self.indexing, "(i + j)") };
        format!("for (u32 j = 0; j < N; j++) x{i}[j] = (f32){from}[{index}];")
    }
}

/// The pointer that an operand is read from.
fn memory_of(i: usize, in_place: Option<usize>) -> String {
    if Some(i) == in_place { "out".to_owned() } else { format!("in{i}") }
}

/// The index into an operand for element `at` of the output.
fn index_of(indexing: Indexing, at: &str) -> String {
    match indexing {
        Indexing::Full => at.to_owned(),
        Indexing::Periodic(1) => "0".to_owned(),
        Indexing::Periodic(period) => format!("{at} % {period}u"),
        Indexing::Repeated(run) => format!("{at} / {run}u"),
    }
}

/// Chains in f64 run on the host only: their text is never compiled.
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
    use crate::ops::pointwise::identity_function;
    use crate::tensor::TensorType;

    #[test]
    fn adjacent_operands_are_loaded_as_vectors() {
        let check = |indexing, length, expected: &str| {
            assert_eq!(Operand { dtype: DType::F32, indexing }.vector_load(2, "in2", length), expected);
        };
        let each = |index: &str| format!("for (u32 j = 0; j < N; j++) x2[j] = (f32)in2[{index}];");
        check(Indexing::Full, 4, "load_vec(in2 + i, x2);");
        check(Indexing::Periodic(1), 4, &each("0"));
        check(Indexing::Periodic(12), 4, "load_vec(in2 + i % 12u, x2);");
        check(Indexing::Periodic(12), 8, &each("(i + j) % 12u"));
        check(Indexing::Repeated(16), 8, &each("i / 16u"));
        check(Indexing::Repeated(6), 4, &each("(i + j) / 6u"));
    }

    /// A cast of `[rows, 24]` to `to`, from this operand.
    fn cast(dtype: DType, indexing: Indexing, to: DType, rows: u32) -> Chain {
        let instructions = vec![Instruction { function: identity_function(), args: vec![ArgSource::Input(0)] }];
        Chain { instructions, operands: vec![Operand { dtype, indexing }], output: TensorType::new(to, &[rows, 24]) }
    }

    #[test]
    fn all_that_the_host_kernel_depends_on_is_in_the_text() {
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
        let texts: HashSet<String> = chains.iter().map(|(chain, in_place)| chain.cuda_text(*in_place)).collect();
        assert_eq!(texts.len(), chains.len());
        let longer = cast(F32, full, F32, 10).cuda_text(None);
        assert!(texts.contains(&longer), "a batch of another length shares the kernel");
    }

    #[test]
    fn a_vector_is_sixteen_bytes_of_the_smallest_element_type() {
        let check = |from, to, expected| assert_eq!(cast(from, Indexing::Full, to, 9).vector_length(), expected);
        check(DType::F32, DType::F32, 4);
        check(DType::BF16, DType::F32, 8);
        check(DType::F32, DType::BF16, 8);
    }
}
