//! Refused GEMMs and their messages.

use tandem_events::Role;

use super::*;
use crate::arena::{Arena, ArenaSpec};
use crate::machine::Machine;
use crate::stream::Stream;

fn stream_and_arena() -> (Stream, Arena) {
    let device = Machine::cpu().open(0).unwrap();
    let arena_bytes = 1 << 20;
    let spec = ArenaSpec::new(Role::Model, arena_bytes);
    (device.stream(true).unwrap(), Arena::reserve_as(&device, spec, false).unwrap())
}

const DENSE: Gemm = Gemm::dense(DType::F32, [3, 4, 5]);

#[test]
fn impossible_gemms_are_refused_by_name() {
    let (stream, arena) = stream_and_arena();
    let [a, b, c] = ["a", "b", "c"].map(|name| arena.take(name, 4096).unwrap());
    let check = |gemm: Gemm, problem: &str| {
        let error = stream.gemm(&gemm, a.view(), b.view(), c.view(), None, None).expect_err(problem).to_string();
        assert!(error.starts_with(&format!("GEMM {gemm}: ")) && error.contains(problem), "{error}");
    };
    check(Gemm { dtype: DType::U32, out: DType::U32, ..DENSE }, "no GEMM of U32 into U32");
    check(Gemm { out: DType::BF16, ..DENSE }, "no GEMM of F32 into BF16");
    check(Gemm { alpha: f64::NAN, ..DENSE }, "alpha is NaN");
    check(Gemm { c: DENSE.c.transposed(), ..DENSE }, "C is never transposed");
    check(Gemm { a: Operand::rows(4), ..DENSE }, "rows of A have 5 elements and a stride of 4");
    check(Gemm { b: Operand::rows(4).transposed(), ..DENSE }, "rows of B have 5 elements and a stride of 4");
    check(Gemm { c: Operand::rows(3), ..DENSE }, "rows of C have 4 elements and a stride of 3");
    check(Gemm { batch: 2, ..DENSE }, "matrices of C overlap with a batch stride of 0");
    check(Gemm { batch: 2, c: Operand::rows(8).every(3), ..DENSE }, "matrices of C overlap with a batch stride of 3");
    check(Gemm { batch: 3, c: Operand::rows(8).every(4), ..DENSE }, "matrices of C overlap with a batch stride of 4");
    check(Gemm { k: 4000, a: Operand::rows(4000), ..DENSE }, "A needs 12000 elements, given 1024");
    let far = Gemm { batch: 2, a: Operand::rows(5).every(u64::MAX), c: Operand::rows(4).every(12), ..DENSE };
    check(far, "A needs more than 2^64 elements");
}

#[test]
fn matrices_of_c_may_follow_each_other_or_be_side_by_side() {
    let (stream, arena) = stream_and_arena();
    let [a, b, c] = ["a", "b", "c"].map(|name| arena.take(name, 4096).unwrap());
    for layout in [Operand::rows(4).every(12), Operand::rows(8).every(4), Operand::rows(9).every(5)] {
        let gemm = Gemm { batch: 2, c: layout, ..DENSE };
        stream.gemm(&gemm, a.view(), b.view(), c.view(), None, None).unwrap();
    }
}

#[test]
fn memory_that_does_not_fit_is_refused() {
    let (stream, arena) = stream_and_arena();
    let block = arena.take("block", 4096).unwrap();
    let check = |[a, b, c, bias]: [(u64, u64); 4], problem: &str| {
        let part = |(from, bytes)| block.part(from, bytes);
        let result = stream.gemm(&DENSE, part(a), part(b), part(c), Some(part(bias)), None);
        match problem {
            "" => result.unwrap(),
            _ => assert!(result.as_ref().is_err_and(|error| error.to_string().contains(problem)), "{result:?}"),
        }
    };
    let [a, b, c, bias] = [(0, 60), (64, 80), (256, 48), (512, 16)];
    check([a, b, c, bias], "");
    check([(0, 56), b, c, bias], "A needs 15 elements, given 14");
    check([a, (64, 76), c, bias], "B needs 20 elements, given 19");
    check([a, b, (256, 44), bias], "C needs 12 elements, given 11");
    check([a, b, c, (512, 12)], "the bias needs 4 elements, given 3");
    check([(2, 60), b, c, bias], "A is not aligned to elements");
    check([a, b, (56, 48), bias], "C overlaps A");
    check([a, b, (140, 48), bias], "C overlaps B");
    check([a, b, c, (300, 16)], "C overlaps the bias");
    // The bias may be in bytes that C does not use.
    check([a, b, (256, 3840), (304, 16)], "");
}

#[test]
fn a_workspace_is_aligned_and_overlaps_nothing() {
    let (stream, arena) = stream_and_arena();
    let block = arena.take("block", 4096).unwrap();
    let check = |(from, bytes), problem: &str| {
        let [a, b, c, bias] = [(0, 60), (256, 80), (512, 48), (768, 16)].map(|(from, bytes)| block.part(from, bytes));
        let result = stream.gemm(&DENSE, a, b, c, Some(bias), Some(block.part(from, bytes)));
        match problem {
            "" => result.unwrap(),
            _ => assert!(result.as_ref().is_err_and(|error| error.to_string().contains(problem)), "{result:?}"),
        }
    };
    check((1024, 3072), "");
    check((1024, 7), "");
    check((1028, 512), "is not aligned to 256 bytes");
    check((0, 256), "the workspace overlaps A");
    check((256, 256), "the workspace overlaps B");
    check((768, 256), "the workspace overlaps the bias");
    check((512, 256), "the workspace overlaps C");
}
