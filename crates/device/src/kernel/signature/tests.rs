//! Declarations that match the CUDA text pass; every way of not matching is found.

use half::bf16;

use super::*;
use crate::kernel::{Element, HostArgs};
use crate::kernel_args;

static SOURCE: Source = Source {
    file: "tests/signatures.cu",
    text: r#"
#define SIZE 64
// A comment with extern "C" __global__ void none(u32* x) { in it.
template <typename T> __device__ void body(const T* x, T* out, u64 n) {}

#define KERNEL(NAME, T)                                                                            \
    extern "C" __global__ void __launch_bounds__(256, (BLOCKS<SIZE, T>)) /* not the name */         \
        NAME##_##T(const T* __restrict__ x, T* out, f32 factor, u64 n) { body(x, out, n); }
#define FOR_EVERY_TYPE(KERNEL) KERNEL(scale, f32) KERNEL(scale, bf16)
#define NAMED(name) name##32
FOR_EVERY_TYPE(KERNEL)

#pragma unroll
extern "C" __global__ void NAMED(plain_)(const float* a, double* b, u32) {}
extern "C" __global__ void nothing() {}
"#,
};

kernel_args! {
    /// Arguments of `scale`.
    struct ScaleArgs<T: Element> { x: in T, out: out T, factor: f32, n: u64 }
}

fn no_host(_: &mut HostArgs<'_>) {}

fn kernel(name: &'static str, params: &'static [Param]) -> Kernel {
    Kernel { name, source: &SOURCE, params, host: &no_host }
}

/// What is found wrong with one declaration.
fn problems(name: &'static str, params: &'static [Param]) -> Vec<String> {
    signature_problems(&[], &[&kernel(name, params)])
}

#[test]
fn declarations_that_match_the_cuda_text_pass() {
    assert_eq!(problems("scale_f32", ScaleArgs::params::<f32>()), [""; 0]);
    assert_eq!(problems("scale_bf16", ScaleArgs::params::<bf16>()), [""; 0]);
    assert_eq!(problems("nothing", &[]), [""; 0]);
}

#[test]
fn every_mismatch_is_found() {
    kernel_args! { struct Renamed { input: in f32, out: out f32, factor: f32, n: u64 } }
    kernel_args! { struct Reordered { out: out f32, x: in f32, factor: f32, n: u64 } }
    kernel_args! { struct Writes { x: out f32, out: out f32, factor: f32, n: u64 } }
    kernel_args! { struct Retyped { x: in f32, out: out f32, factor: f32, n: u32 } }
    kernel_args! { struct Shorter { x: in f32, out: out f32, factor: f32 } }
    kernel_args! { struct Longer { x: in f32, out: out f32, factor: f32, n: u64, more: u32 } }
    let check = |params, written: &str, declared: &str| {
        let found = problems("scale_f32", params);
        assert!(found.len() == 1, "{found:?}");
        let text = format!("is {written} in the CUDA text, and {declared} in the declaration");
        assert!(found[0].contains("tests/signatures.cu") && found[0].contains(&text), "{found:?}");
    };
    check(Renamed::params(), "`const f32* x`", "`const f32* input`");
    check(Reordered::params(), "`const f32* x`", "`f32* out`");
    check(Writes::params(), "`const f32* x`", "`f32* x`");
    check(ScaleArgs::params::<bf16>(), "`const f32* x`", "`const bf16* x`");
    check(Retyped::params(), "`u64 n`", "`u32 n`");
    check(Shorter::params(), "`u64 n`", "nothing");
    check(Longer::params(), "nothing", "`u32 more`");
}

#[test]
fn a_parameter_without_a_name_is_found() {
    kernel_args! { struct PlainArgs { a: in f32, b: out f64, n: u32 } }
    let found = problems("plain_32", PlainArgs::params());
    let expected = "parameter 2 of plain_32 is `u32` in the CUDA text, and `u32 n` in the declaration";
    assert_eq!(found, [format!("tests/signatures.cu: {expected}")]);
}

#[test]
fn a_kernel_that_is_not_in_the_text_is_found() {
    assert_eq!(problems("absent", &[]), ["tests/signatures.cu has no kernel absent"]);
}

#[test]
fn a_kernel_without_a_declaration_is_found() {
    let declared = kernel("scale_f32", ScaleArgs::params::<f32>());
    let found = signature_problems(&[&SOURCE], &[&declared]);
    let undeclared = ["nothing", "plain_32", "scale_bf16"];
    assert_eq!(found, undeclared.map(|name| format!("tests/signatures.cu: kernel {name} has no declaration")));
}

#[test]
fn text_that_cannot_be_preprocessed_is_found() {
    let source = Source { file: "if.cu", text: "#ifdef X\n#endif\n" };
    assert_eq!(signature_problems(&[&source], &[]), ["if.cu: directive `#ifdef X` is not supported"]);
}
