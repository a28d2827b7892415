//! A mistake is an error at the call that makes it, with the expected and the given.

use tandem_device::{DType, Machine};
use tandem_engine::{EngineError, Graph, HostValue, NamedLayout, Program, Recomputed, TensorType, UpdateSpec};

use super::support::{TestTrainer, fields, programs, ragged};

fn f32(dims: &[u32]) -> TensorType {
    TensorType::new(DType::F32, dims)
}

fn fails_with<T>(result: Result<T, EngineError>, expected: &str) {
    match result {
        Ok(_) => panic!("accepted; expected the error: {expected}"),
        Err(error) => assert_eq!(error.to_string(), expected),
    }
}

#[test]
fn incompatible_operands() {
    let mut g = Graph::new(Default::default(), DType::F32);
    let x = g.input("x", f32(&[7, 5])).unwrap();
    let w = g.input("w", f32(&[3, 4])).unwrap();
    let in_f64 = g.input("in_f64", TensorType::new(DType::F64, &[3, 5])).unwrap();
    let ids = g.input("ids", TensorType::new(DType::I32, &[7, 5])).unwrap();
    fails_with(
        g.linear(x, w, None),
        "matmul: takes [m, k] and [k, n] transposed, or batches of them; the operands are F32[7, 5] and F32[3, 4]",
    );
    fails_with(
        g.linear(x, in_f64, None),
        "matmul: multiplies two tensors of one floating element type; the operands are F32[7, 5] and F64[3, 5]",
    );
    fails_with(
        g.add(x, w),
        "add: shapes must be equal, or one a vector along the last dimensions, a number per row, or one number; \
         the operands are F32[7, 5] and F32[3, 4]",
    );
    fails_with(
        g.mul(x, ids),
        "mul: element-wise functions take f32, bf16 or f64; the operands are F32[7, 5] and I32[7, 5]",
    );
    fails_with(g.reshape(x, &[6, 6]), "reshape: [6, 6] must have as many elements; the operands are F32[7, 5]");
    fails_with(
        g.add_into(x, w),
        "add_into: a sum and its summand have one type; the operands are F32[7, 5] and F32[3, 4]",
    );
}

#[test]
fn names_that_are_declared_twice() {
    let mut g = Graph::new(Default::default(), DType::F32);
    let x = g.input("x", f32(&[7, 5])).unwrap();
    fails_with(g.input("x", f32(&[5, 7])), "input x was declared twice, as F32[7, 5] and as F32[5, 7]");
    g.host("lr", f32(&[1])).unwrap();
    fails_with(g.host("lr", f32(&[2])), "host value lr was declared twice, as F32[1] and as F32[2]");
    g.state("count", TensorType::new(DType::U32, &[1])).unwrap();
    fails_with(g.state("count", f32(&[1])), "state count was declared twice, as U32[1] and as F32[1]");
    g.result("out", x).unwrap();
    fails_with(g.result("out", x), "result out was declared twice, as F32[7, 5] and as F32[7, 5]");
    fails_with(g.gradients(x, &[], &Recomputed::new()), "a loss must be a scalar, not a tensor of shape [7, 5]");
}

#[test]
fn a_batch_layout_that_does_not_match_the_program() {
    let mut g = Graph::new(Default::default(), DType::F32);
    let x = g.input("x", f32(&[7, 5])).unwrap();
    g.result("out", x).unwrap();
    let compile = |fields: &[(&str, TensorType)]| {
        let mut layout = NamedLayout::default();
        for (name, ty) in fields {
            layout.place(name, *ty).unwrap();
        }
        Program::compile(&g, &layout, &mut NamedLayout::default())
    };
    fails_with(
        compile(&[("mel", f32(&[7, 5])), ("text", f32(&[2]))]),
        "there is no input called x; there are mel, text",
    );
    fails_with(compile(&[("x", f32(&[7, 6]))]), "input x is F32[7, 6], given F32[7, 5]");
    fails_with(compile(&[("x", TensorType::new(DType::I32, &[7, 5]))]), "input x is I32[7, 5], given F32[7, 5]");
}

#[test]
fn two_programs_that_disagree_about_a_state() {
    let (mut set, _) = programs(DType::F32, 2, &UpdateSpec::default());
    let mut g = Graph::new(set.parameters().clone(), DType::F32);
    let updates = g.state("updates", f32(&[1])).unwrap();
    g.result("updates", updates).unwrap();
    fails_with(
        set.add("other", &g, &NamedLayout::default()),
        "tensor updates was declared twice, as U32[1] and as F32[1]",
    );
}

#[test]
fn host_values_that_are_missing_or_of_another_type() {
    let mut trainer = TestTrainer::new(&Machine::cpu(), DType::F32, 2);
    let before = trainer.bits();
    let update = trainer.update;
    let session = &mut trainer.session;
    let lr = ("lr", HostValue::F32(&[1e-3]));
    fails_with(
        session.run(update, None, &[lr, ("decay", HostValue::F32(&[0.9]))]),
        "there is no host value called ema_decay; there are lr, decay",
    );
    fails_with(
        session.run(update, None, &[lr, ("ema_decay", HostValue::F64(&[0.9]))]),
        "host value ema_decay is F32[1], given 1 elements of F64",
    );
    fails_with(
        session.run(update, None, &[("lr", HostValue::F32(&[1e-3, 1e-3])), ("ema_decay", HostValue::F32(&[0.9]))]),
        "host value lr is F32[1], given 2 elements of F32",
    );
    assert!(trainer.bits() == before, "a refused run does not start");
    assert_eq!(trainer.session.read_state::<u32>("updates").unwrap(), [0]);
    trainer.step(&fields(&ragged(2)), 0.1, 1e-2);
    assert!(trainer.bits() != before, "a session continues after a refusal");
}

#[test]
fn fields_states_and_results_of_another_name_or_type() {
    let mut trainer = TestTrainer::new(&Machine::cpu(), DType::F32, 2);
    let (accumulate, update) = (trainer.accumulate, trainer.update);
    let session = &trainer.session;
    fails_with(
        session.write_input(accumulate, "mel", &[0.0_f32]),
        "there is no input called mel; there are x, y, mask",
    );
    fails_with(
        session.write_input(accumulate, "mask", &[1_i32; 24]),
        "input mask is F32[24, 1], given 24 elements of I32",
    );
    fails_with(
        session.write_input(accumulate, "mask", &[1.0_f32; 23]),
        "input mask is F32[24, 1], given 23 elements of F32",
    );
    fails_with(session.write_state("updates", &[1.0_f32]), "state updates is U32[1], given 1 elements of F32");
    fails_with(
        session.read_state::<u32>("steps"),
        "there is no state called steps; there are updates, skipped, skipped_in_a_row",
    );
    let results = trainer.results(update);
    fails_with(results.get::<f32>("updates"), "result updates is U32[1], given 1 elements of F32");
    fails_with(
        results.get::<f32>("loss"),
        "there is no result called loss; there are updates, skipped, skipped_in_a_row, gradient_norm",
    );
}
